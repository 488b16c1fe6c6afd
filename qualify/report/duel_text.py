"""A duel as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qualify.facts import codec
from qualify.facts.duel import BROKEN, DUEL_VERDICTS, NO_SAMPLE, WAYS, Duel, DuelCell, DuelVerdict, Ratio, Way
from qualify.facts.environment import kernel_in
from qualify.facts.run import Verdict
from qualify.report.figures import counted, interval_words
from qualify.text import one_line

WAY_WORDS: Mapping[Way, str] = {
    "graph": "CUDA graph, cold L2",
    "graph_warm": "CUDA graph, warm L2",
    "eager": "eager, cold L2",
    "host": "host time of a launch",
}
VERDICT_WORDS: Mapping[DuelVerdict, tuple[str, Verdict]] = {
    "SLOWER": ("▲ slower", "FAIL"),
    "INCONCLUSIVE": ("– no valid time", "INCONCLUSIVE"),
    "AMBIGUOUS": ("? undecided", "INCONCLUSIVE"),
    "FASTER": ("▼ faster", "PASS"),
    "SAME": ("= the same", "PASS"),
}
"""glyph and word for each verdict on B, and the case verdict whose colour they get"""
MEANING: Mapping[DuelVerdict, str] = {
    "SLOWER": "B is slower, and new processes confirmed it",
    "SAME": "B differs by less than the margin",
    "FASTER": "B is faster",
    "AMBIGUOUS": "undecided: the times show neither a change nor that there is none",
    "INCONCLUSIVE": "no valid time",
}
NAMED = 20
"""cells that the text names for each verdict; the JSON has all"""


def to_text(duel: Duel) -> str:
    """What a person reads in a terminal."""
    lines = [f"{duel.id}: A = {duel.a}, B = {duel.b}, {duel.matrix} on {duel.device}, {duel.wall_s:.0f} s"]
    if duel.planted:
        found = sum(cell.verdict == "SLOWER" for cell in duel.planted)
        spun = counted(len(duel.planted), "cell")
        lines.append(f"  planted: B spins in {spun}, and {found} of them {'is' if found == 1 else 'are'} called slower")
    lines += _stacks(duel)
    for verdict in DUEL_VERDICTS:
        cells = sorted((cell for cell in duel.cells if cell.verdict == verdict), key=_worst_first)
        if not cells:
            continue
        lines.append(f"{verdict}  {len(cells)} of {counted(len(duel.cells), 'cell')}: {MEANING[verdict]}")
        lines += [line for cell in cells[:NAMED] for line in _cell(cell, null=duel.null)]
        if len(cells) > NAMED:
            lines.append(f"  … {len(cells) - NAMED} more")
    for side, name, only in one_sided(duel):
        more = f" and {len(only) - 1:,} more" if only[1:] else ""
        lines.append(f"not compared: only {side} ({name}) can run {counted(len(only), 'cell')}: {only[0]}{more}")
    if duel.null:
        lines.append(null_line(duel))
    lines += undecided(duel)
    return "\n".join(map(one_line, lines))


def undecided(duel: Duel) -> list[str]:
    """What to do about cells that were not decided. Time helps no side that crashed, was refused or has gone."""
    failed = [cell for cell in duel.cells if _is_beyond_time(cell)]
    decided = sum(cell.verdict in {"SLOWER", "FASTER", "SAME"} for cell in duel.cells)
    told = []
    if len(failed) + decided < len(duel.cells):
        told.append("not every cell was decided: give it more time (--deadline), or more pairs (--most-pairs)")
    if failed:
        told.append(
            f"{counted(len(failed), 'cell')} could not be timed, and more time does not help: repair what the reason "
            "names, and test the kernel alone with qualify run"
        )
    return told


def _is_beyond_time(cell: DuelCell) -> bool:
    """Whether a cell is undecided for a reason that more time does not change."""
    if cell.verdict == "AMBIGUOUS":
        return BROKEN in cell.reason
    return cell.verdict == "INCONCLUSIVE" and (BROKEN in cell.reason or not cell.reason.startswith(NO_SAMPLE))


def one_sided(duel: Duel) -> list[tuple[str, str, tuple[str, ...]]]:
    """The side, its name, and the cells that it alone can run; nothing for a side that has none."""
    sides = (("A", duel.a, duel.only_a), ("B", duel.b, duel.only_b))
    return [(side, name, cells) for side, name, cells in sides if cells]


def null_line(duel: Duel) -> str:
    """What an A/A duel found: its false alarms, and the change that it can detect."""
    ratios = [cell.ratio for cell in duel.cells if cell.ratio is not None]
    blind = sum(ratio.finds_nothing for ratio in ratios)
    found = [ratio.detectable for ratio in ratios if not ratio.finds_nothing]
    worst = f", detectable changes up to {max(found):.1%}" if found else ""
    worst += f", no change would be found in {counted(blind, 'cell')}" if blind else ""
    called = sum(cell.verdict in {"SLOWER", "FASTER"} for cell in duel.cells)
    return f"A/A: {counted(called, 'false alarm')} in {counted(len(duel.cells), 'cell')} ({duel.alarms:.1%}){worst}"


def _worst_first(cell: DuelCell) -> tuple[float, str]:
    return (-cell.ratio.change if cell.ratio else 0.0, cell.name)


def _cell(cell: DuelCell, *, null: bool) -> list[str]:
    """A cell with its change, interval and times; below it why it is undecided."""
    ratio = cell.ratio
    if ratio is None or cell.way is None:
        return [f"  {cell.name}: {cell.reason}"]
    least = "no change" if ratio.finds_nothing else f"a change of {ratio.detectable:.1%}"
    found = f"; {least} would be found" if null else ""
    lines = [f"  {cell.name}: {told(ratio)} ({WAY_WORDS[cell.way]}){found}"]
    if cell.reason:
        lines.append(f"    {cell.reason}")
    lines += [
        f"    {WAY_WORDS[way]}: {told(cell.ratios[way])}" for way in WAYS if way != cell.way and _tells(cell, way)
    ]
    return lines + [f"    note: {note}" for note in cell.notes]


def _tells(cell: DuelCell, way: Way) -> bool:
    """Whether another way of timing gives a verdict that the text must name."""
    ratio = cell.ratios.get(way)
    return ratio is not None and ratio.verdict in {"SLOWER", "FASTER"}


def told(ratio: Ratio) -> str:
    """The change with its interval and both times."""
    change = interval_words(ratio.change, ratio.low, ratio.high)
    return f"{change}, {ratio.a_us:.1f} to {ratio.b_us:.1f} µs, {ratio.pairs} pairs"


def _stacks(duel: Duel) -> list[str]:
    """Components that differ between the sides. Where one kernel ran in two equal environments, a line says so."""
    mine = {part.name: part.version for part in duel.stack_a.components if part.kind != "binary"}
    theirs = {part.name: part.version for part in duel.stack_b.components if part.kind != "binary"}
    names = [name for name in dict.fromkeys([*mine, *theirs]) if mine.get(name) != theirs.get(name)]
    same = not names and not duel.null and any(_is_the_same_code(cell) for cell in duel.cells)
    nothing = ["  no version differs between the sides: the same software was timed twice"] if same else []
    return nothing + [f"  {name}: {mine.get(name, 'absent')} → {theirs.get(name, 'absent')}" for name in names]


def _is_the_same_code(cell: DuelCell) -> bool:
    """Whether both sides have the same kernel, each in its environment."""
    a, b = (case.rpartition("/")[2] for case in (cell.a, cell.b))
    return a != b and kernel_in(a) == kernel_in(b)


def to_data(duel: Duel) -> dict[str, Any]:
    """The duel for ``--json``, with the samples of every way of timing."""
    data = codec.to_data(duel)
    data["counts"] = duel.counts()
    data["wall_s"] = duel.wall_s
    data["alarms"] = duel.alarms
    return dict(data)
