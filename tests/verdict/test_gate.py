"""The gate: one conclusion, one exit code, and counts that add up."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import product
from typing import Any

import pytest
from builders import make_evidence, make_finding, make_matrix, make_record, make_witness
from hypothesis import given, settings
from hypothesis import strategies as st

from qualify.errors import NO_VERDICT, NOT_QUALIFIED, QUALIFIED
from qualify.facts.comparison import Slowdown
from qualify.facts.outcome import OUTCOMES, Crashed, Measured, NotRun, Outcome, Refused, Substituted, TimedOut
from qualify.facts.performance import BudgetUse, Performance
from qualify.facts.run import VERDICTS, Conclusion, Record, Verdict
from qualify.facts.weaker import Less, Weaker
from qualify.verdict.gate import EXIT_CODES, conclude, forbid_regression, forbid_slower, forbid_weaker
from qualify.verdict.policy import Rules

NOW = datetime(2026, 11, 21, tzinfo=UTC)
CELLS = ("small.tp1/prefill/b1.q70.k70/bf16/causal", "small.tp1/decode/b1.q1.k70/bf16/causal")
EXAMPLES: dict[str, Outcome] = {
    "pass": Measured(evidence=make_evidence()),
    "fail": Measured(evidence=make_evidence(make_finding("fail"))),
    "unproven": Measured(evidence=make_evidence(witness=make_witness("unproven", reason="lost"))),
    "refused": Refused(by="plan", reasons=("head_dim=320 > 256",)),
    "substituted": Substituted(evidence=make_evidence(witness=make_witness("substituted", "second_kernel"))),
    "crashed": Crashed(stage="call", error="SIGSEGV", log="", attempt=1),
    "timed_out": TimedOut(stage="call", limit_s=60.0, attempt=1),
    "not_run": NotRun(reason="interrupted"),
}


def record(name: str, kernel: str = "under-test", cell: int = 0, **case: Any) -> Record:
    """An example of an outcome in one of two production shapes."""
    return make_record(EXAMPLES[name], kernel, cell=CELLS[cell], **case)


def gate(*records: Record, partial: bool = False, expect: Any = (), **policy: Any) -> Conclusion:
    """The conclusion under a matrix's rules."""
    matrix = make_matrix(expect=list(expect), policy=policy).card
    patterns = {"under-test": ("under_test",), "second": ("second_kernel",)}
    return conclude(records, Rules(matrix=matrix, patterns=patterns, partial=partial))


@pytest.mark.parametrize(
    ("records", "verdict", "exit_code"),
    [
        ([record("pass")], "PASS", 0),
        ([record("pass"), record("refused", "second")], "PASS", 0),
        ([record("pass"), record("pass", cell=1)], "PASS", 0),
        ([record("pass"), record("fail", "second")], "FAIL", 1),
        ([record("pass"), record("crashed", "second")], "FAIL", 1),
        ([record("pass"), record("timed_out", "second")], "FAIL", 1),
        ([record("pass"), record("substituted", "second")], "FAIL", 1),
        ([record("pass"), record("refused", cell=1)], "FAIL", 1),
        ([record("refused")], "FAIL", 1),
        ([record("fail"), record("unproven", cell=1)], "FAIL", 1),
        ([record("pass"), record("unproven", "second")], "INCONCLUSIVE", 5),
        ([record("pass"), record("not_run", cell=1)], "INCONCLUSIVE", 5),
        ([record("unproven")], "INCONCLUSIVE", 5),
        ([], "INCONCLUSIVE", 5),
    ],
)
def test_the_exit_code_follows_from_the_worst(records: list[Record], verdict: str, exit_code: int) -> None:
    """FAIL over INCONCLUSIVE over PASS, of cases and of production shapes; nothing at all is no verdict."""
    found = gate(*records)
    assert (verdict, exit_code) == (found.verdict, found.exit_code)


def test_refusals_alone_are_no_verdict_in_a_narrowed_run() -> None:
    """Nothing was measured: that is not qualified, and not a failure either."""
    found = gate(record("refused"), partial=True)
    assert ("INCONCLUSIVE", NO_VERDICT) == (found.verdict, found.exit_code)


def test_what_is_beyond_the_claims_alone_is_no_verdict() -> None:
    """A matrix that only asks what happens proves nothing by itself."""
    found = gate(record("crashed", unclaimed=("head_dim=64 > 32",)), claims="ignore")
    assert ("INCONCLUSIVE", NO_VERDICT) == (found.verdict, found.exit_code)
    beside = gate(record("pass"), record("crashed", cell=1, unclaimed=("head_dim=64 > 32",)), claims="ignore")
    assert ("PASS", QUALIFIED) == (beside.verdict, beside.exit_code)


def test_an_allowed_fallback_qualifies() -> None:
    """The expectation names the kernel that served the shape instead."""
    expect = [{"select": "*", "kernel": "under-test", "fallback": "second"}]
    assert QUALIFIED == gate(record("substituted"), expect=expect).exit_code
    assert NOT_QUALIFIED == gate(record("substituted")).exit_code


def test_the_expected_kernel_of_a_shape_decides() -> None:
    """All that ran is green, and the expected kernel is not among it."""
    expect = [{"select": "*/decode/*", "kernel": "second"}]
    found = gate(record("pass"), record("pass", cell=1), expect=expect)
    assert ("FAIL", ["PASS", "FAIL"]) == (found.verdict, [cell.verdict for cell in found.cells])


def test_shapes_keep_the_order_of_the_plan_and_gather_their_kernels() -> None:
    """Two kernels of one shape are one production shape."""
    found = gate(
        record("pass", cell=1), record("refused"), record("crashed", "second", cell=1), record("pass", "second")
    )
    assert [(CELLS[1], ("under-test",)), (CELLS[0], ("second",))] == [
        (cell.cell, cell.proven_by) for cell in found.cells
    ]
    assert [f"{CELLS[1]}/under-test", f"{CELLS[0]}/under-test"] == [each.case_id for each in found.judgements[:2]]


def test_counts_name_every_kind() -> None:
    """Kinds that did not occur count 0."""
    found = gate(record("pass"), record("refused", "second"), record("crashed", cell=1))
    assert {"PASS": 1, "FAIL": 1, "WAIVED": 0, "INCONCLUSIVE": 0, "NOT_REQUIRED": 1} == found.counts["verdicts"]
    assert {"measured": 1, "refused": 1, "substituted": 0, "crashed": 1, "timed_out": 0, "not_run": 0} == (
        found.counts["outcomes"]
    )


@pytest.mark.parametrize(("first", "second"), list(product(EXAMPLES, repeat=2)))
def test_no_pair_of_outcomes_qualifies_by_accident(first: str, second: str) -> None:
    """Two kernels of one shape: qualified only if one passed and the other passed or was refused by the plan."""
    found = gate(record(first), record(second, "second"))
    good = {first, second} <= {"pass", "refused"} and "pass" in {first, second}
    assert good == (found.exit_code == QUALIFIED)


@settings(deadline=None)
@given(
    drawn=st.lists(st.tuples(st.sampled_from(sorted(EXAMPLES)), st.integers(0, 1)), max_size=8),
    partial=st.booleans(),
    ignore=st.booleans(),
)
def test_counts_add_up_and_the_exit_code_fits(drawn: list[tuple[str, int]], partial: bool, ignore: bool) -> None:
    """Whatever the records: each is judged once, and one FAIL or INCONCLUSIVE is never forgotten."""
    records = [record(name, f"kernel-{index}", cell) for index, (name, cell) in enumerate(drawn)]
    found = gate(*records, partial=partial, claims="ignore" if ignore else "enforce")
    assert [each.case.id for each in records] == [each.case_id for each in found.judgements]
    assert (set(VERDICTS), set(OUTCOMES)) == (set(found.counts["verdicts"]), set(found.counts["outcomes"]))
    assert len(records) == sum(found.counts["verdicts"].values()) == sum(found.counts["outcomes"].values())
    verdicts = {each.verdict for each in (*found.judgements, *found.cells)}
    expected = NOT_QUALIFIED if "FAIL" in verdicts else NO_VERDICT if "INCONCLUSIVE" in verdicts else found.exit_code
    assert expected == found.exit_code
    assert found.exit_code != QUALIFIED or "PASS" in {each.verdict for each in found.judgements}
    assert all(each.reasons for each in found.judgements if each.verdict != "PASS")


GPU_ALONE = Refused(by="plan", reasons=("device=cpu (the kernel runs on cuda)",))
UNCLAIMED = Refused(by="plan", reasons=("head_dim=320 > 256", *GPU_ALONE.reasons))


@pytest.mark.parametrize(
    ("kernels", "told", "records", "expected"),
    [
        (["under-test"], True, [record("pass")], ("INCONCLUSIVE", 5, True)),
        (["under-test"], False, [record("pass"), make_record(GPU_ALONE, "second")], ("INCONCLUSIVE", 5, True)),
        (["under-test"], False, [record("pass"), record("refused", "second")], ("PASS", 0, False)),
        (["under-test"], True, [record("fail")], ("FAIL", 1, True)),
        (["*"], True, [record("pass")], ("PASS", 0, True)),
        (["*"], True, [record("refused"), make_record(GPU_ALONE, "second")], ("FAIL", 1, True)),
        (["*"], True, [record("refused"), make_record(UNCLAIMED, "second")], ("FAIL", 1, False)),
    ],
    ids=[
        "told",
        "a refusal tells",
        "another refusal",
        "failed",
        "whatever the machine has",
        "a GPU may serve it",
        "no device serves it",
    ],
)
def test_a_demonstration_qualifies_no_matrix_that_names_kernels_for_gpus(
    kernels: list[str], told: bool, records: list[Record], expected: tuple[str, int, bool]
) -> None:
    """A pass on a CPU is no verdict about them, a failure stays one, and what claims refuse a GPU refuses, too."""
    matrix = make_matrix(kernels=kernels).card
    found = conclude(records, Rules(matrix=matrix, patterns={}, partial=False, demonstration=told))
    assert expected == (found.verdict, found.exit_code, found.demonstration)


def beside(kinds: tuple[Any, ...], *, forbidden: bool = True) -> Weaker:
    """Requirements of those kinds that became weaker than the baseline's."""
    changes = tuple(Less(kind=kind, what="x", then="1", now="2") for kind in kinds)
    return Weaker(run="r", accepted_by="jane", proven=True, accepted_at=NOW, changes=changes, forbidden=forbidden)


@pytest.mark.parametrize(
    ("weaker", "of_a_pass", "of_a_failure"),
    [
        (beside(()), "PASS", "FAIL"),
        (beside(("level",)), "INCONCLUSIVE", "FAIL"),
        (beside(("policy",)), "FAIL", "FAIL"),
        (beside(("level", "cases")), "FAIL", "FAIL"),
        (beside(("policy", "level"), forbidden=False), "PASS", "FAIL"),
    ],
)
def test_weaker_requirements(weaker: Weaker, of_a_pass: Verdict, of_a_failure: Verdict) -> None:
    """A lower level alone is no verdict, everything else is not qualified, unless the policy allows it."""
    for name, expected in (("pass", of_a_pass), ("fail", of_a_failure)):
        found = forbid_weaker(gate(record(name)), weaker)
        assert (expected, EXIT_CODES[expected]) == (found.verdict, found.exit_code)


SLOWER = Slowdown(run="r", accepted_by="", cases=())


@pytest.mark.parametrize(
    ("slower", "untimed", "of_a_pass"),
    [(None, "", "PASS"), (None, "two cards", "INCONCLUSIVE"), (SLOWER, "", "FAIL"), (SLOWER, "two cards", "FAIL")],
)
def test_slower_cases(slower: Slowdown | None, untimed: str, of_a_pass: Verdict) -> None:
    """They fail; times that cannot be compared are no verdict, and a failure stays one."""
    found = forbid_slower(gate(record("pass")), slower, untimed)
    assert (of_a_pass, EXIT_CODES[of_a_pass]) == (found.verdict, found.exit_code)
    assert "FAIL" == forbid_slower(gate(record("fail")), slower, untimed).verdict


@pytest.mark.parametrize(
    ("budgets", "required", "of_a_pass"),
    [
        ((), False, "PASS"),
        ((), True, "INCONCLUSIVE"),
        (("PASS",), False, "PASS"),
        (("PASS", "INCONCLUSIVE"), False, "INCONCLUSIVE"),
        (("INCONCLUSIVE", "FAIL"), False, "FAIL"),
    ],
)
def test_budgets_of_time(budgets: tuple[Any, ...], required: bool, of_a_pass: Verdict) -> None:
    """The worst of them decides about a pass; no evidence is no verdict where it is required."""
    times: dict[str, Any] = {"accepted": "duel", "duel": "", "at": None, "against": "", "stack_a": "", "cells": ()}
    uses = tuple(
        BudgetUse(phase="", of="p50", allowed=0.05, verdict=it, change=0.0, low=0.0, high=0.0, evidence=(), cells=())
        for it in budgets
    )
    performance = Performance(**times, budgets=uses, why_not="" if budgets else "no duel", required=required)
    found = forbid_regression(gate(record("pass")), performance)
    assert (of_a_pass, EXIT_CODES[of_a_pass]) == (found.verdict, found.exit_code)
    assert "FAIL" == forbid_regression(gate(record("fail")), performance).verdict
