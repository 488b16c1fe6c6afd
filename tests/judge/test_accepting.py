"""Which runs may become a baseline or be signed, what a verdict is compared with, and why a case is counted where."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from builders import make_evidence, make_finding, make_matrix, make_record, make_timing, make_witness
from sealing import new_pair, seal_run
from stored_runs import (
    IDS,
    MATRIX,
    NOW,
    OPEN,
    PASSED,
    WRONG,
    by_later_qualify,
    make_stack,
    shipped_kernels,
    store_run,
    write_waivers,
)

from qualify.cards.load import load_matrix
from qualify.cards.terms import terms_of
from qualify.cli.progress import trouble
from qualify.errors import NoVerdict, UsageError
from qualify.facts.baseline import Baseline
from qualify.facts.case import Case
from qualify.facts.checks import CHECK_VERSION
from qualify.facts.outcome import Crashed, Measured, NotRun, Outcome, Refused, Substituted, TimedOut
from qualify.facts.run import Verdict
from qualify.fleet.repro import failure_of
from qualify.judge.against import accepted, check_name, compare_with, current_baseline, why_not
from qualify.judge.beside import beside_baseline
from qualify.judge.causes import cause_of
from qualify.judge.evidence import Fresh
from qualify.judge.gathered import gather
from qualify.judge.judged import Judged, judge
from qualify.judge.signing import Person, why_not_signed
from qualify.plan.code import code_of_cards
from qualify.report.next_steps import next_steps
from qualify.report.troubles import troubles
from qualify.report.verdict_text import to_text
from qualify.store.store import Store
from qualify.verdict.origin import taken_over
from qualify.verdict.policy import CONTRADICTS, Rules, judge_case

Judge = Callable[..., Judged]


@pytest.fixture
def run_of(store: Store, tmp_path: Path) -> Judge:
    """Stores a run of the matrix with any outcome and judges it."""
    path = tmp_path / "serving.yaml"
    path.write_text(f"{MATRIX}waivers: w.yaml\n")
    write_waivers(tmp_path / "w.yaml")

    def judged(outcome: Any = PASSED, **changes: Any) -> Judged:
        return judge(store, store_run(store, path, outcome, **changes).id, shipped_kernels(), now=NOW)

    return judged


PART = "the run was narrowed by --select or --kernel, and a {0} stands for the whole matrix"


@pytest.mark.parametrize(
    ("outcome", "changes", "baseline", "signed"),
    [
        (PASSED, {}, "", ""),
        (
            PASSED,
            {"age": -timedelta(hours=2)},
            "it is dated in the future (2026-11-21 05:05 UTC): a clock is wrong",
            "it is dated in the future (2026-11-21 05:05 UTC): a clock is wrong",
        ),
        (PASSED, {"state": "running"}, "the run is not finished", "the run is not finished"),
        (PASSED, {"state": "interrupted"}, "the run is interrupted", "the run is interrupted"),
        (PASSED, {"select": "*"}, PART.format("baseline"), PART.format("sign-off")),
        (
            PASSED,
            {"check_version": 1},
            f"it was made with check version 1, this qualify has {CHECK_VERSION}",
            "",
        ),
        (WRONG, {}, "a case or a production shape fails, and no waiver accepts it", "it is not qualified"),
        (OPEN, {}, "not everything was decided", "there is no verdict on it"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_baseline_and_cannot_be_signed(
    run_of: Judge, outcome: Any, changes: dict[str, Any], baseline: str, signed: str
) -> None:
    """A whole, finished run of these checks that passed can."""
    found = run_of(outcome, **changes)
    assert (baseline, signed) == (why_not(found), why_not_signed(found))


def test_an_expired_waiver_is_named(run_of: Judge, tmp_path: Path) -> None:
    """It fails the run, whatever it covers: first of all somebody looks at it."""
    write_waivers(tmp_path / "w.yaml", {}, {"expires": "2026-11-02"})
    why = why_not(run_of())
    assert (True, True) == (why.startswith("a waiver has expired: "), "w.yaml:10" in why)


def test_what_another_card_made_is_refused_with_its_key(store: Store, run_of: Judge) -> None:
    """Where the code is compared; a failure is told as one, and older checks are none that anybody signs for."""
    name = "tiled-torch"
    now = terms_of(shipped_kernels()[name].card)
    then = {name: {**now, "claims.deterministic": "other"}}
    here = code_of_cards(())

    def refused(outcome: Any = PASSED, **changes: Any) -> tuple[str, str]:
        found = judge(store, run_of(outcome, **changes).run.id, shipped_kernels(), now=NOW, code=here)
        return why_not(found), why_not_signed(found)

    why = f"{name} must run again: its card changed since: claims.deterministic was other, and is true"
    assert (why, why) == refused(terms=then)
    assert ("", "") == refused(terms={name: now})
    failed = judge(store, run_of(WRONG, terms=then).run.id, shipped_kernels(), now=NOW, code=here)
    again = next_steps(failed, troubles(failed))[1]
    assert "see whether it fails with today's cards, code and checks, too" == again.words
    assert again.command.startswith("qualify run ")
    assert again.command.endswith(" --fresh")
    assert "it is not qualified" == refused(WRONG, terms=then)[1]
    assert why_not(run_of(WRONG)) == refused(WRONG, terms=then)[0]
    assert refused(check_version=1)[1].startswith("the run was made with check version 1, this qualify has ")


def person(name: str) -> Person:
    """Somebody who typed a name."""
    return Person(name=name, how="command of ci")


def test_a_baseline_is_accepted_once_for_each_name(store: Store, run_of: Judge) -> None:
    """For a reason; a name's own stands before the one without a name."""
    first, second = run_of(age=timedelta(hours=3)), run_of()
    with pytest.raises(UsageError, match="say why you accept the run"):
        accepted(store, first, by=person("jane"), reason=" ", now=NOW)
    assert accepted(store, run_of(WRONG), by=person("jane"), reason="r", now=NOW) is None
    found = accepted(store, first, by=person("jane"), reason=" release ", now=NOW)
    assert found is not None
    assert ("jane", "release", "", {}) == (found.accepted_by, found.reason, found.name, found.waivers)
    with pytest.raises(UsageError, match=rf"run {first.run.id} is the baseline of serving on \S.* since 2026-11-21$"):
        accepted(store, first, by=person("jane"), reason="r", now=NOW)
    assert first.run.id == current_baseline(store, second, "main").run_id
    assert accepted(store, second, by=person("joe"), reason="branch", now=NOW, name="main")
    assert [first.run.id, second.run.id] == [current_baseline(store, second, name).run_id for name in ("", "main")]


def test_the_first_baseline_is_the_run_that_qualifies(store: Store, run_of: Judge) -> None:
    """The message has the command; another device model has none of these."""
    passed, failed = run_of(), run_of(WRONG)
    another = "does not qualify: accept one that does: qualify baseline accept RUN "
    part = replace(passed, records=passed.records[:-1])
    more = "and this evidence differ in their cases: accept a run that qualifies: qualify baseline accept RUN "
    elsewhere = replace(passed, sources={passed.records[0].case.id: failed.run.id})
    words = ((passed, "can become the first: qualify"), (failed, another), (part, more), (elsewhere, more))
    for judged, told in words:
        with pytest.raises(NoVerdict, match=rf"^no baseline of serving on .*\. Run {judged.run.id} {told}"):
            compare_with(store, judged, "baseline", shipped_kernels(), now=NOW)
    accepted(store, passed, by=person("jane"), reason="r", now=NOW)
    stack = make_stack()
    other = replace(stack, device=replace(stack.device, name="Other CPU"))
    with pytest.raises(NoVerdict, match="no baseline of serving on Other CPU"):
        current_baseline(store, run_of(stack=other))
    with pytest.raises(NoVerdict, match="has no stack"):
        current_baseline(store, replace(passed, run=replace(passed.run, stack=None)))


def test_a_run_is_compared_with_itself_only_as_the_baseline(store: Store, run_of: Judge) -> None:
    """Then nothing changed since it was accepted; by its id it is a mistake."""
    first, judged = run_of(age=timedelta(hours=2)), run_of()
    with pytest.raises(UsageError, match=rf"nothing can differ\. Try: qualify diff {first.run.id} {judged.run.id}"):
        compare_with(store, judged, judged.run.id, shipped_kernels(), now=NOW)
    with pytest.raises(UsageError, match=r"nothing can differ\. No earlier run of serving is stored\."):
        compare_with(store, first, first.run.id, shipped_kernels(), now=NOW)
    accepted(store, judged, by=person("jane"), reason="r", now=NOW)
    same = compare_with(store, judged, "baseline:main", shipped_kernels(), now=NOW)
    assert same.against is not None
    assert (0, ()) == (same.conclusion.exit_code, same.against.comparison.weaker)
    assert same.against.comparison.caveats[-1].startswith("nobody accepted a baseline for main")


def test_a_comparison_with_a_run_from_the_future_is_no_verdict(store: Store, run_of: Judge) -> None:
    """What it says now may be said later."""
    future, judged = run_of(age=-timedelta(hours=2)), run_of()
    found = compare_with(store, judged, future.run.id, shipped_kernels(), now=NOW)
    assert found.against is not None
    assert (0, 5) == (judged.conclusion.exit_code, found.conclusion.exit_code)
    assert f"run {future.run.id} is dated in the future" in found.against.comparison.caveats[-1]


def test_a_verdict_stands_beside_the_baseline_of_its_name(store: Store, run_of: Judge) -> None:
    """Of a branch that has one; the one without a name stands for a missing one."""
    first, second = run_of(age=timedelta(hours=3)), run_of(age=timedelta(hours=2))
    accepted(store, first, by=person("jane"), reason="r", now=NOW)
    accepted(store, second, by=person("jane"), reason="r", now=NOW, name="main")
    stack = make_stack()
    judged = run_of(stack=replace(stack, device=replace(stack.device, uuid="cpu-1")))
    for name, before in (("", first), ("main", second), ("other", first)):
        assert f"since run {before.run.id}, " in beside_baseline(store, judged, name).untimed


def test_a_baseline_whose_run_was_deleted_is_no_verdict(store: Store, run_of: Judge) -> None:
    """What was accepted cannot be seen any more: nothing says that no less is asked, so this is no green one."""
    first, judged = run_of(age=timedelta(hours=3)), run_of()
    accepted(store, first, by=person("jane"), reason="r", now=NOW)
    with closing(sqlite3.connect(store.where)) as database, database:
        database.execute("DELETE FROM runs WHERE id = ?", (first.run.id,))
    found = beside_baseline(store, judged)
    assert (0, 5) == (judged.conclusion.exit_code, found.conclusion.exit_code)
    assert found.notes[-1].startswith(f"the accepted baseline cannot be compared with: run {first.run.id} ")


def test_a_baseline_of_an_older_qualify_says_what_is_not_compared(store: Store, run_of: Judge) -> None:
    """It did not note the waivers: that is said, and is no failure."""
    first, judged = run_of(age=timedelta(hours=3)), run_of()
    facts = {"variant": make_stack().device.variant, "accepted_by": "jane", "reason": "7", "accepted_at": NOW}
    store.accept(Baseline(matrix="serving", run_id=first.run.id, waivers=None, **facts))
    found = beside_baseline(store, judged)
    told = "an older qualify accepted the baseline and did not note its waivers: they are not compared"
    assert (0, told) == (found.conclusion.exit_code, found.notes[-1])


@pytest.mark.parametrize("name", ["", " main", ":main", "a b", "x" * 201])
def test_a_baseline_has_the_name_of_a_branch(name: str) -> None:
    """Nothing that the option could not give again."""
    with pytest.raises(UsageError, match=r"^--name: give a name of at most 200 characters without spaces"):
        check_name(name, "--name")
    check_name("feature/x_1.2", "--name")


def measured(*verdicts: Any, state: str = "proven") -> Measured:
    """Checks a, b, c with these verdicts."""
    findings = [make_finding(verdict, check=check) for verdict, check in zip(verdicts, "abc", strict=False)]
    return Measured(
        evidence=make_evidence(*findings, witness=make_witness(state, reason="" if state == "proven" else "x"))
    )


def also_unsteady(*checks: str, **values: Any) -> Measured:
    """The checks failed, and so did equal calls."""
    unequal = make_finding("fail", check="repeat")
    return Measured(
        evidence=make_evidence(
            *(make_finding("fail", check=check) for check in checks),
            replace(unequal, values=values),
            witness=make_witness(),
        )
    )


@pytest.mark.parametrize(
    ("outcome", "verdict", "reasons", "cause"),
    [
        (also_unsteady("census", "needle", beyond_rounding=True), "FAIL", (), "repeat"),
        (also_unsteady("census", "needle"), "FAIL", (), "census"),
        (also_unsteady("contract", "census", beyond_rounding=True), "FAIL", (), "contract"),
        (Crashed(stage="call", error="SIGSEGV", log="", attempt=2), "FAIL", (), "crash"),
        (TimedOut(stage="call", limit_s=60.0, attempt=1), "FAIL", (), "hang"),
        (Refused(by="library", reasons=("no",)), "INCONCLUSIVE", (), "refusal"),
        (NotRun(reason="interrupted"), "INCONCLUSIVE", (), "not run"),
        (measured("inconclusive", "fail", "fail"), "FAIL", (), "b"),
        (measured("inconclusive", "fail", "inconclusive"), "WAIVED", (), "b"),
        (measured("fail", "pass", "inconclusive"), "INCONCLUSIVE", (), "c"),
        (measured("pass"), "INCONCLUSIVE", (f"{CONTRADICTS}: E 9 > 8",), "evidence"),
        (measured("pass"), "INCONCLUSIVE", ("no witness",), "witness"),
        (Substituted(evidence=measured("pass", state="substituted").evidence), "FAIL", ("other",), "substitution"),
        (Substituted(evidence=measured("fail").evidence), "FAIL", (), "a"),
        (Substituted(evidence=measured("fail").evidence), "FAIL", ("substituted: by b", "a: wrong"), "substitution"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_case_is_counted_under_one_cause(
    outcome: Outcome, verdict: Verdict, reasons: tuple[str, ...], cause: str
) -> None:
    """How it ended, else its first check of that verdict, else what its witness or its evidence lacks."""
    assert cause == cause_of(outcome, verdict, reasons)


def test_log_reasons_and_script_begin_with_the_cause_of_the_report() -> None:
    """Noise breaks the checks that come first, too; whoever reads one line must read its cause."""
    record = make_record(also_unsteady("census", "needle", beyond_rounding=True))
    judgement = judge_case(record, Rules(matrix=make_matrix().card, patterns={}, partial=False))
    assert ("repeat", "census", "needle") == tuple(reason.partition(":")[0] for reason in judgement.reasons)
    cause = cause_of(record.outcome, judgement.verdict, judgement.reasons)
    assert cause == "repeat" == failure_of(record.outcome)[0]
    crashed = Crashed(stage="checks:census", error="SIGSEGV", log="", attempt=1)
    told = "crashed while census was checked: SIGSEGV"
    assert ("census", "crashed", told) == failure_of(crashed), "a script says it as the verdict does"
    assert (told,) == judge_case(
        make_record(crashed), Rules(matrix=make_matrix().card, patterns={}, partial=False)
    ).reasons
    assert trouble(record).startswith("failed repeat: ")


def test_only_a_run_of_the_judged_matrix_can_become_the_next_baseline(
    store: Store, run_of: Judge, tmp_path: Path
) -> None:
    """The gate's verdict on a matrix of today may rest on runs of an older text: accepting one would not accept it."""
    path = tmp_path / "serving.yaml"
    assert accepted(store, run_of(age=timedelta(hours=3)), by=person("jane"), reason="r", now=NOW)
    path.write_text(f"{MATRIX}waivers: w.yaml\npolicy: {{timeout_s: 600}}\n")
    run_of()

    def acceptable() -> bool:
        wanted = Fresh(now=NOW, max_age=timedelta(hours=24), level="smoke")
        judged = gather(store, load_matrix(str(path)), shipped_kernels(), wanted, waivers=(), waivers_path="")
        weaker = beside_baseline(store, judged).weaker
        assert weaker is not None
        return weaker.acceptable

    assert acceptable()
    path.write_text(f"# reviewed\n{path.read_text()}")
    assert not acceptable()


@pytest.mark.parametrize("sealed", [True, False])
def test_a_baseline_that_no_required_key_sealed_says_how_to_accept_one(
    store: Store, run_of: Judge, tmp_path: Path, sealed: bool
) -> None:
    """By another key, or by none. The command has the judged run, a reason that is true, and the baseline's name."""
    ours, theirs = new_pair(tmp_path), new_pair(tmp_path, "stranger")
    first, judged = run_of(age=timedelta(hours=3)), run_of()
    if sealed:
        seal_run(store, first.run.id, theirs.signing)
    seal_run(store, judged.run.id, ours.signing)
    accepted(store, first, by=person("jane"), reason="r", now=NOW, name="main")
    found = beside_baseline(store, judged, "main", ours.trusted)
    assert (5, None) == (found.conclusion.exit_code, found.weaker)
    assert found.notes[-1].startswith(f"the accepted baseline, run {first.run.id}, does not count: ")
    reason = "the run accepted before has no seal that counts"
    assert found.notes[-1].endswith(f": {judged.typed.accept(judged.run.id, reason, 'main')}")


def test_a_baseline_that_this_qualify_cannot_read_says_how_to_accept_one(store: Store, run_of: Judge) -> None:
    """Its matrix has a key of another version: no verdict, and another run can be accepted."""
    first, judged = run_of(age=timedelta(hours=3)), run_of()
    assert accepted(store, first, by=person("jane"), reason="r", now=NOW)
    by_later_qualify(store, first.run)
    found = beside_baseline(store, judged)
    assert (5, None) == (found.conclusion.exit_code, found.weaker)
    told = (
        f"the accepted baseline, run {first.run.id}, does not count: this qualify cannot read its matrix: future_key: "
    )
    reason = "this qualify cannot read the run accepted before"
    assert found.notes[-1].startswith(told)
    assert found.notes[-1].endswith(f". Accept another run: {judged.typed.accept(judged.run.id, reason, '')}")


def test_a_policy_for_slower_cases_says_nothing_where_none_is_slower(
    store: Store, run_of: Judge, tmp_path: Path
) -> None:
    """Neither that times were not compared, nor what a slower case would prove."""
    (tmp_path / "serving.yaml").write_text(f"{MATRIX}waivers: w.yaml\npolicy: {{drift: {{times: fail}}}}\n")
    assert accepted(store, run_of(age=timedelta(hours=3)), by=person("jane"), reason="r", now=NOW)
    judged = run_of()
    found = beside_baseline(store, judged)
    assert (0, "", judged.notes) == (found.conclusion.exit_code, found.untimed, found.notes)


def test_the_baseline_that_was_compared_with_is_the_one_that_asks(store: Store, run_of: Judge, tmp_path: Path) -> None:
    """Not the one without a name, whose matrix may have asked more."""
    path = tmp_path / "serving.yaml"
    assert accepted(store, run_of(age=timedelta(hours=3)), by=person("jane"), reason="r", now=NOW)
    path.write_text(f"{MATRIX}waivers: w.yaml\npolicy: {{timeout_s: 600}}\n")
    main = run_of(age=timedelta(hours=2))
    assert accepted(store, main, by=person("jane"), reason="r", now=NOW, name="main")
    judged = run_of()
    assert beside_baseline(store, judged).weaker is not None
    compared = compare_with(store, judged, "baseline:main", shipped_kernels(), now=NOW)
    assert beside_baseline(store, compared).weaker is None


@pytest.mark.parametrize("against", ["baseline", "the run"])
def test_nothing_is_proven_beside_a_run_whose_cases_contradict_themselves(
    store: Store, run_of: Judge, against: str
) -> None:
    """Somebody edited a case of the accepted run: a change since then shows in nothing that could fail the gate."""
    first, judged = run_of(timed(1.0), age=timedelta(hours=3)), run_of(timed(1.0))
    assert accepted(store, first, by=person("jane"), reason="r", now=NOW)
    with closing(sqlite3.connect(store.where)) as database, database:
        case = "select key from cases where run_id = ? and case_id = ?"
        database.execute(f"update outcomes set latency_us = 1 where case_key = ({case})", (first.run.id, IDS[0]))
    named = "baseline" if against == "baseline" else first.run.id
    compared = compare_with(store, judged, named, shipped_kernels(), now=NOW)
    assert compared.against is not None
    how = f"{IDS[0]}: the latency is 1 µs, and the median of its samples "
    assert compared.against.comparison.caveats[-1].startswith(f"run {first.run.id} contradicts itself: {how}")
    assert (0, 5) == (judged.conclusion.exit_code, compared.conclusion.exit_code)
    says = f"a caveat of the comparison with run {first.run.id}, or a note below, says why there is no verdict"
    assert f"do: nothing failed: {says}" in to_text(compared, NOW).splitlines()
    told = f"the accepted baseline, run {first.run.id}, does not count: it contradicts itself: {how}"
    assert beside_baseline(store, compared).notes[-1].startswith(told)


@pytest.mark.parametrize("sealed", [False, True])
def test_an_edited_time_of_the_baseline_hides_no_slower_case(
    store: Store, run_of: Judge, tmp_path: Path, sealed: bool
) -> None:
    """Somebody raised it in the database: without a comparison, too, that baseline does not count."""
    ours = new_pair(tmp_path)
    (tmp_path / "serving.yaml").write_text(f"{MATRIX}waivers: w.yaml\npolicy: {{drift: {{times: fail}}}}\n")
    first, judged = run_of(timed(1.0), age=timedelta(hours=3)), run_of(timed(2.0))
    assert accepted(store, first, by=person("jane"), reason="r", now=NOW)
    with closing(sqlite3.connect(store.where)) as database, database:
        case = "select key from cases where run_id = ? and case_id = ?"
        database.execute(f"update outcomes set latency_us = 900 where case_key = ({case})", (first.run.id, IDS[0]))
    for run in (first.run, judged.run) if sealed else ():
        seal_run(store, run.id, ours.signing)
    found = beside_baseline(store, judged, keys=ours.trusted if sealed else ())
    told = f"the accepted baseline, run {first.run.id}, does not count: it contradicts itself: {IDS[0]}: the latency is"
    assert (5, told) == (found.conclusion.exit_code, found.notes[-1][: len(told)])
    assert "accept another run" in found.notes[-1]


def timed(factor: float) -> Callable[[Case], Measured]:
    """Outcomes with a time; the first case takes so many times as long."""

    def outcome(case: Case) -> Measured:
        took = make_timing(100.0 * (factor if case.id == IDS[0] else 1.0))
        return Measured(evidence=replace(make_evidence(), timing=took))

    return outcome


def without_last(outcome: Callable[[Case], Measured]) -> Callable[[Case], Outcome]:
    """The last case did not run."""
    return lambda case: NotRun(reason="interrupted") if case.id == IDS[-1] else outcome(case)


@pytest.mark.parametrize("how", ["nothing", "taken over", "gathered"])
def test_a_case_of_the_baseline_hides_no_slower_one(how: str, store: Store, tmp_path: Path) -> None:
    """Evidence of the baseline's own run, for one case, leaves the times of the others compared."""
    path = tmp_path / "serving.yaml"
    path.write_text(MATRIX + "policy: {drift: {times: fail}}\n")
    base = store_run(store, path, timed(1.0), age=timedelta(hours=2))
    accepted(store, judge(store, base.id, shipped_kernels(), now=NOW), by=person("jane"), reason="r7", now=NOW)
    slow = timed(10.0)
    if how == "gathered":
        store_run(store, path, without_last(slow), state="interrupted")
        fresh = Fresh(now=NOW, max_age=timedelta(hours=24), level="smoke")
        judged = gather(store, load_matrix(str(path)), shipped_kernels(), fresh, waivers=(), waivers_path="")
    else:
        reused = IDS[-1] if how == "taken over" else ""
        run = store_run(store, path, lambda case: taken_over(slow(case), base) if case.id == reused else slow(case))
        judged = judge(store, run.id, shipped_kernels(), now=NOW)
    found = beside_baseline(store, judged)
    assert found.slower is not None
    assert (1, [IDS[0]]) == (found.conclusion.exit_code, [change.id for change in found.slower.cases])
    assert beside_baseline(store, judge(store, base.id, shipped_kernels(), now=NOW)).slower is None
