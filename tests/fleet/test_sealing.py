"""A run's seal is of what was measured: it grows with the run, and nothing else enters it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from builders import make_case, make_record
from sealing import KeyPair, new_pair
from sqlalchemy import create_engine, text
from stored_runs import make_run, make_stack

from qualify.errors import SigningFailed, UsageError
from qualify.facts.environment import Environment
from qualify.facts.outcome import NotRun, TimedOut
from qualify.facts.run import Run
from qualify.fleet.sealing import Ledger
from qualify.seal.keys import signing_key
from qualify.seal.sealed import SealCheck, check_seal
from qualify.store.address import parse
from qualify.store.store import Store

CASES = [make_case(cell=f"small.tp1/prefill/b1.q{size}.k{size}/bf16/causal") for size in (8, 9, 10)]
PASSES = [make_record(id=case.id, content_hash=case.content_hash, shape=case.shape) for case in CASES]


@pytest.fixture
def pair(tmp_path: Path) -> KeyPair:
    """The runner's keys."""
    return new_pair(tmp_path)


def begun(store: Store) -> Run:
    """A run that has just begun, with an environment."""
    stack = make_stack()
    environments = {"next": Environment(python="/opt/next/bin/python", stack=stack)}
    run = make_run(state="running", finished_at=None, clock_skew_s=0.25, environments=environments)
    store.begin(run)
    return run


def written(store: Store, run: Run, pair: KeyPair | None) -> Ledger:
    """The plan and two of three outcomes."""
    ledger = Ledger(store, run.id, pair.signing if pair else None)
    ledger.add_cases(CASES)
    late = TimedOut(stage="call", limit_s=60, attempt=1)  # a whole number of seconds, as a card may say
    ledger.add([PASSES[0], make_record(late, id=CASES[1].id, content_hash=CASES[1].content_hash, shape=CASES[1].shape)])
    return ledger


def check(store: Store, run: Run, pair: KeyPair) -> SealCheck:
    """What a gate says."""
    found = store.evidence(run.id)
    return check_seal(found.seal, found.lines, run.id, pair.trusted)


def tamper(address: str, statement: str) -> None:
    """Somebody else writes into the store."""
    engine = create_engine(parse(address))
    with engine.begin() as connection:
        assert connection.execute(text(statement)).rowcount == 1
    engine.dispose()


def test_a_key_service_that_is_gone_at_the_end_is_said(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run stays without a seal, and the message names it, the cause and what to do."""
    pair = new_pair(tmp_path, "ecdsa", ecdsa=True)
    monkeypatch.setenv("QUALIFY_SIGNING_KEY", f"command:openssl dgst -sha256 -sign {pair.private}")
    monkeypatch.setenv("QUALIFY_SIGNING_PUBLIC_KEY", str(pair.public))
    key = signing_key()
    pair.private.unlink()
    run = begun(store)
    ledger = written(store, run, replace(pair, signing=key))
    told = f"run {run.id} is stored without a seal. .*gives no signature .*No such file.* Then run again"
    with pytest.raises(SigningFailed, match=told):
        ledger.seal(ledger.finish(run, "completed"))
    assert store.evidence(run.id).seal is None


def test_a_run_is_sealed_when_it_ends(empty_store: str, pair: KeyPair) -> None:
    """Completed or interrupted; while it runs it has no seal, and without a key never."""
    with Store.open(empty_store) as store:
        for state in ("completed", "interrupted"):
            run = begun(store)
            ledger = written(store, run, pair)
            assert "it is not sealed" == check(store, run, pair).why_not
            ledger.seal(ledger.finish(run, state))
            assert ("", True) == ((found := check(store, run, pair)).why_not, found.trusted)
        run = begun(store)
        ledger = written(store, run, None)
        ledger.seal(ledger.finish(run, "completed"))
        assert store.evidence(run.id).seal is None


def test_what_somebody_else_wrote_meanwhile_is_not_sealed(empty_store: str, pair: KeyPair) -> None:
    """The seal is of what the runner measured; the store holds something else, and the message says what."""
    with Store.open(empty_store) as store:
        run = begun(store)
        ledger = written(store, run, pair)
        tamper(empty_store, "UPDATE outcomes SET limit_s = 61 WHERE limit_s IS NOT NULL")
        with pytest.raises(SigningFailed, match=f"{CASES[1].id} limit_s changed"):
            ledger.seal(ledger.finish(run, "completed"))
        assert store.evidence(run.id).seal is None


def test_a_resumed_run_gets_a_new_seal(empty_store: str, pair: KeyPair) -> None:
    """Over all of it; the seal of before goes as soon as the run goes on."""
    with Store.open(empty_store) as store:
        run = begun(store)
        ledger = written(store, run, pair)
        ledger.seal(ledger.finish(run, "interrupted"))
        again = Ledger(store, run.id, pair.signing)
        records = again.go_on()
        assert [False, False, True] == [isinstance(record.outcome, NotRun) for record in records]
        store.resume(run.id, run.clock_skew_s)
        assert store.evidence(run.id).seal is None
        again.add([PASSES[2]])
        again.seal(again.finish(store.run(run.id), "completed"))
        assert ("", True) == ((found := check(store, run, pair)).why_not, found.trusted)


def _killed(store: Store, run: Run, pair: KeyPair, address: str, other: KeyPair) -> None:
    written(store, run, pair)


def _edited(store: Store, run: Run, pair: KeyPair, address: str, other: KeyPair) -> None:
    ledger = written(store, run, pair)
    ledger.seal(ledger.finish(run, "interrupted"))
    tamper(address, "UPDATE outcomes SET stage = 'checks' WHERE stage = 'call'")


def _of_another_key(store: Store, run: Run, pair: KeyPair, address: str, other: KeyPair) -> None:
    ledger = written(store, run, other)
    ledger.seal(ledger.finish(run, "interrupted"))


@pytest.mark.parametrize(
    ("happened", "why"),
    [(_killed, "it is not sealed"), (_edited, "stage changed"), (_of_another_key, "not by one of the required keys")],
)
def test_what_this_key_has_not_sealed_is_not_gone_on_with(
    empty_sqlite: str, pair: KeyPair, tmp_path: Path, happened: Callable[..., None], why: str
) -> None:
    """It would be sealed as if it had been measured; without the key it goes on, and stays without a seal."""
    with Store.open(empty_sqlite) as store:
        run = begun(store)
        happened(store, run, pair, empty_sqlite, new_pair(tmp_path, "other"))
        with pytest.raises(UsageError, match=f"{why}.* Start a new run: leave out --resume"):
            Ledger(store, run.id, pair.signing).go_on()
        assert [] == Ledger(store, run.id, None).go_on()
