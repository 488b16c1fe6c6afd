"""The verdict in words and the sentence beneath it: the first lines of the report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from qualify.facts.outcome import OUTCOMES
from qualify.facts.run import VERDICTS, Conclusion, Run
from qualify.judge.worst import worst_first
from qualify.report import figures
from qualify.report.beside import Beside
from qualify.report.performance import headline as performance_headline
from qualify.report.views import CaseView
from qualify.report.waived import waived_words
from qualify.report.weaker import headline as weaker_headline

HEADLINES = {0: "Qualified", 1: "Not qualified", 5: "No verdict"}
"""headline by exit code"""
DEMONSTRATED = "Demonstration on a CPU"
"""headline where a CPU stood in for a GPU"""
UNPROVEN = {0: "", 1: "not qualified"}
"""what is said of a demonstration by exit code"""


def headline(run: Run, conclusion: Conclusion) -> str:
    """The verdict in words. A part of a matrix, or a demonstration, is never called qualified."""
    if conclusion.demonstration:
        return ", ".join(filter(None, [DEMONSTRATED, _unproven(conclusion)]))
    if run.narrowed and conclusion.verdict == "PASS":
        return "What was selected passed"
    return HEADLINES.get(conclusion.exit_code, "No verdict")


def _unproven(conclusion: Conclusion) -> str:
    """What a demonstration ended with, unless it passed."""
    return UNPROVEN.get(conclusion.exit_code, "no verdict")


def summary(run: Run, views: Sequence[CaseView], conclusion: Conclusion, incidents: str, beside: Beside) -> str:
    """One sentence: the verdict, the number of cases and shapes behind it, and its limits.

    Args:
        incidents: how many replayed incidents are in each state, in words; empty where none was replayed.
    """
    by_verdict = {verdict: [view for view in views if view.verdict == verdict] for verdict in VERDICTS}
    failed, unclear = by_verdict["FAIL"], by_verdict["INCONCLUSIVE"]
    idle = sum(not view.ran for view in by_verdict["NOT_REQUIRED"])
    asked = len(views) - idle
    parts = [
        _of(len(failed), asked, "fails", "fail") if failed else "",
        _of(len(unclear), asked, "is inconclusive", "are inconclusive") if unclear else "",
        _paths(conclusion),
        *_limits(conclusion, beside),
        f"incidents: {incidents}" if incidents else "",
        _passed(len(by_verdict["PASS"]), asked, len(views)) if not failed else "",
        f"{idle:,} not required" if idle else "",
    ]
    what = headline(run, conclusion)
    if conclusion.demonstration:
        what, parts = f"{DEMONSTRATED}, which proves nothing about a GPU", [_unproven(conclusion), *parts]
    sentence = f"{what}: {', '.join(filter(None, parts))}"
    worst = worst_first(failed or unclear)
    return f"{sentence}; worst: {worst[0].case.id}." if worst else f"{sentence}."


def _limits(conclusion: Conclusion, beside: Beside) -> Iterable[str]:
    """What the verdict depends on beside cases: expired waivers, weaker requirements, budgets of time, waivers."""
    if expired := conclusion.expired:
        places = ", ".join(use.waiver.place for use in expired)
        yield f"{figures.counted(len(expired), 'waiver')} expired ({places})"
    if beside.weaker:
        yield weaker_headline(beside.weaker)
    if beside.performance:
        yield f"time: {performance_headline(beside.performance)}"
    if conclusion.verdict == "PASS" and (waived := waived_words(conclusion)):
        yield f"waived: {waived}"


def _of(count: int, total: int, one: str, many: str) -> str:
    return f"{count:,} of {figures.counted(total, 'case')} {one if count == 1 else many}"


def _passed(count: int, asked: int, known: int) -> str:
    """How many of the cases that had to run passed; that there was none where the run has none."""
    if not known:
        return "none of its cases is stored yet"
    return _of(count, asked, "ran and passes", "ran and pass") if asked else "no case ran"


def _paths(conclusion: Conclusion) -> str:
    """How many production shapes have a proven path, or lack one."""
    required = conclusion.required
    lacking = [cell for cell in required if cell.verdict in ("FAIL", "INCONCLUSIVE")]
    shapes = figures.counted(len(required), "production shape")
    if lacking:
        return f"{len(lacking):,} of {shapes} {'lacks' if len(lacking) == 1 else 'lack'} a proven path"
    if not required:
        return ""
    proven = shapes if conclusion.proven == len(required) else f"{conclusion.proven:,} of {shapes}"
    return f"{proven} {'has' if conclusion.proven == 1 else 'have'} a proven path"


Counts = tuple[tuple[str, tuple[tuple[str, int], ...]], ...]
"""what is counted, then name and count of each value, without zeros"""


def counted_cases(conclusion: Conclusion) -> Counts:
    """Numbers of cases by verdict and by outcome, in the order in which pages show them."""
    order = {"verdicts": VERDICTS, "outcomes": OUTCOMES}
    found = conclusion.counts
    return tuple(
        (title, tuple((name, found[title][name]) for name in names if found.get(title, {}).get(name)))
        for title, names in order.items()
    )
