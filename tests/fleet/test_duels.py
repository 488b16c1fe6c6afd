"""A duel from its rounds to its verdicts: on simulated times, and once with real processes on this machine."""

from __future__ import annotations

import math
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import make_case
from cli_process import call, write_cards, write_matrix
from outages import Outage
from stored_runs import make_run, make_stack

from qualify.cli import duel as cli_duel
from qualify.cli.duel import exit_code, seconds, words
from qualify.errors import DeviceError, NothingSelected, UsageError
from qualify.facts.duel import Duel, DuelCell, DuelPair, DuelQuad, DuelTask
from qualify.facts.typed import PLAIN
from qualify.fleet import duel as fleet_duel
from qualify.fleet.duel import Duelling, DuelProgress, DuelRequest
from qualify.fleet.sides import DuelAsked, make_duel
from qualify.fleet.stored_stacks import at_stored_stacks
from qualify.report.duel_text import to_text
from qualify.run.process.child import Child
from qualify.run.process.messages import (
    CardUnfit,
    CellFailed,
    CellTimed,
    DuelEffort,
    DuelRound,
    DuelSetup,
    HostLimits,
    SidesDescribed,
)
from qualify.store import Store
from qualify.verdict import duelled
from qualify.verdict.duelled import duel_contradictions

EFFORT = DuelEffort(quads=2, block_us=1000, aside=0.25, stage_s=5, compile_s=5)
SETUP = DuelSetup(
    device="cpu",
    import_paths=(),
    cards={},
    hash_cache="",
    hosts=HostLimits(timeout_s=5, compile_timeout_s=5, memory_bytes=1 << 30),
    effort=EFFORT,
)
SIDES = SidesDescribed(a=make_stack(), b=make_stack(torch="2.13.0"), note="")


def request(*names: str, **changes: Any) -> DuelRequest:
    """A duel of cells of these names."""
    base = DuelRequest(
        matrix="m",
        matrix_hash="0" * 64,
        select="",
        a="here",
        b="next",
        null=False,
        tasks=tuple(DuelTask(name=name, a=make_case(), b=make_case()) for name in names),
        alike={},
        setup=SETUP,
    )
    return replace(base, **changes)


class Simulated(Duelling):
    """A duel whose judge is a simulation: what it answers for a cell in a round."""

    def __init__(self, asked: DuelRequest, answer: Callable[[str, int], Any]) -> None:
        self.steps: list[DuelProgress] = []
        self.rounds: list[tuple[str, ...]] = []
        self.answer = answer
        super().__init__(asked, self.steps.append)

    def fight(self) -> Duel:
        """Whatever happens in it, the stored times of a duel give all that it says."""
        duel = super().fight()
        assert [] == duel_contradictions(duel)
        return duel

    def _answers(self, asked: DuelRound) -> Iterator[Any]:
        self.rounds.append(tuple(task.name for task in asked.tasks))
        yield SIDES
        for task in asked.tasks:
            yield self.answer(task.name, asked.number)


def timed(name: str, number: int, change: float, *, spread: float = 0.001, us: float = 100.0) -> CellTimed:
    """A cell in which B takes so much longer, about."""
    random = np.random.default_rng([number, *map(ord, name)])
    own = (1 + change) * math.exp(random.normal(0, spread))
    quads = tuple(DuelQuad(a_us=(us, us * 1.01), b_us=(us * own, us * 1.01 * own)) for _ in range(2))
    return CellTimed(
        cell=name, pairs=(DuelPair(way="eager", pair=number, quads=quads, thrown_away=0),), notes=(f"{name} was timed",)
    )


def test_what_is_decided_is_not_timed_again() -> None:
    """Five pairs for all, five more for the cell that looks slower, and then it ends."""
    arena = Simulated(
        request("same", "slower"), lambda name, number: timed(name, number, 0.05 if name == "slower" else 0.0)
    )
    duel = arena.fight()
    assert [("same", "slower")] * 5 + [("slower",)] * 5 == arena.rounds
    assert {"same": "SAME", "slower": "SLOWER"} == {cell.name: cell.verdict for cell in duel.cells}
    assert duel.complete
    assert (1, 2) == (arena.steps[-1].decided, arena.steps[-1].total)
    slower = duel.cells[1]
    assert slower.ratio is not None
    assert abs(slower.ratio.change - 0.05) < 0.003
    assert [False] * 5 + [True] * 5 == [pair.confirming for pair in duel.samples["slower"]]


def _said(cell: DuelCell, **changes: Any) -> DuelCell:
    """The cell with other numbers of the way that decided."""
    assert cell.way is not None
    return replace(cell, ratios={**cell.ratios, cell.way: replace(cell.ratios[cell.way], **changes)})


@pytest.fixture(scope="module")
def fought() -> Duel:
    """A duel of eight cells: one is slower, one faster, one too noisy, one fails in its third round."""
    changes = {"slower": 0.05, "faster": -0.05}

    def answer(name: str, number: int) -> Any:
        if name == "broken" and number == 2:
            return CellFailed(cell=name, error="A (x): it crashed")
        return timed(name, number, changes.get(name, 0.0), spread=0.05 if name == "noisy" else 0.001)

    names = ("slower", "faster", "noisy", "broken", *(f"same-{number}" for number in range(4)))
    return Simulated(request(*names, most_pairs=12), answer).fight()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda cell: replace(cell, verdict="SAME"), "slower: verdict is SAME, but its times give SLOWER"),
        (lambda cell: _said(cell, low=-0.01), "slower: eager low is -0.01, but its times give 0.0"),
        (lambda cell: _said(cell, verdict="SAME"), "slower: eager verdict is SAME, but its times give SLOWER"),
        (lambda cell: _said(cell, b_us=99.0), "slower: eager b_us is 99, but its times give 10"),
        (lambda cell: _said(cell, margin=0.2), "slower: eager margin is 0.2, but its times give 0.01"),
        (lambda cell: _said(cell, pairs=9), "slower: eager pairs is 9, but its times give 5"),
        (lambda cell: replace(cell, ratios={}), "slower: the duel has no ratio for eager, but its times give one"),
        (lambda cell: replace(cell, thrown_away=1), "slower: thrown_away is 1, but its times give 0"),
        (
            lambda cell: replace(cell, name="like it", verdict="SAME"),
            "like it says SAME, and no stored times give that",
        ),
    ],
)
def test_an_edited_cell_is_not_what_its_times_give(
    fought: Duel, change: Callable[[DuelCell], DuelCell], told: str
) -> None:
    """Verdict, interval, time, margin, count: each is computed again, and told with both values."""
    edited = replace(fought, cells=(change(fought.cells[0]), *fought.cells[1:]))
    assert any(text.startswith(told) for text in duel_contradictions(edited))


def test_edited_times_are_not_those_of_the_verdict(fought: Duel) -> None:
    """Faster blocks of B, a confirmation that was none, and times of a cell that is not there."""
    pairs = fought.samples["slower"]
    quads = tuple(replace(quad, b_us=quad.a_us) for quad in pairs[0].quads)
    quick = replace(fought, samples={**fought.samples, "slower": (replace(pairs[0], quads=quads), *pairs[1:])})
    assert any("slower: eager" in text for text in duel_contradictions(quick))
    first = (replace(pairs[0], confirming=True), *pairs[1:])
    assert any("confirm" in text for text in duel_contradictions(replace(fought, samples={"slower": first})))
    unknown = duel_contradictions(replace(fought, samples={**fought.samples, "x": pairs}))
    assert ["x has times, and the duel has no such cell"] == unknown
    assert duel_contradictions(replace(fought, complete=True))
    stopped = tuple(replace(quad, b_us=(0.0, math.nan)) for quad in pairs[0].quads)
    still = replace(fought, samples={"slower": (replace(pairs[0], quads=stopped), *pairs[1:])})
    assert ["slower has a time of 0 µs, which no launch takes"] == duel_contradictions(still)
    endless = tuple(replace(pairs[0], pair=number) for number in range(401))
    told = duel_contradictions(replace(fought, samples={"slower": endless}))
    assert ["slower has 401 pairs of processes or quads in one, and no duel has more than 400"] == told
    told = duel_contradictions(replace(fought, samples={}))
    assert ["it says SLOWER of a cell, and no time is stored with it"] == told


def test_a_slowdown_that_nobody_confirms_is_none() -> None:
    """The first five pairs had bad luck together; the next five had not."""
    arena = Simulated(request("x"), lambda name, number: timed(name, number, 0.05 if number < 5 else 0.0))
    (cell,) = arena.fight().cells
    assert "SAME" == cell.verdict
    assert cell.ratio is not None
    assert abs(cell.ratio.change) < 0.005


def test_noise_ends_ambiguous() -> None:
    """After the most pairs; it says that only larger changes would be found."""
    arena = Simulated(request("x", most_pairs=7), lambda name, number: timed(name, number, 0.0, spread=0.05))
    (cell,) = (duel := arena.fight()).cells
    assert 7 == len(arena.rounds)
    assert ("AMBIGUOUS", False) == (cell.verdict, duel.complete)
    assert "too noisy: only a change of" in cell.reason


def test_a_clock_that_is_set_meanwhile_does_not_end_a_duel_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dated in the future at its start, it would stand behind an older duel although it is the newest one."""

    class Clock(datetime):
        ahead = timedelta(hours=3)

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            """What the machine's clock says."""
            return datetime.now(tz) + cls.ahead

    def answer(name: str, number: int) -> CellTimed:
        Clock.ahead = timedelta()
        return timed(name, number, 0.0)

    monkeypatch.setattr(fleet_duel, "datetime", Clock)
    found = Simulated(request("x"), answer).fight()
    assert 0 <= found.wall_s < 60
    assert found.started_at <= datetime.now(UTC)


def test_pairs_that_can_find_nothing_say_so() -> None:
    """The number that is computed for two noisy pairs has a ceiling, and is no size of a change."""
    noise = Simulated(request("x", least_pairs=2, most_pairs=2), lambda *at: timed(*at, 0.0, spread=0.5))
    (cell,) = noise.fight().cells
    assert cell.ratio is not None
    assert ("AMBIGUOUS", True) == (cell.verdict, cell.ratio.finds_nothing)
    assert cell.reason.startswith("2 pairs of processes that differ so much would find no change at all, and 2% is ")
    assert cell.reason.endswith(": let more of them run (--pairs 5)")
    wild = Simulated(request("x", most_pairs=5), lambda *at: timed(*at, 0.0, spread=2.0))
    assert "let more of them run (--most-pairs)" in wild.fight().cells[0].reason


def test_a_slowdown_that_shows_late_gets_its_pairs_all_the_same() -> None:
    """Noise hides it until the last of the most pairs; five more confirm it. What stays undecided gets none."""

    def answer(name: str, number: int) -> CellTimed:
        hidden = 0.08 if number == 0 else 0.001
        return timed(name, number, 0.03, spread=hidden) if name == "slower" else timed(name, number, 0.0, spread=0.05)

    pairs = Simulated(request("slower", "noise", most_pairs=30), answer).fight().samples["slower"]
    shown = sum(not pair.confirming for pair in pairs)
    assert 6 < shown < 30
    arena = Simulated(request("slower", "noise", most_pairs=shown), answer)
    found = {cell.name: cell.verdict for cell in arena.fight().cells}
    assert {"slower": "SLOWER", "noise": "AMBIGUOUS"} == found
    assert [("slower", "noise")] * shown + [("slower",)] * 5 == arena.rounds


def test_the_deadline_ends_it() -> None:
    """What is known by then is told; too few pairs are no verdict."""
    arena = Simulated(request("x", deadline_s=1e9), lambda name, number: timed(name, number, 0.0))

    def answer(name: str, number: int) -> CellTimed:
        if number == 2:
            arena.began -= 2e9
        return timed(name, number, 0.0)

    arena.answer = answer
    (cell,) = arena.fight().cells
    over = "the deadline of 1e+09 s was over"
    assert ("AMBIGUOUS", f"3 pairs of processes, and 5 are needed; {over}") == (cell.verdict, cell.reason)


@pytest.mark.parametrize(
    ("end", "why", "helps"),
    [
        (None, "the deadline of 90 s was over", True),
        (KeyboardInterrupt(), "the duel was interrupted", True),
        (DeviceError("next has no Python."), "the duel could not go on: next has no Python", False),
    ],
)
def test_a_cell_says_what_ended_the_duel(end: BaseException | None, why: str, *, helps: bool) -> None:
    """It was never timed, or has too few pairs. More time is advised where it helps. A decided cell says nothing."""

    class Ending(Simulated):
        def _answers(self, asked: DuelRound) -> Iterator[Any]:
            for answer in super()._answers(asked):
                if isinstance(answer, CellTimed) and answer.cell == "never":
                    continue
                yield answer
            if asked.number == 4 and end:
                raise end
            self.began -= 90 * (asked.number == 4)

    for most_pairs in (5, 12):
        arena = Ending(
            request("same", "short", "never", deadline_s=90, most_pairs=most_pairs),
            lambda name, number: timed(name, number, 0.0, spread=0.05 if name == "short" else 0.001),
        )
        duel = arena.fight()
        reasons = {cell.name: cell.reason for cell in duel.cells}
        assert ("", f"no valid sample: it was not timed; {why}") == (reasons["same"], reasons["never"])
        assert (most_pairs == 12) == reasons["short"].endswith(f"; {why}")
        assert (helps or most_pairs == 5) == ("more time (--deadline)" in to_text(duel)), to_text(duel)


def test_a_deadline_that_leaves_no_time_is_told() -> None:
    """With its value; nothing was timed."""

    class Late(Simulated):
        def _answers(self, asked: DuelRound) -> Iterator[Any]:
            self.began -= 2
            yield from ()

    with pytest.raises(DeviceError, match="nothing was timed: the deadline of 2 s was over before the first pair of"):
        Late(request("x", deadline_s=2.0), lambda name, number: None).fight()


def test_ctrl_c_ends_it_with_what_is_decided() -> None:
    """The rest is ambiguous, and says how many pairs it has."""

    def answer(name: str, number: int) -> CellTimed:
        if number == 5:
            raise KeyboardInterrupt
        return timed(name, number, 0.05 if name == "slower" else 0.0)

    arena = Simulated(request("same", "slower"), answer)
    duel = arena.fight()
    assert arena.interrupted
    assert {"same": "SAME", "slower": "AMBIGUOUS"} == {cell.name: cell.verdict for cell in duel.cells}


def test_a_second_ctrl_c_does_not_lose_what_was_timed() -> None:
    """It comes while the judge is stopped."""

    class Slow(Child):
        def __init__(self) -> None:
            """No process is started."""

        def stop(self) -> None:
            signal.raise_signal(signal.SIGINT)

    def answer(name: str, number: int) -> CellTimed:
        if number == 2:
            raise KeyboardInterrupt
        return timed(name, number, 0.0)

    arena = Simulated(request("x"), answer)
    arena.child = Slow()
    assert 2 == len(arena.fight().samples["x"])


def test_an_interrupted_duel_waits_for_no_store(
    empty_sqlite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its times are in a file at once, and the exit code is that of an interrupt."""

    def answer(name: str, number: int) -> CellTimed:
        if number == 2:
            raise KeyboardInterrupt
        return timed(name, number, 0.0)

    monkeypatch.chdir(tmp_path)
    arena, said = Simulated(request("x"), answer), list[str]()
    duel = arena.fight()
    with Outage(empty_sqlite) as outage, Store.open(empty_sqlite, busy_timeout_s=0.01) as store:
        outage.begin()
        early = cli_duel.keep(store, arena, duel, None, said.append, PLAIN)
    assert early is not None
    assert (130, False, []) == (early.exit_code, early.stored, said)
    assert early.told.startswith("interrupted. evidence store "), early.told
    assert f"all its times are in {tmp_path / duel.id}.jsonl.gz" in early.told
    assert "The duel is not stored either" == cli_duel.told_elsewhere(duel, early, PLAIN)
    assert cli_duel.told_elsewhere(duel, None, PLAIN).endswith(f": qualify db export --duel {duel.id}")


def test_a_judge_that_cannot_start_again_ends_it_with_what_is_decided() -> None:
    """The rest is ambiguous; where nothing was timed before, there is no duel."""

    def answer(name: str, number: int) -> CellTimed:
        if number == 5:
            raise DeviceError("the Python of next is gone")
        return timed(name, number, 0.05 if name == "slower" else 0.0)

    arena = Simulated(request("same", "slower"), answer)
    duel = arena.fight()
    assert "the Python of next is gone" == str(arena.broken)
    assert {"same": "SAME", "slower": "AMBIGUOUS"} == {cell.name: cell.verdict for cell in duel.cells}

    def gone(name: str, number: int) -> CellTimed:
        return answer(name, 5)

    with pytest.raises(DeviceError, match="the Python of next is gone"):
        Simulated(request("same"), gone).fight()


@pytest.mark.slow
def test_times_are_stored_where_an_environment_goes_away(tmp_path: Path) -> None:
    """Its Python removes itself in the first pair. The message says that the times are stored, and they are."""
    cards = write_cards(tmp_path / "cards", "correct")
    matrix = write_matrix(tmp_path / "m.yaml", "correct", seqlens=(64,))
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncase "$*" in *boot.py*) rm "$0";; esac\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    options = ("--cards", cards, "--device", "cpu", "--db", "e.db", "--environment", f"next={python}", "--json")
    ended = call("duel", "correct", "correct@next", matrix, *options, cwd=tmp_path)
    assert 4 == ended.code, ended.err
    assert "what was measured is stored" in ended.err
    with Store.open(str(tmp_path / "e.db"), create=False) as store:
        (stored,) = store.duels("m")
    assert (stored.id, True, 4) == tuple(ended.data[key] for key in ("id", "stored", "exit_code"))
    assert ended.err.endswith(f"qualify: {ended.data['error']}\n")
    assert [1] == [len(pairs) for pairs in stored.samples.values()]


def test_a_cell_that_fails_is_inconclusive() -> None:
    """It is not tried again, the others go on; the reason names the side."""

    def answer(name: str, number: int) -> Any:
        return CellFailed(cell=name, error="B (k): it crashed") if name == "bad" else timed(name, number, 0.0)

    arena = Simulated(request("bad", "good"), answer)
    found = {cell.name: (cell.verdict, cell.reason) for cell in arena.fight().cells}
    assert {"bad": ("INCONCLUSIVE", "B (k): it crashed"), "good": ("SAME", "")} == found
    assert [("bad", "good"), ("good",)] == arena.rounds[:2]


def test_a_cell_is_judged_without_those_that_failed_before() -> None:
    """Among forty others a slowdown must stand out further. When they fail it is found, and its times say so."""

    def answer(name: str, number: int) -> Any:
        if name == "c1":
            return timed(name, number, 0.04, spread=0.02)
        if number == 6:
            return CellFailed(cell=name, error="B (k): it crashed")
        return timed(name, number, 0.0, spread=0.05)

    among = Simulated(request("c1", *(f"broken-{number}" for number in range(40))), answer).fight()
    alone = Simulated(request("c1"), answer).fight()
    assert "SLOWER" == among.cells[0].verdict
    assert (7, 6) == tuple([pair.confirming for pair in duel.samples["c1"]].index(True) for duel in (among, alone))


def test_a_cell_whose_samples_were_all_thrown_away_is_inconclusive() -> None:
    """They are counted."""

    def answer(name: str, number: int) -> CellTimed:
        pair = DuelPair(way="eager", pair=number, quads=(), thrown_away=4)
        return CellTimed(cell=name, pairs=(pair,), notes=("thrown away: hardware slowdown (clock-event bit 0x8)",))

    arena = Simulated(request("x", most_pairs=5), answer)
    (cell,) = arena.fight().cells
    assert ("INCONCLUSIVE", "no valid sample: all 20 quads were thrown away") == (cell.verdict, cell.reason)
    assert 20 == cell.thrown_away
    assert ("thrown away: hardware slowdown (clock-event bit 0x8)",) == cell.notes


def test_equal_calls_are_timed_once() -> None:
    """Their cells share the verdict."""
    twin = DuelTask(name="twin", a=make_case(), b=make_case())
    arena = Simulated(request("x", alike={"x": (twin,)}), lambda name, number: timed(name, number, 0.0))
    duel = arena.fight()
    assert [("x", "SAME"), ("twin", "SAME")] == [(cell.name, cell.verdict) for cell in duel.cells]
    assert {("x",)} == set(arena.rounds)


def test_an_unfit_card_is_told() -> None:
    """Nothing was timed at all: that is an error of the machine, with its reason."""

    class Unfit(Simulated):
        def _answers(self, asked: DuelRound) -> Iterator[Any]:
            yield CardUnfit(reasons=("MIG is on",))

    with pytest.raises(DeviceError, match="nothing was timed: MIG is on"):
        Unfit(request("x"), lambda name, number: None).fight()


def test_false_alarms_are_counted_without_planted_cells() -> None:
    """Of four cells one is planted: it is found, and no alarm."""
    asked = request("a", "b", "c", "d", null=True)
    asked = replace(asked, tasks=(replace(asked.tasks[0], plant=0.05), *asked.tasks[1:]))
    arena = Simulated(asked, lambda name, number: timed(name, number, 0.05 if name == "a" else 0.0))
    duel = arena.fight()
    assert (["a"], 0.0) == ([cell.name for cell in duel.planted], duel.alarms)
    assert "SLOWER" == duel.planted[0].verdict


@pytest.mark.slow
def test_a_kernel_that_spins_is_found(tmp_path: Path) -> None:
    """Real hosts take turns: the spinning kernel is slower, and all of it is stored."""
    cards = write_cards(tmp_path / "cards", "correct", "spinning")
    matrix = write_matrix(tmp_path / "m.yaml", "correct", "spinning", seqlens=(64,))
    common = ("--cards", cards, "--device", "cpu", "--db", "e.db", "--margin", "40", "--pairs", "3", "--json")
    ended = call("duel", "correct", "spinning", matrix, *common, cwd=tmp_path)
    assert 1 == ended.code, ended.err
    (cell,) = ended.data["cells"]
    assert "SLOWER" == cell["verdict"]
    assert 0.4 < cell["ratios"]["eager"]["low"]
    assert "pair 6: 1/1" in ended.err  # three, three that confirm, and more where the machine was busy
    with Store.open(str(tmp_path / "e.db"), create=False) as store:
        (stored,) = store.duels("m")
    assert ended.data["id"] == stored.id
    assert 6 <= len(stored.samples[cell["name"]])


def test_ctrl_c_before_the_first_time_is_no_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be told of such a duel, and no cause is made up."""
    cards = write_cards(tmp_path / "cards", "correct", "slow")
    matrix = write_matrix(tmp_path / "m.yaml", "correct", "slow")
    asked = DuelAsked(a="correct", b="slow", matrix=str(matrix), cards=(cards,), device="cpu")
    monkeypatch.setattr(Duelling, "_round", lambda *_: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        Duelling(make_duel(asked), lambda step: None).fight()


@pytest.mark.parametrize(
    ("a", "b", "changes", "error", "message"),
    [
        ("corect", "slow", {}, UsageError, "'corect' is no kernel and no environment; perhaps you meant correct"),
        ("correct", "slow@next", {}, UsageError, "there is no environment 'next'. Name its interpreter: --environment"),
        ("correct", "here", {}, UsageError, "compare two kernels, or two environments"),
        (
            "correct",
            "correct",
            {},
            UsageError,
            "the kernel correct, so their duel shows only noise. Name",
        ),
        (
            "here",
            "here",
            {"plant": 0.02},
            UsageError,
            "A and B are both this interpreter, so",
        ),
        (
            "correct",
            "smoke",
            {},
            UsageError,
            "smoke is a matrix, and stands in the place of a kernel or an",
        ),
        (
            "correct",
            "m.yaml",
            {},
            UsageError,
            "m.yaml is a matrix, and stands in the place of a kernel",
        ),
        ("correct", "x" * 5000, {}, UsageError, "is no kernel and no environment"),
        ("correct", "slow", {"matrix": "slow"}, UsageError, "slow is a kernel, and a matrix stands behind both sides"),
        (
            "correct",
            "correct",
            {"matrix": "slow", "null": True},
            UsageError,
            "slow is another kernel: leave",
        ),
        ("correct", "tiled-torch", {}, NothingSelected, "m has no case of the kernel tiled-torch: name a matrix that"),
        ("correct", "slow", {"select": "x"}, NothingSelected, "matches --select 'x'"),
    ],
)
def test_sides_that_are_none_are_told(
    a: str,
    b: str,
    changes: dict[str, Any],
    error: type[Exception],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each mistake has its message."""
    monkeypatch.chdir(tmp_path)
    cards = write_cards(tmp_path / "cards", "correct", "slow")
    matrix = write_matrix(tmp_path / "m.yaml", "correct", "slow")
    with pytest.raises(error) as raised:
        make_duel(DuelAsked(**{"a": a, "b": b, "matrix": str(matrix), "cards": (cards,), "device": "cpu", **changes}))
    assert message in str(raised.value)


def test_cells_that_one_side_alone_can_run_are_told(tmp_path: Path) -> None:
    """What nobody compared does not look as if it were the same."""
    cards = write_cards(tmp_path / "cards", "correct", "slow")
    card = cards / "slow.yaml"
    text = card.read_text().replace("dtypes: [bf16, fp32]", "dtypes: [fp32]")
    card.write_text(text.replace("{bf16: bf16, fp32: fp32}", "{fp32: fp32}"))
    matrix = write_matrix(tmp_path / "m.yaml", "correct", "slow", seqlens=(8, 16), dtypes=("fp32", "bf16"))
    asked = DuelAsked(a="correct", b="slow", matrix=str(matrix), cards=(cards,), device="cpu")
    found = make_duel(asked)
    assert (2, (), 2) == (len(found.only_a), found.only_b, len(found.tasks))
    assert all("/bf16/" in cell for cell in found.only_a)
    assert () == make_duel(replace(asked, select="fp32")).only_a
    turned = make_duel(replace(asked, a="slow", b="correct"))
    assert ((), found.only_a) == (turned.only_a, turned.only_b)
    common = ("--cards", cards, "--device", "cpu", "--db", "e.db", "--deadline", "1s")
    ended = call("duel", "correct", "slow", matrix, *common, cwd=tmp_path)
    assert f"not compared: only A (correct) can run 2 cells: {found.only_a[0]} and 1 more" in ended.out
    with Store.open(str(tmp_path / "e.db")) as store:
        (stored,) = store.duels()
    assert (found.only_a, ()) == (stored.only_a, stored.only_b)
    assert {task.b.id: task.b.content_hash for task in found.tasks} == stored.content
    assert ["slow"] == [name for name, code in stored.code.items() if "third_party.py" in code]


def test_a_stored_stack_that_is_still_here_has_its_duel(tmp_path: Path) -> None:
    """A policy may require a duel although nothing changed; a null duel does not count there."""
    matrix = write_matrix(tmp_path / "m.yaml", "tiled-torch")
    labels = {"label_a": "stack 0123 (here)", "label_b": "here"}
    request = make_duel(DuelAsked(a="here", b="here", matrix=str(matrix), device="cpu", **labels))
    assert (*labels.values(), False, 1) == (request.a, request.b, request.null, len(request.tasks))


def test_words_of_the_command_line() -> None:
    """A and B, and the matrix where it is named; with --null A alone."""
    assert ("a", "b", "smoke") == words(["a", "b"], null=False)
    assert ("a", "b", "m") == words(["a", "b", "m"], null=False)
    assert ("a", "a", "m") == words(["a", "m"], null=True)
    assert ("a", "a", "smoke") == words(["a"], null=True)
    for wrong in (["a"], ["a", "b", "c", "d"]):
        with pytest.raises(UsageError, match="takes A B") as raised:
            words(wrong, null=False)
        assert (wrong == ["a"]) == ("B is missing" in str(raised.value))
    assert [90.0, 480.0, 3600.0] == [seconds(text) for text in ("90s", "8m", "1h")]
    for text in ("soon", "m", "-1m", "0s", "8", "1h30m"):
        with pytest.raises(UsageError, match=rf"^--deadline {text}: give one number above 0 and its unit, s, m or h,"):
            seconds(text)


def test_a_stored_stack_is_found_again_here(empty_sqlite: str) -> None:
    """The stack of a run that this interpreter still has is `here`; one of other versions is told with them."""
    here = make_stack(torch=metadata.version("torch"), triton="")
    other = make_stack(torch="1.0.0", triton="")
    asked = DuelAsked(a=here.fingerprint[:12], b="next", matrix="smoke")
    with Store.open(empty_sqlite) as store:
        for stack in (here, other):
            store.begin(make_run(stack=stack))
        found = at_stored_stacks(asked, store)
        assert ("here", "next", f"stack {here.fingerprint[:12]} (here)") == (found.a, found.b, found.label_a)
        with pytest.raises(UsageError, match=r"is not installed here any more: .*torch 1\.0\.0 → "):
            at_stored_stacks(replace(asked, a=other.fingerprint[:12]), store)
        with pytest.raises(UsageError, match=r"no stored run in .* has a stack"):
            at_stored_stacks(replace(asked, a="0123456789ab"), store)


def test_a_duel_may_have_as_many_pairs_as_are_computed_again(tmp_path: Path) -> None:
    """More would be stored, and never believed."""
    assert 2 * cli_duel.MOST_PAIRS == duelled.MOST_PAIRS
    ended = call("duel", "a", "b", "--pairs", str(cli_duel.MOST_PAIRS + 1), cwd=tmp_path)
    assert (2, True) == (ended.code, "--pairs" in ended.err), ended


def test_exit_codes() -> None:
    """1 where a cell is slower, 5 where one is undecided, 0 where all are the same or faster."""
    same, slower, noise = 0.0, 0.05, 0.0
    for change, spread, expected in ((same, 0.001, 0), (slower, 0.001, 1), (noise, 0.05, 5)):
        arena = Simulated(
            request("x", most_pairs=10),
            lambda name, number, change=change, spread=spread: timed(name, number, change, spread=spread),
        )
        duel = arena.fight()
        assert expected == exit_code(duel, allow_undecided=False)
        assert (expected == 1) == exit_code(duel, allow_undecided=True)
        told = cli_duel.to_object(duel, None, expected)
        assert (True, None, expected) == (told["stored"], told["error"], told["exit_code"])
