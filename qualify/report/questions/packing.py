"""Does variable-length packing preserve the intended mask?"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from qualify.facts.checks import findings_about
from qualify.facts.outcome import Finding, Measured
from qualify.report.columns import Column, Table
from qualify.report.figures import counted
from qualify.report.questions.interface import Answer, Line, Link, State
from qualify.report.views import PHASES, CaseView, ModelView

PROBES = findings_about("mask")
"""findings of the exact checks (probes), one of which a wrong mask makes fail; other faults do, too"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Probed:
    """What the probes say about one kernel card on the packed shapes."""

    kernel: str
    cases: tuple[CaseView, ...]

    def findings(self, check: str) -> list[Finding]:
        """Findings of one probe on the cases, without notes, which give no verdict on the mask."""
        found = [finding for view in self.cases for finding in view.findings if finding.check == check]
        return [finding for finding in found if finding.verdict != "note"]

    def text(self, check: str) -> str:
        """Passed findings of all, for example ``5 of 6 pass, 1 fail``."""
        verdicts = [finding.verdict for finding in self.findings(check)]
        if not verdicts:
            return "not run"
        failed = verdicts.count("fail")
        return f"{verdicts.count('pass')} of {len(verdicts)} pass" + (f", {failed} fail" if failed else "")


def _probe(check: str) -> Column[Probed]:
    def cell(row: Probed) -> str:
        return row.text(check)

    return Column(key=check, title=check, cell=cell)


COLUMNS: tuple[Column[Probed], ...] = (
    Column(key="kernel", title="Kernel card", cell=lambda row: row.kernel, link=lambda row: row.cases[0].anchor),
    Column(key="cases", title="Cases run", unit="count", cell=lambda row: len(row.cases)),
    *(_probe(check) for check in PROBES),
)


def answer(model: ModelView) -> Answer:
    """What census, needle, poison and suffix say about packed batches, and which of them fails in any phase."""
    claimed = [view for view in model.cases if view.claimed]
    planned = [view for view in claimed if view.case.phase == "varlen"]
    failed = [view for view in claimed if _says(view, "fail")]
    if not planned and not failed:
        return Answer(
            state="untested", headline="Not tested by this matrix", lines=(Line(term="varlen", text="no such shape"),)
        )
    rows = _rows(planned)
    lacking = [view for view in claimed if _lacks(view)]
    return Answer(
        state=_state(rows, failed, lacking),
        headline=_headline(rows, failed, lacking),
        lines=(*(_lines(planned, rows) if planned else ()), *_other_phases(claimed)),
        notes=(
            (
                "census reads back which keys every query sees; needle compares the value of one key bit for bit; "
                "poison fills everything outside the valid region; suffix changes later keys and other sequences. "
                "None of them has a tolerance."
            ),
        ),
        tables=(Table(caption="Exact probes on packed shapes", columns=COLUMNS, rows=rows),) if rows else (),
        links_title="Cases in which a probe fails" if failed else "",
        links=tuple(Link(text=view.case.id, anchor=view.anchor) for view in failed),
    )


def _rows(planned: Sequence[CaseView]) -> tuple[Probed, ...]:
    by_kernel: dict[str, list[CaseView]] = {}
    for view in planned:
        if view.evidence:
            by_kernel.setdefault(view.case.kernel, []).append(view)
    return tuple(Probed(kernel=kernel, cases=tuple(views)) for kernel, views in by_kernel.items())


def _says(view: CaseView, verdict: str, checks: Collection[str] = PROBES) -> bool:
    return any(finding.check in checks and finding.verdict == verdict for finding in view.findings)


def _lacks(view: CaseView) -> bool:
    """Whether a case leaves the question open.

    A probe could not decide, or the card's kernel did not provably finish a packed batch.
    """
    if _says(view, "inconclusive"):
        return True
    ended = isinstance(view.outcome, Measured) and bool(view.evidence and view.evidence.witness.state != "unproven")
    unsettled = view.verdict in ("FAIL", "INCONCLUSIVE", "WAIVED")
    return view.case.phase == "varlen" and unsettled and not ended


def _open(rows: Sequence[Probed], lacking: Sequence[CaseView]) -> bool:
    verdicts = [finding.verdict for row in rows for check in PROBES for finding in row.findings(check)]
    return not verdicts or bool(lacking)


def _state(rows: Sequence[Probed], failed: Sequence[CaseView], lacking: Sequence[CaseView]) -> State:
    if failed:
        return "bad"
    return "open" if _open(rows, lacking) else "good"


def _headline(rows: Sequence[Probed], failed: Sequence[CaseView], lacking: Sequence[CaseView]) -> str:
    if failed:
        return f"Not for {_where(failed)}"
    if not rows:
        return "Not proven: no packed case ran"
    if not _open(rows, lacking):
        return "Yes, exactly"
    undecided = not lacking or any(_says(view, "inconclusive") for view in lacking)
    reason = (
        "probes are missing or inconclusive" if undecided else f"no proof for {counted(len(lacking), 'packed case')}"
    )
    return f"Not proven: {reason}"


def _where(failed: Sequence[CaseView]) -> str:
    """The kernels with the phases in which a probe fails on them; no phase where it is varlen for all."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for kernel in dict.fromkeys(view.case.kernel for view in failed):
        own = {view.case.phase for view in failed if view.case.kernel == kernel}
        alike.setdefault(tuple(phase for phase in PHASES if phase in own), []).append(kernel)
    if set(alike) == {("varlen",)}:
        return ", ".join(alike["varlen",])
    return "; ".join(f"{', '.join(kernels)} in {', '.join(phases)}" for phases, kernels in alike.items())


def _other_phases(claimed: Sequence[CaseView]) -> list[Line]:
    """A line for each phase other than varlen in which a probe fails."""
    lines = []
    for phase in (phase for phase in PHASES if phase != "varlen"):
        views = [view for view in claimed if view.case.phase == phase and view.evidence]
        failed = {check: sum(_says(view, "fail", (check,)) for view in views) for check in PROBES}
        told = [f"{check} in {count:,}" for check, count in failed.items() if count]
        if told:
            lines.append(Line(term=phase, text=f"fails {', '.join(told)} of {counted(len(views), 'case')}"))
    return lines


def _lines(planned: Sequence[CaseView], rows: Sequence[Probed]) -> tuple[Line, ...]:
    ran = sum(len(row.cases) for row in rows)
    lines = [Line(term="ran", text=f"{ran:,} of {counted(len(planned), 'packed case')}")]
    for check in PROBES:
        verdicts = [finding.verdict for row in rows for finding in row.findings(check)]
        if verdicts and set(verdicts) != {"pass"}:
            lines.append(Line(term=check, text=f"{verdicts.count('pass'):,} of {len(verdicts):,} pass"))
    passed = [check for check in PROBES if {f.verdict for row in rows for f in row.findings(check)} == {"pass"}]
    if passed:
        lines.append(Line(term=", ".join(passed), text="all pass"))
    return tuple(lines)
