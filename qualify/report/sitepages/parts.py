"""Parts of the site's pages. A page is a list of parts; its JSON and its CSV come from the same tables."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote, urlencode

from qualify.facts import codec
from qualify.facts.run import Conclusion, Verdict
from qualify.judge.summary import Summary
from qualify.report.columns import AnyTable
from qualify.report.drawings.svg import Drawing
from qualify.report.page import SITE_STYLES, render_page
from qualify.report.sections import SYMBOLS
from qualify.report.site import SitePage, case_href
from qualify.report.verdict_text import DEMONSTRATION
from qualify.report.views import WORDS
from qualify.text import visible

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""beginnings of a cell that a spreadsheet would compute"""
FieldKind = Literal["text", "textarea", "hidden", "select", "search", "password"]
_SYMBOL = re.compile(r"\b[ERG] \d|β|\((worst element|worst row|all rows)\)")
"""matches a measured error in a sentence: ``1.3 > 1 (worst element)``, or ``E 1.3 > 1`` as an older qualify said it"""
NO_RUN = "No completed run is stored here. Make one: qualify run MATRIX"
"""text of a part that shows runs, where none is stored"""
NOT_YET = "Not known yet: not all of the newest runs are judged."
"""text in place of good news, where a run is still being judged that could prove the good news wrong"""
DEMONSTRATED = f"{WORDS['NOT_REQUIRED'][0]} {DEMONSTRATION}"
"""text in place of the verdict on a demonstration that passed"""
PENDING = "· being judged"
"""text in place of a verdict on a run that is being judged"""


@dataclass(frozen=True, kw_only=True, slots=True)
class FormField:
    """One field of a form."""

    name: str
    label: str = ""
    kind: FieldKind = "text"
    value: str = ""
    options: tuple[str, ...] = ()
    """options of a select; proposals of a text field"""
    words: Mapping[str, str] = field(default_factory=dict)
    """by option of a select, the words that a person reads in its place"""
    required: bool = True
    longest: int = 200
    """most characters of the value"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """A form: something that a person can do."""

    title: str
    action: str
    button: str
    fields: tuple[FormField, ...]
    method: Literal["get", "post"] = "post"
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """One point of a timeline."""

    x: float
    tone: str
    """name of a verdict whose colour the point has"""
    glyph: str
    title: str
    """text shown on hover"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """A picture of what happened when, with a lane for each subject. The table below it holds the same."""

    caption: str
    lanes: tuple[tuple[str, tuple[Mark, ...]], ...]
    ticks: tuple[tuple[float, str], ...]
    """place and label of each tick of the time axis"""

    @property
    def height(self) -> int:
        """Height in units of the picture."""
        return 28 * len(self.lanes) + 24


@dataclass(frozen=True, kw_only=True, slots=True)
class PageLink:
    """A link of a part."""

    text: str
    href: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PagePart:
    """One section of a page. The page leaves out every field that is empty."""

    key: str
    """name of the part in JSON, and id of its element in the page"""
    heading: str
    count: str = ""
    """text beside the heading"""
    notes: tuple[str, ...] = ()
    terms: tuple[tuple[str, str], ...] = ()
    table: AnyTable | None = None
    shown: AnyTable | None = None
    """table that the page shows instead of ``table``, which JSON and CSV hold whole"""
    empty: str = ""
    """text where the table has no row"""
    timeline: Timeline | None = None
    drawings: tuple[Drawing, ...] = ()
    """drawings of the table's numbers"""
    forms: tuple[Form, ...] = ()
    links: tuple[PageLink, ...] = ()
    links_to: str = ""
    """text before the links"""

    @property
    def symbols(self) -> str:
        """The meaning of E, R, G and β where a sentence of the table uses them; else empty."""
        table = self.shown or self.table
        if table is None:
            return ""
        columns = [column for column in table.columns if column.sentence]
        found = any(_SYMBOL.search(str(column.cell(row))) for row in table.rows for column in columns)
        return SYMBOLS if found else ""

    def data(self) -> Any:
        """The part for JSON."""
        if self.table is not None:
            return self.table.data()
        return dict(self.terms) if self.terms else list(self.notes)


@dataclass(frozen=True, kw_only=True, slots=True)
class PartsPage(SitePage):
    """A page of parts."""

    parts: tuple[PagePart, ...]
    notes: tuple[str, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)
    """fields that its JSON has beside the parts"""
    listed: str = ""
    """key of the part whose table its CSV holds; empty = the first part with a table"""

    @property
    def table(self) -> AnyTable | None:
        """The table of the page that its CSV holds; None where it has none."""
        tables = (part.table for part in self.parts if not self.listed or part.key == self.listed)
        return next((table for table in tables if table is not None), None)


def render_parts(page: SitePage, template: str = "parts.html") -> str:
    """The page as HTML."""
    return render_page(template, page, SITE_STYLES, page)


def parts_json(kind: str, page: PartsPage) -> str:
    """The page as JSON. Its field ``schema`` names ``kind`` and version."""
    data = {part.key: part.data() for part in page.parts if part.table is not None or part.terms}
    return codec.to_json({"schema": f"qualify.{kind}/1", **data, **page.more})


def parts_csv(page: PartsPage) -> str:
    """The listed table as CSV."""
    return "".join(csv_pieces([] if page.table is None else [page.table]))


def csv_pieces(tables: Iterable[AnyTable]) -> Iterator[str]:
    """CSV of one table that comes in pieces. A cell that a spreadsheet would compute begins with an apostrophe."""
    for number, table in enumerate(tables):
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\r\n")
        if number == 0:
            writer.writerow([column.key for column in table.columns])
        for row in table.data():
            writer.writerow([_cell(value) for value in row.values()])
        yield file.getvalue()


def _cell(value: object) -> object:
    if not isinstance(value, str):
        return "" if value is None else value
    text = visible(value)
    return f"'{text}" if text.startswith(FORMULA) else text


def verdict_words(verdict: Verdict | None) -> str:
    """Glyph and word of a verdict; None = the run is being judged, and the words say so."""
    return " ".join(WORDS[verdict]) if verdict else PENDING


def run_words(told: Summary | Conclusion | None, *limits: str) -> str:
    """Glyph and word of the verdict on a run, as :func:`verdict_words`, with its limits; a demonstration is called one.

    Args:
        limits: more that limits what the verdict says, such as that the run was narrowed.
    """
    verdict, demonstration = (told.verdict, told.demonstration) if told else (None, False)
    passed = demonstration and verdict == "PASS"
    shown = DEMONSTRATED if passed else verdict_words(verdict)
    beside = [DEMONSTRATION, *limits] if demonstration and not passed else limits
    return f"{shown} ({', '.join(beside)})" if beside else shown


def tone_of(verdict: Verdict | None) -> str:
    """The style class of a verdict; None = the run is being judged."""
    return verdict or "NOT_REQUIRED"


def run_address(run_id: str) -> str:
    """The address of a run's report."""
    return f"/runs/{quote(run_id, safe='')}"


def case_address(case_id: str) -> str:
    """The address of a case with its history."""
    return case_href("/cases", case_id)


def run_case_address(run_id: str, case_id: str) -> str:
    """The address of a case in one run, with its evidence."""
    return case_href(f"{run_address(run_id)}/cases", case_id)


def address(*parts: str, **query: object) -> str:
    """An address made of path parts and a query, without empty parameters."""
    given = {key: value for key, value in query.items() if value not in ("", None)}
    path = "/" + "/".join(quote(part, safe="") for part in parts)
    return f"{path}?{urlencode(given)}" if given else path


def last_offset(offset: int, limit: int, total: int) -> int:
    """The offset of a page; where it is beyond the end of the list, the offset of the last page.

    Args:
        offset: number of the first row that was asked for.
        limit: rows of a page.
        total: rows of the list.
    """
    return min(offset, max(0, (total - 1) // limit * limit))


def linked(make: Callable[[str], str], name: str) -> str:
    """The address that ``make`` gives for a name; empty where the name is empty."""
    return make(name) if name else ""
