"""Which stored runs are the history of a verdict: the whole ones of its level up to it, of its card, call and code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from builders import make_evidence, make_timing
from stored_runs import IDS, MATRIX, NOW, make_stack, shipped_kernels, store_run

from qualify.facts.case import Case
from qualify.facts.outcome import Measured, NotRun
from qualify.facts.run import Run
from qualify.judge.judged import judge
from qualify.judge.levels import Levels, levels
from qualify.store.store import Store

OLD, NEW = make_stack(torch="2.10.0"), make_stack()
CODE = {"tiled-torch": {"tiled.py": "aa"}, "torch-cpu-math": {"math.py": "bb"}}


def timed(us: float, least_us: float = 50.0, card: str = "") -> Callable[[Case], Measured]:
    """Every case took so long."""

    def outcome(case: Case) -> Measured:
        timing = make_timing(us * (1 + len(case.id) % 3), roofline_us=least_us)
        return Measured(evidence=replace(make_evidence(), timing=timing, device_uuid=card))

    return outcome


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The matrix of two shapes and two kernels."""
    (tmp_path / "serving.yaml").write_text(MATRIX)
    return tmp_path / "serving.yaml"


def nights(store: Store, path: Path, before: int = 8, since: int = 4) -> Run:
    """Runs on the old stack and then on the new one, a tenth of a percent apart; the newest one, of 12 hours ago."""
    run = None
    for night in range(before + since):
        age = timedelta(hours=12 * (before + since - night))
        stack = NEW if night >= before else OLD
        run = store_run(store, path, timed(100 + 0.1 * (night % 4)), age=age, stack=stack, code=CODE)
    assert run is not None
    return run


def seen(store: Store, run: Run) -> Levels:
    """What history says of the run."""
    return levels(store, judge(store, run.id, shipped_kernels(), now=NOW), now=NOW)


def bases(found: Levels) -> list[str]:
    """How many runs each case is compared over."""
    return [cell.basis for cell in found.cells]


WHOLE = ["8 runs before and 4 since"] * 4


def test_other_runs_are_no_history(store: Store, path: Path) -> None:
    """Not one of a part, of another level, after the judged one, from the future, or that never had a worker."""
    run = nights(store, path)
    expected = seen(store, run)
    assert (WHOLE, OLD.fingerprint) == (bases(expected), expected.before)
    week = timedelta(days=7)
    others: tuple[dict[str, Any], ...] = (
        {"age": week, "select": "*"},
        {"age": week, "kernel": "*"},
        {"age": week, "level": "full"},
        {"age": timedelta(hours=1)},
        {"age": -timedelta(days=1)},
    )
    for changes in others:
        store_run(store, path, timed(900.0), stack=OLD, code=CODE, **changes)
        assert expected == seen(store, run), changes
    store_run(store, path, timed(100.0), age=week, stack=OLD, code=CODE)
    assert ["9 runs before and 4 since"] * 4 == bases(seen(store, run))


def test_runs_that_do_not_count_push_out_none_that_do(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Canaries of a part and smoke runs of every commit are many, and the newest runs are looked at alone."""
    monkeypatch.setattr("qualify.judge.levels.LOOKED_AT", 12)
    run = nights(store, path)
    for hours, changes in enumerate(({"select": "*"}, {"kernel": "*"}, {"level": "full"}), 20):
        store_run(store, path, timed(900.0), age=timedelta(hours=hours), stack=NEW, code=CODE, **changes)
    store_run(store, path, timed(100.0), age=timedelta(hours=1), stack=NEW, code=CODE)
    assert WHOLE == bases(seen(store, run))


def test_many_runs_on_one_stack_push_out_none_of_those_before(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing changes for months, the runs around the last change stay the history; more runs open no budget."""
    monkeypatch.setattr("qualify.judge.levels.LOOKED_AT", 6)
    found = seen(store, nights(store, path, since=12))
    assert (["8 runs before and 10 since"] * 4, OLD.fingerprint) == (bases(found), found.before)


@pytest.mark.parametrize(
    ("changes", "basis"),
    [
        ({"stack": NEW, "code": CODE}, "8 runs before and 5 since"),
        ({"stack": NEW, "code": CODE | {"tiled-torch": {"tiled.py": "cc"}}}, "12 runs before and 1 since"),
        ({"stack": make_stack(torch="2.12.0"), "code": CODE}, "12 runs before and 1 since"),
    ],
    ids=["the same", "its code", "its stack"],
)
def test_a_change_of_stack_or_code_begins_a_new_level(
    store: Store, path: Path, changes: dict[str, Any], basis: str
) -> None:
    """Of the kernel that it is about: another kernel's code changes nothing."""
    nights(store, path)
    found = seen(store, store_run(store, path, timed(100.0), age=timedelta(hours=1), **changes))
    other = basis if changes["stack"] != NEW else "8 runs before and 5 since"
    assert [basis, other] * 2 == bases(found)


def test_times_of_other_cards_and_calls_do_not_mix(store: Store, path: Path) -> None:
    """A case is compared on the card that ran it, and as the call that it is today."""
    nights(store, path)
    moved = store_run(store, path, timed(100.0, card="cpu-1"), age=timedelta(hours=2), stack=NEW, code=CODE)
    assert ["0 runs before and 1 since"] * 4 == bases(seen(store, moved))
    path.write_text(MATRIX.replace("heads_q: 2", "heads_q: 4"))
    other = store_run(store, path, timed(100.0), age=timedelta(hours=1), stack=NEW, code=CODE)
    found = seen(store, other)
    assert (["0 runs before and 1 since"] * 4, "") == (bases(found), found.before)
    assert {"INCONCLUSIVE"} == {cell.verdict for cell in found.cells}


def test_what_was_not_measured_has_no_history(store: Store, path: Path) -> None:
    """The others are compared."""
    nights(store, path)
    lost = store_run(
        store,
        path,
        lambda case: NotRun(reason="interrupted") if case.id == IDS[0] else timed(100.0)(case),
        age=timedelta(hours=1),
        stack=NEW,
        code=CODE,
    )
    assert IDS[1:] == [cell.cell for cell in seen(store, lost).cells]


@pytest.mark.parametrize(("least_us", "shows"), [(50.0, True), (75.0, False)], ids=["all slower", "as the card is"])
def test_what_all_cases_share_shows_beside_the_ceilings(store: Store, path: Path, least_us: float, shows: bool) -> None:
    """The interval encloses both views, and relative to the others nothing changed: no view alone fails a case."""
    nights(store, path, since=0)
    run = None
    for hours in (4, 3, 2, 1):
        run = store_run(store, path, timed(150.0, least_us), age=timedelta(hours=hours), stack=NEW, code=CODE)
    assert run is not None
    found = seen(store, run)
    assert (WHOLE, {"AMBIGUOUS"}) == (bases(found), {cell.verdict for cell in found.cells})
    assert [shows] * 4 == [cell.high is not None and cell.high > 0.4 for cell in found.cells]


def test_the_stack_before_is_the_newest_that_any_case_ran_on(store: Store, path: Path) -> None:
    """A duel with that one decides what is open: one case that did not run there does not make it an older one."""
    nights(store, path, before=2, since=0)
    middle = make_stack(torch="2.10.5")

    def outcome(case: Case) -> Measured | NotRun:
        return NotRun(reason="interrupted") if case.id == IDS[0] else timed(100.0)(case)

    store_run(store, path, outcome, age=timedelta(hours=6), stack=middle, code=CODE)
    run = store_run(store, path, timed(100.0), age=timedelta(hours=1), stack=NEW, code=CODE)
    assert middle.fingerprint == seen(store, run).before


def test_runs_without_ceilings_are_compared_by_their_times(store: Store, path: Path) -> None:
    """Where one of them measured none: a slower card shows, and nothing is divided by zero."""
    nights(store, path, since=0)
    run = None
    for hours in (4, 3, 2, 1):
        least_us = 75.0 if hours > 1 else 0.0
        run = store_run(store, path, timed(150.0, least_us), age=timedelta(hours=hours), stack=NEW, code=CODE)
    assert run is not None
    found = seen(store, run)
    assert (WHOLE, {"AMBIGUOUS"}) == (bases(found), {cell.verdict for cell in found.cells})
    assert all(cell.high is not None and cell.high > 0.4 for cell in found.cells)
