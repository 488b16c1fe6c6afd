"""Groups of failures of the newest runs: a row for each phase, and one for each cause where people read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from qualify.facts.overview import RunHead
from qualify.judge.summary import TroubleGroup
from qualify.report.causes import mistake, phases_text, told
from qualify.report.columns import AnyTable, Column, Table
from qualify.report.figures import counted
from qualify.report.known import known_to_all
from qualify.report.sitepages.parts import PagePart, address, case_address, verdict_words
from qualify.report.sitepages.standing import Newest, where
from qualify.report.views import SEVERITY
from qualify.verdict.waivers import WAIVED_BY

MODELS = 4
"""most models that a row names"""


@dataclass(frozen=True, kw_only=True, slots=True)
class TroubleRow:
    """A group of failures of a run, of one phase or of several."""

    head: RunHead
    trouble: TroubleGroup
    """of several phases: all their models and cases, and else what the first phase says"""
    phases: Mapping[str, int]
    """number of cases of each phase"""


def trouble_rows(newest: Sequence[Newest]) -> list[TroubleRow]:
    """What went wrong in the newest runs, the worst first: of each run in the order of the gate and of the report."""
    rows = [
        TroubleRow(head=it.head, trouble=found, phases={found.phase: len(found.cases)})
        for it in newest
        if it.details
        for found in it.details.troubles
    ]
    return sorted(rows, key=lambda row: SEVERITY.index(row.trouble.verdict))


def told_once(rows: Iterable[TroubleRow]) -> tuple[TroubleRow, ...]:
    """The groups, where one cause in several phases of a run is one group, as in the report."""
    alike: dict[tuple[str, ...], list[TroubleRow]] = {}
    for row in rows:
        it = row.trouble
        waived = it.reason.partition(WAIVED_BY)[2]
        key = (row.head.id, it.verdict, it.kernel, it.check, *mistake(it.check, it.finding, it.reason), _known(it))
        alike.setdefault((*key, waived), []).append(row)
    return tuple(_joined(same) for same in alike.values())


def _joined(rows: Sequence[TroubleRow]) -> TroubleRow:
    phases: Counter[str] = Counter()
    for row in rows:
        phases.update(row.phases)
    troubles = [row.trouble for row in rows]
    models = tuple(dict.fromkeys(model for it in troubles for model in it.models))
    cases = tuple(case for it in troubles for case in it.cases)
    return replace(rows[0], trouble=replace(troubles[0], models=models, cases=cases), phases=phases)


def _known(trouble: TroubleGroup) -> str:
    """The known defect behind a group, with its page; empty where there is none."""
    known = known_to_all(trouble.kernel, trouble.cases, trouble.check) if trouble.verdict == "FAIL" else None
    return known.words if known else ""


TROUBLES: tuple[Column[TroubleRow], ...] = (
    Column(
        key="verdict",
        title="Verdict",
        cell=lambda row: verdict_words(row.trouble.verdict),
        tone=lambda row: row.trouble.verdict,
    ),
    Column(
        key="kernel",
        title="Kernel",
        cell=lambda row: row.trouble.kernel,
        page=lambda row: address("kernels", row.trouble.kernel),
    ),
    Column(key="check", title="Check", cell=lambda row: row.trouble.check),
    Column(key="phase", title="Phase", name=True, cell=lambda row: phases_text(row.phases)),
    Column(key="count", title="Cases", cell=lambda row: len(row.trouble.cases), number=True),
    Column(key="models", title="Models", cell=lambda row: ", ".join(row.trouble.models), sentence=True),
    Column(
        key="cause",
        title="What is wrong",
        cell=lambda row: told(row.trouble.check, row.trouble.finding, row.trouble.reason).sentence,
        sentence=True,
    ),
    Column(key="reason", title="What was found first", cell=lambda row: row.trouble.reason, sentence=True),
    Column(key="known", title="Known", cell=lambda row: _known(row.trouble), sentence=True),
    Column(
        key="case",
        title="First case",
        cell=lambda row: row.trouble.cases[0],
        code=True,
        page=lambda row: case_address(row.trouble.cases[0]),
    ),
    *where(),
)


def _first_models(row: TroubleRow) -> str:
    names, rest = row.trouble.models[:MODELS], len(row.trouble.models) - MODELS
    return ", ".join(names) + (f" and {counted(rest, 'other')}" if rest > 0 else "")


SHORTER: dict[str, Column[TroubleRow]] = {
    "models": Column(key="models", title="Models", name=True, cell=_first_models),
    "matrix": Column(
        key="where", title="Where", name=True, cell=lambda row: f"{row.head.matrix} on {row.head.variant}"
    ),
}
SHOWN_OF_TROUBLE = tuple(SHORTER.get(column.key, column) for column in TROUBLES if column.key != "device")
"""columns of the page, where matrix and device are one, so that the run is in view"""


def troubles_part(heading: str, rows: Sequence[TroubleRow], caption: str, empty: str) -> PagePart:
    """Groups of failures. JSON and CSV have a row for each phase, the page one for each cause.

    Args:
        empty: the text where there is none.
    """
    table: AnyTable = Table(caption=caption, columns=TROUBLES, rows=tuple(rows))
    shown = replace(table, columns=SHOWN_OF_TROUBLE, rows=told_once(rows))
    count = counted(len(shown.rows), "group")
    return PagePart(key="findings", heading=heading, count=count, table=table, shown=shown, empty=empty)
