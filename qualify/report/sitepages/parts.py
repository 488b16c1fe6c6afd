"""What pages of the site are made of. A page is a list of parts; its JSON and its CSV come from the same tables."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote, urlencode

from qualify.facts import codec
from qualify.facts.run import Verdict
from qualify.report.columns import AnyTable
from qualify.report.drawings.svg import Drawing
from qualify.report.page import SITE_STYLES, render_page
from qualify.report.sections import SYMBOLS
from qualify.report.site import SitePage, case_href
from qualify.report.views import WORDS
from qualify.text import visible

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""how a cell begins that a spreadsheet would compute"""
FieldKind = Literal["text", "textarea", "hidden", "select", "search", "password"]
_SYMBOL = re.compile(r"\b[ERG] \d|β")
"""a measured error as sentences have it: E 1.3 > 1"""
NO_RUN = "No completed run is stored here. Make one: qualify run MATRIX"
NOT_YET = "Not known yet: not all of the newest runs are judged."
"""in place of good news that a run which is being judged could make wrong"""
"""said where a page could tell only of runs"""
PENDING = "· being judged"
"""a verdict that is not at hand yet"""


@dataclass(frozen=True, kw_only=True, slots=True)
class FormField:
    """One thing that a form asks for."""

    name: str
    label: str = ""
    kind: FieldKind = "text"
    value: str = ""
    options: tuple[str, ...] = ()
    """of a select; what a text field proposes"""
    words: Mapping[str, str] = field(default_factory=dict)
    """by option of a select, what a person reads in its place"""
    required: bool = True
    longest: int = 200
    """characters"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """What a person can do."""

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
    """name of a verdict whose colour it has"""
    glyph: str
    title: str
    """what it says when it is pointed at"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """What happened when, one lane for each subject; the table below it says the same in words."""

    caption: str
    lanes: tuple[tuple[str, tuple[Mark, ...]], ...]
    ticks: tuple[tuple[float, str], ...]
    """place and words of the time axis"""

    @property
    def height(self) -> int:
        """In units of the picture."""
        return 28 * len(self.lanes) + 24


@dataclass(frozen=True, kw_only=True, slots=True)
class PageLink:
    """Where a part leads."""

    text: str
    href: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PagePart:
    """One section of a page; what is empty is left out."""

    key: str
    """its name in JSON, and its fragment"""
    heading: str
    count: str = ""
    """said beside the heading"""
    notes: tuple[str, ...] = ()
    terms: tuple[tuple[str, str], ...] = ()
    table: AnyTable | None = None
    shown: AnyTable | None = None
    """what stands on the page instead of the table, which JSON and CSV have whole"""
    empty: str = ""
    """said where the table has no row"""
    timeline: Timeline | None = None
    drawings: tuple[Drawing, ...] = ()
    """pictures of what the table says"""
    forms: tuple[Form, ...] = ()
    links: tuple[PageLink, ...] = ()
    links_to: str = ""
    """said before the links"""

    @property
    def symbols(self) -> str:
        """What E, R, G and β mean, where a sentence of the table has them; else empty."""
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
    """what its JSON has beside the parts"""

    @property
    def table(self) -> AnyTable | None:
        """The table that its CSV holds."""
        return next((part.table for part in self.parts if part.table is not None), None)


def render_parts(page: SitePage, template: str = "parts.html") -> str:
    """The page as HTML."""
    return render_page(template, page, SITE_STYLES, page)


def parts_json(kind: str, page: PartsPage) -> str:
    """The page as JSON, versioned by ``schema``."""
    data = {part.key: part.data() for part in page.parts if part.table is not None or part.terms}
    return codec.to_json({"schema": f"qualify.{kind}/1", **data, **page.more})


def parts_csv(page: PartsPage) -> str:
    """The first table as CSV. A cell that a spreadsheet would compute begins with an apostrophe."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\r\n")
    if page.table is not None:
        writer.writerow([column.key for column in page.table.columns])
        for row in page.table.data():
            writer.writerow([_cell(value) for value in row.values()])
    return file.getvalue()


def _cell(value: object) -> object:
    if not isinstance(value, str):
        return "" if value is None else value
    text = visible(value)
    return f"'{text}" if text.startswith(FORMULA) else text


def verdict_words(verdict: Verdict | None) -> str:
    """Glyph and word; of a verdict that is not at hand, that it is being worked out."""
    return " ".join(WORDS[verdict]) if verdict else PENDING


def tone_of(verdict: Verdict | None) -> str:
    """The style of a verdict."""
    return verdict or "NOT_REQUIRED"


def run_address(run_id: str) -> str:
    """The report of a run."""
    return f"/runs/{quote(run_id, safe='')}"


def case_address(case_id: str) -> str:
    """A case with its history."""
    return case_href("/cases", case_id)


def run_case_address(run_id: str, case_id: str) -> str:
    """A case of one run with its evidence."""
    return case_href(f"{run_address(run_id)}/cases", case_id)


def address(*parts: str, **query: object) -> str:
    """An address of parts and a query; what is empty in the query is left out."""
    given = {key: value for key, value in query.items() if value not in ("", None)}
    path = "/" + "/".join(quote(part, safe="") for part in parts)
    return f"{path}?{urlencode(given)}" if given else path


def last_offset(offset: int, limit: int, total: int) -> int:
    """The offset of a page; for a page behind the end of a list, the offset of its last page."""
    return min(offset, max(0, (total - 1) // limit * limit))


def linked(make: Callable[[str], str], name: str) -> str:
    """An address of something that may have no name; empty for nowhere."""
    return make(name) if name else ""
