"""Pages of runs: the list with its search, and the choice of two runs to compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from qualify.facts.overview import RunHead, RunList, RunQuery
from qualify.judge.summary import Summary
from qualify.report.columns import AnyTable, Column, Table
from qualify.report.figures import counted
from qualify.report.sitepages.parts import (
    NO_RUN,
    Form,
    FormField,
    PageLink,
    PagePart,
    PartsPage,
    address,
    linked,
    run_address,
    run_words,
    tone_of,
)
from qualify.report.views import WORDS

TREND = 12
"""most runs that a trend shows"""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRow:
    """A run in a list."""

    head: RunHead
    summary: Summary | None
    """None = the run is being judged"""
    before: str = ""
    """id of the previous run of the same matrix and device model; empty = none"""
    signed: int = 0
    """number of sign-offs that were not revoked"""

    @property
    def words(self) -> str:
        """The verdict, with its limits: a demonstration, a part of the matrix, a run that has not completed."""
        part = ["a part of the matrix"] if self.head.narrowed else []
        state = [self.head.state] if self.head.state != "completed" else []
        return run_words(self.summary, *part, *state)


def proven_shapes(head: RunHead, summary: Summary | None) -> str:
    """How many shapes have a proven path; in words where the run needs none, or has no case. Empty = it is judged."""
    if summary is None:
        return ""
    if summary.shapes:
        return f"{summary.proven:,} of {summary.shapes:,}"
    return "no shape is required" if head.cases else "no case yet" if head.state == "running" else "no case"


def trend(summaries: Sequence[Summary | None]) -> str:
    """Glyphs of runs, the oldest first, so that time runs to the right.

    Args:
        summaries: summaries of the runs, the newest first; None = the run is being judged.
    """
    return " ".join(WORDS[it.shown][0] if it else "·" for it in reversed(summaries))


COLUMNS: tuple[Column[RunRow], ...] = (
    Column(
        key="verdict_shown",
        title="Verdict",
        cell=lambda row: row.words,
        tone=lambda row: tone_of(row.summary.shown if row.summary else None),
    ),
    Column(
        key="matrix",
        title="Matrix",
        cell=lambda row: row.head.matrix,
        page=lambda row: address("runs", q="", matrix=row.head.matrix),
    ),
    Column(key="run", title="Run", cell=lambda row: row.head.id, code=True, page=lambda row: run_address(row.head.id)),
    Column(key="began", title="Began (UTC)", cell=lambda row: f"{row.head.started_at:%Y-%m-%d %H:%M}"),
    Column(key="level", title="Level", cell=lambda row: row.head.level),
    Column(key="device", title="Device", name=True, cell=lambda row: row.head.variant or None),
    Column(
        key="stack_short",
        title="Stack",
        cell=lambda row: row.head.stack[:12],
        code=True,
        page=lambda row: linked(lambda name: address("stacks", name), row.head.stack),
    ),
    Column(key="proven", title="Shapes proven", cell=lambda row: proven_shapes(row.head, row.summary)),
    Column(
        key="signed",
        title="Signed",
        cell=lambda row: row.signed or "",
        page=lambda row: f"{run_address(row.head.id)}/decision",
    ),
    Column(
        key="changed",
        title="Run before",
        cell=lambda row: "compare" if row.before else "",
        page=lambda row: linked(lambda name: f"{run_address(row.head.id)}/against/{name}", row.before),
    ),
)
EXTRA: tuple[Column[RunRow], ...] = (
    Column(key="verdict", title="", cell=lambda row: row.summary.verdict if row.summary else None),
    Column(key="state", title="", cell=lambda row: row.head.state),
    Column(key="narrowed", title="", cell=lambda row: row.head.narrowed),
    Column(key="demonstration", title="", cell=lambda row: row.summary.demonstration if row.summary else None),
    Column(key="started_at", title="", cell=lambda row: row.head.started_at.isoformat()),
    Column(
        key="finished_at", title="", cell=lambda row: row.head.finished_at.isoformat() if row.head.finished_at else None
    ),
    Column(key="stack", title="", cell=lambda row: row.head.stack or None),
    Column(key="before", title="", cell=lambda row: row.before or None),
)
"""columns that only JSON and CSV have, with values for programs"""


def runs_table(rows: Sequence[RunRow], caption: str) -> AnyTable:
    """The runs as a table."""
    return Table(caption=caption, columns=COLUMNS, rows=tuple(rows))


def runs_page(
    query: RunQuery, found: RunList, rows: Sequence[RunRow], matrices: Sequence[str], trends: Mapping[str, str]
) -> PartsPage:
    """One page of the list of runs.

    Args:
        trends: trend of the last verdicts by matrix and device; empty where the query selects no single matrix.
    """
    shown = f"{query.offset + 1:,} to {query.offset + len(rows):,} of {found.total:,}" if rows else "none"
    part = PagePart(
        key="list",
        heading="Stored runs",
        count=shown,
        terms=tuple(trends.items()),
        table=runs_table(rows, "Stored runs, the newest first"),
        empty="No run matches. Try other words, or store a run: qualify run MATRIX" if matrices else NO_RUN,
        forms=(_search(query, matrices),),
        links=_turns(query, len(rows), found.total),
    )
    return PartsPage(
        title="Runs",
        here="/runs",
        twin=_place("runs.json", query),
        csv=_place("runs.csv", replace(query, offset=0, limit=RunQuery().limit)),
        parts=(part,),
        more={"runs": for_machines(rows).data(), "total": found.total, "offset": query.offset},
        notes=_pending(rows),
    )


def for_machines(rows: Sequence[RunRow]) -> AnyTable:
    """The runs as JSON and CSV have them, with values for programs."""
    return Table(caption="", columns=(*COLUMNS[1:3], *COLUMNS[4:6], *EXTRA), rows=tuple(rows))


def _place(page: str, query: RunQuery) -> str:
    """The address of the list for a query, without parameters that have their default."""
    limit = "" if query.limit == RunQuery().limit else query.limit
    named = {"q": query.text, "matrix": query.matrix, "stack": query.stack}
    return address(page, **named, offset=query.offset or "", limit=limit)


def _search(query: RunQuery, matrices: Sequence[str]) -> Form:
    """The search form above the list. It keeps the stack of the query, which only a link can set."""
    words = FormField(name="q", label="Id, matrix, device or stack", kind="search", value=query.text, required=False)
    matrix = FormField(
        name="matrix", label="Matrix", kind="select", value=query.matrix, options=("", *matrices), required=False
    )
    stack = [FormField(name="stack", kind="hidden", value=query.stack)] if query.stack else []
    return Form(title="Search", action="/runs", method="get", button="Search", fields=(words, matrix, *stack))


def _turns(query: RunQuery, shown: int, total: int) -> tuple[PageLink, ...]:
    """Links to the previous and to the next page of the list."""
    newer = replace(query, offset=max(0, query.offset - query.limit))
    older = replace(query, offset=query.offset + query.limit)
    links = [PageLink(text="Newer runs", href=_place("runs", newer))] if query.offset else []
    more = query.offset + shown < total
    return (*links, *([PageLink(text="Older runs", href=_place("runs", older))] if more else []))


def _pending(rows: Sequence[RunRow]) -> tuple[str, ...]:
    open_rows = sum(row.summary is None for row in rows)
    if not open_rows:
        return ()
    return (f"{counted(open_rows, 'verdict is', 'verdicts are')} being worked out; reload the page in a moment.",)


def compare_page(rows: Sequence[RunRow], after: str = "", before: str = "") -> PartsPage:
    """The page on which a person chooses two runs to compare.

    Args:
        rows: the newest runs, which the form proposes.
        after: id of the later run, if it was chosen before.
        before: id of the earlier run, if it was chosen before.
    """
    known = tuple(row.head.id for row in rows)
    form = Form(
        title="Two runs",
        action="/compare",
        method="get",
        button="Compare",
        note="Type the id of a run, its beginning, or latest. The earlier run may be baseline: the accepted one.",
        fields=(
            FormField(name="before", label="Earlier run", value=before, options=("baseline", *known)),
            FormField(name="after", label="Later run", value=after, options=("latest", *known)),
        ),
    )
    recent = PagePart(key="recent", heading="Recent runs", table=runs_table(rows, "The newest runs"), empty=NO_RUN)
    return PartsPage(
        title="Compare two runs",
        here="/compare",
        parts=(PagePart(key="compare", heading="Which runs", forms=(form,)), recent),
        twin="/compare.json",
        notes=_pending(rows),
    )
