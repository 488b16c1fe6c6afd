"""The verdict on one case and on one production shape: every row of the policy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builders import make_evidence, make_finding, make_matrix, make_record, make_witness

from qualify.facts.outcome import Crashed, Measured, NotRun, Outcome, Refused, Substituted, TimedOut
from qualify.facts.run import CellJudgement, Judgement, Record, Verdict
from qualify.verdict.policy import Rules, judge_case, judge_cell

PATTERNS = {"under-test": ("under_test",), "second": ("second_kernel",), "third": ("third_kernel",)}
CELL = "small.tp1/prefill/b1.q70.k70/bf16/causal"
INCIDENT = "incidents/pytorch-1/b1.q70.k70/bf16/causal.h8x2.d64"

MEASURED = Measured(evidence=make_evidence())
FAILED = Measured(evidence=make_evidence(make_finding(), make_finding("fail", "row 3 sees key 9")))
OPEN = Measured(evidence=make_evidence(make_finding("inconclusive", "no baseline")))
NOTED = Measured(evidence=make_evidence(make_finding("note", "not asked")))
UNPROVEN = Measured(evidence=make_evidence(witness=make_witness("unproven", reason="no operator ran")))
UNPROVEN_AND_OPEN = Measured(
    evidence=make_evidence(
        make_finding("inconclusive", "no baseline"), witness=make_witness("unproven", reason="no operator ran")
    )
)
UNPROVEN_AND_FAILED = Measured(
    evidence=make_evidence(make_finding("fail", "wrong"), witness=make_witness("unproven", reason="no operator ran"))
)
REFUSED = Refused(by="plan", reasons=("head_dim=320 > 256", "softcap=5"))
REFUSED_BY_LIBRARY = Refused(by="library", reasons=("invalid argument",))
CRASHED = Crashed(stage="call", error="SIGSEGV", log="", attempt=1)
TIMED_OUT = TimedOut(stage="witness", limit_s=60.0, attempt=1)
NOT_RUN = NotRun(reason="interrupted")
INSTEAD = "another attention kernel ran: second_kernel; the card expects under_test (must_match)"


def substituted(*names: str, failed: bool = False) -> Substituted:
    """Other attention kernels did the work."""
    findings = (make_finding("fail", "wrong"),) if failed else (make_finding(),)
    witness = make_witness("substituted", *names, reason="another attention kernel ran: second_kernel")
    return Substituted(evidence=make_evidence(*findings, witness=witness))


def rules(*, partial: bool = False, expect: Any = (), **policy: Any) -> Rules:
    """Rules of a matrix with the given expectations and policy."""
    return Rules(matrix=make_matrix(expect=list(expect), policy=policy).card, patterns=PATTERNS, partial=partial)


def expects(kernel: str = "under-test", select: str = "*", **more: str) -> list[dict[str, str]]:
    """One expectation."""
    return [{"select": select, "kernel": kernel, **more}]


@pytest.mark.parametrize(
    ("outcome", "verdict", "reasons"),
    [
        (MEASURED, "PASS", ()),
        (NOTED, "PASS", ()),
        (FAILED, "FAIL", ("census: row 3 sees key 9",)),
        (OPEN, "INCONCLUSIVE", ("census: no baseline",)),
        (UNPROVEN, "INCONCLUSIVE", ("UNPROVEN: no operator ran",)),
        (UNPROVEN_AND_OPEN, "INCONCLUSIVE", ("UNPROVEN: no operator ran", "census: no baseline")),
        (UNPROVEN_AND_FAILED, "FAIL", ("census: wrong",)),
        (REFUSED, "NOT_REQUIRED", ("head_dim=320 > 256", "softcap=5")),
        (REFUSED_BY_LIBRARY, "FAIL", ("the card claims it and the library refuses: invalid argument",)),
        (CRASHED, "FAIL", ("crashed in its call: SIGSEGV",)),
        (TIMED_OUT, "FAIL", ("no sign of life for 60 s while its kernels were traced",)),
        (NOT_RUN, "INCONCLUSIVE", ("interrupted",)),
        (substituted("second_kernel"), "FAIL", (f"substituted: {INSTEAD}",)),
    ],
    ids=lambda value: getattr(value, "outcome", None),
)
def test_every_outcome_without_an_expectation(outcome: Outcome, verdict: Verdict, reasons: tuple[str, ...]) -> None:
    """What each kind of outcome means by itself; substitutions are forbidden by default."""
    judgement = judge_case(make_record(outcome), rules())
    assert Judgement(case_id=f"{CELL}/under-test", verdict=verdict, reasons=reasons) == judgement


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        (MEASURED, "PASS"),
        (FAILED, "FAIL"),
        (UNPROVEN, "INCONCLUSIVE"),
        (REFUSED, "FAIL"),
        (REFUSED_BY_LIBRARY, "FAIL"),
        (CRASHED, "FAIL"),
        (TIMED_OUT, "FAIL"),
        (NOT_RUN, "INCONCLUSIVE"),
        (substituted("second_kernel"), "FAIL"),
    ],
)
def test_every_outcome_of_the_expected_kernel(outcome: Outcome, verdict: Verdict) -> None:
    """An expected kernel must not even be refused by the plan."""
    assert verdict == judge_case(make_record(outcome), rules(expect=expects())).verdict


def test_a_refusal_of_the_expected_kernel_says_why() -> None:
    """With the first reason and its value."""
    judgement = judge_case(make_record(REFUSED), rules(expect=expects()))
    assert ("the matrix expects under-test here, and it is refused: head_dim=320 > 256",) == judgement.reasons


@pytest.mark.parametrize(
    ("outcome", "seen"),
    [
        (MEASURED, "it ran, and passed every check"),
        (FAILED, "it ran: "),
        (CRASHED, "it crashed in "),
        (TIMED_OUT, "it gave no sign of life for 60 s while its kernels were traced"),
        (UNPROVEN, "it ran: UNPROVEN: "),
        (substituted("second_kernel"), f"it was substituted: {INSTEAD}"),
        (Refused(by="library", reasons=("no head_dim 64",)), "the library refuses: no head_dim 64"),
        (NOT_RUN, None),
    ],
)
def test_what_the_card_does_not_claim_is_never_required(outcome: Outcome, seen: str | None) -> None:
    """Run only to learn what happens: whatever happens, it neither passes nor fails, and is told."""
    record = make_record(outcome, unclaimed=("head_dim=64 > 32",))
    judgement = judge_case(record, rules(claims="ignore"))
    first, *rest = judgement.reasons
    assert ("NOT_REQUIRED", "beyond the card's claims: head_dim=64 > 32") == (judgement.verdict, first)
    assert [] == rest if seen is None else rest[0].startswith(seen)


@pytest.mark.parametrize(
    ("fallback", "names", "failed", "verdict"),
    [
        ("forbid", ("second_kernel",), False, "FAIL"),
        ("record", ("second_kernel",), False, "PASS"),
        ("record", ("second_kernel",), True, "FAIL"),
        ("second", ("second_kernel<128>",), False, "PASS"),
        ("second", ("second_kernel<128>",), True, "FAIL"),
        ("second", ("third_kernel",), False, "FAIL"),
        ("second", ("second_kernel", "third_kernel"), False, "FAIL"),
        ("third", ("second_kernel",), False, "FAIL"),
        ("without-a-card", ("second_kernel",), False, "FAIL"),
    ],
)
def test_substitutions_follow_the_expectation(
    fallback: str, names: tuple[str, ...], failed: bool, verdict: Verdict
) -> None:
    """Forbidden, recorded, or allowed for one named kernel and only that; a wrong result fails in any case."""
    judgement = judge_case(make_record(substituted(*names, failed=failed)), rules(expect=expects(fallback=fallback)))
    assert verdict == judgement.verdict
    if verdict == "PASS":
        assert (f"fallback, allowed by the matrix: {INSTEAD}",) == judgement.reasons


def test_a_card_of_many_patterns_is_told_in_short() -> None:
    """The first ones, each in part; a run that did not note any says what ran."""
    witness = make_witness("substituted", reason="second_kernel ran")
    many = replace(witness, expected=("a" * 99, "b", "c", "d", "e"))
    assert f"second_kernel ran; the card expects {'a' * 59}…, b, c and 2 more (must_match)" == many.substitution
    assert "second_kernel ran" == replace(witness, expected=()).substitution


def test_a_math_path_is_never_the_named_fallback() -> None:
    """No attention kernel ran, so none of them can be the allowed one."""
    witness = make_witness("substituted", reason="no attention kernel ran, the math path did: gemm")
    bare = Substituted(evidence=make_evidence(witness=replace(witness, launches=())))
    judgement = judge_case(make_record(bare), rules(expect=expects(fallback="second")))
    assert "FAIL" == judgement.verdict
    assert judgement.reasons[0].startswith("substituted, and not by the allowed second")


def test_an_open_question_about_an_allowed_fallback_stays_open() -> None:
    """INCONCLUSIVE never counts as pass, whoever did the work."""
    witness = make_witness("substituted", "second_kernel", reason="another attention kernel ran: second_kernel")
    outcome = Substituted(evidence=make_evidence(make_finding("inconclusive", "no baseline"), witness=witness))
    judgement = judge_case(make_record(outcome), rules(expect=expects(fallback="second")))
    assert ("INCONCLUSIVE", ("census: no baseline",)) == (judgement.verdict, judgement.reasons)


@pytest.mark.parametrize(("fallback", "verdict"), [("forbid", "FAIL"), ("record", "PASS")])
def test_substitutions_without_an_expectation_follow_the_policy(fallback: str, verdict: Verdict) -> None:
    """policy.fallback, also for a kernel that the expectation does not name."""
    assert verdict == judge_case(make_record(substituted("second_kernel")), rules(fallback=fallback)).verdict
    other = rules(fallback=fallback, expect=expects("second", fallback="forbid" if fallback == "record" else "record"))
    assert verdict == judge_case(make_record(substituted("second_kernel")), other).verdict


def test_a_forbidden_substitution_also_tells_what_was_wrong() -> None:
    """The substitution first, then the failed checks."""
    judgement = judge_case(make_record(substituted("second_kernel", failed=True)), rules())
    assert (f"substituted: {INSTEAD}", "census: wrong") == judgement.reasons


@pytest.mark.parametrize(
    ("select", "found"),
    [
        ("*", True),
        ("small.tp1/*", True),
        ("*/prefill/*/under-test", True),
        (CELL, True),
        (f"{CELL}/under-test", True),
        ("*/causal", True),
        ("*/decode/*", False),
        ("small.tp1", False),
        ("*/second", False),
        ("SMALL.tp1/*", False),
    ],
)
def test_an_expectation_selects_shapes_with_or_without_the_kernel(select: str, found: bool) -> None:
    """A glob over the cell, or over the id of the expected kernel's case."""
    assert found == (rules(expect=expects(select=select)).expectation(CELL) is not None)


def test_the_first_expectation_counts() -> None:
    """Special ones stand before general ones."""
    both = rules(expect=expects("second", "*/prefill/*") + expects("third"))
    found = both.expectation(CELL)
    assert found is not None
    assert "second" == found.kernel


def cell(judged: Rules, *records: Record) -> CellJudgement:
    """The judgement of one production shape."""
    return judge_cell(CELL, records, [judge_case(record, judged) for record in records], judged)


@pytest.mark.parametrize(
    ("outcomes", "verdict", "proven"),
    [
        ([MEASURED], "PASS", ("under-test",)),
        ([MEASURED, REFUSED], "PASS", ("under-test",)),
        ([CRASHED, MEASURED], "PASS", ("second",)),
        ([MEASURED, MEASURED], "PASS", ("under-test", "second")),
        ([UNPROVEN, MEASURED], "PASS", ("second",)),
        ([FAILED], "FAIL", ()),
        ([REFUSED, REFUSED], "FAIL", ()),
        ([REFUSED, CRASHED], "FAIL", ()),
        ([UNPROVEN, CRASHED], "INCONCLUSIVE", ()),
        ([NOT_RUN, REFUSED], "INCONCLUSIVE", ()),
    ],
)
def test_a_shape_needs_one_proven_path(outcomes: list[Outcome], verdict: Verdict, proven: tuple[str, ...]) -> None:
    """One kernel that was measured, witnessed and passed is enough; refusals everywhere are a failure."""
    records = [make_record(each, kernel) for each, kernel in zip(outcomes, PATTERNS, strict=False)]
    found = cell(rules(), *records)
    assert (CELL, verdict, proven) == (found.cell, found.verdict, found.proven_by)


def test_a_shape_without_a_path_says_so() -> None:
    """How many kernels were tried, or why none was."""
    assert ("no proven path: none of 2 kernels passed",) == cell(
        rules(), make_record(REFUSED), make_record(CRASHED, "second")
    ).reasons
    assert ("no proven path: the only kernel did not pass",) == cell(rules(), make_record(CRASHED)).reasons
    assert ("no proven path: the only kernel refuses it: head_dim=320 > 256",) == cell(
        rules(), make_record(REFUSED)
    ).reasons
    assert ("no proven path: all 2 kernels refuse it; the first: head_dim=320 > 256",) == cell(
        rules(), make_record(REFUSED), make_record(REFUSED, "second")
    ).reasons
    assert ("no kernel is proven, and not every one was judged",) == cell(rules(), make_record(UNPROVEN)).reasons


@pytest.mark.parametrize(
    ("here", "there", "verdict"),
    [
        (MEASURED, FAILED, "PASS"),
        (REFUSED, MEASURED, "FAIL"),
        (REFUSED, FAILED, "FAIL"),
        (UNPROVEN, MEASURED, "INCONCLUSIVE"),
        (None, MEASURED, "PASS"),
        (None, REFUSED, "FAIL"),
    ],
)
def test_another_environment_proves_no_path_here(here: Outcome | None, there: Outcome, verdict: Verdict) -> None:
    """What only the next release can is no path of this one, unless nothing else was selected; and it is named."""
    records = [make_record(here)] if here else []
    found = cell(rules(), *records, make_record(there, "under-test@next"))
    assert verdict == found.verdict
    named = "only in another environment: under-test@next" in found.reasons[-1] if found.reasons else False
    assert (here is not None and verdict != "PASS" and there is MEASURED) == named


def test_a_matrix_may_expect_the_kernel_of_an_environment() -> None:
    """KERNEL@NAME is a kernel of its own: no other one stands for it, and it for no other one."""
    next_one, this_one = rules(expect=expects("under-test@next")), rules(expect=expects())
    passed, failed = make_record(REFUSED), make_record(MEASURED, "under-test@next")
    assert "PASS" == cell(next_one, passed, failed).verdict
    assert "FAIL" == cell(this_one, passed, failed).verdict


def test_an_incident_that_every_kernel_refuses_is_not_required() -> None:
    """Nobody serves it; one that a kernel claims and gets wrong fails."""
    found = cell(rules(), make_record(REFUSED, cell=INCIDENT))
    reason = "every kernel is refused here, and none has to serve the call of an incident"
    assert ("NOT_REQUIRED", (reason,)) == (found.verdict, found.reasons)
    assert "FAIL" == cell(rules(), make_record(FAILED, cell=INCIDENT)).verdict


@pytest.mark.parametrize(("tried", "verdict"), [(["second"], "PASS"), (["second", "under-*"], "FAIL"), (["*"], "FAIL")])
def test_an_incident_needs_the_expected_kernel_only_where_it_tries_it(tried: list[str], verdict: str) -> None:
    """Its own `kernels` say which: a glob of `expect` for all cases can require no case that there is not."""
    incident = {
        "incident": "pytorch-1",
        "issue": "pytorch/pytorch#1",
        "title": "wrong",
        "trigger": "a call",
        "shown_by": "census",
        "kernels": tried,
        "calls": [{"heads_q": 8, "heads_kv": 2, "head_dim": 64, "seqlens_q": 70}],
    }
    card = make_matrix(expect=expects(), incidents=[incident]).card
    judged = Rules(matrix=card, patterns=PATTERNS, partial=False)
    record = make_record(MEASURED, "second", cell=INCIDENT)
    assert verdict == judge_cell(INCIDENT, [record], [judge_case(record, judged)], judged).verdict
    assert "FAIL" == cell(judged, make_record(MEASURED, "second")).verdict


@pytest.mark.parametrize(
    ("expected", "second", "verdict"),
    [
        (MEASURED, FAILED, "PASS"),
        (REFUSED, MEASURED, "FAIL"),
        (FAILED, MEASURED, "FAIL"),
        (UNPROVEN, MEASURED, "INCONCLUSIVE"),
        (NOT_RUN, MEASURED, "INCONCLUSIVE"),
        (substituted("second_kernel"), MEASURED, "FAIL"),
    ],
)
def test_the_expected_kernel_must_be_the_one(expected: Outcome, second: Outcome, verdict: Verdict) -> None:
    """Another kernel that passed does not replace it."""
    found = cell(rules(expect=expects()), make_record(expected), make_record(second, "second"))
    assert verdict == found.verdict
    if verdict != "PASS":
        assert ("the matrix expects under-test, which is not proven here",) == found.reasons


def test_an_allowed_fallback_is_a_path() -> None:
    """The named fallback served the shape, as the expectation allows."""
    found = cell(rules(expect=expects(fallback="second")), make_record(substituted("second_kernel")))
    assert ("PASS", ("under-test",)) == (found.verdict, found.proven_by)


def test_an_expected_kernel_that_is_missing_fails_a_whole_run() -> None:
    """And is not required of a run that was narrowed."""
    judged = expects("third")
    assert "FAIL" == cell(rules(expect=judged), make_record()).verdict
    found = cell(rules(expect=judged, partial=True), make_record())
    assert ("NOT_REQUIRED", ("the selection leaves out third, which the matrix expects",)) == (
        found.verdict,
        found.reasons,
    )


def test_a_narrowed_run_does_not_need_a_path_everywhere() -> None:
    """--kernel leaves out those that could serve the shape; what was tried and failed still fails."""
    partial = rules(partial=True)
    found = cell(partial, make_record(REFUSED))
    assert ("NOT_REQUIRED", ("every selected kernel is refused here",)) == (found.verdict, found.reasons)
    assert "FAIL" == cell(partial, make_record(REFUSED), make_record(FAILED, "second")).verdict


def test_shapes_that_nobody_claims_are_not_required_where_claims_are_ignored() -> None:
    """The matrix only asks what happens."""
    record = make_record(CRASHED, unclaimed=("head_dim=64 > 32",))
    found = cell(rules(claims="ignore"), record)
    assert ("NOT_REQUIRED", ("no card claims this shape, and policy.claims is ignore: its results do not count",)) == (
        found.verdict,
        found.reasons,
    )
    claimed = cell(rules(claims="ignore"), record, make_record(FAILED, "second"))
    assert "FAIL" == claimed.verdict
