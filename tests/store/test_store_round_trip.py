"""What is stored comes back equal, on every database."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import store_examples as examples

from qualify.errors import StoreError, UsageError
from qualify.facts.case import Case, Workload
from qualify.facts.outcome import Crashed, Measured, Outcome, evidence_of
from qualify.facts.run import Record
from qualify.facts.stack import Stack
from qualify.masks import Mask
from qualify.store import Store
from qualify.store.writing import stack_key

RUN = examples.run()
CASES = [
    examples.case(0),
    examples.case(1, unclaimed=("window 4096 (claims: full)", examples.HOSTILE), line=0, phase="decode"),
    examples.case(
        2, workload=examples.workload(mask=Mask(causal=True, window=(4096, 0)), softcap=50.0, sinks=True, scale=0.1)
    ),
    examples.case(3, workload=examples.workload(seqlens_q=(1,) * 65_536, seqlens_k=tuple(range(500)), page_size=16)),
    examples.case(4, workload=examples.workload(seqlens_q=(), seqlens_k=(), mask=Mask()), model=examples.HOSTILE),
    examples.case(5, dtype="fp16", workload=examples.workload(dtype="fp32", softcap=examples.INFINITY)),
    examples.case(6, dtype="fp8_e4m3", workload=examples.workload(dtype="fp8_e4m3", descale="head")),
    examples.case(7, dtype="bf16_kv_fp8_e4m3", workload=examples.workload(dtype="bf16_kv_fp8_e4m3", descale="tensor")),
    examples.case(8, workload=examples.workload(heads_kv=1, latent=True)),
]


@pytest.mark.parametrize("outcome", examples.outcomes(), ids=lambda outcome: type(outcome).__name__)
def test_an_outcome_comes_back(planned: Store, outcome: Outcome) -> None:
    """Every kind of outcome, full and bare; by repr, because NaN equals nothing."""
    record = Record(case=examples.case(0), outcome=outcome)
    planned.add(RUN.id, [record])
    assert repr(record) == repr(planned.records(RUN.id)[0])


def test_outcomes_of_one_commit_keep_their_parts(planned: Store) -> None:
    """Findings, statistics, launches and samples of records committed together do not mix."""
    records = [
        Record(case=examples.case(number), outcome=Measured(evidence=examples.evidence(attempt=number + 1)))
        for number in (7, 2, 5)
    ]
    planned.add(RUN.id, records)
    stored = {record.case.id: record for record in planned.records(RUN.id)}
    assert [repr(record) for record in records] == [repr(stored[record.case.id]) for record in records]


def test_not_a_number_is_a_number(planned: Store) -> None:
    """NaN comes back as NaN and not as None, where None means something else."""
    evidence = examples.evidence(statistics=(examples.statistics(lse_rel=examples.NAN),))
    planned.add(RUN.id, [Record(case=examples.case(0), outcome=Measured(evidence=evidence))])
    stored = evidence_of(planned.records(RUN.id)[0].outcome)
    assert stored is not None
    assert "nan" == str(stored.statistics[0].lse_rel)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.shape)
def test_a_case_comes_back(store: Store, case: Case) -> None:
    """A case and its workload are rebuilt from their columns."""
    store.begin(RUN)
    store.add_cases(RUN.id, [case])
    (record,) = store.records(RUN.id)
    assert case == record.case
    assert isinstance(record.case.workload, Workload)


def test_a_run_comes_back(store: Store) -> None:
    """A run with its stack and its ceilings is rebuilt; by repr, because one ceiling is NaN."""
    run = examples.run(
        finished_at=examples.STARTED + timedelta(hours=1),
        state="completed",
        select="llama*",
        stack=examples.stack(),
        ceilings=examples.ceilings(),
    )
    store.begin(run)
    stored = store.run(run.id)
    assert run.stack == stored.stack
    assert repr(run.ceilings) == repr(stored.ceilings)
    assert replace(run, stack=None, ceilings=None) == replace(stored, stack=None, ceilings=None)


def test_environments_get_their_stacks_as_they_come(store: Store) -> None:
    """Each its own, on its card; what was set first stays, and another one is refused."""
    store.begin(RUN)
    assert RUN.environments == store.run(RUN.id).environments
    store.set_environments(RUN.id, {"next": examples.stack("GPU-7", driver="590.1")})
    store.set_environments(RUN.id, {"old": examples.stack(), "next": examples.stack("GPU-7", driver="590.1")})
    stored = store.run(RUN.id)
    assert ["Next", "next", "old"] == list(stored.environments)
    assert [None, examples.stack("GPU-7", driver="590.1"), examples.stack(), None] == [
        stored.stack_of(name) for name in ("Next", "next", "old", "")
    ]
    assert "/opt/next/bin/python" == stored.environments["next"].python
    with pytest.raises(
        UsageError, match=rf"environment old of run {RUN.id} is another stack now \(nvidia 580\.65 → 590\.1\)"
    ):
        store.set_environments(RUN.id, {"old": examples.stack(driver="590.1")})
    with pytest.raises(UsageError, match=rf"run {RUN.id} has no environment mine\. It has: Next, next, old\."):
        store.set_environments(RUN.id, {"mine": examples.stack()})
    assert stored == store.run(RUN.id)


def _begin(store: Store, first: Stack, second: Stack, _: Path) -> None:
    store.begin(examples.run(1, stack=first, environments={"next": replace(RUN.environments["next"], stack=second)}))


def _set_environments(store: Store, first: Stack, second: Stack, _: Path) -> None:
    store.set_environments(RUN.id, {"next": first, "old": second})


def _add_duel(store: Store, first: Stack, second: Stack, _: Path) -> None:
    store.add_duel(examples.duel(stack_a=first, stack_b=second))


def _import(store: Store, first: Stack, second: Stack, folder: Path) -> None:
    with Store.open(str(folder / "other.db")) as other:
        other.begin(examples.run(1, stack=first))
        other.add_cases(examples.run(1).id, examples.cases(1))
        other.add_duel(examples.duel(stack_a=second, stack_b=second))
        other.export_run(examples.run(1).id, folder / "run.gz", duels=[examples.duel().id])
    store.import_run(folder / "run.gz")


@pytest.mark.parametrize("add", [_begin, _set_environments, _add_duel, _import])
def test_who_adds_stacks_at_once_waits_and_none_fails(add: Any, empty_postgres: str, tmp_path: Path) -> None:
    """Every transaction adds its stacks in one order: else two wait for each other, and PostgreSQL ends one of them."""
    both = (examples.stack(driver="590.1"), examples.stack(driver="591.1"))
    low, high = sorted(both, key=lambda stack: stack.fingerprint)
    with Store.open(empty_postgres) as store, ThreadPoolExecutor() as pool:
        store.begin(RUN)
        with store._database.writing() as connection:
            stack_key(connection, low)
            adding = pool.submit(add, store, high, low, tmp_path)
            with pytest.raises(TimeoutError):
                adding.result(timeout=0.5)
            stack_key(connection, high)
        adding.result(timeout=20)


def test_equal_stacks_on_two_cards_keep_their_cards(store: Store) -> None:
    """The fingerprint leaves the UUID out, and yet every run names its own card."""
    for number, uuid in enumerate(["GPU-1", "GPU-2"]):
        store.begin(examples.run(number))
        store.set_stack(examples.run(number).id, examples.stack(uuid), None)
    assert [examples.stack("GPU-2"), examples.stack("GPU-1")] == [run.stack for run in store.runs()]


def test_times_are_utc(store: Store) -> None:
    """A time of another zone comes back as the same moment in UTC."""
    started = datetime(2026, 11, 21, 1, 45, 0, 7, tzinfo=timezone(timedelta(hours=2)))
    store.begin(examples.run(started_at=started))
    stored = store.run(RUN.id).started_at
    assert started == stored
    assert UTC == stored.tzinfo


def test_a_time_without_zone_is_refused(store: Store) -> None:
    """A naive time would mean another moment on another machine."""
    with pytest.raises(StoreError, match="no time zone"):
        store.begin(examples.run(started_at=datetime(2026, 11, 20, 23, 45)))  # noqa: DTZ001  the point of the test


def test_the_last_attempt_counts(planned: Store) -> None:
    """An earlier outcome of a case stays in the database, and the last one is what is read."""
    first, last = (
        Record(case=examples.case(0), outcome=Crashed(stage="call", error="x", log="", attempt=attempt))
        for attempt in (1, 2)
    )
    planned.add(RUN.id, [first])
    planned.add(RUN.id, [last])
    assert last == planned.records(RUN.id)[0]


def test_two_attempts_in_one_commit_keep_their_order(planned: Store) -> None:
    """Of two outcomes of one case in one commit, the later counts."""
    attempts = [
        Record(case=examples.case(0), outcome=Crashed(stage="call", error="x", log="", attempt=attempt))
        for attempt in (1, 2, 3)
    ]
    planned.add(RUN.id, attempts)
    assert attempts[-1] == planned.records(RUN.id)[0]
