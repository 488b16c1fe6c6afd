"""What an earlier run settled is taken over with its origin; everything else runs again."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import stored_runs as stored
from builders import make_evidence, make_timing, make_witness, make_xid
from cli_process import call, write_cards
from environments import make_environment, share_torch
from sealing import new_pair, seal_run

from qualify import __version__
from qualify.facts.case import Case
from qualify.facts.environment import Environment
from qualify.facts.outcome import (
    Crashed,
    Measured,
    Outcome,
    Substituted,
    TimedOut,
    ended,
    ended_at_of,
    findings_of,
    noted,
)
from qualify.facts.run import Record, Run
from qualify.fleet.local import new_run
from qualify.fleet.request import Asked, Request, make_request
from qualify.fleet.reuse import settled_before
from qualify.judge.evidence import Fresh
from qualify.judge.gathered import gather
from qualify.judge.judged import Judged, judge
from qualify.report.ages import parse_age
from qualify.store.store import Store
from qualify.verdict.origin import oldest, origin_of, origins_of

NOW = stored.NOW
OWN = {"qualify_version": __version__}


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    """Four cases of four calls."""
    path = tmp_path / "serving.yaml"
    path.write_text(stored.MATRIX)
    return path


def request_of(matrix: Path, *, level: Any = "smoke", kernel: str | None = None) -> Request:
    """That matrix on this machine's CPU."""
    return make_request(Asked(matrix=str(matrix), level=level, kernel=kernel, device="cpu"))


def beginning(request: Request, **changes: Any) -> Run:
    """A run that begins now."""
    run = new_run(request)
    return replace(run, id=f"{NOW:%Y%m%dT%H%M%SZ}-{run.id.rpartition('-')[2]}", started_at=NOW, **changes)


def taken(matrix: Path, store: Store, *, stack: Any = None, level: Any = "smoke") -> list[Record]:
    """What a run that begins now takes over."""
    request = request_of(matrix, level=level)
    return settled_before(request, store, beginning(request), {"": stack or stored.make_stack()})


def names(records: list[Record]) -> list[str]:
    """Ids of their cases."""
    return sorted(record.case.id for record in records)


def test_a_settled_pass_is_taken_over_with_its_origin(matrix: Path, store: Store) -> None:
    """Every case, with a note that names the run that measured it and when that began."""
    before = stored.store_run(store, matrix, **OWN)
    records = taken(matrix, store)
    assert sorted(stored.IDS) == names(records)
    for record in records:
        origin = origin_of(record.outcome)
        assert origin is not None
        assert (before.id, before.started_at) == (origin.run, origin.began_at)
        assert "note" == findings_of(record.outcome)[-1].verdict


@pytest.mark.parametrize(("ended_h", "expected"), [(0.5, 0), (3.0, 4)], ids=["after it began", "before"])
def test_nothing_is_taken_over_that_a_resumed_run_may_have_refuted(
    matrix: Path, store: Store, ended_h: float, expected: int
) -> None:
    """It began earlier and went on after the newer one began: its failure may be the newer outcome."""
    stored.store_run(
        store, matrix, stored.WRONG, age=timedelta(hours=4), finished_at=NOW - timedelta(hours=ended_h), **OWN
    )
    stored.store_run(store, matrix, age=timedelta(hours=2), **OWN)
    assert expected == len(taken(matrix, store))


@pytest.mark.parametrize("finished_h", [0.5, None], ids=["resumed", "killed"])
@pytest.mark.parametrize(
    ("outcome", "ended_h", "expected"),
    [(stored.WRONG, 1.0, 0), (stored.WRONG, 1.9, 4), (stored.PASSED, 1.0, 4)],
    ids=["fails later", "failed earlier", "passes later"],
)
def test_the_outcome_that_ended_later_decides_what_is_taken_over(
    matrix: Path, store: Store, outcome: Outcome, ended_h: float, expected: int, finished_h: float | None
) -> None:
    """Of two runs that overlap, also where one was killed: that gives no pass, but its failure is seen."""
    finished = None if finished_h is None else NOW - timedelta(hours=finished_h)
    kept: dict[str, Any] = {"finished_at": finished, "state": "completed" if finished else "running"}
    first = ended(outcome, NOW - timedelta(hours=ended_h))
    second = ended(stored.PASSED, NOW - timedelta(hours=1.5))
    stored.store_run(store, matrix, first, age=timedelta(hours=4), **kept, **OWN)
    stored.store_run(store, matrix, second, age=timedelta(hours=2), finished_at=NOW - timedelta(hours=1.4), **OWN)
    records = taken(matrix, store)
    assert expected == len(records)
    later = finished is not None and outcome is stored.PASSED
    assert {ended_at_of(first if later else second)} >= {ended_at_of(record.outcome) for record in records}


def test_a_killed_run_that_began_later_refutes_a_pass(matrix: Path, store: Store) -> None:
    """Nobody knows when it ended; what it measured is known."""
    stored.store_run(store, matrix, age=timedelta(hours=4), **OWN)
    fails = {stored.IDS[0]: stored.WRONG}
    killed: dict[str, Any] = {"finished_at": None, "state": "running"}
    stored.store_run(
        store, matrix, lambda case: fails.get(case.id, stored.PASSED), age=timedelta(hours=2), **killed, **OWN
    )
    assert sorted(stored.IDS[1:]) == names(taken(matrix, store))


def test_what_a_resumed_run_measured_the_day_before_runs_again(matrix: Path, store: Store) -> None:
    """It began 30 hours ago, and half of it was measured this morning."""
    hours = dict(zip(stored.IDS, (29, 28, 2, 1), strict=True))
    stored.store_run(
        store,
        matrix,
        lambda case: ended(stored.PASSED, NOW - timedelta(hours=hours[case.id])),
        age=timedelta(hours=30),
        finished_at=NOW - timedelta(hours=1),
        **OWN,
    )
    assert sorted(stored.IDS[2:]) == names(taken(matrix, store))


@pytest.mark.parametrize(("asked", "expected"), [("30m", 0), ("2h", 0), ("134m", 4), ("24h", 4), ("7d", 4)])
def test_only_evidence_of_the_asked_age_is_taken_over(matrix: Path, store: Store, asked: str, expected: int) -> None:
    """Two hours old: it is left where it would be stale, or nearly, for a gate that asks for the same age."""
    stored.store_run(store, matrix, age=timedelta(hours=2), **OWN)
    request = make_request(Asked(matrix=str(matrix), device="cpu", max_age=parse_age(asked)))
    assert expected == len(settled_before(request, store, beginning(request), {"": stored.make_stack()}))


def test_an_age_and_fresh_contradict_each_other(tmp_path: Path) -> None:
    """Exit 2, and nothing is run; so for an age that is none."""
    for age, said in (("7d", "--max-age 7d and --fresh: give one of them"), ("", "--max-age is empty")):
        ended = call("run", "smoke", "--device", "cpu", "--fresh", "--max-age", age, cwd=tmp_path)
        assert (2, True) == (ended.code, said in ended.err)


def test_with_a_key_only_what_it_sealed_is_taken_over(matrix: Path, store: Store, tmp_path: Path) -> None:
    """Neither evidence without a seal, nor of another key, nor edited: it would be sealed as if measured here."""
    pair, stranger = new_pair(tmp_path), new_pair(tmp_path, "stranger")
    request = replace(request_of(matrix), signing_key=pair.signing)
    stacks = {"": stored.make_stack()}

    def found() -> int:
        return len(settled_before(request, store, beginning(request), stacks))

    before = stored.store_run(store, matrix, **OWN)
    assert 0 == found()
    for key, expected in ((stranger, 0), (pair, 4)):
        seal_run(store, before.id, key.signing)
        assert expected == found()
    store.add(before.id, [Record(case=store.records(before.id)[0].case, outcome=stored.PASSED)])
    assert 0 == found()


def test_evidence_of_an_environment_is_taken_over_on_its_stack(matrix: Path, store: Store, tmp_path: Path) -> None:
    """Where its stack is the same; nothing where it is another one, or not known."""
    python = str(make_environment(tmp_path / "env"))
    share_torch(tmp_path / "env")
    here, there = stored.make_stack(), stored.make_stack(triton="3.7.0")
    environments = {"next": Environment(python=python, stack=there)}
    stored.store_run(store, matrix, environments=environments, **OWN)
    request = make_request(Asked(matrix=str(matrix), device="cpu", environments={"next": python}))
    run = beginning(request)
    assert {"next": Environment(python=python)} == run.environments
    counts = [
        len(settled_before(request, store, run, stacks))
        for stacks in ({"": here, "next": there}, {"": here}, {"": here, "next": here})
    ]
    assert [8, 4, 4] == counts


UNSETTLED: dict[str, Outcome] = {
    "failed": stored.WRONG,
    "inconclusive": stored.OPEN,
    "unproven": Measured(evidence=make_evidence(witness=make_witness(state="unproven", reason="no trace"))),
    "substituted": Substituted(evidence=make_evidence(witness=make_witness(state="substituted", reason="another"))),
    "crashed": Crashed(stage="call", error="SIGSEGV", log="", attempt=1),
    "timed out": TimedOut(stage="call", limit_s=1.0, attempt=1),
    "edited": Measured(evidence=replace(make_evidence(), timing=replace(make_timing(100.0), latency_us=50.0))),
    "blamed by the driver": noted(stored.PASSED, make_xid(31)),
    "second attempt": Measured(evidence=replace(make_evidence(), attempt=2)),
}


@pytest.mark.parametrize("name", UNSETTLED)
def test_what_settled_nothing_runs_again(matrix: Path, store: Store, name: str) -> None:
    """Also where an older run has a pass: the newest outcome counts, whatever it says."""
    stored.store_run(store, matrix, age=timedelta(hours=2), **OWN)

    def outcome(case: Case) -> Outcome:
        return UNSETTLED[name] if case.id == stored.IDS[0] else stored.PASSED

    stored.store_run(store, matrix, outcome, **OWN)
    assert sorted(stored.IDS[1:]) == names(taken(matrix, store))


def test_nothing_is_taken_over_from_a_card_that_failed(matrix: Path, store: Store) -> None:
    """Its hardware reported an error during one case: no case of that run counts, and each runs again."""
    stored.store_run(store, matrix, age=timedelta(hours=2), **OWN)

    def outcome(case: Case) -> Outcome:
        return noted(stored.PASSED, make_xid(79)) if case.id == stored.IDS[2] else stored.PASSED

    stored.store_run(store, matrix, outcome, **OWN)
    assert [] == taken(matrix, store)


OTHERS: dict[str, dict[str, Any]] = {
    "too old": {"age": timedelta(hours=21.6, seconds=1)},
    "of the future": {"age": timedelta(minutes=-6)},
    "another check version": {"check_version": 1},
    "another qualify": {"qualify_version": "0.0.1"},
    "still running": {"state": "running"},
    "another library": {"stack": stored.make_stack(triton="3.7.0")},
    "other code": {"code": {"torch-cpu-math": {"torch 2.11.0": "0" * 64}}},
    "unknown code": {"code": None},
    "another card": {"stack": replace(stored.make_stack(), device=replace(stored.DEVICE, uuid="cpu-1"))},
}


@pytest.mark.parametrize("name", OTHERS)
def test_evidence_of_something_else_is_not_taken(matrix: Path, store: Store, name: str) -> None:
    """Age, checks, version, stack, and the very card: its times come along."""
    stored.store_run(store, matrix, **OWN | OTHERS[name])
    assert [] == taken(matrix, store)


def test_the_level_is_equal_or_higher(matrix: Path, store: Store) -> None:
    """Full evidence serves a smoke run; a pass at smoke serves no full one, and hides no full one either."""
    full = stored.store_run(store, matrix, age=timedelta(hours=2), level="full", **OWN)
    assert len(stored.IDS) == len(taken(matrix, store))
    stored.store_run(store, matrix, level="smoke", **OWN)
    records = taken(matrix, store, level="full")
    assert {full.id} == {origin.run for record in records if (origin := origin_of(record.outcome))}
    assert len(stored.IDS) == len(records)


def test_edited_calls_and_policies_run_again(matrix: Path, store: Store) -> None:
    """A longer axis runs what is new; another reference changes what evidence is."""
    stored.store_run(store, matrix, **OWN)
    matrix.write_text(stored.MATRIX.replace("      - 9\n", "      - 9\n      - 10\n"))
    assert sorted(stored.IDS) == names(taken(matrix, store))
    matrix.write_text(stored.MATRIX + "policy: {reference: fp32}\n")
    assert [] == taken(matrix, store)


def took_over(matrix: Path, store: Store, age: timedelta) -> tuple[Run, Run]:
    """A run, and one that took all of it over when it was that old."""
    before = stored.store_run(store, matrix, age=age, **OWN)
    request = request_of(matrix)
    run = beginning(request, state="completed", stack=stored.make_stack())
    records = settled_before(request, store, run, {"": stored.make_stack()})
    store.begin(run)
    store.add_cases(run.id, request.plan.cases)
    store.add(run.id, records)
    return before, run


def judged(store: Store, run: Run, max_age: timedelta) -> Judged:
    """The verdict on that run."""
    return judge(store, run.id, stored.shipped_kernels(), now=NOW, max_age=max_age)


def test_old_evidence_never_looks_fresh(matrix: Path, store: Store) -> None:
    """The gate asks for the age of the evidence, not of the run that has it; the verdict names where it is from."""
    before, run = took_over(matrix, store, timedelta(hours=20))
    assert before.started_at == oldest(run, origins_of(store.records(run.id)))
    kept, late = judged(store, run, timedelta(hours=21)), judged(store, run, timedelta(hours=19))
    assert (False, "PASS") == (kept.stale, kept.conclusion.verdict)
    assert (True, "INCONCLUSIVE") == (late.stale, late.conclusion.verdict)
    assert (run.id, before.id) == kept.runs
    assert any(before.id in note and "4 of 4 cases were not run again" in note for note in kept.notes)


def test_a_chain_keeps_its_first_origin(matrix: Path, store: Store) -> None:
    """What was taken over twice is as old as when it was measured, also where the run that measured it is gone."""
    before, run = took_over(matrix, store, timedelta(hours=20))
    assert store.retention.remove_run(before.id, by="jane", how="prune", reason="old")
    again = taken(matrix, store)
    assert len(stored.IDS) == len(again)
    assert {before.id} == {origin.run for record in again if (origin := origin_of(record.outcome))}
    notes = [finding for finding in findings_of(again[0].outcome) if finding.check == "reused"]
    assert 1 == len(notes)
    later = replace(beginning(request_of(matrix)), started_at=NOW + timedelta(hours=5))
    assert [] == settled_before(request_of(matrix), store, later, {"": stored.make_stack()})
    assert run.started_at > before.started_at


@pytest.mark.parametrize(("hours", "verdict"), [(21, "PASS"), (19, "INCONCLUSIVE")])
@pytest.mark.parametrize("kept", [True, False])
def test_gathered_evidence_is_as_old_as_it_is(matrix: Path, store: Store, hours: int, verdict: str, kept: bool) -> None:
    """``gate --matrix`` takes the run that measured it, or the copy where that is gone; neither is fresher."""
    before, _ = took_over(matrix, store, timedelta(hours=20))
    if not kept:
        assert store.retention.remove_run(before.id, by="jane", how="prune", reason="old")
    request = request_of(matrix)
    wanted = Fresh(now=NOW, max_age=timedelta(hours=hours), level="smoke")
    found = gather(store, request.matrix, request.kernels, wanted, waivers=(), waivers_path="")
    assert verdict == found.conclusion.verdict
    if verdict == "PASS":
        assert before.started_at == found.run.started_at


def test_a_second_run_runs_nothing_and_a_fresh_one_everything(tmp_path: Path) -> None:
    """The real command: the samples of the first run, its age in the JSON; a third party's function always runs."""
    write_cards(tmp_path / "cards", "correct")
    (tmp_path / "two.yaml").write_text(stored.MATRIX.replace("serving", "two").replace("torch-cpu-math", "correct"))

    def run(*more: str) -> Any:
        line = ("run", "two.yaml", "--cards", "cards", "--db", "evidence.db", "--device", "cpu", "--json", *more)
        return call(*line, cwd=tmp_path).data

    first, second, fresh = run(), run(), run("--fresh")
    assert [0, 0, 0] == [one["exit_code"] for one in (first, second, fresh)]
    assert [second["run"], first["run"]] == second["runs"]
    assert first["started_at"] == second["started_at"] < fresh["started_at"]
    reused = {case["id"] for case in second["cases"] if any(it["check"] == "reused" for it in case["findings"])}
    assert {case["id"] for case in second["cases"] if case["id"].endswith("tiled-torch")} == reused
    assert [fresh["run"]] == fresh["runs"]
    with Store.open(str(tmp_path / "evidence.db"), create=False) as store:
        times: list[Any] = []
        for one in (first, second, fresh):
            (record,) = [item for item in store.records(one["run"]) if item.case.id == min(reused)]
            assert isinstance(record.outcome, Measured)
            times.append(record.outcome.evidence.timing)
    assert times[0] == times[1] != times[2]
