"""The verdict on a matrix from stored evidence: what counts, what does not, and what is then said."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from builders import make_evidence, make_finding, make_witness
from stored_runs import (
    IDS,
    MATRIX,
    NOW,
    OPEN,
    PASSED,
    WRONG,
    make_run,
    make_stack,
    shipped_kernels,
    store_run,
    write_waivers,
)

from qualify.cards.load import load_matrix
from qualify.errors import NoVerdict, UsageError
from qualify.facts.checks import CHECK_VERSION
from qualify.facts.outcome import Measured, NotRun, Substituted
from qualify.facts.stack import Component
from qualify.judge.gathered import Fresh, gather
from qualify.judge.judged import Judged, judge
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
        ({"check_version": 1}, "only with check version 1"),
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
    never = "no evidence that counts: never run as it is planned today"
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


def test_a_case_that_the_matrix_gained_is_missing(store: Store, path: Path) -> None:
    """Coverage is that of today's matrix, and evidence of the unchanged cases still counts."""
    store_run(store, path)
    path.write_text(MATRIX.replace("- 9\n", "- 9\n      - 10\n"))
    found = gate(store, path)
    assert (5, ["no evidence that counts: never run as it is planned today"] * 2) == (
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


def test_the_newest_outcome_counts_whatever_it_says(store: Store, path: Path) -> None:
    """A later failure is not hidden by an earlier success, and a later success repairs."""
    store_run(store, path, age=timedelta(hours=3))
    store_run(store, path, lambda case: WRONG if case.id == IDS[0] else PASSED, age=timedelta(hours=2))
    assert 1 == gate(store, path).conclusion.exit_code
    store_run(store, path, age=timedelta(hours=1))
    assert 0 == gate(store, path).conclusion.exit_code


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


def test_a_process_that_mapped_other_files_is_on_the_same_stack(store: Store, path: Path) -> None:
    """A run of one kernel maps fewer libraries; a file that both mapped must be the same."""

    def mapped(*files: tuple[str, str]) -> Any:
        stack = make_stack()
        parts = [Component(kind="binary", name=name, version="", digest=digest) for name, digest in files]
        return replace(stack, components=(*stack.components, *parts))

    store_run(store, path, stack=mapped(("libtorch.so", "aa"), ("fa3.so", "bb")))
    assert 0 == gate(store, path, stack=mapped(("libtorch.so", "aa"))).conclusion.exit_code
    with pytest.raises(NoVerdict):
        gate(store, path, stack=mapped(("libtorch.so", "cc")))


def test_an_ambiguous_or_unknown_stack(store: Store, path: Path) -> None:
    """Two stacks may begin alike; none may."""
    store_run(store, path)
    with pytest.raises(NoVerdict, match=r"on the stack zz; there is one on \w{12} \(Test CPU, torch 2.11.0\)\. Run"):
        gate(store, path, stack="zz")
    digits = {make_stack(triton=str(number)).fingerprint[0]: make_stack(triton=str(number)) for number in range(40)}
    alike = next(stack for digit, stack in digits.items() if digit == make_stack().fingerprint[0])
    store_run(store, path, stack=alike)
    with pytest.raises(UsageError, match="2 stacks begin so"):
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


def test_a_hostile_name_stays_on_its_line(store: Store, path: Path) -> None:
    """A kernel's message cannot fake a line of ours, or a command to a CI server."""
    evil = "x\n::error::y\r\nserving: qualified\u2028z]]>%0A<b>"
    run = store_run(store, path, Measured(evidence=make_evidence(make_finding("fail", evil))))
    text = to_text(judge(store, run.id, shipped_kernels(), now=NOW), NOW)
    assert [] == [line for line in text.splitlines() if line.startswith(("::", "serving: qualified", "z"))]
