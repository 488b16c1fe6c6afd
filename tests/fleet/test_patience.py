"""A store that refuses writes for a time costs no outcome and stores none twice; a run that is told to end ends."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from cli_process import write_cards, write_matrix
from outages import Outage

from qualify.cli.run import concluding, execute_shown
from qualify.cli.terminal import emit
from qualify.errors import StdoutLost, StoreError
from qualify.facts.run import Run
from qualify.facts.typed import Typed
from qualify.fleet import filing, patience
from qualify.fleet.filing import Progress
from qualify.fleet.local import execute, new_run
from qualify.fleet.request import Asked, Request, make_request
from qualify.store.store import Store

pytestmark = pytest.mark.usefixtures("forked")

LENGTHS = (8, 9, 10, 11)


class Watched:
    """What a run tells. Something happens at a case after the first that is stored, and again when outcomes wait."""

    def __init__(self, first: Callable[[], object], waits: Callable[[], object]) -> None:
        self.next = [first, waits]
        self.told: list[str] = []
        self.unstored: list[str] = []

    def __call__(self, step: Progress) -> None:
        self.told += [step.told] if step.told else []
        self.unstored += [step.unstored] if step.unstored else []
        begun = step.done and not step.record
        if (len(self.next) == 2 and begun) or (len(self.next) == 1 and step.unstored):
            self.next.pop(0)()


@pytest.fixture
def request_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Request:
    """Four cases, each stored as soon as it is known."""
    monkeypatch.setattr(filing, "COMMIT_SECONDS", 0.0)
    cards = write_cards(tmp_path / "cards", "correct")
    matrix = write_matrix(tmp_path / "m.yaml", "correct", seqlens=LENGTHS)
    return make_request(Asked(matrix=str(matrix), cards=(cards,), device="cpu"))


@pytest.fixture
def impatient_store(empty_store: str) -> Iterator[Store]:
    """A store that waits only a moment for another writer."""
    with Store.open(empty_store, busy_timeout_s=0.05) as opened:
        yield opened


def stored(store: Store, run: Run) -> list[str]:
    """All outcomes of the run, in order: the id of the case of each."""
    found = store.evidence(run.id)
    return [record.case.id for record in found.outcomes]


def test_an_outage_that_passes_costs_nothing(request_: Request, impatient_store: Store, empty_store: str) -> None:
    """Outcomes wait in memory, and each is stored once; the run says when that begins and when it is over."""
    run = new_run(request_)
    with Outage(empty_store) as outage:
        watched = Watched(outage.begin, outage.end)
        execute(request_, impatient_store, run, watched)
    assert "completed" == impatient_store.run(run.id).state
    assert sorted(case.id for case in request_.plan.cases) == sorted(stored(impatient_store, run))
    begun, over = watched.told
    assert begun.endswith(" It is tried again for 120 s.")
    assert "the evidence store takes writes again" == over
    happened = "the database server refused the connection" if "://" in empty_store else "stayed locked"
    assert happened in watched.unstored[0]
    assert watched.unstored[0].startswith("1 outcome in memory, because the database ")


def test_an_outage_that_does_not_pass(
    request_: Request, impatient_store: Store, empty_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends with the store's words and the number of outcomes that are lost; what was stored stays."""
    monkeypatch.setattr(patience, "PATIENCE_S", 0.0)
    run = new_run(request_)
    with Outage(empty_store) as outage:
        with pytest.raises(StoreError, match=r"It was tried again for \d+ s\. \d outcomes? could not be stored and"):
            execute(request_, impatient_store, run, Watched(outage.begin, lambda: None))
        outage.end()
        assert stored(impatient_store, run)
        impatient_store.release(run.id)  # as a process that has ended does
        execute(request_, impatient_store, run, lambda _: None, resume=True)
    assert sorted(case.id for case in request_.plan.cases) == sorted(stored(impatient_store, run))


def test_ctrl_c_during_an_outage(request_: Request, impatient_store: Store, empty_store: str) -> None:
    """It ends as an interrupt, and says how many outcomes are lost."""
    run = new_run(request_)

    def stop() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with Outage(empty_store) as outage:
        with pytest.raises(KeyboardInterrupt, match=r"^\d outcomes? could not be stored and will run again: the data"):
            execute(request_, impatient_store, run, Watched(outage.begin, stop))
        outage.end()
        assert stored(impatient_store, run)


def test_a_refusal_that_cannot_pass_ends_the_run(request_: Request, empty_sqlite: str) -> None:
    """Nothing is tried again where the schema is broken."""
    run = new_run(request_)

    def break_it() -> None:
        with closing(sqlite3.connect(empty_sqlite)) as other:
            other.execute("DROP TABLE findings")

    watched = Watched(break_it, lambda: None)
    with Store.open(empty_sqlite) as store, pytest.raises(StoreError, match="expected tables"):
        execute(request_, store, run, watched)
    assert [] == watched.told == watched.unstored


def test_a_run_that_nobody_can_ask_for(request_: Request, empty_postgres: str) -> None:
    """Where the store is away to the end, nobody says that nothing was measured: there is a command for both cases."""
    with Outage(empty_postgres) as outage, Store.open(empty_postgres) as store:
        outage.begin()
        with pytest.raises(StoreError) as told:
            execute_shown(
                request_, store, None, reuse=False, resume=["qualify", "run", "m.yaml"], talk="quiet", judges=None
            )
    said = r"does not say whether it has the run\. If it has, go on with: qualify run m\.yaml --resume \S+$"
    assert re.search(said, str(told.value))


def test_a_store_that_goes_away_before_the_verdict(empty_sqlite: str) -> None:
    """The run is complete: the message says how to get its verdict, and nobody runs it again."""
    with closing(sqlite3.connect(empty_sqlite)) as other:
        other.execute("DROP TABLE runs")
    words = r"tables.*\nRun r1 is complete and stored\. Judge it with: qualify gate --run r1 --db e\.db$"
    with Store.open(empty_sqlite) as store, pytest.raises(StoreError, match=words), concluding("r1", Typed(db="e.db")):
        store.runs()


def test_a_stdout_that_is_full_when_the_verdict_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the run, and no command that would run it again."""
    words = r"stdout: No space left on device\. Run r1 is complete and stored\. Judge it with: qualify gate --run r1$"
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(StdoutLost, match=words), concluding("r1", Typed()):
            emit("PASS")
