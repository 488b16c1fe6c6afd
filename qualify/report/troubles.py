"""What failed or stayed open, in groups that look alike, the worst first. Every format begins with it."""

from __future__ import annotations

from dataclasses import dataclass

from qualify.facts.run import Verdict
from qualify.judge.judged import Judged
from qualify.judge.worst import WORST_OUTCOMES, ended_cases, worst_first
from qualify.verdict.waivers import WAIVED_BY


@dataclass(frozen=True, kw_only=True, slots=True)
class Trouble:
    """A group of cases, or of production shapes, that failed or stayed open in the same way."""

    rank: int
    """0 is the worst"""
    verdict: Verdict
    first: str
    """id of the first case or shape"""
    is_case: bool
    line: int
    """line of the matrix that asked for it; 0 = unknown"""
    reasons: tuple[str, ...]
    """why the first of them failed or stayed open"""
    more: list[str]
    """ids of the other members"""

    @property
    def reason(self) -> str:
        """The most important of the reasons."""
        return self.reasons[0]

    @property
    def waivers(self) -> tuple[str, ...]:
        """The reasons that name a waiver: it is not in force, or accepts only a part of what is wrong."""
        return tuple(reason for reason in self.reasons if ": waiver " in reason or reason.startswith(WAIVED_BY))


def troubles(judged: Judged) -> list[Trouble]:
    """Shapes without a proven path first, then wrong results, then crashes and the rest; failures before open ends."""
    bad = ("FAIL", "INCONCLUSIVE")
    shapes = [cell for cell in judged.conclusion.cells if cell.verdict in bad]
    failed = [item for item in worst_first(ended_cases(judged)) if item.verdict in bad]
    if not shapes and not failed:
        return []
    lines: dict[str, int] = {}
    for record in judged.records:
        lines.setdefault(record.case.cell, record.case.line)
    found: dict[tuple[int, str, str], Trouble] = {}
    items = [
        *((cell.cell, cell.verdict, cell.reasons, 0, lines[cell.cell]) for cell in shapes),
        *(
            (it.case.id, it.verdict, it.reasons, 1 + WORST_OUTCOMES.index(it.outcome.outcome), it.case.line)
            for it in failed
        ),
    ]
    for name, verdict, reasons, rank, line in items:
        is_case = rank > 0
        order = rank + (10 if verdict == "INCONCLUSIVE" else 0)
        kernel = name.rpartition("/")[2] if is_case else ""
        key = (order, kernel, reasons[0].partition(":")[0])
        if key in found:
            found[key].more.append(name)
        else:
            found[key] = Trouble(
                rank=order, verdict=verdict, first=name, is_case=is_case, line=line, reasons=reasons, more=[]
            )
    return sorted(found.values(), key=lambda trouble: trouble.rank)


def missing(judged: Judged) -> int:
    """Cases that nobody ran."""
    return sum(record.outcome.outcome == "not_run" for record in judged.records)
