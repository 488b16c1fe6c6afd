"""The verdict on a matrix from stored evidence: what counts, what does not, and what is then said."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from builders import make_evidence, make_finding, make_witness, make_xid
from sealing import new_pair, seal_run
from stored_runs import (
    DEVICE,
    IDS,
    MATRIX,
    NOW,
    OPEN,
    PASSED,
    WRONG,
    by_later_qualify,
    make_run,
    make_stack,
    shipped_code,
    shipped_kernels,
    store_run,
    write_waivers,
)

from qualify.assets import digest_cache
from qualify.cards.load import load_matrix
from qualify.errors import CardError, NoVerdict, UsageError
from qualify.facts.case import Case
from qualify.facts.checks import CHECK_VERSION
from qualify.facts.outcome import (
    Crashed,
    Measured,
    NotRun,
    Outcome,
    Refused,
    Substituted,
    TimedOut,
    ended,
    noted,
    on_card,
)
from qualify.facts.stack import Component, Stack
from qualify.judge.against import compare_with
from qualify.judge.evidence import Fresh
from qualify.judge.gathered import gather
from qualify.judge.judged import Judged, judge
from qualify.plan.code import CodeHere
from qualify.report.verdict_text import to_text
from qualify.store.store import Store
from qualify.verdict.origin import taken_over

OTHER = make_stack(torch="2.12.0")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The matrix of two shapes and two kernels."""
    (tmp_path / "serving.yaml").write_text(MATRIX)
    return tmp_path / "serving.yaml"


def gate(store: Store, path: Path, **changes: Any) -> Judged:
    """The gate on that matrix, at NOW, with evidence of one day."""
    wanted = Fresh(**{"now": NOW, "max_age": timedelta(hours=24), "level": "smoke"} | changes)
    return gather(store, load_matrix(str(path)), shipped_kernels(), wanted, waivers=(), waivers_path="")


def reasons(judged: Judged) -> list[str]:
    """Reasons of the cases that nobody ran."""
    return [record.outcome.reason for record in judged.records if isinstance(record.outcome, NotRun)]


def test_fresh_evidence_qualifies(store: Store, path: Path) -> None:
    """A complete, fresh run of today's plan."""
    run = store_run(store, path)
    found = gate(store, path)
    assert ("PASS", 0, (run.id,), ()) == (found.conclusion.verdict, found.conclusion.exit_code, found.runs, found.notes)
    assert IDS == [record.case.id for record in found.records]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"age": timedelta(hours=25)}, "stale: begun 2026-11-20 02:00 UTC"),
        ({"check_version": 1}, "made with check version 1, while this qualify has "),
    ],
)
def test_what_does_not_count_is_no_verdict(store: Store, path: Path, changes: Any, reason: str) -> None:
    """Stale evidence, or evidence of other checks: exit 5, and every case says why."""
    store_run(store, path, **changes)
    found = gate(store, path)
    assert ("INCONCLUSIVE", 5) == (found.conclusion.verdict, found.conclusion.exit_code)
    assert [True] * 4 == [reason in text for text in reasons(found)]
    assert found.notes[0].startswith("4 of 4 cases have no evidence that counts; the newest run that does not count: ")


def test_a_lower_level_does_not_count(store: Store, path: Path) -> None:
    """Full was asked; smoke does not do, and full does for smoke."""
    store_run(store, path)
    assert 5 == gate(store, path, level="full").conclusion.exit_code
    store_run(store, path, level="full")
    assert 0 == gate(store, path, level="full").conclusion.exit_code
    assert 0 == gate(store, path).conclusion.exit_code


@pytest.mark.parametrize(
    ("ended_h", "card", "verdict"),
    [(0.5, "cpu-0", "FAIL"), (2.5, "cpu-0", "PASS"), (0.5, "cpu-1", "PASS")],
    ids=["resumed after it", "ended before it", "on another card"],
)
def test_a_failure_of_a_run_that_went_on_after_a_newer_one_counts(
    store: Store, path: Path, ended_h: float, card: str, verdict: str
) -> None:
    """It began earlier, was interrupted, and --resume ended it: nobody knows which outcome is newer."""
    stack = make_stack()
    stack = replace(stack, device=replace(stack.device, uuid=card))
    ended = NOW - timedelta(hours=ended_h)
    fails = {"outcome": lambda case: WRONG if case.id == IDS[0] else PASSED, "stack": stack, "finished_at": ended}
    first = store_run(store, path, age=timedelta(hours=4), **fails)
    second = store_run(store, path, age=timedelta(hours=2))
    found = gate(store, path)
    assert verdict == found.conclusion.verdict
    note = (
        f"run {first.id} began before run {second.id} and ended after it began, on the same card: of {IDS[0]} its "
        "failure counts, because nobody knows which outcome is newer. Run the matrix again to settle it"
    )
    assert [note] * (verdict == "FAIL") == list(found.notes)
    store_run(store, path, age=timedelta(minutes=20))
    assert "PASS" == gate(store, path).conclusion.verdict


@pytest.mark.parametrize("finished_h", [0.5, None], ids=["resumed", "killed"])
@pytest.mark.parametrize(
    ("outcome", "ended_h", "verdict"),
    [(WRONG, 1.0, "FAIL"), (WRONG, 1.7, "PASS"), (PASSED, 1.0, "PASS"), (PASSED, 1.7, "FAIL")],
    ids=["fails later", "failed earlier", "passes later", "passed earlier"],
)
def test_of_two_runs_that_overlap_the_outcome_counts_that_ended_later(
    store: Store, path: Path, outcome: Outcome, ended_h: float, verdict: str, finished_h: float | None
) -> None:
    """Whichever run began first, and also where SIGKILL left the end of one unknown; nothing is left to settle."""
    finished = None if finished_h is None else NOW - timedelta(hours=finished_h)
    kept: dict[str, Any] = {"finished_at": finished, "state": "completed" if finished else "running"}
    other = PASSED if outcome is WRONG else WRONG

    def at(hours: float, first: Outcome) -> Any:
        return lambda case: ended(first if case.id == IDS[0] else PASSED, NOW - timedelta(hours=hours))

    store_run(store, path, at(ended_h, outcome), age=timedelta(hours=4), **kept)
    store_run(store, path, at(1.5, other), age=timedelta(hours=2), finished_at=NOW - timedelta(hours=1.4))
    found = gate(store, path)
    assert (verdict, ()) == (found.conclusion.verdict, found.notes)


@pytest.mark.parametrize(("skew", "code"), [(0.0, 0), (3600.0, 1), (-3600.0, 0)])
@pytest.mark.parametrize("passes_first", [True, False])
def test_a_later_pass_settles_a_failure_only_by_both_clocks(
    store: Store, path: Path, skew: float, code: int, passes_first: bool
) -> None:
    """The pass ended half an hour after the failure, by a clock that was an hour wrong: nobody knows."""
    made = [(PASSED, 1.0, {"clock_skew_s": skew}), (WRONG, 1.5, {})]
    for (outcome, hours, changes), age in zip(made if passes_first else made[::-1], (4, 2), strict=True):
        moment = NOW - timedelta(hours=hours)
        store_run(store, path, ended(outcome, moment), age=timedelta(hours=age), finished_at=moment, **changes)
    found = gate(store, path)
    assert code == found.conclusion.exit_code
    told = code == 1 and not passes_first
    assert [told] == [any("by a clock that was wrong: of" in note for note in found.notes)]


@pytest.mark.parametrize("ended_h", [4.5, 0.25, -1.0], ids=["before its run", "after its run", "in the future"])
def test_a_moment_that_cannot_be_does_not_count(store: Store, path: Path, ended_h: float) -> None:
    """The clock was set, or somebody edited the row: then the dates of the runs decide, as where none is noted."""
    finished = None if ended_h < 0 else NOW - timedelta(hours=0.5)
    moment = NOW - timedelta(hours=ended_h)
    store_run(store, path, ended(PASSED, moment), age=timedelta(hours=4), finished_at=finished)
    store_run(store, path, ended(WRONG, NOW - timedelta(hours=1.5)), age=timedelta(hours=2))
    assert 1 == gate(store, path).conclusion.exit_code


def test_a_card_that_failed_later_hides_what_ended_earlier(store: Store, path: Path) -> None:
    """Its run began earlier: its outcomes are the newest, and do not count."""
    kept = noted(ended(PASSED, NOW - timedelta(hours=1)), make_xid(79))
    store_run(store, path, kept, age=timedelta(hours=4), finished_at=NOW - timedelta(hours=0.5))
    store_run(store, path, ended(PASSED, NOW - timedelta(hours=1.5)), age=timedelta(hours=2), finished_at=NOW)
    assert 5 == gate(store, path).conclusion.exit_code


@pytest.mark.parametrize("state", ["completed", "running"])
def test_an_outcome_is_as_old_as_the_end_of_its_case(store: Store, path: Path, state: str) -> None:
    """A run was resumed a day later: what it measured before is stale, though it ended today, and the rest counts."""
    hours = dict(zip(IDS, (29, 23, 1, 0.5), strict=True))
    finished = NOW - timedelta(minutes=10) if state == "completed" else None
    run = store_run(
        store,
        path,
        lambda case: ended(PASSED, NOW - timedelta(hours=hours[case.id])),
        age=timedelta(hours=30),
        finished_at=finished,
        state=state,
    )
    found = gate(store, path)
    assert (5, [f"no evidence that counts: stale: measured 2026-11-19 22:00 UTC (run {run.id})"]) == (
        found.conclusion.exit_code,
        reasons(found),
    )
    assert NOW - timedelta(hours=23) == found.evidence_since
    assert 0 == gate(store, path, max_age=timedelta(hours=29)).conclusion.exit_code
    if finished:
        codes = [judge(store, run.id, shipped_kernels(), now=NOW, max_age=timedelta(hours=age)) for age in (28, 29)]
        assert [5, 0] == [one.conclusion.exit_code for one in codes]


def test_what_was_taken_over_is_as_old_as_when_it_was_measured(store: Store, path: Path) -> None:
    """The copy keeps the moment: neither the start of the first run nor that of the copying one dates it."""
    first = make_run(started_at=NOW - timedelta(hours=30), finished_at=NOW - timedelta(hours=20))
    copy = taken_over(ended(PASSED, NOW - timedelta(hours=26)), first)
    run = store_run(store, path, lambda case: copy if case.id == IDS[0] else PASSED)
    assert [5, 0] == [gate(store, path, max_age=timedelta(hours=age)).conclusion.exit_code for age in (25, 26)]
    codes = [judge(store, run.id, shipped_kernels(), now=NOW, max_age=timedelta(hours=age)) for age in (25, 26)]
    assert [5, 0] == [one.conclusion.exit_code for one in codes]


def test_a_newer_failure_at_a_lower_level_counts(store: Store, path: Path) -> None:
    """Full passed in the morning, smoke fails now: that is no green. A smoke that passes changes nothing."""
    store_run(store, path, level="full", age=timedelta(hours=3))
    store_run(store, path, age=timedelta(hours=2))
    assert 0 == gate(store, path, level="full").conclusion.exit_code
    store_run(store, path, lambda case: WRONG if case.id == IDS[0] else PASSED)
    found = gate(store, path, level="full")
    assert ("FAIL", 1) == (found.conclusion.verdict, found.conclusion.exit_code)
    assert [IDS[0]] == [item.case_id for item in found.conclusion.judgements if item.verdict == "FAIL"]
    store_run(store, path, level="full", age=timedelta(minutes=5))
    assert 0 == gate(store, path, level="full").conclusion.exit_code


def test_a_failure_at_a_lower_level_counts_whichever_case_it_is_of(store: Store, path: Path) -> None:
    """The passes of the same run before it do not hide it."""
    store_run(store, path, level="full", age=timedelta(hours=3))
    store_run(store, path, lambda case: WRONG if case.id == IDS[3] else PASSED)
    assert 1 == gate(store, path, level="full").conclusion.exit_code


@pytest.mark.parametrize("dated", [False, True], ids=["by the start of the run", "by the end of the case"])
def test_a_newer_pass_at_a_lower_level_does_not_settle_a_failure(store: Store, path: Path, dated: bool) -> None:
    """It checked less, on fewer inputs. A pass of other code settles it."""

    def at(outcome: Outcome, hours: float) -> Outcome:
        return ended(outcome, NOW - timedelta(hours=hours)) if dated else outcome

    full: dict[str, Any] = {"age": timedelta(hours=4), "level": "full"}
    first = store_run(store, path, lambda case: at(WRONG if case.id == IDS[0] else PASSED, 3.95), **full)
    second = store_run(store, path, at(PASSED, 2.95), age=timedelta(hours=3))
    found = gate(store, path)
    assert (1, first.id) == (found.conclusion.exit_code, found.sources[IDS[0]])
    told = (
        f"run {first.id} at level full failed {IDS[0]}, and run {second.id}, which passed it, checked less, at level "
        "smoke: the failure counts. Run the matrix again at level full to settle it"
    )
    assert (told,) == found.notes
    code = {kernel: {**files, "kernel.py": "e" * 64} for kernel, files in (second.code or {}).items()}
    other = store_run(store, path, at(PASSED, 1.95), age=timedelta(hours=2), code=code)
    found = gate(store, path)
    assert (0, (other.id,)) == (found.conclusion.exit_code, found.runs)


@pytest.mark.parametrize(("outcome", "code"), [(PASSED, 0), (OPEN, 1)], ids=["pass", "open"])
def test_a_pass_at_the_same_level_settles_a_failure(store: Store, path: Path, outcome: Outcome, code: int) -> None:
    """Also where runs at a lower level passed in between, and since; what decides nothing settles nothing."""
    for hours, level, seen in ((4, "full", WRONG), (3, "smoke", PASSED), (2, "full", outcome), (1, "smoke", PASSED)):
        store_run(store, path, seen, age=timedelta(hours=hours), level=level)
    assert code == gate(store, path).conclusion.exit_code


def test_a_waived_failure_at_a_lower_level_is_not_told_as_edited(store: Store, path: Path) -> None:
    """What only full asks is open, and nobody is told to look for who edited the evidence."""
    path.write_text(f"{MATRIX}waivers: waivers.yaml\n")
    write_waivers(path.parent / "waivers.yaml", {"select": IDS[0]})
    store_run(store, path, lambda case: WRONG if case.id == IDS[0] else PASSED, age=timedelta(hours=2))
    store_run(store, path, lambda case: WRONG if case.id == IDS[0] else PASSED)
    matrix, wanted = load_matrix(str(path)), Fresh(now=NOW, max_age=timedelta(hours=24), level="full")
    found = gather(store, matrix, shipped_kernels(), wanted, waivers=matrix.waivers, waivers_path="")
    first = found.conclusion.judgements[0]
    told = "made at level smoke, which does not answer all that full asks: the answer of the check heads is missing"
    assert ("INCONCLUSIVE", told, "") == (first.verdict, first.reasons[0], found.contradiction)


PARTLY = Measured(evidence=make_evidence(make_finding("pass"), make_finding("fail"), make_finding("pass")))


@pytest.mark.parametrize(
    "outcome",
    [
        PARTLY,
        Crashed(stage="call", error="SIGSEGV", log="", attempt=2),
        TimedOut(stage="call", limit_s=60.0, attempt=2),
    ],
    ids=["one finding of several", "a crash", "a hang"],
)
def test_whatever_speaks_against_a_case_counts_at_a_lower_level(store: Store, path: Path, outcome: Outcome) -> None:
    """More checks would not have said better."""
    store_run(store, path, level="full", age=timedelta(hours=3))
    store_run(store, path, lambda case: outcome if case.id == IDS[2] else PASSED)
    assert 1 == gate(store, path, level="full").conclusion.exit_code


@pytest.mark.parametrize(("number", "code"), [(31, 1), (13, 1), (154, 0)], ids=["page fault", "exception", "unknown"])
def test_a_fault_of_a_kernel_at_a_lower_level_counts(store: Store, path: Path, number: int, code: int) -> None:
    """Full passed in the morning; in a smoke of now the driver reported an error of the kernel. It fails either way."""
    store_run(store, path, level="full", age=timedelta(hours=3))
    store_run(store, path, lambda case: noted(PASSED, make_xid(number)) if case.id == IDS[0] else PASSED)
    assert [code] * 2 == [gate(store, path, level=level).conclusion.exit_code for level in ("smoke", "full")]


def test_evidence_of_exactly_the_age_counts(store: Store, path: Path) -> None:
    """A day is a day, for a run as for what it took over."""
    day = make_run(started_at=NOW - timedelta(hours=24))
    newer = store_run(store, path, lambda case: taken_over(PASSED, day) if case.id == IDS[0] else PASSED)
    assert (0, newer.id) == (gate(store, path).conclusion.exit_code, gate(store, path).sources[IDS[0]])
    store_run(store, path, age=timedelta(hours=24), stack=OTHER)
    assert 0 == gate(store, path, stack=OTHER).conclusion.exit_code


def test_a_run_that_is_not_of_its_matrix_is_no_evidence(store: Store, path: Path) -> None:
    """Somebody edited the matrix in the store: its cases and its policy may have been others."""
    store_run(store, path)
    with closing(sqlite3.connect(store.where)) as database, database:
        database.execute("UPDATE runs SET matrix_source = matrix_source || '# edited'")
    database.close()
    for text in (MATRIX, f"# reviewed\n{MATRIX}"):
        path.write_text(text)
        found = gate(store, path)
        assert 5 == found.conclusion.exit_code
        assert [True] * 4 == ["the stored matrix has sha256" in reason for reason in reasons(found)]


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("UPDATE runs SET matrix_source = matrix_source || '# edited' WHERE id = ?", "the stored matrix has sha256"),
        ("UPDATE runs SET planned = 5 WHERE id = ?", "1 case of its plan is missing"),
        ("UPDATE runs SET clock_skew_s = 1e300 WHERE id = ?", "it says that its machine's clock was 1e+300 s from"),
    ],
    ids=["its matrix", "its plan", "its clock"],
)
def test_an_edited_run_is_told_also_where_nothing_is_missing(
    store: Store, path: Path, statement: str, told: str
) -> None:
    """An older run that is whole qualifies; somebody has to ask who edited the newer one."""
    whole, edited = store_run(store, path, age=timedelta(hours=2)), store_run(store, path)
    with closing(sqlite3.connect(store.where)) as database, database:
        database.execute(statement, (edited.id,))
    found = gate(store, path)
    assert (0, (whole.id,)) == (found.conclusion.exit_code, found.runs)
    (note,) = found.notes
    assert note.startswith(f"evidence does not count: it contradicts itself: {told}")
    assert note.endswith(f"(run {edited.id})")


@pytest.mark.parametrize(("age_h", "told"), [(1, True), (3, False)], ids=["newer", "older"])
def test_a_run_whose_matrix_this_qualify_cannot_read_hides_no_evidence(
    store: Store, path: Path, age_h: int, told: bool
) -> None:
    """A later qualify made it, in the same store. It does not count, and is told where it may have failed since."""
    run = store_run(store, path, age=timedelta(hours=2))
    other = store_run(store, path, WRONG, age=timedelta(hours=age_h))
    by_later_qualify(store, other)
    found = gate(store, path)
    assert (0, (run.id,)) == (found.conclusion.exit_code, found.runs)
    why = "evidence does not count: this qualify cannot read its matrix: future_key: unknown key. Allowed here: "
    assert [True] * told == [note.startswith(why) for note in found.notes]
    with pytest.raises(
        CardError, match=f"unknown key.*that is in the matrix as run {other.id} of qualify 0.1.0 stored"
    ):
        judge(store, other.id, shipped_kernels(), now=NOW)


def test_a_seal_is_asked_for_only_where_it_would_help(store: Store, path: Path, tmp_path: Path) -> None:
    """A run that counts but for its seal says so, one that is stale or of another stack does not."""
    pair = new_pair(tmp_path)
    sealed = store_run(store, path, age=timedelta(hours=3))
    seal_run(store, sealed.id, pair.signing)
    keys = tuple(pair.trusted)
    open_run = store_run(store, path, age=timedelta(hours=1))
    found = gate(store, path, keys=keys)
    assert (0, (sealed.id,), "") == (found.conclusion.exit_code, found.runs, found.unsealed)
    assert f"evidence does not count: it is not sealed (run {open_run.id})" == found.notes[0]
    lacking = gate(store, path, keys=keys, max_age=timedelta(hours=2))
    assert (5, True) == (lacking.conclusion.exit_code, "not sealed" in lacking.unsealed)
    assert [True] * 4 == ["not sealed" in reason and open_run.id in reason for reason in reasons(lacking)]
    late = gate(store, path, keys=keys, max_age=timedelta(minutes=1))
    assert (5, "") == (late.conclusion.exit_code, late.unsealed)


def test_a_newer_run_whose_seal_was_broken_is_told(store: Store, path: Path, tmp_path: Path) -> None:
    """It failed, and now an older one counts: somebody has to ask who did that. An older run's seal is no news."""
    pair = new_pair(tmp_path)
    runs = [store_run(store, path, outcome, age=timedelta(hours=age)) for outcome, age in ((PASSED, 3), (WRONG, 1))]
    for run in runs:
        seal_run(store, run.id, pair.signing)
    keys = tuple(pair.trusted)
    assert (1, (runs[1].id,)) == ((found := gate(store, path, keys=keys)).conclusion.exit_code, found.runs)
    with closing(sqlite3.connect(store.where)) as database, database:
        database.execute("UPDATE runs SET qualify_version = '9.9' WHERE id = ?", (runs[1].id,))
    found = gate(store, path, keys=keys)
    assert (0, (runs[0].id,)) == (found.conclusion.exit_code, found.runs)
    told = "evidence does not count: it is not what was sealed: the run qualify_version changed"
    assert f"{told} (run {runs[1].id})" == found.notes[0]
    newer = store_run(store, path, age=timedelta(minutes=30))
    seal_run(store, newer.id, pair.signing)
    (note,) = gate(store, path, keys=keys).notes
    assert note.startswith(f"run {newer.id} is sealed by ")


def test_a_run_from_the_future_hides_no_evidence_of_today(store: Store, path: Path) -> None:
    """It is not believed, whatever it says, and that is told; where no other run is, there is no verdict."""
    ahead = store_run(store, path, WRONG, age=-timedelta(hours=2), stack=OTHER)
    with pytest.raises(NoVerdict, match=r"^every run of serving in .* is dated in the future: 2026-11-21 05:05 UTC"):
        gate(store, path)
    run = store_run(store, path)
    found = gate(store, path)
    assert (0, (run.id,), make_stack()) == (found.conclusion.exit_code, found.runs, found.run.stack)
    assert found.notes[0].startswith("evidence does not count: dated in the future: 2026-11-21 05:05 UTC")
    assert found.notes[0].endswith(f"the clock of that machine or of this one is wrong (run {ahead.id})")


def test_a_run_that_came_before_its_date_is_as_old_as_its_coming(store: Store, path: Path, tmp_path: Path) -> None:
    """Its node's clock was ahead by 40 days. On that date it is no evidence of that day, sealed or not."""
    began, pair, file = datetime.now(UTC) + timedelta(days=40), new_pair(tmp_path), tmp_path / "run.jsonl.gz"
    run = store_run(store, path, age=NOW - began)
    seal_run(store, run.id, pair.signing)
    store.export_run(run.id, file)
    wanted: dict[str, Any] = {"now": began + timedelta(hours=1), "keys": tuple(pair.trusted)}
    assert 0 == gate(store, path, **wanted).conclusion.exit_code, "it ran here, and this store knows no other clock"
    with Store.open(str(tmp_path / "team.db")) as team:
        team.import_run(file)
        came = team.run(run.id).received_at
        assert came is not None
        found = gate(team, path, **wanted)
        why = f"no evidence that counts: stale: in this store since {came:%Y-%m-%d %H:%M} UTC, and dated later"
        assert (5, {f"{why} (run {run.id})"}) == (found.conclusion.exit_code, set(reasons(found)))
        found = gate(team, path, **wanted | {"max_age": timedelta(days=41)})
        assert (0, came) == (found.conclusion.exit_code, found.evidence_since)
        told = f"dated {run.finished_at:%Y-%m-%d %H:%M} UTC, and came to this store on {came:%Y-%m-%d %H:%M} UTC"
        assert told in " ".join(found.notes)
        assert team.export_run(run.id, tmp_path / "again.jsonl.gz").sha256 == store.export_run(run.id, file).sha256


@pytest.mark.parametrize(("skew_h", "told"), [(-30, True), (-3, False), (0, False)])
def test_a_run_that_only_a_slow_clock_makes_stale_is_told(store: Store, path: Path, skew_h: int, told: bool) -> None:
    """Its failure does not count, because nobody knows when it was made; but it may be the newest word."""
    store_run(store, path, age=timedelta(hours=2))
    failed = store_run(store, path, WRONG, age=timedelta(hours=31), clock_skew_s=skew_h * 3600.0)
    found = [note for note in gate(store, path).notes if "stale" in note]
    expected = (
        "evidence does not count: stale: begun 2026-11-19 20:00 UTC by its machine's clock, which was 108000 s behind "
        f"the store's (run {failed.id})"
    )
    assert ([expected] if told else []) == found


@pytest.mark.parametrize(
    ("dated", "skew", "code"),
    [
        (-5, -4, 1),  # the clock was behind: by the store's it is the newest of all
        (-1, 5, 1),  # it was ahead: nobody knows
        (-5, 0, 0),
        (-1, 0, 1),
    ],
)
def test_a_failure_that_may_be_the_newest_by_one_of_two_clocks_counts(
    store: Store, path: Path, dated: int, skew: int, code: int
) -> None:
    """That of a machine whose clock is behind is no older one; a pass wins only where it is newer by both clocks."""
    store_run(store, path, age=timedelta(hours=2))
    store_run(store, path, WRONG, age=timedelta(hours=-dated), clock_skew_s=skew * 3600.0)
    assert code == (found := gate(store, path)).conclusion.exit_code
    assert (skew != 0) == any("by a clock that was wrong" in note for note in found.notes)
    store_run(store, path, age=timedelta(minutes=1), clock_skew_s=-3600.0)
    assert 0 == gate(store, path).conclusion.exit_code


def test_evidence_is_as_old_as_the_clock_of_the_store_says(store: Store, path: Path) -> None:
    """A machine that was a day ahead: its pass from the day before is not fresh for a day longer, in either gate."""
    run = store_run(store, path, age=timedelta(hours=2), clock_skew_s=86_400.0)
    assert 5 == gate(store, path, max_age=timedelta(hours=24)).conclusion.exit_code
    assert 0 == gate(store, path, max_age=timedelta(hours=27)).conclusion.exit_code
    codes = [judge(store, run.id, shipped_kernels(), now=NOW, max_age=timedelta(hours=age)) for age in (24, 27)]
    assert [5, 0] == [one.conclusion.exit_code for one in codes]


def test_a_run_that_never_had_a_worker_is_no_evidence(store: Store, path: Path) -> None:
    """Nobody knows what it ran on."""
    run = store_run(store, path, age=timedelta(hours=2))
    planned = make_run(matrix_source=path.read_text(), state="interrupted", stack=None)
    store.begin(planned)
    assert (0, (run.id,)) == (gate(store, path).conclusion.exit_code, gate(store, path).runs)


def test_a_case_says_the_first_thing_that_its_run_lacks(store: Store, path: Path) -> None:
    """That its stack is another one, before its level is too low."""
    wrong = store_run(store, path, age=timedelta(hours=2), stack=OTHER)
    store_run(store, path, NotRun(reason="interrupted"), state="interrupted", level="full")
    why = f"made on another stack: torch 2.12.0 → 2.11.0 (run {wrong.id})"
    assert [f"no evidence that counts: {why}"] * 4 == reasons(gate(store, path, level="full"))


def test_evidence_of_another_matrix_does_not_count(store: Store, path: Path, tmp_path: Path) -> None:
    """Its cases may be the same; its policy and its owner are not."""
    (tmp_path / "other.yaml").write_text(MATRIX.replace("serving", "other"))
    store_run(store, tmp_path / "other.yaml")
    with pytest.raises(NoVerdict, match="no run of serving in "):
        gate(store, path)


def test_taken_over_evidence_is_as_old_as_its_first_run(store: Store, path: Path) -> None:
    """The case of which the evidence is too old is missing; the others of the same run count."""
    old = make_run(started_at=NOW - timedelta(hours=30))
    store_run(store, path, lambda case: taken_over(PASSED, old) if case.id == IDS[0] else PASSED)
    found = gate(store, path)
    assert (5, [IDS[0]]) == (
        found.conclusion.exit_code,
        [record.case.id for record in found.records if isinstance(record.outcome, NotRun)],
    )
    assert 0 == gate(store, path, max_age=timedelta(hours=31)).conclusion.exit_code


def test_a_refusal_by_a_plan_does_not_count_where_the_kernel_can_run_now(store: Store, path: Path) -> None:
    """It was installed since: with the code of this machine the newest outcome that ran counts, and else none does."""
    not_installed = Refused(by="plan", reasons=("torch 2.0 is installed, tiled-torch needs >=2.1",))
    failed = store_run(store, path, WRONG, age=timedelta(hours=3))
    refused = store_run(store, path, lambda case: not_installed if case.kernel == "tiled-torch" else PASSED)
    here = CodeHere(folders=(), cache=digest_cache())
    assert (0, (refused.id,)) == ((found := gate(store, path)).conclusion.exit_code, found.runs)
    assert 0 == gate(store, path, code=replace(here, every=False)).conclusion.exit_code
    assert (1, (refused.id, failed.id)) == ((found := gate(store, path, code=here)).conclusion.exit_code, found.runs)
    found = gate(store, path, code=here, max_age=timedelta(hours=2))
    why = f"refused then ({not_installed.reasons[0]}), and this machine can run it now (run {refused.id})"
    assert (5, [f"no evidence that counts: {why}"] * 2) == (found.conclusion.exit_code, reasons(found))


def test_what_the_plan_refuses_needs_no_evidence(store: Store, path: Path) -> None:
    """The gate names the reasons of today's plan, and asks for the other kernel alone."""
    path.write_text(MATRIX.replace("head_dim: 32", "head_dim: 32, sinks: true"))
    store_run(store, path)
    found = gate(store, path)
    assert ["PASS", "PASS", "NOT_REQUIRED", "NOT_REQUIRED"] == [it.verdict for it in found.conclusion.judgements]
    assert ("sinks=true (torch-cpu-math does not claim sinks)",) == found.conclusion.judgements[-1].reasons
    assert (0, ()) == (found.conclusion.exit_code, found.notes)


def test_each_case_says_why_its_own_evidence_does_not_count(store: Store, path: Path) -> None:
    """The newest run that has the case gives the reason; a run without the case gives none."""
    store_run(store, path, age=timedelta(hours=27))
    store_run(store, path, age=timedelta(hours=26))
    path.write_text(MATRIX.replace("- 9\n", "- 9\n      - 10\n"))
    never = "no evidence that counts: never run as planned today"
    assert [True] * 4 + [False] * 2 == ["stale: begun 2026-11-20 01:00" in text for text in reasons(gate(store, path))]
    assert [never] * 2 == reasons(gate(store, path))[4:]


def test_the_judged_run_is_the_newest_with_evidence_under_the_matrix_of_today(store: Store, path: Path) -> None:
    """A run of other checks is no source, and neither is one that adds nothing; a narrowed run is judged as a part."""
    store_run(store, path, age=timedelta(hours=3))
    source = store_run(store, path, age=timedelta(hours=2), select="*", state="interrupted")
    store_run(store, path, check_version=1)
    path.write_text(f"# reviewed\n{MATRIX}".replace("- 9\n", "- 9\n      - 10\n"))
    matrix, found = load_matrix(str(path)), gate(store, path)
    assert (source.id, (source.id,)) == (found.run.id, found.runs)
    assert (matrix.source, matrix.content_hash, str(path)) == (
        found.run.matrix_source,
        found.run.matrix_hash,
        found.run.matrix_path,
    )
    assert ("completed", False, matrix.card) == (found.run.state, found.run.narrowed, found.matrix)


@pytest.mark.parametrize(("outcome", "code"), [(PASSED, 5), (WRONG, 1)])
@pytest.mark.parametrize("state", ["running", "interrupted"])
def test_an_unfinished_run_never_qualifies(store: Store, path: Path, state: str, outcome: Any, code: int) -> None:
    """Whatever it has measured so far; a failure stays one."""
    run = store_run(store, path, outcome, state=state)
    assert code == judge(store, run.id, shipped_kernels(), now=NOW).conclusion.exit_code


def test_a_run_is_as_old_as_what_it_took_over(store: Store, path: Path) -> None:
    """A run of today with evidence of last week is stale; at the last minute it is not."""
    week = make_run(started_at=NOW - timedelta(days=7))
    run = store_run(store, path, lambda case: taken_over(PASSED, week) if case.id == IDS[3] else PASSED)

    def judged(**age: int) -> tuple[int, bool]:
        found = judge(store, run.id, shipped_kernels(), now=NOW, max_age=timedelta(**age))
        return found.conclusion.exit_code, found.stale

    assert [(5, True), (0, False)] == [judged(days=6), judged(days=7)]
    found = judge(store, run.id, shipped_kernels(), now=NOW)
    assert ((run.id, week.id), week.started_at) == (found.runs, found.evidence_since)
    assert found.notes[0].startswith(
        f"1 of 4 cases were not run again, but taken over from {week.id}, begun 2026-11-14"
    )


def test_a_narrowed_or_outdated_run_says_so(store: Store, path: Path) -> None:
    """The rest of the matrix is not judged, and the checks have changed since."""
    run = store_run(store, path, select="*/fp32/*", kernel="tiled*", check_version=1)
    narrowed, outdated = judge(store, run.id, shipped_kernels(), now=NOW).notes
    assert narrowed.startswith("the run was narrowed by --select '*/fp32/*' --kernel 'tiled*': what it selected passed")
    assert f"the run was made with check version 1, this qualify has {CHECK_VERSION}: run it again" == outdated


def test_a_stored_run_is_judged_by_its_stack_and_its_cards(store: Store, path: Path) -> None:
    """A waiver for the stack of the run holds, and an allowed fallback is recognised by its own card."""
    write_waivers(path.parent / "waivers.yaml", {"stack": {"torch": "2.11.*"}})
    expected = "expect: [{select: '*', kernel: tiled-torch, fallback: torch-cpu-math}]\n"
    path.write_text(f"{MATRIX}{expected}waivers: waivers.yaml\n")
    math = make_witness("substituted", "aten::_scaled_dot_product_attention_math", reason="math ran")
    fallback = Substituted(evidence=make_evidence(witness=math))
    run = store_run(store, path, lambda case: fallback if case.kernel == "tiled-torch" else WRONG)
    found = judge(store, run.id, shipped_kernels(), now=NOW)
    assert (0, ["PASS", "WAIVED"] * 2) == (
        found.conclusion.exit_code,
        [judgement.verdict for judgement in found.conclusion.judgements],
    )


@pytest.mark.parametrize(("kernel", "code"), [("", 1), ("torch-cpu-math", 5)])
def test_a_narrowed_run_of_refusals_is_no_verdict(store: Store, path: Path, kernel: str, code: int) -> None:
    """A whole run without a path fails."""
    path.write_text(MATRIX.replace("head_dim: 32", "head_dim: 32, sinks: true").replace("tiled-torch, ", ""))
    run = store_run(store, path, kernel=kernel)
    assert code == judge(store, run.id, shipped_kernels(), now=NOW).conclusion.exit_code


def test_waivers_that_are_not_here_are_not_applied(store: Store, path: Path) -> None:
    """The file that the matrix names is looked for beside the matrix; another one may be given."""
    path.write_text(f"{MATRIX}waivers: waivers.yaml\n")
    file = write_waivers(path.parent / "waivers.yaml", {})
    run = store_run(store, path, WRONG)
    assert 0 == judge(store, run.id, shipped_kernels(), now=NOW).conclusion.exit_code
    given = file.rename(path.parent / "moved.yaml")
    found = judge(store, run.id, shipped_kernels(), now=NOW)
    assert (1, str(file)) == (found.conclusion.exit_code, found.waivers_path)
    assert (f"no waiver was applied: {file} is not here; give the file with --waivers FILE",) == found.notes
    found = judge(store, run.id, shipped_kernels(), now=NOW, waivers=given)
    assert (0, str(given), ()) == (found.conclusion.exit_code, found.waivers_path, found.notes)


def test_waivers_of_another_matrix_are_not_applied(
    store: Store, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of the run's matrix was relative, and in the folder of this gate another matrix has it."""
    path.write_text(f"{MATRIX}waivers: waivers.yaml\n")
    write_waivers(path.parent / "waivers.yaml")
    monkeypatch.chdir(path.parent)
    run = store_run(store, Path(path.name), WRONG)
    other = tmp_path / "other"
    other.mkdir()
    write_waivers(other / "waivers.yaml", {})
    (other / path.name).write_text(path.read_text().replace("matrix: serving", "matrix: other"))
    monkeypatch.chdir(other)
    found = judge(store, run.id, shipped_kernels(), now=NOW)
    told = "waivers.yaml lies beside serving.yaml, which is another matrix here: other"
    note = f"no waiver was applied: {told}; give the file with --waivers FILE"
    assert (1, (note,)) == (found.conclusion.exit_code, found.notes)
    (other / path.name).unlink()
    assert 0 == judge(store, run.id, shipped_kernels(), now=NOW).conclusion.exit_code


def test_a_case_that_the_matrix_gained_is_missing(store: Store, path: Path) -> None:
    """Coverage is that of today's matrix, and evidence of the unchanged cases still counts."""
    store_run(store, path)
    path.write_text(MATRIX.replace("- 9\n", "- 9\n      - 10\n"))
    found = gate(store, path)
    assert (5, ["no evidence that counts: never run as planned today"] * 2) == (
        found.conclusion.exit_code,
        reasons(found),
    )
    assert {"q10" in record.case.shape for record in found.records if isinstance(record.outcome, NotRun)} == {True}


def test_a_comment_and_a_waiver_do_not_cost_a_run(store: Store, path: Path) -> None:
    """What does not change evidence does not make it stale: GPU hours are not spent on a comment."""
    store_run(store, path)
    path.write_text(f"# reviewed\n{MATRIX}")
    assert 0 == gate(store, path).conclusion.exit_code


@pytest.mark.parametrize("change", ["heads_q: 4", "policy"])
def test_another_model_or_policy_needs_new_evidence(store: Store, path: Path, change: str) -> None:
    """The geometry is part of the case's content, the golden result's precision of the policy."""
    store_run(store, path)
    text = MATRIX + "policy: {reference: fp32}\n" if change == "policy" else MATRIX.replace("heads_q: 2", change)
    path.write_text(text)
    found = gate(store, path)
    assert (5, 4) == (found.conclusion.exit_code, len(reasons(found)))


@pytest.mark.parametrize(
    ("level", "policy", "why"),
    [
        ("full", "", "made at level smoke, below full"),
        ("smoke", "policy: {reference: fp32}\n", "made under another policy (reference, claims or timeouts)"),
    ],
    ids=["level", "policy"],
)
def test_a_case_says_what_its_evidence_was_made_at_or_under(
    store: Store, path: Path, level: str, policy: str, why: str
) -> None:
    """Nobody looks for a broken kernel where a run asked for less."""
    run = store_run(store, path)
    path.write_text(MATRIX + policy)
    assert [f"no evidence that counts: {why} (run {run.id})"] * 4 == reasons(gate(store, path, level=level))


def test_what_was_taken_over_from_the_future_does_not_count(store: Store, path: Path) -> None:
    """A clock was wrong where it was measured: it may be older than it says, and would be fresh for ever."""
    future = make_run(started_at=NOW + timedelta(hours=2))
    store_run(store, path, lambda case: taken_over(PASSED, future) if case.id == IDS[0] else PASSED)
    found = gate(store, path)
    assert (5, [IDS[0]]) == (
        found.conclusion.exit_code,
        [record.case.id for record in found.records if isinstance(record.outcome, NotRun)],
    )


def test_what_was_taken_over_counts_as_of_the_run_that_measured_it(store: Store, path: Path) -> None:
    """Where that run is stored too, it is the source: its card and its date are those of the evidence."""
    first = store_run(store, path, age=timedelta(hours=3))
    second = store_run(store, path, lambda case: taken_over(PASSED, first) if case.id in IDS[:3] else PASSED)
    found = gate(store, path)
    assert (0, dict.fromkeys(IDS[:3], first.id) | {IDS[3]: second.id}) == (found.conclusion.exit_code, found.sources)


def test_many_runs_of_other_stacks_hide_no_evidence_that_is_young_enough(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shares of one fleet may be more than the newest runs that are looked at."""
    monkeypatch.setattr("qualify.judge.fresh.LOOKED_AT", 2)
    own = store_run(store, path, age=timedelta(hours=9))
    for hours in range(1, 9):
        store_run(store, path, age=timedelta(hours=hours), stack=OTHER)
    found = gate(store, path, stack=make_stack().fingerprint[:12])
    assert (0, (own.id,)) == (found.conclusion.exit_code, found.runs)
    with pytest.raises(NoVerdict, match="no run of serving on the stack"):
        gate(store, path, stack=make_stack().fingerprint[:12], max_age=timedelta(minutes=30))


def test_three_other_stacks_are_named(store: Store, path: Path) -> None:
    """The newest ones, each once: more would hide the verdict."""
    for hours, torch in ((9, "2.16.0"), (8, "2.15.0"), (7, "2.14.0"), (6, "2.13.0"), (5, "2.13.0"), (1, "2.11.0")):
        store_run(store, path, age=timedelta(hours=hours), stack=make_stack(torch=torch))
    told = [note.partition("(")[2].partition(")")[0] for note in gate(store, path).notes]
    assert [f"torch 2.11.0 → {torch}" for torch in ("2.13.0", "2.14.0", "2.15.0")] == told


def test_one_stack_in_two_recordings_is_not_ambiguous(store: Store, path: Path) -> None:
    """A process that mapped one more library has another fingerprint: both are the stack that is asked for."""
    stack = make_stack()
    parts = [Component(kind="binary", name=f"lib{n}.so", version="", digest="aa") for n in range(40)]
    twins = [replace(stack, components=(*stack.components, part)) for part in parts]
    twin = next(it for it in twins if it.fingerprint[0] == stack.fingerprint[0])
    store_run(store, path, age=timedelta(hours=2), stack=twin)
    store_run(store, path, stack=stack)
    assert 0 == gate(store, path, stack=stack.fingerprint[0]).conclusion.exit_code


def test_the_newest_outcome_counts_whatever_it_says(store: Store, path: Path) -> None:
    """A later failure is not hidden by an earlier success, and a later success repairs."""
    store_run(store, path, age=timedelta(hours=3))
    store_run(store, path, lambda case: WRONG if case.id == IDS[0] else PASSED, age=timedelta(hours=2))
    assert 1 == gate(store, path).conclusion.exit_code
    store_run(store, path, age=timedelta(hours=1))
    assert 0 == gate(store, path).conclusion.exit_code


def test_evidence_of_a_card_that_failed_does_not_count(store: Store, path: Path) -> None:
    """It hides what is older. A run on a sound card counts, and so do the other cards of the same run."""

    def outcome(case: Case) -> Outcome:
        sick = noted(PASSED, make_xid(79)) if case.id == IDS[0] else PASSED
        return on_card(sick, "GPU-2") if case.id in IDS[:2] else PASSED

    store_run(store, path, age=timedelta(hours=3))
    bad = store_run(store, path, outcome, age=timedelta(hours=2))
    found = gate(store, path)
    assert ("INCONCLUSIVE", 5, bad.id) == (found.conclusion.verdict, found.conclusion.exit_code, found.run.id)
    said = "card GPU-2 failed: the driver reported Xid 79 (the GPU has fallen off the bus)"
    assert [True, True] == [said in text and bad.id in text for text in reasons(found)]
    assert 1 == sum(note.startswith(f"evidence does not count: {said}") for note in found.notes)
    again = store_run(store, path)
    assert ("PASS", (again.id,)) == (gate(store, path).conclusion.verdict, gate(store, path).runs)


def test_a_run_on_one_card_names_it_by_its_stack(store: Store, path: Path) -> None:
    """Its outcomes name no card: what failed is the card that the run is of. What never ran there hides nothing."""

    def outcome(case: Case) -> Outcome:
        sick = noted(PASSED, make_xid(79)) if case.id == IDS[0] else PASSED
        return NotRun(reason="interrupted") if case.id == IDS[3] else sick

    whole = store_run(store, path, age=timedelta(hours=3))
    bad = store_run(store, path, outcome, state="interrupted")
    found = gate(store, path)
    assert (5, {IDS[3]: whole.id}) == (found.conclusion.exit_code, found.sources)
    assert [True] * 3 == [f"card {DEVICE.uuid} failed" in text and bad.id in text for text in reasons(found)]


def test_a_kernel_whose_code_changed_hides_no_other(store: Store, path: Path) -> None:
    """Of one run the cases of other kernels count, behind its own ones too; an older run of the same code does."""
    names = ("tiled-torch", "torch-cpu-math")
    here, edited = dict(shipped_code(names)), {"one.py": "aa"}
    run = store_run(store, path, code=here | {names[0]: edited})
    code = CodeHere(folders=(), cache=digest_cache())
    found = gate(store, path, code=code)
    assert dict.fromkeys((IDS[1], IDS[3]), run.id) == found.sources
    assert [True] * 2 == ["its code changed since: " in reason for reason in reasons(found)]
    older = store_run(store, path, code=here, age=timedelta(hours=2))
    found = gate(store, path, code=code)
    assert (0, {older.id, run.id}) == (found.conclusion.exit_code, set(found.sources.values()))


def test_an_error_is_explained_only_by_a_failure_on_the_same_card(store: Store, path: Path) -> None:
    """Evidence is gathered from two runs on two equal cards."""

    def failing(case: Case) -> Outcome:
        return WRONG if case.id == IDS[0] else NotRun(reason="interrupted")

    def blamed(case: Case) -> Outcome:
        return NotRun(reason="interrupted") if case.id == IDS[0] else noted(PASSED, make_xid(31))

    one, two = (replace(make_stack(), device=replace(make_stack().device, uuid=uuid)) for uuid in ("GPU-1", "GPU-2"))
    store_run(store, path, failing, stack=one)
    store_run(store, path, blamed, stack=two)
    assert ["FAIL"] * 4 == [it.verdict for it in gate(store, path).conclusion.judgements]


def test_interrupted_runs_add_up(store: Store, path: Path) -> None:
    """Two halves on one stack are one whole; the age is that of the older half."""
    first = store_run(
        store,
        path,
        lambda case: PASSED if case.id in IDS[:2] else NotRun(reason="interrupted"),
        age=timedelta(hours=5),
        state="interrupted",
    )
    assert 5 == gate(store, path).conclusion.exit_code
    second = store_run(
        store, path, lambda case: PASSED if case.id in IDS[2:] else NotRun(reason="interrupted"), state="interrupted"
    )
    found = gate(store, path)
    assert (0, (second.id, first.id)) == (found.conclusion.exit_code, found.runs)
    assert "5 h old" in to_text(found, NOW)


def test_an_inconclusive_case_never_passes(store: Store, path: Path) -> None:
    """One open end is no verdict."""
    store_run(store, path, lambda case: OPEN if case.id == IDS[3] else PASSED)
    assert 5 == gate(store, path).conclusion.exit_code


def test_the_newest_stack_is_judged_and_others_are_named(store: Store, path: Path) -> None:
    """Evidence of two stacks is never mixed."""
    old = store_run(store, path, age=timedelta(hours=3))
    store_run(store, path, WRONG, age=timedelta(hours=2), stack=OTHER)
    found = gate(store, path)
    assert (1, OTHER) == (found.conclusion.exit_code, found.run.stack)
    note = "fresh evidence of another stack is not judged here (torch 2.12.0 → 2.11.0)"
    assert f"{note}; --stack {make_stack().fingerprint[:12]} judges it" == found.notes[0]
    chosen = gate(store, path, stack=make_stack().fingerprint[:8])
    assert (0, (old.id,), ()) == (chosen.conclusion.exit_code, chosen.runs, chosen.notes)
    assert () == gate(store, path, max_age=timedelta(hours=2)).notes


def test_after_an_upgrade_old_evidence_does_not_count(store: Store, path: Path) -> None:
    """The stack of this machine was asked for, and nothing was run on it."""
    store_run(store, path)
    told = (
        r"on this machine's stack\. The newest is of another one \(torch 2.11.0 → 2.12.0\)\. "
        r"Run it there: qualify run /.*/serving.yaml$"
    )
    with pytest.raises(NoVerdict, match=told):
        gate(store, path, stack=OTHER)
    assert 0 == gate(store, path, stack=make_stack()).conclusion.exit_code


def mapped(*files: tuple[str, str]) -> Stack:
    """The usual stack, of a process that had mapped these files."""
    stack = make_stack()
    parts = [Component(kind="binary", name=name, version="", digest=digest) for name, digest in files]
    return replace(stack, components=(*stack.components, *parts))


def test_a_process_that_mapped_other_files_is_on_the_same_stack(store: Store, path: Path) -> None:
    """A run of one kernel maps fewer libraries; a file that both mapped must be the same."""
    store_run(store, path, stack=mapped(("libtorch.so", "aa"), ("fa3.so", "bb")))
    assert 0 == gate(store, path, stack=mapped(("libtorch.so", "aa"))).conclusion.exit_code
    with pytest.raises(NoVerdict):
        gate(store, path, stack=mapped(("libtorch.so", "cc")))


def test_evidence_of_two_builds_of_a_library_is_of_two_stacks(store: Store, path: Path) -> None:
    """The newest run had not mapped it; of the two before, the newer one says which build is judged."""

    def part(number: int) -> Any:
        return lambda case: PASSED if case.id == IDS[number] else NotRun(reason="interrupted")

    store_run(store, path, stack=mapped(("fa3.so", "old")), age=timedelta(hours=3))
    store_run(store, path, part(1), stack=mapped(("fa3.so", "new")), age=timedelta(hours=2), state="interrupted")
    store_run(store, path, part(0), stack=mapped(("libtorch.so", "aa")), state="interrupted")
    found = gate(store, path)
    assert ("INCONCLUSIVE", 2) == (found.conclusion.verdict, len(reasons(found)))
    assert "made on another stack: fa3.so sha256:old → sha256:new" in reasons(found)[0]
    assert found.run.stack is not None
    assert {"fa3.so": "new", "libtorch.so": "aa"} == {
        it.name: it.digest for it in found.run.stack.components if it.kind == "binary"
    }


def test_an_ambiguous_or_unknown_stack(store: Store, path: Path) -> None:
    """Two stacks may begin alike; none may."""
    store_run(store, path)
    with pytest.raises(NoVerdict, match=r"on the stack zz; there is one on \w{12} \(Test CPU, torch 2.11.0\)\. Run"):
        gate(store, path, stack="zz")
    digits = {make_stack(triton=str(number)).fingerprint[0]: make_stack(triton=str(number)) for number in range(40)}
    alike = next(stack for digit, stack in digits.items() if digit == make_stack().fingerprint[0])
    store_run(store, path, stack=alike)
    with pytest.raises(UsageError, match="fits 2 stacks"):
        gate(store, path, stack=alike.fingerprint[0])


def test_an_empty_store_is_no_verdict(store: Store, path: Path) -> None:
    """And the message says what to type."""
    with pytest.raises(NoVerdict, match=r"no run of serving in .* yet\. Make one: qualify run /.*/serving.yaml$"):
        gate(store, path)


def test_a_stale_run_is_no_verdict_and_a_stale_failure_is_one(store: Store, path: Path) -> None:
    """--run with --max-age: an old success proves nothing; an old failure is still a failure."""
    for outcome, code in ((PASSED, 5), (WRONG, 1)):
        run = store_run(store, path, outcome, age=timedelta(days=3))
        kernels = shipped_kernels()
        assert code == judge(store, run.id, kernels, now=NOW, max_age=timedelta(days=2)).conclusion.exit_code
        fresh = judge(store, run.id, kernels, now=NOW, max_age=timedelta(days=4)).conclusion.exit_code
        assert {5: 0, 1: 1}[code] == fresh


def test_the_text_says_the_verdict_then_what_to_do(store: Store, path: Path) -> None:
    """First line: the verdict. Then the stack, then commands that can be typed as they stand."""
    run = store_run(store, path, lambda case: WRONG if case.id == IDS[0] else PASSED)
    lines = to_text(judge(store, run.id, shipped_kernels(), now=NOW), NOW).splitlines()
    assert lines[0].startswith(
        "serving: not qualified (2 of 2 production shapes have a proven path; 4 cases: 3 PASS, 1"
    )
    assert f"on: Test CPU, torch 2.11.0; stack {run.stack.fingerprint[:12]}; 60 min old" == lines[1]
    assert "do: keep the release back" == lines[2]
    assert f"do: repeat the worst failure: qualify repro {IDS[0]} --run {run.id}" == lines[3]
    assert ["FAIL         " + IDS[0], "             census: row 3 sees key 9"] == lines[-2:]


def test_the_text_says_where_to_see_failures_of_several_runs(store: Store, path: Path) -> None:
    """The report of a run shows its own failures only, so the newest run's would show none."""
    wrong = store_run(store, path, WRONG, age=timedelta(hours=3))
    store_run(store, path, lambda case: PASSED if case.id != IDS[0] else NotRun(reason="interrupted"))
    report = f"do: see all of them: qualify report {wrong.id}"
    found = gate(store, path)
    assert report in to_text(found, NOW).splitlines()
    compared = compare_with(store, found, wrong.id, shipped_kernels(), now=NOW)
    told = f"do: the first failure is from run {wrong.id} itself, which this was compared with: nothing changed since"
    assert told in to_text(compared, NOW).splitlines()
    one = lambda case: WRONG if case.id == IDS[1] else NotRun(reason="interrupted")  # noqa: E731
    other = store_run(store, path, one, age=timedelta(minutes=9))
    shown = [line for line in to_text(gate(store, path), NOW).splitlines() if line.startswith("do: see ")]
    assert [f"do: see those of run {run}: qualify report {run}" for run in (wrong.id, other.id)] == shown


def test_the_text_names_a_card_that_failed_and_what_to_do(store: Store, path: Path) -> None:
    """In the first line, as the first thing to do, and in a note; no waiver is called needless for it."""
    run = store_run(store, path, lambda case: noted(PASSED, make_xid(94)) if case.id == IDS[3] else PASSED)
    waivers = write_waivers(path.parent / "w.yaml", {})
    lines = to_text(judge(store, run.id, shipped_kernels(), now=NOW, waivers=waivers), NOW).splitlines()
    assert lines[0].startswith("serving: no verdict, and 1 card failed while it ran (0 of 2 production shapes")
    assert [
        "do: keep the release back",
        "do: look at cpu-0 before anything runs there: nvidia-smi -q, and the kernel's log (Xid)",
        f"do: then make evidence on a card that is sound: qualify run {path} --device cpu",
    ] == lines[2:5]
    said = "card cpu-0 failed: the driver reported Xid 94 (contained memory error)"
    assert [True] == [line.startswith(f"note: {said}") for line in lines if line.startswith("note: ")]
    assert f"             xid: {said}; nothing that the card measured in this run counts" in lines


def test_a_hostile_name_stays_on_its_line(store: Store, path: Path) -> None:
    """A kernel's message cannot fake a line of ours, or a command to a CI server."""
    evil = "x\n::error::y\r\nserving: qualified\u2028z]]>%0A<b>"
    run = store_run(store, path, Measured(evidence=make_evidence(make_finding("fail", evil))))
    text = to_text(judge(store, run.id, shipped_kernels(), now=NOW), NOW)
    assert [] == [line for line in text.splitlines() if line.startswith(("::", "serving: qualified", "z"))]
