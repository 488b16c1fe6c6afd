"""Waivers: what they cover, when they hold, and what is said of each."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from builders import make_evidence, make_finding, make_matrix, make_record, make_witness
from stored_runs import make_stack

from qualify.facts.outcome import Crashed, Measured, NotRun, Outcome, Refused, Substituted, TimedOut
from qualify.facts.run import Conclusion, Record
from qualify.facts.waiver import Waiver
from qualify.verdict.gate import conclude
from qualify.verdict.policy import Rules
from qualify.verdict.waivers import Waivers, fits

TODAY = date(2026, 11, 21)
CELL = "small.tp1/prefill/b1.q70.k70/bf16/causal"
PASSED = Measured(evidence=make_evidence())
CENSUS = Measured(evidence=make_evidence(make_finding("fail", "sees key 9")))
CENSUS_AND_LSE = Measured(
    evidence=make_evidence(make_finding("fail", "sees key 9"), make_finding("fail", "off", check="lse"))
)
OPEN = Measured(evidence=make_evidence(make_finding("inconclusive", "no sample")))
CRASHED = Crashed(stage="call", error="SIGSEGV", log="", attempt=1)
HUNG = TimedOut(stage="call", limit_s=60.0, attempt=1)
REFUSED = Refused(by="library", reasons=("no head_dim 64",))
OTHER = Substituted(evidence=make_evidence(witness=make_witness("substituted", "second", reason="second ran")))
OTHER_AND_WRONG = Substituted(
    evidence=make_evidence(
        make_finding("fail", "sees key 9"), witness=make_witness("substituted", "second", reason="second ran")
    )
)


def waiver(*checks: str, **changes: Any) -> Waiver:
    """A waiver of all cases that holds today."""
    usual: dict[str, Any] = {
        "id": "known",
        "select": "*",
        "checks": checks or ("census",),
        "owner": "jane",
        "reason": "fixed soon",
        "link": "a/b#1",
        "created": date(2026, 11, 1),
        "expires": TODAY,
        "stack": {},
        "path": "waivers.yaml",
        "line": 4,
    }
    return Waiver(**usual | changes)


def gate(
    *records: Record,
    waivers: Any = (),
    stack: Any = None,
    there: Any = None,
    expect: Any = (),
    level: Any = None,
    **policy: Any,
) -> Conclusion:
    """The conclusion under waivers; ``there`` is the stack of the environment ``next``."""
    matrix = make_matrix(expect=list(expect), policy=policy).card
    rules = Rules(
        level=level,
        matrix=matrix,
        patterns={"second": ("second",)},
        partial=False,
        waivers=Waivers(items=tuple(waivers), today=TODAY, stacks={"": stack, "next": there}),
    )
    return conclude(records, rules)


@pytest.mark.parametrize(
    ("outcome", "checks", "verdict"),
    [
        (CENSUS, ("census",), "WAIVED"),
        (CENSUS, ("lse",), "FAIL"),
        (CENSUS_AND_LSE, ("census",), "FAIL"),
        (CENSUS_AND_LSE, ("census", "lse"), "WAIVED"),
        (CRASHED, ("crash",), "WAIVED"),
        (CRASHED, ("hang",), "FAIL"),
        (HUNG, ("hang",), "WAIVED"),
        (REFUSED, ("refusal",), "WAIVED"),
        (OTHER, ("substitution",), "WAIVED"),
        (OTHER, ("census",), "FAIL"),
        (OTHER_AND_WRONG, ("substitution",), "FAIL"),
        (OTHER_AND_WRONG, ("census",), "FAIL"),
        (OTHER_AND_WRONG, ("substitution", "census"), "WAIVED"),
        (OPEN, ("census",), "INCONCLUSIVE"),
        (NotRun(reason="interrupted"), ("census", "crash"), "INCONCLUSIVE"),
    ],
)
def test_every_cause_must_be_covered(outcome: Outcome, checks: tuple[str, ...], verdict: str) -> None:
    """A failure beyond the waiver's checks still fails, and what was not decided is nothing to waive."""
    (judgement,) = gate(make_record(outcome), waivers=[waiver(*checks)]).judgements
    assert verdict == judgement.verdict


def test_a_wrong_result_of_an_allowed_fallback_needs_no_waiver_of_the_fallback() -> None:
    """Where the policy records substitutions, only the wrong numbers are the cause."""
    found = gate(make_record(OTHER_AND_WRONG), waivers=[waiver("census")], fallback="record")
    assert "WAIVED" == found.judgements[0].verdict


UNPROVEN = make_witness("unproven", reason="the trace lost launches")
LSE = make_finding("fail", "off", check="lse")


@pytest.mark.parametrize(
    ("outcome", "level", "why"),
    [
        (
            Measured(evidence=make_evidence(LSE, witness=UNPROVEN)),
            None,
            "UNPROVEN: the trace lost launches",
        ),
        (Measured(evidence=make_evidence(make_finding("inconclusive", "no answer"), LSE)), None, "census: no answer"),
        (
            Measured(evidence=make_evidence(LSE)),
            "smoke",
            "its evidence contradicts itself: the answer of the check census is missing",
        ),
        (
            Substituted(evidence=make_evidence(LSE, make_finding("inconclusive", "no answer"), witness=UNPROVEN)),
            None,
            "UNPROVEN: the trace lost launches",
        ),
    ],
)
def test_a_waiver_of_a_failure_covers_nothing_undecided(outcome: Any, level: Any, why: str) -> None:
    """The case would have no verdict without its failure, and has none with a waiver of it."""
    record, accepted = make_record(outcome), waiver("lse", "substitution")
    found = gate(record, waivers=[accepted], level=level)
    (judgement,), (use,) = found.judgements, found.waivers
    assert ("INCONCLUSIVE", 5) == (judgement.verdict, found.exit_code)
    assert why in judgement.reasons
    assert "waived by known until 2026-11-21 (jane: fixed soon; a/b#1)" in judgement.reasons
    assert ("used", (), ()) == (use.state, use.waived, use.failing)


def next_(outcome: Outcome) -> Record:
    """The same case in the environment ``next``."""
    return make_record(outcome, "under-test@next")


@pytest.mark.parametrize(
    ("wanted", "verdicts", "state"),
    [
        ("2.11.*", ["WAIVED", "FAIL"], "used"),
        ("2.13.*", ["FAIL", "WAIVED"], "used"),
        ("2.12.*", ["FAIL", "FAIL"], "elsewhere"),
    ],
)
def test_a_condition_is_asked_of_the_stack_that_a_case_ran_on(wanted: str, verdicts: list[str], state: str) -> None:
    """The kernel of an environment may have another torch than this interpreter."""
    records, accepted = [make_record(CENSUS), next_(CENSUS)], waiver(stack={"torch": wanted})
    found = gate(*records, waivers=[accepted], stack=make_stack(), there=make_stack(torch="2.13.0"))
    assert (verdicts, state) == ([item.verdict for item in found.judgements], found.waivers[0].state)


def test_a_waiver_ends_on_the_stack_of_the_cases_that_it_selects() -> None:
    """Where none of them meets its condition it is for somebody else, whatever the other environments hold."""
    records, stacks = [make_record(PASSED), next_(PASSED)], {"stack": make_stack(), "there": make_stack(torch="2.13.0")}
    ended: dict[str, Any] = {"expires": date(2026, 11, 20), "stack": {"torch": "2.13.*"}}
    states = {}
    for select in ("*@next", "*/under-test", "*", "none*"):
        (use,) = gate(*records, waivers=[waiver(select=select, **ended)], **stacks).waivers
        states[select] = use.state
    assert {"*@next": "expired", "*/under-test": "elsewhere", "*": "expired", "none*": "expired"} == states


def test_a_waived_case_says_who_until_when_and_why() -> None:
    """The reasons begin with the waiver and keep the failure."""
    (judgement,) = gate(make_record(CENSUS), waivers=[waiver()]).judgements
    assert ("waived by known until 2026-11-21 (jane: fixed soon; a/b#1)", "census: sees key 9") == judgement.reasons


def test_several_waivers_may_cover_one_case() -> None:
    """Two owners, two checks."""
    found = gate(make_record(CENSUS_AND_LSE), waivers=[waiver("census"), waiver("lse", id="other")])
    assert ("WAIVED", ["used", "used"]) == (found.judgements[0].verdict, [use.state for use in found.waivers])


@pytest.mark.parametrize(
    ("changes", "state", "reason"),
    [
        ({"expires": date(2026, 11, 20)}, "expired", "waivers.yaml:4: waiver known of jane expired on 2026-11-20"),
        ({"created": date(2026, 11, 22)}, "pending", "waivers.yaml:4: waiver known holds from 2026-11-22 on"),
        ({"stack": {"torch": "2.12.*"}}, "elsewhere", "waivers.yaml:4: waiver known holds only for torch 2.12.*"),
    ],
)
def test_a_waiver_that_does_not_hold_fails_and_names_its_line(changes: Any, state: str, reason: str) -> None:
    """The case fails, and the reasons lead to the line of the file."""
    found = gate(make_record(CENSUS), waivers=[waiver(**changes)], stack=make_stack())
    (judgement,), (use,) = found.judgements, found.waivers
    assert ("FAIL", 1, ("census: sees key 9", reason)) == (judgement.verdict, found.exit_code, judgement.reasons)
    assert (state, (), (judgement.case_id,)) == (use.state, use.waived, use.failing)


@pytest.mark.parametrize("outcome", [PASSED, CENSUS, OPEN])
@pytest.mark.parametrize("select", ["*", "none*"])
def test_an_expired_waiver_fails_whatever_it_covers(outcome: Any, select: str) -> None:
    """The gate fails also where no case does; the case itself keeps its verdict."""
    late = {"expires": date(2026, 11, 20), "select": select}
    found = gate(make_record(outcome), waivers=[waiver(**late)], stack=make_stack())
    alone = gate(make_record(outcome), waivers=[], stack=make_stack())
    assert ("FAIL", 1) == (found.verdict, found.exit_code)
    assert [item.verdict for item in alone.judgements] == [item.verdict for item in found.judgements]
    assert ["known"] == [use.waiver.id for use in found.expired]


def test_an_expired_waiver_of_another_stack_fails_nothing() -> None:
    """It is for whoever runs that stack."""
    late = waiver(expires=date(2026, 11, 20), stack={"torch": "2.12.*"})
    found = gate(make_record(PASSED), waivers=[late], stack=make_stack())
    assert ("PASS", "elsewhere", ()) == (found.verdict, found.waivers[0].state, found.expired)


def test_the_last_day_counts() -> None:
    """A waiver holds on the days that it names."""
    assert "WAIVED" == gate(make_record(CENSUS), waivers=[waiver(expires=TODAY)]).judgements[0].verdict
    assert "WAIVED" == gate(make_record(CENSUS), waivers=[waiver(created=TODAY)]).judgements[0].verdict


@pytest.mark.parametrize(("stack", "verdict", "state"), [(make_stack(), "WAIVED", "used"), (None, "FAIL", "elsewhere")])
def test_a_waiver_with_conditions_holds_on_a_stack_that_meets_them(stack: Any, verdict: str, state: str) -> None:
    """And on no other, and on none that is unknown."""
    found = gate(make_record(CENSUS), waivers=[waiver(stack={"torch": "2.11.*", "device": "Test*"})], stack=stack)
    assert (verdict, state) == (found.judgements[0].verdict, found.waivers[0].state)


def test_a_waiver_of_another_check_has_nothing_to_do_with_a_failure() -> None:
    """It is neither named in the reasons nor counted; a case that passes is counted by its id."""
    failing, passing = gate(make_record(CENSUS), waivers=[waiver("lse")]), gate(make_record(), waivers=[waiver()])
    assert (("census: sees key 9",), ()) == (failing.judgements[0].reasons, failing.waivers[0].failing)
    assert (passing.judgements[0].case_id,) == passing.waivers[0].passing


@pytest.mark.parametrize(
    ("outcome", "select", "state"),
    [(CENSUS, "*", "used"), (PASSED, "*", "passing"), (CENSUS, "none*", "unused"), (OPEN, "*", "unused")],
)
def test_what_became_of_a_waiver(outcome: Outcome, select: str, state: str) -> None:
    """Used, passing again, or covering nothing."""
    assert [state] == [use.state for use in gate(make_record(outcome), waivers=[waiver(select=select)]).waivers]


def test_a_partly_covered_failure_says_what_is_left() -> None:
    """Whoever reads it sees which check the waiver does not name; what did not fail is not listed."""
    (judgement,) = gate(make_record(CENSUS_AND_LSE), waivers=[waiver("census", "nan")]).judgements
    assert "waived by known (waivers.yaml:4) is only census, not lse" == judgement.reasons[-1]


def test_a_shape_whose_only_kernel_is_waived_is_waived() -> None:
    """The exception reaches the production shape, which stays unproven in the counts."""
    found = gate(make_record(CENSUS), waivers=[waiver()])
    (cell,) = found.cells
    assert ("PASS", 0, "WAIVED", ()) == (found.verdict, found.exit_code, cell.verdict, cell.proven_by)
    assert ("no kernel is proven, and the failure of under-test is waived",) == cell.reasons
    assert (found.judgements[0].case_id,) == found.waivers[0].waived


def test_a_pass_beside_a_waived_failure_qualifies() -> None:
    """One case of each kind."""
    found = gate(make_record(PASSED), make_record(CENSUS, "second"), waivers=[waiver()])
    assert ("PASS", 0) == (found.verdict, found.exit_code)


def test_the_expected_kernel_may_be_waived() -> None:
    """And only it: another waived kernel does not stand in for it."""
    expect = [{"select": "*", "kernel": "under-test"}]
    records = [make_record(CENSUS), make_record(PASSED, "second")]
    (cell,) = gate(*records, waivers=[waiver()], expect=expect).cells
    assert ("WAIVED", ("the failure of under-test, which the matrix expects, is waived",)) == (
        cell.verdict,
        cell.reasons,
    )
    narrow = waiver(select="*/second")
    assert "FAIL" == gate(*records, waivers=[narrow], expect=expect).cells[0].verdict


def test_one_failure_beside_a_waived_one_still_fails() -> None:
    """A waiver covers its cases and nothing else."""
    found = gate(make_record(CENSUS), make_record(CRASHED, "second"), waivers=[waiver()])
    assert ("FAIL", ["WAIVED", "FAIL"]) == (found.verdict, [item.verdict for item in found.judgements])


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({}, True),
        ({"torch": "2.11.*"}, True),
        ({"torch": ">=2.11,<2.12"}, True),
        ({"torch": ">2.11"}, False),
        ({"torch": ">2.10"}, True),
        ({"torch": "*"}, True),
        ({"nightly": ">=3.0,<3.2"}, True),
        ({"nightly": "==3.1.0.dev20261101"}, True),
        ({"branch": ">=0"}, False),
        ({"branch": "main-*"}, True),
        ({"torch": "2.11.*", "triton": "3.7.*"}, False),
        ({"device": "Test*"}, True),
        ({"device": "NVIDIA H100*"}, False),
        ({"vllm": "*"}, False),
        ({"vllm": ">=0"}, False),
    ],
)
def test_conditions_on_the_stack(conditions: dict[str, str], expected: bool) -> None:
    """All must be met, by nightly builds too; what the stack lacks, or has no version of, meets no specifier."""
    assert expected == fits(conditions, make_stack(nightly="3.1.0.dev20261101", branch="main-1a2b"))
    assert fits(conditions, None) == (not conditions)
