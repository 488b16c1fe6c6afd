"""A duel as a person reads it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from stored_runs import make_stack

from qualify.facts import codec
from qualify.facts.duel import Duel, DuelCell, Ratio
from qualify.report.duel_text import to_data, to_text

NOW = datetime(2026, 11, 23, 4, tzinfo=UTC)
RATIO = Ratio(
    verdict="SLOWER",
    change=0.031,
    low=0.026,
    high=0.037,
    a_us=41.2,
    b_us=42.5,
    pairs=5,
    quads=10,
    detectable=0.014,
    margin=0.02,
)
SLOWER = DuelCell(
    name="m/decode/s/bf16/causal/k",
    a="a",
    b="b",
    phase="decode",
    verdict="SLOWER",
    reason="",
    way="graph",
    ratios={"graph": RATIO, "eager": replace(RATIO, verdict="FASTER", change=-0.2), "host": replace(RATIO)},
    thrown_away=0,
    notes=("B (k<32>) cannot do everything",),
)
BROKEN = replace(SLOWER, name="m/x", verdict="INCONCLUSIVE", reason="B (k): it crashed", way=None, ratios={}, notes=())
DUEL = Duel(
    id="duel-1",
    matrix="m",
    matrix_hash="",
    select="",
    a="here",
    b="next",
    null=False,
    device="H100",
    device_uuid="GPU-1",
    stack_a=make_stack(),
    stack_b=make_stack(torch="2.13.0"),
    started_at=NOW,
    finished_at=NOW + timedelta(seconds=312),
    complete=False,
    least_pairs=5,
    cells=(BROKEN, SLOWER),
)


def test_why_a_cell_is_undecided_is_one_line() -> None:
    """A kernel raised it, and GitHub's runner obeys what begins a line."""
    forged = replace(BROKEN, reason="B (k): x\n::error::y")
    assert "  m/x: B (k): x ::error::y" in to_text(replace(DUEL, cells=(forged,))).splitlines()


def test_a_duel_of_one_software_says_so() -> None:
    """Two environments with the same versions: SAME would look as if the other release had been timed."""
    told = "no version differs between the sides"
    cell = replace(SLOWER, a="m/decode/s/bf16/causal/k", b="m/decode/s/bf16/causal/k@next")
    same = replace(DUEL, cells=(cell,), stack_b=DUEL.stack_a)
    assert told in to_text(same)
    assert told not in to_text(replace(same, stack_b=DUEL.stack_b))
    assert told not in to_text(replace(same, null=True))
    assert told not in to_text(replace(same, cells=(replace(cell, b="m/decode/s/bf16/causal/l"),)))


def test_the_worst_comes_first() -> None:
    """With change, interval, times, what differs between the sides, and ways that say something else."""
    assert """\
duel-1: A = here, B = next, m on H100, 312 s
  torch: 2.11.0 → 2.13.0
SLOWER  1 of 2 cells: B is slower, and new processes confirmed it
  m/decode/s/bf16/causal/k: +3.1% [+2.6%, +3.7%], 41.2 to 42.5 µs, 5 pairs (CUDA graph, cold L2)
    eager, cold L2: -20.0% [+2.6%, +3.7%], 41.2 to 42.5 µs, 5 pairs
    host time of a launch: +3.1% [+2.6%, +3.7%], 41.2 to 42.5 µs, 5 pairs
    note: B (k<32>) cannot do everything
INCONCLUSIVE  1 of 2 cells: no valid time
  m/x: B (k): it crashed
1 cell could not be timed, and more time does not help: repair what the reason names, and test the kernel \
alone with qualify run""" == to_text(DUEL)


def test_more_time_is_advised_where_it_helps() -> None:
    """A crash comes again, however long a duel takes; the deadline and noise are another matter."""
    time, repair = "not every cell was decided: give it more time", "could not be timed, and more time does not help"
    noisy = replace(SLOWER, verdict="AMBIGUOUS", reason="3 pairs of processes, and 5 are needed")
    late = replace(BROKEN, reason="no valid sample: it was not timed")
    gone = "; the duel could not go on: next has no Python"
    for cells, told in (
        ((SLOWER,), (False, False)),
        ((SLOWER, BROKEN), (False, True)),
        ((SLOWER, noisy), (True, False)),
        ((SLOWER, late), (True, False)),
        ((SLOWER, replace(late, reason=late.reason + gone)), (False, True)),
        ((SLOWER, replace(noisy, reason=noisy.reason + gone)), (False, True)),
        ((noisy, BROKEN, BROKEN), (True, True)),
    ):
        text = to_text(replace(DUEL, cells=cells, complete=cells == (SLOWER,)))
        assert told == (time in text, repair in text), text
    assert "\n2 cells could not be timed" in text


def test_no_change_has_no_minus() -> None:
    """What is rounded to zero is neither faster nor slower."""
    cell = replace(SLOWER, ratios={"graph": replace(RATIO, verdict="SAME", change=-0.0002, low=-0.0004, high=0.0001)})
    assert ": +0.0% [+0.0%, +0.0%], 41.2 to 42.5" in to_text(replace(DUEL, cells=(cell,)))


def test_cells_of_one_side_are_told() -> None:
    """Nobody compared them, which does not look as if they were the same."""
    text = to_text(replace(DUEL, only_a=("m/y",), only_b=("m/<z>", "m/w", "m/v")))
    assert (
        """\
  m/x: B (k): it crashed
not compared: only A (here) can run 1 cell: m/y
not compared: only B (next) can run 3 cells: m/<z> and 2 more
1 cell could not be timed"""
        in text
    )


def test_a_null_duel_says_what_would_be_found() -> None:
    """For each cell, and the share of false alarms."""
    text = to_text(replace(DUEL, null=True, cells=(SLOWER,)))
    assert "(CUDA graph, cold L2); a change of 1.4% would be found" in text
    assert "A/A: 1 false alarm in 1 cell (100.0%), detectable changes up to 1.4%" in text
    blind = replace(SLOWER, ratios={"graph": replace(RATIO, pairs=2, detectable=10.000000000000002)})
    text = to_text(replace(DUEL, null=True, cells=(blind, SLOWER)))
    assert "(CUDA graph, cold L2); no change would be found" in text
    assert "detectable changes up to 1.4%, no change would be found in 1 cell" in text


def test_planted_cells_are_told_and_no_alarms() -> None:
    """How many of them were found."""
    duel = replace(DUEL, cells=(replace(SLOWER, planted=0.02),), null=True)
    assert "planted: B spins in 1 cell, and 1 of them is called slower" in to_text(duel)
    assert 0.0 == duel.alarms


def test_json_has_everything() -> None:
    """Every cell, with counts by verdict."""
    data = to_data(DUEL)
    assert {"SLOWER": 1, "INCONCLUSIVE": 1, "AMBIGUOUS": 0, "FASTER": 0, "SAME": 0} == data["counts"]
    assert (312.0, 0.5) == (data["wall_s"], data["alarms"])
    assert codec.to_data(SLOWER)["ratios"]["graph"]["low"] == data["cells"][1]["ratios"]["graph"]["low"]
