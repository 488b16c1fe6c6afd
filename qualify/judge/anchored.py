"""The times of runs, and how fast the card was in each of them: history is relative to that."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from qualify.facts.outcome import evidence_of, is_time, on_shared_card
from qualify.facts.run import Record
from qualify.verdict.changes import is_wrong
from qualify.verdict.consistency import contradictory_times
from qualify.verdict.origin import origin_of


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseTime:
    """What one run measured of a case."""

    us: float
    least_us: float
    """the least time that the ceilings of the same run allow; 0.0 = unknown"""
    card: str
    """UUID of the card that ran it, where several cards shared the run; empty = the run's"""
    content_hash: str
    """of the case: after a change of the matrix the same id may mean another call"""
    cold: bool
    """whether every launch found its inputs outside of the last-level cache"""
    blocks: int
    """in how many blocks it was timed, which the level decides"""
    sound: bool
    """whether no check failed"""
    shared: bool
    """whether other processes used the card meanwhile, as far as it was looked for"""


def times_of_runs(runs: Iterable[tuple[str, Sequence[Record]]]) -> tuple[dict[str, dict[str, CaseTime]], str]:
    """By run, what it has timed itself; and a sentence about edited times, which are left out (empty: there are none).

    Args:
        runs: ids with records, of which only the times are needed.
    """
    found, edited = {}, list[str]()
    for run, records in runs:
        wrong = contradictory_times(records)
        found[run] = case_times(records, wrong)
        edited += [f"{run}, {case}: {how}" for case, how in wrong.items()][:1]
    told = f"edited times do not count. Runs that have some: {len(edited)}, first {edited[0]}" if edited else ""
    return found, told


def case_times(records: Iterable[Record], without: Container[str] = ()) -> dict[str, CaseTime]:
    """What a run has timed itself, by case id; a time that it took over from an earlier run would count twice.

    Args:
        without: cases that are left out.
    """
    found = {}
    for record in records:
        if record.case.id in without:
            continue
        evidence = evidence_of(record.outcome)
        if evidence is None or evidence.timing is None or origin_of(record.outcome) is not None:
            continue
        if is_time(evidence.timing.latency_us):
            found[record.case.id] = CaseTime(
                us=evidence.timing.latency_us,
                least_us=evidence.timing.roofline_us,
                card=evidence.device_uuid,
                content_hash=record.case.content_hash,
                cold=evidence.timing.cold,
                blocks=len(evidence.timing.samples_us),
                sound=not is_wrong(evidence),
                shared=on_shared_card(evidence),
            )
    return found


class Anchors:
    """How fast a card was in each run: the median, over the other cases, of their time over their usual time.

    One case that became slower does not move the median. What slows all cases alike does, so the anchor hides it.
    """

    def __init__(self, timed: Mapping[str, Mapping[str, float]]) -> None:
        """Take the times of one card: by run, then by case, in µs."""
        self._timed = timed
        self._known: dict[tuple[str, ...], _Common] = {}

    def of(self, case: str, runs: Sequence[str]) -> tuple[int, dict[str, float]]:
        """The anchor of a case: how many other cases all these runs timed, and by run the time of a usual one in µs.

        Without another case it is 0 and an empty mapping.

        Args:
            runs: ids of runs that have timed the case.
        """
        key = tuple(runs)
        if key not in self._known:
            self._known[key] = _common(self._timed, key)
        return self._known[key].without(case)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Common:
    """The cases that some runs have in common."""

    usual: Mapping[str, float]
    """median µs of each case over the runs"""
    usual_sorted: Sequence[float]
    tempers: Mapping[str, tuple[Mapping[str, float], Sequence[float]]]
    """by run: each case's time over its usual time, by case; then the same numbers, sorted"""

    def without(self, case: str) -> tuple[int, dict[str, float]]:
        others = len(self.usual) - (case in self.usual)
        if not others:
            return 0, {}
        middle = _median_without(self.usual_sorted, self.usual.get(case))
        return others, {
            run: middle * _median_without(ordered, factors.get(case))
            for run, (factors, ordered) in self.tempers.items()
        }


def _common(timed: Mapping[str, Mapping[str, float]], runs: Sequence[str]) -> _Common:
    cases = set.intersection(*(set(timed[run]) for run in runs))
    usual = {case: median(timed[run][case] for run in runs) for case in cases}
    tempers = {}
    for run in runs:
        factors = {case: timed[run][case] / usual[case] for case in cases}
        tempers[run] = (factors, sorted(factors.values()))
    return _Common(usual=usual, usual_sorted=sorted(usual.values()), tempers=tempers)


def _median_without(ordered: Sequence[float], value: float | None) -> float:
    """The median of sorted numbers; where ``value`` is given, one number of that value is left out."""
    left_out = len(ordered) if value is None else bisect_left(ordered, value)
    count = len(ordered) - (value is not None)

    def at(place: int) -> float:
        return ordered[place + (place >= left_out)]

    return (at((count - 1) // 2) + at(count // 2)) / 2
