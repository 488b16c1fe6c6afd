"""What a reviewer decides by, before the details: a tile for each thing that the gate looks at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from qualify.facts.people import SignedOff
from qualify.facts.performance import BudgetVerdict, Performance
from qualify.facts.run import Conclusion, Verdict
from qualify.report.beside import Beside
from qualify.report.figures import counted
from qualify.report.views import SEVERITY, WORDS
from qualify.report.waived import used_waivers

CASES: dict[Verdict, tuple[str, str]] = {
    "FAIL": ("fails", "fail"),
    "INCONCLUSIVE": ("is undecided", "are undecided"),
    "WAIVED": ("is waived", "are waived"),
    "PASS": ("passes", "pass"),
}
"""verb for one case, and verb for several"""
BUDGETS: dict[BudgetVerdict, str] = {"FAIL": "exceeded", "INCONCLUSIVE": "undecided", "PASS": "kept"}


@dataclass(frozen=True, kw_only=True, slots=True)
class BasisTile:
    """One thing that the gate looks at, its state, and the section that tells more."""

    title: str
    verdict: Verdict
    """verdict whose colour and glyph the tile has"""
    text: str
    anchor: str
    """anchor of the section that tells more"""

    @property
    def glyph(self) -> str:
        """Glyph of the verdict, so that colour is not the only sign."""
        return WORDS[self.verdict][0]


def tiles(conclusion: Conclusion, beside: Beside, *, signable: bool) -> tuple[BasisTile, ...]:
    """The tiles, in the order in which a reviewer asks. A topic that the matrix does not require has no tile.

    Args:
        signable: whether somebody may sign the evidence.
    """
    return (
        *_shapes(conclusion),
        _cases(conclusion),
        _time(beside.performance),
        *_baseline(beside),
        *_waivers(conclusion),
        _signoff(beside.signed, signable=signable),
    )


def _worst(verdicts: Iterable[Verdict]) -> Verdict:
    return min(verdicts, key=SEVERITY.index, default="NOT_REQUIRED")


def _shapes(conclusion: Conclusion) -> Iterable[BasisTile]:
    required = conclusion.required
    if required:
        has = "has" if conclusion.proven == 1 else "have"
        text = f"{conclusion.proven:,} of {len(required):,} {has} a proven path"
        worst = _worst(cell.verdict for cell in required)
        yield BasisTile(title="Production shapes", verdict=worst, text=text, anchor="answers")


def _cases(conclusion: Conclusion) -> BasisTile:
    counts = conclusion.counts["verdicts"]
    found: list[Verdict] = [name for name in SEVERITY if name != "NOT_REQUIRED" and counts.get(name)]
    worst, total = _worst(found), sum(counts[name] for name in found)
    one, many = CASES[worst] if found else ("", "")
    text = f"{counts[worst]:,} of {total:,} {one if counts[worst] == 1 else many}" if found else "none ran"
    return BasisTile(title="Cases", verdict=worst, text=text, anchor="cases")


def _time(found: Performance | None) -> BasisTile:
    if found is None:
        return BasisTile(title="Time", verdict="NOT_REQUIRED", text="the matrix has no budget", anchor="pictures")
    count = sum(use.verdict == found.verdict for use in found.budgets)
    text = f"{count} of {counted(len(found.budgets), 'budget')} {BUDGETS[found.verdict]}"
    text = "no evidence counts yet" if found.why_not else text
    return BasisTile(title="Time", verdict=found.verdict, text=text, anchor="time")


def _baseline(beside: Beside) -> Iterable[BasisTile]:
    """What changed since the accepted baseline, where something did."""
    weaker, slower, against = beside.weaker, beside.slower, beside.against
    if weaker:
        level = {change.kind for change in weaker.changes} == {"level"}
        verdict: Verdict = ("INCONCLUSIVE" if level else "FAIL") if weaker.forbidden else "WAIVED"
        text = f"{counted(len(weaker.changes), 'requirement')} weaker"
        yield BasisTile(title="Baseline", verdict=verdict, text=text, anchor="weaker")
    if slower:
        text = f"{counted(len(slower.cases), 'case')} slower"
        yield BasisTile(title="Baseline", verdict="WAIVED", text=text, anchor="slower")
    if against and against.forbidden:
        text = f"{counted(len(against.forbidden), 'change')} forbidden"
        yield BasisTile(title="Baseline", verdict="FAIL", text=text, anchor="changes")


def _waivers(conclusion: Conclusion) -> Iterable[BasisTile]:
    used = used_waivers(conclusion)
    if conclusion.expired:
        yield BasisTile(title="Waivers", verdict="FAIL", text=f"{len(conclusion.expired)} expired", anchor="waivers")
    elif used:
        count = counted(sum(len(use.waived) for use in used), "failure")
        text = f"{count} accepted until {used[0].waiver.expires} at the earliest"
        yield BasisTile(title="Waivers", verdict="WAIVED", text=text, anchor="waivers")


def _signoff(signed: Sequence[SignedOff], *, signable: bool) -> BasisTile:
    valid = [it.signoff for it in signed if it.state == "valid"]
    if valid:
        more = f" and {len(valid) - 1} more" if valid[1:] else ""
        text = f"{valid[-1].by}, {valid[-1].role}{more}"
        return BasisTile(title="Signed by", verdict="PASS", text=text, anchor="signoffs")
    unproven = sum(it.state == "unproven" for it in signed)
    text = "nobody: none is in force any more" if signed else "nobody yet" if signable else "nobody"
    text = f"nobody proven: {unproven} without a token" if unproven else text
    return BasisTile(title="Signed by", verdict="NOT_REQUIRED", text=text, anchor="signoffs")
