"""A clock that somebody sets while a run goes on: its evidence does not seem younger than it is."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from clocks import turn_back
from sealing import new_pair
from stored_runs import make_run

from qualify.facts.run import Run
from qualify.fleet.sealing import Ledger
from qualify.fleet.set_clock import SetClock, since_boot
from qualify.seal.sealed import check_seal
from qualify.store.store import Store
from qualify.verdict.origin import oldest

DAY_S = 86_400.0


class Dated:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        """Seconds of a clock that is so many ahead of the steady one."""
        return since_boot() + self.ahead_s


def ended(store: Store, set_by: float, noted: float = 0.0) -> Run:
    """A run that ended, during which its machine's clock was set by so many seconds, as the store has it."""
    run = make_run(state="running", finished_at=None, clock_skew_s=noted)
    store.begin(run)
    clock = Dated()
    ledger = Ledger(store, run.id, None, SetClock(clock))
    clock.ahead_s = set_by
    assert ledger.finish(run, "completed") == store.run(run.id)
    return store.run(run.id)


@pytest.mark.parametrize("set_by", [DAY_S, -DAY_S])
def test_a_clock_that_was_set_during_a_run_makes_its_evidence_older(empty_store: str, set_by: float) -> None:
    """Nobody knows which of the two times was right, because the store's clock is the same one."""
    with Store.open(empty_store) as store:
        run = ended(store, set_by)
    assert run.clock_skew_s == pytest.approx(DAY_S, abs=5)
    assert oldest(run) <= run.started_at - timedelta(seconds=DAY_S - 5)


@pytest.mark.parametrize("set_by", [0.0, 1.0, -1.0])
def test_a_clock_that_goes_on_notes_what_was_known(store: Store, set_by: float) -> None:
    """So does one that was set by a moment."""
    assert 0.25 == ended(store, set_by, noted=0.25).clock_skew_s


@pytest.mark.parametrize("set_by", [DAY_S, -DAY_S])
def test_a_server_tells_which_of_the_two_times_was_right(empty_postgres: str, set_by: float) -> None:
    """Its clock was not set: the machine is as far from it now as its clock was set by."""
    turn_back(empty_postgres, f"{set_by} seconds")
    with Store.open(empty_postgres) as store:
        assert ended(store, set_by).clock_skew_s == pytest.approx(set_by, abs=5)


def test_the_seal_covers_a_clock_that_was_set(store: Store, tmp_path: Path) -> None:
    """What the store has at the end is what was summed."""
    pair, clock = new_pair(tmp_path), Dated()
    run = make_run(state="running", finished_at=None, clock_skew_s=0.0)
    store.begin(run)
    ledger = Ledger(store, run.id, pair.signing, SetClock(clock))
    ledger.add_cases([])
    clock.ahead_s = DAY_S
    ledger.seal(ledger.finish(run, "completed"))
    found = store.evidence(run.id)
    assert not check_seal(found.seal, found.lines, run.id, pair.trusted).why_not
