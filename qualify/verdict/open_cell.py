"""One cell of a duel on its way from its first pair of processes to its verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from qualify.facts.duel import DECIDING, NO_SAMPLE, DuelCell, DuelPair, DuelVerdict, Ratio, Way
from qualify.statistics.power import claimed, detectable
from qualify.statistics.quads import Quad
from qualify.statistics.verdicts import CellDecision, margin_of

LEAST_PAIRS = 5
"""fresh pairs of processes that a verdict usually needs"""


@dataclass(kw_only=True, slots=True)
class OpenCell:
    """One cell on its way."""

    asked: DuelCell
    """the cell as it is told before anything was timed"""
    margin: float | None = None
    """share below which no change counts; None = by the kernel's time"""
    pairs: list[DuelPair] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    error: str = ""
    """why it cannot be timed"""
    confirming: bool = False
    confirming_rounds: int = 0
    """pairs of processes since then"""
    decision: CellDecision | None = None
    cut: str = ""
    """what ended the duel before this cell had all its pairs; empty = nothing did"""

    def log_ratios(self, way: Way, *, confirming: bool) -> list[list[float]]:
        """The log ratios of the quads, for each pair of processes."""
        return [
            [Quad(a_us=quad.a_us, b_us=quad.b_us).log_ratio for quad in pair.quads]
            for pair in self.pairs
            if pair.way == way and pair.confirming == confirming and pair.quads
        ]

    def times(self, way: Way, side: str) -> list[float]:
        """All valid blocks of a side."""
        quads = (quad for pair in self.pairs if pair.way == way for quad in pair.quads)
        return [us for quad in quads for us in (quad.a_us if side == "A" else quad.b_us)]

    @property
    def way(self) -> Way | None:
        """The way that decides: the best one that every round has timed."""
        return next((way for way in DECIDING if any(pair.way == way and pair.quads for pair in self.pairs)), None)

    def margin_in(self, way: Way) -> float:
        """The share below which no change counts in one way."""
        return margin_of(median(self.times(way, "A") or [0.0])) if self.margin is None else self.margin

    def report(self, aside: Mapping[Way, Mapping[str, CellDecision]], least_pairs: int) -> DuelCell:
        """The cell as it is reported.

        Args:
            aside: what the other ways say, by way and cell; they do not decide.
            least_pairs: pairs of processes that a verdict needs.
        """
        way, name = self.way, self.asked.name
        ratios: dict[Way, Ratio] = {}
        if way is not None and self.decision is not None and self.decision.estimate is not None:
            ratios[way] = self._ratio(way, self.decision)
        for other, decisions in aside.items():
            found = decisions.get(name)
            if other != way and found is not None and found.estimate is not None:
                ratios[other] = self._ratio(other, found)
        verdict, reason = self._verdict(ratios, least_pairs)
        return replace(
            self.asked,
            verdict=verdict,
            reason=reason,
            way=way if way in ratios else None,
            ratios=ratios,
            thrown_away=self.thrown_away,
            notes=tuple(self.notes),
        )

    @property
    def decided(self) -> bool:
        """Whether its times say anything."""
        return self.decision is not None and self.decision.verdict != "AMBIGUOUS"

    @property
    def thrown_away(self) -> int:
        """How many quads were thrown away."""
        return sum(pair.thrown_away for pair in self.pairs)

    def _verdict(self, ratios: Mapping[Way, Ratio], least_pairs: int) -> tuple[DuelVerdict, str]:
        """The verdict and, where it is none, why."""
        if self.error:
            return "INCONCLUSIVE", self.error
        ratio = ratios.get(self.way) if self.way else None
        cut = f"; {self.cut}" if self.cut else ""
        if ratio is None:
            if self.way is not None:
                return "AMBIGUOUS", f"one pair of processes says nothing: at least two are needed{cut}"
            what = f"all {self.thrown_away} quads were thrown away" if self.thrown_away else "it was not timed"
            return "INCONCLUSIVE", f"{NO_SAMPLE}: {what}{cut}"
        if ratio.verdict != "AMBIGUOUS":
            return ratio.verdict, ""
        return "AMBIGUOUS", f"{self._why_ambiguous(ratio, least_pairs)}{cut}"

    def _why_ambiguous(self, ratio: Ratio, least_pairs: int) -> str:
        if self.confirming:
            first = "the first pairs of processes showed a slowdown"
            return f"{first}; new pairs did not confirm it, or too few of them ran"
        if ratio.pairs < least_pairs:
            return f"{ratio.pairs} pairs of processes, and {least_pairs} are needed"
        limit = claimed(ratio.a_us)
        if ratio.finds_nothing:
            more = f"--pairs {LEAST_PAIRS}" if ratio.pairs < LEAST_PAIRS else "--most-pairs"
            return (
                f"{ratio.pairs} pairs of processes that differ so much would find no change at all, and {limit:.0%} is "
                f"wanted for a kernel of {ratio.a_us:.0f} µs: let more of them run ({more})"
            )
        if ratio.detectable > limit:
            return (
                f"too noisy: only a change of {ratio.detectable:.1%} would be found, and {limit:.0%} is wanted for a "
                f"kernel of {ratio.a_us:.0f} µs"
            )
        return f"the times prove neither a change of more than {ratio.margin:.1%} nor a smaller one"

    def _ratio(self, way: Way, decision: CellDecision) -> Ratio:
        found = decision.estimate
        assert found is not None, "asked only where there is one"
        margin = self.margin_in(way)
        verdict: DuelVerdict = decision.verdict
        return Ratio(
            verdict=verdict,
            change=found.change,
            low=found.low,
            high=found.high,
            a_us=median(self.times(way, "A")),
            b_us=median(self.times(way, "B")),
            pairs=found.pairs,
            quads=found.quads,
            detectable=detectable(found.spread, found.pairs, margin),
            margin=margin,
        )
