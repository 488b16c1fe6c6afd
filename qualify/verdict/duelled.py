"""The cells of a duel together: they are decided as one family, while it is fought and again from the stored times."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace

from qualify.facts.duel import Duel, DuelCell, DuelPair, DuelTask, Ratio, Way
from qualify.statistics.verdicts import CellDecision, PairedCell, decide, margin_of
from qualify.verdict.open_cell import OpenCell

ASIDE: tuple[Way, ...] = ("graph_warm", "eager", "host")
"""ways of timing that a report shows beside the one that decides"""
SAME = 1e-6
"""relative difference of two numbers that are the same one, computed on two machines"""
UNKNOWN = "INCONCLUSIVE"
"""the verdict on a cell that could not be timed"""
MOST_PAIRS = 400
"""most pairs of processes of a cell, and most quads of a pair: a reader of a duel computes for each of them"""
TIMES_US = (1e-6, 1e12)
"""times of one launch lie between these"""


def unasked(task: DuelTask) -> DuelCell:
    """A cell before anything was timed."""
    return DuelCell(
        name=task.name,
        a=task.a.id,
        b=task.b.id,
        phase=task.a.phase,
        verdict="INCONCLUSIVE",
        reason="",
        way=None,
        ratios={},
        thrown_away=0,
        planted=task.plant,
    )


class DuelFamily:
    """The cells of a duel that is under way, by name."""

    def __init__(self, cells: Iterable[OpenCell], least_pairs: int) -> None:
        """A family without any decision.

        Args:
            least_pairs: fresh pairs of processes that a verdict needs.
        """
        self.cells = {cell.asked.name: cell for cell in cells}
        self.least_pairs = least_pairs

    def decide(self) -> None:
        """Decide every open cell by its times so far; a cell that looks slower needs new pairs to confirm it."""
        waiting = {name for name, cell in self.cells.items() if not cell.decided}
        for name, decision in decide(self._paired(None), least_pairs=self.least_pairs, waiting=waiting).items():
            cell = self.cells[name]
            cell.decision = decision
            cell.confirming = cell.confirming or decision.confirm

    def reports(self) -> list[DuelCell]:
        """Every cell as the duel reports it."""
        aside: dict[Way, dict[str, CellDecision]] = {
            way: decide(self._paired(way), least_pairs=self.least_pairs) for way in ASIDE
        }
        return [cell.report(aside, self.least_pairs) for cell in self.cells.values()]

    def _paired(self, way: Way | None) -> list[PairedCell]:
        """The cells that were timed in one way; None = each in the way that decides it."""
        made = []
        for name, cell in self.cells.items():
            chosen = way or cell.way
            if cell.error or chosen is None or not cell.times(chosen, "A"):
                continue
            made.append(
                PairedCell(
                    name=name,
                    margin=cell.margin_in(chosen),
                    pairs=cell.log_ratios(chosen, confirming=False),
                    confirming=cell.log_ratios(chosen, confirming=True),
                )
            )
        return made


def is_complete(cells: Iterable[DuelCell]) -> bool:
    """Whether every cell was decided."""
    return all(cell.verdict not in {"AMBIGUOUS", UNKNOWN} for cell in cells)


def duel_contradictions(duel: Duel) -> list[str]:
    """What a duel says although its stored times say otherwise; empty where they agree.

    The rounds are decided again one after another, because a cell keeps the verdict of the round that decided it. A
    cell that could not be timed to its end is believed, because that is never good news. The round in which it failed
    is not stored, so both possibilities are tried.

    numpy and scipy must be installed.
    """
    told = [cell.verdict for cell in duel.cells if cell.verdict != UNKNOWN]
    if told and not any(pair.quads for pairs in duel.samples.values() for pair in pairs):
        return [f"it says {told[0]} of a cell, and no time is stored with it"]
    if impossible := list(_impossible(duel)):
        return impossible
    found = list(_differing(duel, decided_again(duel, left_early=True)))
    return found and min(found, list(_differing(duel, decided_again(duel, left_early=False))), key=len)


def _impossible(duel: Duel) -> Iterator[str]:
    """Values that no duel can have; nothing can be computed from them."""
    for cell in duel.cells:
        for way, ratio in cell.ratios.items():
            if not 0 <= ratio.margin < 1:
                yield f"{cell.name}: {way} margin is {ratio.margin:g}, which is no share from 0 to 1"
    least, most = TIMES_US
    for name, pairs in duel.samples.items():
        counts = (len({pair.pair for pair in pairs}), *(len(pair.quads) for pair in pairs))
        if max(counts) > MOST_PAIRS:
            yield f"{name} has {max(counts)} pairs of processes or quads in one, and no duel has more than {MOST_PAIRS}"
        times = (us for pair in pairs for quad in pair.quads for us in (*quad.a_us, *quad.b_us))
        wrong = next((us for us in times if not least <= us <= most), None)
        if wrong is not None:
            yield f"{name} has a time of {wrong:g} µs, which no launch takes"


def decided_again(duel: Duel, *, left_early: bool) -> DuelFamily:
    """The cells whose times are stored, as all rounds decide them.

    Args:
        left_early: whether a failed cell leaves the family at its first missing pair; else it leaves at the end.
    """
    margin = _margin(duel)
    timed = {cell.name: cell for cell in duel.cells if duel.samples.get(cell.name)}
    family = DuelFamily((OpenCell(asked=cell, margin=margin) for cell in timed.values()), duel.least_pairs)
    failed = {name for name in timed if _failed(timed[name], duel.samples[name])}
    last = {name: max(pair.pair for pair in duel.samples[name]) for name in timed}
    for number in sorted({pair.pair for name in timed for pair in duel.samples[name]}):
        for name, cell in family.cells.items():
            now = [pair for pair in duel.samples[name] if pair.pair == number]
            cell.pairs += [replace(pair, confirming=cell.confirming) for pair in now]
            if left_early and name in failed and last[name] < number:
                cell.error = timed[name].reason
        if number + 1 >= duel.least_pairs:
            family.decide()
    for name in failed:
        family.cells[name].error = timed[name].reason
    family.decide()
    return family


def _failed(cell: DuelCell, pairs: Sequence[DuelPair]) -> bool:
    """Whether a cell was given up although times of it are valid."""
    return cell.verdict == UNKNOWN and any(pair.quads for pair in pairs)


def _margin(duel: Duel) -> float | None:
    """The margin of the command line; None where each kernel's time gives it."""
    ratios = [ratio for cell in duel.cells for ratio in cell.ratios.values()]
    margins = {ratio.margin for ratio in ratios}
    by_time = all(ratio.margin == margin_of(ratio.a_us) for ratio in ratios)
    return next(iter(margins)) if len(margins) == 1 and not by_time else None


def _differing(duel: Duel, family: DuelFamily) -> Iterator[str]:
    """Each place where the duel and its times differ."""
    found = {cell.name: cell for cell in family.reports()}
    for cell in duel.cells:
        if cell.name in found:
            yield from (f"{cell.name}: {text}" for text in _differing_cell(cell, found[cell.name]))
        elif cell.verdict != UNKNOWN and not any(_alike(cell, other) for other in found.values()):
            yield f"{cell.name} says {cell.verdict}, and no stored times give that"
    for name, open_cell in family.cells.items():
        stored = [(pair.way, pair.pair, pair.confirming) for pair in duel.samples[name]]
        again = [(pair.way, pair.pair, pair.confirming) for pair in open_cell.pairs]
        if not open_cell.error and sorted(stored) != sorted(again):
            yield f"{name}: the pairs marked as confirming are not the pairs that ran after a slowdown was seen"
    for name in sorted(set(duel.samples) - {cell.name for cell in duel.cells}):
        yield f"{name} has times, and the duel has no such cell"
    if duel.complete != is_complete(duel.cells):
        yield f"it says complete = {duel.complete}, and its cells say {is_complete(duel.cells)}"


def _alike(cell: DuelCell, other: DuelCell) -> bool:
    """Whether a cell that makes the same calls as another one says the same."""
    return not list(_differing_cell(cell, other))


def _differing_cell(stored: DuelCell, found: DuelCell) -> Iterator[str]:
    if stored.verdict == found.verdict == UNKNOWN:
        return
    for name in ("verdict", "way", "thrown_away"):
        said, given = getattr(stored, name), getattr(found, name)
        if said != given:
            yield f"{name} is {said}, but its times give {given}"
    for way in dict.fromkeys((*stored.ratios, *found.ratios)):
        mine, theirs = stored.ratios.get(way), found.ratios.get(way)
        if mine is None or theirs is None:
            has, give = ("no", "one") if mine is None else ("a", "none")
            yield f"the duel has {has} ratio for {way}, but its times give {give}"
        else:
            yield from (f"{way} {text}" for text in _differing_ratio(mine, theirs))


def _differing_ratio(stored: Ratio, found: Ratio) -> Iterator[str]:
    for field in fields(Ratio):
        said, given = getattr(stored, field.name), getattr(found, field.name)
        if isinstance(said, float) and isinstance(given, float):
            if not math.isclose(said, given, rel_tol=SAME, abs_tol=SAME * SAME):
                yield f"{field.name} is {said:.6g}, but its times give {given:.6g}"
        elif said != given:
            yield f"{field.name} is {said}, but its times give {given}"
