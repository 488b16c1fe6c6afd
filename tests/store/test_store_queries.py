"""What the store answers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import store_examples as examples
from sqlalchemy import event

from qualify.errors import NoVerdict, StoreError, UsageError
from qualify.facts.outcome import NotRun
from qualify.facts.run import Record
from qualify.store import Store
from qualify.store.names import unknown

RUN = examples.run()
NOT_REACHED = NotRun(reason="the run goes on, or ended before its turn")


def _ids(store: Store, matrix: str | None = None, limit: int = 50) -> list[str]:
    return [run.id for run in store.runs(matrix, limit)]


def test_records_are_in_plan_order(planned: Store) -> None:
    """Whatever the order of execution, reading follows the plan, and says which cases never had their turn."""
    done = [examples.simple(examples.case(number)) for number in (8, 1)]
    planned.add(RUN.id, done)
    by_id = {record.case.id: record for record in done}
    expected = [by_id.get(case.id, Record(case=case, outcome=NOT_REACHED)) for case in examples.cases(10)]
    assert expected == planned.records(RUN.id)


def test_equal_parts_of_two_runs_are_one_object(store: Store) -> None:
    """Records that are read like others share their cases; names that repeat are one text: a gate of 50,000 cases."""
    for number in (1, 2):
        store.begin(examples.run(number))
        store.add_cases(examples.run(number).id, examples.cases(4))
        store.add(examples.run(number).id, [examples.simple(case) for case in examples.cases(3)])
    first = store.records(examples.run(1).id)
    second = store.records(examples.run(2).id, "times", like=first[:3])
    assert [record.case for record in first] == [record.case for record in second]
    assert [True] * 3 + [False] == [one.case is other.case for one, other in zip(first, second, strict=True)]
    assert first[3].case is not second[3].case
    assert first[3].case.kernel is second[3].case.kernel


@pytest.mark.parametrize("others", [1, 9])
def test_runs_that_were_stored_together_are_read_apart(
    store: Store, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """Where outcomes of other runs lie between those of a run, each gets its own parts, whichever portion it is in."""
    monkeypatch.setattr("qualify.store.records._PORTION", 3)
    runs = [examples.run(number).id for number in range(1 + others)]
    mine = [Record(case=examples.case(number), outcome=one) for number, one in enumerate(examples.outcomes())]
    for number, run_id in enumerate(runs):
        store.begin(examples.run(number))
        store.add_cases(run_id, [record.case for record in mine])
    for record in (*mine, mine[0]):
        for run_id in runs:
            store.add(run_id, [record if run_id == runs[0] else examples.simple(record.case)])
    assert repr(mine) == repr(store.records(runs[0]))  # NaN does not equal NaN
    assert [examples.simple(record.case) for record in mine] == store.records(runs[-1])


def test_a_run_is_read_with_one_search_for_the_last_attempts(planned: Store) -> None:
    """The database looks once which outcomes count, not once for each of their parts, and at no other run's."""
    planned.add(RUN.id, [examples.simple(examples.case(1))])
    asked: list[str] = []
    event.listen(planned._database.engine, "before_cursor_execute", lambda *it: asked.append(it[2]))
    planned.records(RUN.id)
    searches = [text for text in asked if "max(outcomes.id)" in text]
    assert 1 == len(searches)
    assert "outcomes.case_key BETWEEN" in searches[0]


def test_done_leaves_out_what_was_not_run(planned: Store) -> None:
    """A case whose last outcome is NotRun is to be run by --resume; one with any other outcome is not."""
    ran, skipped, resumed = (examples.case(number) for number in range(3))
    stopped = NotRun(reason="interrupted")
    planned.add(RUN.id, [examples.simple(ran), *(Record(case=case, outcome=stopped) for case in (skipped, resumed))])
    planned.add(RUN.id, [examples.simple(resumed)])
    assert {ran.id, resumed.id} == planned.done(RUN.id)


def test_adding_nothing_is_no_error(planned: Store) -> None:
    """An empty group commit does nothing."""
    planned.add(RUN.id, [])
    assert set() == planned.done(RUN.id)


def test_runs_are_newest_first(store: Store) -> None:
    """Runs come by their start, newest first, of one matrix where one is named."""
    for number in (1, 3, 2):
        store.begin(examples.run(number, matrix="odd" if number % 2 else "even"))
    assert [examples.run(number).id for number in (3, 2, 1)] == _ids(store)
    assert [examples.run(number).id for number in (3, 1)] == _ids(store, "odd")
    assert [examples.run(3).id] == _ids(store, limit=1)
    latest = store.latest("even")
    assert latest is not None
    assert examples.run(2).id == latest.id
    assert store.latest("none") is None


def test_runs_of_the_future_come_last(store: Store) -> None:
    """Whoever looks for the newest gets real evidence, as long as there is any; five minutes are forgiven."""
    now = datetime.now(UTC)
    ages = {"a": timedelta(hours=2), "b": timedelta(days=-400), "c": timedelta(minutes=-4), "d": timedelta(minutes=-8)}
    planned = examples.cases(1)
    for name, age in ages.items():
        run = examples.run(0, id=name, matrix="odd", started_at=now - age)
        store.begin(run)
        store.add_cases(run.id, planned)
        store.add(run.id, [examples.simple(planned[0])])
    assert ["c", "a", "b", "d"] == _ids(store)
    assert ["c", "a"] == _ids(store, "odd", limit=2)
    latest = store.latest("odd")
    assert latest is not None
    assert ("c", "c", "c") == (store.resolve("latest"), latest.id, store.find_case(planned[0].id)[0].id)


def test_a_run_ends_and_goes_on(planned: Store) -> None:
    """The state follows finish and resume, and unfinished follows the state."""
    ended = examples.STARTED + timedelta(minutes=5)
    planned.finish(RUN.id, "interrupted", ended)
    assert examples.run(state="interrupted", finished_at=ended, planned=10) == planned.run(RUN.id)
    assert [RUN.id] == [run.id for run in planned.unfinished()]
    planned.resume(RUN.id)
    assert examples.run(planned=10) == planned.run(RUN.id)
    planned.finish(RUN.id, "completed", ended)
    assert [] == planned.unfinished()


def test_resolve_takes_a_unique_beginning(store: Store) -> None:
    """A run is named by its id, the beginning of it, or ``latest``."""
    for number in range(3):
        store.begin(examples.run(number))
    given = (examples.run(1).id, "20261121", "latest")
    expected = [examples.run(1).id, examples.run(1).id, examples.run(2).id]
    assert expected == [store.resolve(run) for run in given]


def test_an_id_that_begins_another_is_no_ambiguity(store: Store) -> None:
    """An exact id wins over longer ones."""
    store.begin(examples.run(0, id="a"))
    store.begin(examples.run(0, id="ab"))
    assert "a" == store.resolve("a")


@pytest.mark.parametrize(
    ("run", "hint"),
    [("2026112", "may be any of 3"), ("20261121T234500Z-1f3a9d", examples.run(1).id), ("", examples.run(2).id)],
)
def test_resolve_names_what_may_be_meant(store: Store, run: str, hint: str) -> None:
    """An ambiguous or mistyped id is a usage error with the near ones in it."""
    for number in range(3):
        store.begin(examples.run(number))
    with pytest.raises(UsageError) as caught:
        store.resolve(run)
    assert hint in str(caught.value)


def test_resolve_of_an_empty_store_is_no_verdict(store: Store) -> None:
    """Without any run there is no evidence: exit 5, with the command that makes some."""
    with pytest.raises(NoVerdict, match="qualify run"):
        store.resolve("latest")


def test_an_unknown_run_is_a_usage_error_everywhere(planned: Store) -> None:
    """Every method that takes a run says which runs there are."""
    stack, ended = examples.stack(), examples.STARTED
    calls = (
        lambda: planned.run("nope"),
        lambda: planned.records("nope"),
        lambda: planned.done("nope"),
        lambda: planned.add("nope", [examples.simple(examples.case(0))]),
        lambda: planned.add_cases("nope", examples.cases(1)),
        lambda: planned.set_stack("nope", stack, None),
        lambda: planned.finish("nope", "completed", ended),
        lambda: planned.resume("nope"),
    )
    for call in calls:
        with pytest.raises(UsageError, match=RUN.id):
            call()


def test_find_case_takes_the_newest_run(store: Store) -> None:
    """A case is found in the newest run that has it, or in the one that is named."""
    for number in range(3):
        store.begin(examples.run(number))
        store.add_cases(examples.run(number).id, examples.cases(5 - number))
    record = examples.simple(examples.case(3))
    store.add(examples.run(1).id, [record])
    assert (examples.run(1, planned=4), record) == store.find_case(record.case.id)
    not_reached = Record(case=record.case, outcome=NOT_REACHED)
    assert (examples.run(0, planned=5), not_reached) == store.find_case(record.case.id, examples.run(0).id)


def test_find_case_names_near_ones(planned: Store) -> None:
    """A mistyped case id is a usage error that names what may be meant."""
    wanted = examples.case(3).id
    with pytest.raises(UsageError, match="Perhaps you meant") as caught:
        planned.find_case(wanted.replace("llama", "lama"))
    assert wanted in str(caught.value)


def test_a_case_like_no_other_is_not_said_to_mean_one(planned: Store) -> None:
    """It names some ids, so that their form is seen, and claims no likeness."""
    with pytest.raises(UsageError, match=r"no case 'x/y' in .*\. It has ") as caught:
        planned.find_case("x/y")
    assert examples.case(0).id in str(caught.value)
    assert "Perhaps" not in str(caught.value)


def test_a_record_outside_the_plan_is_refused(planned: Store) -> None:
    """An outcome of a case that was never planned stores nothing, not even its neighbours."""
    records = [examples.simple(examples.case(0)), examples.simple(examples.case(99))]
    with pytest.raises(UsageError, match="no case"):
        planned.add(RUN.id, records)
    assert set() == planned.done(RUN.id)


def test_a_run_is_begun_once(planned: Store) -> None:
    """Evidence is never replaced: neither a run nor a plan can be stored again."""
    with pytest.raises(StoreError, match="only added"):
        planned.begin(RUN)
    with pytest.raises(StoreError, match="only added"):
        planned.add_cases(RUN.id, examples.cases(1))


def test_the_first_stack_and_ceilings_stay(planned: Store) -> None:
    """A resumed run keeps its stack and ceilings, and refuses to go on on another stack."""
    planned.set_stack(RUN.id, examples.stack(), None)
    planned.set_stack(RUN.id, examples.stack("GPU-2"), examples.ceilings())
    planned.set_stack(RUN.id, examples.stack(), examples.ceilings())
    with pytest.raises(
        UsageError, match=r"another stack \(nvidia 580.65 → 590.1\): one run is evidence about one stack"
    ):
        planned.set_stack(RUN.id, examples.stack(driver="590.1"), None)
    stored = planned.run(RUN.id)
    assert examples.stack() == stored.stack
    assert repr(examples.ceilings()) == repr(stored.ceilings)


def test_a_value_outside_an_enumeration_is_refused(store: Store) -> None:
    """The database itself refuses a state that no record can have."""
    with pytest.raises(StoreError, match="schema does not allow"):
        store.begin(examples.run(state="paused"))


@pytest.mark.parametrize("typed", ["Latest", "LATEST", "latesq"])
def test_the_newest_run_is_proposed_in_any_case_of_letters(typed: str) -> None:
    """``latest`` is a name that every store with a run knows."""
    assert unknown("run", typed, ["20261127T065903Z-4f70be"], "e.db").endswith("Perhaps you meant latest.")
    assert unknown("run", "20261127t06", ["20261127T065903Z-4f70be"], "e.db").endswith("20261127T065903Z-4f70be.")
    assert "latest" not in unknown("run", typed, [], "e.db")
