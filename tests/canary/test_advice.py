"""Promote, hold or roll back: every rule, and the order in which they count."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fire_examples import GOOD, NONE, TORCH

from qualify.canary.advice import advise
from qualify.canary.messages import DuelSeen
from qualify.facts.typed import Typed


@pytest.mark.parametrize(
    ("changes", "same", "other"),
    [
        ({}, "promote", "promote"),
        ({"verdict": "WAIVED"}, "promote", "promote"),
        ({"verdict": "FAIL", "failing": ("a: wrong",)}, "hold", "roll back"),
        ({"verdict": "FAIL", "expired": ("waivers.yaml:2: waiver w0 has expired",)}, "hold", "hold"),
        ({"regressions": NONE | {"numbers": 1}}, "hold", "roll back"),
        ({"verdict": "INCONCLUSIVE"}, "hold", "hold"),
        ({"suspicious": {"verdicts": 0, "kernels": 2, "numbers": 0}}, "hold", "hold"),
        ({"slower": 1}, "hold", "hold"),
        ({"weaker": ("kernel a: then 2 cases, now none",)}, "hold", "hold"),
        ({"baseline": None}, "hold", "hold"),
        ({"baseline": None, "verdict": "FAIL"}, "hold", "hold"),
    ],
)
def test_what_is_advised(changes: dict[str, Any], same: str, other: str) -> None:
    """On the baseline's stack there is nothing to roll back to; on another one what got worse is rolled back."""
    seen = replace(GOOD, **changes)
    assert (same, other) == (advise(seen).advice, advise(replace(seen, stack=(TORCH,))).advice)


def test_times_do_not_count_where_the_card_was_slowed_down() -> None:
    """The reason stands in the advice, and the numerics are still judged."""
    slow = replace(GOOD, slower=3)
    told = "slower than in the baseline by more than the canary allows"
    assert [(f"3 cases are {told}",), (f"1 case is {told}",)] == [
        advise(it).reasons for it in (slow, replace(slow, slower=1))
    ]
    counsel = advise(slow, numerics_only=("hardware slowdown (clock-event bit 0x8)",))
    assert "promote" == counsel.advice
    assert "times are not compared: hardware slowdown (clock-event bit 0x8)" in counsel.reasons
    assert "hold" == advise(replace(slow, verdict="FAIL"), numerics_only=("MIG",)).advice


def test_a_fault_of_the_kernel_is_evidence_against_it() -> None:
    """Xid 31 fails a run that passed; one that nobody listed says only that the device is in doubt."""
    faulted = advise(replace(GOOD, stack=(TORCH,)), xids=(31, 31))
    assert ("roll back", "FAIL") == (faulted.advice, faulted.verdict)
    words = "the driver reported Xid 31 (GPU memory page fault) during the run: a kernel faulted"
    assert [words] == list(faulted.reasons[:1])
    other = advise(replace(GOOD, stack=(TORCH,)), xids=(154,))
    assert ("hold", "PASS", ("the driver reported Xid 154 during the run",)) == (
        other.advice, other.verdict, other.reasons
    )  # fmt: skip


def test_a_fault_of_the_card_is_no_evidence_against_the_kernel() -> None:
    """Whatever failed with it: nothing is decided, and there is nothing to roll back."""
    failed = replace(GOOD, verdict="FAIL", failing=("a/b: crashed",), stack=(TORCH,))
    counsel = advise(failed, xids=(45, 79, 79))
    assert ("hold", "INCONCLUSIVE") == (counsel.advice, counsel.verdict)
    assert (
        "the driver reported Xid 79 (the GPU has fallen off the bus) during the run: the card is bad",
        "the run says nothing about the stack: run it again on another card",
    ) == counsel.reasons


def test_reasons_name_what_changed() -> None:
    """What failed, the baseline, the components, and the command that accepts one."""
    failed = replace(GOOD, verdict="FAIL", failing=("a/b: row 3",), stack=(TORCH,))
    assert ("the run failed: a/b: row 3", "the stack changed since baseline run-1: torch") == advise(failed).reasons
    same = advise(replace(failed, stack=())).reasons
    assert any("the stack is that of baseline run-1" in reason for reason in same)
    (unknown,) = advise(replace(GOOD, baseline=None)).reasons
    assert unknown.endswith("qualify baseline accept run-2 --reason 'first baseline' --by \"$USER\"")


def test_no_reason_is_said_twice() -> None:
    """Examples of what got worse and of what is suspicious are the same ones."""
    both = replace(GOOD, regressions={"kernels": 1}, suspicious={"bits": 2}, examples=("a/b: kernels: x -> y: lost",))
    assert (
        "regressions against the baseline: 1 in kernels",
        "a/b: kernels: x -> y: lost",
        "the stack is that of baseline run-1: suspect the device, or the kernel's history",
        "suspicious against the baseline: 2 in bits",
    ) == advise(both).reasons


def test_code_that_changed_is_suspected_before_the_device() -> None:
    """The stack shows no code of a --cards folder; to roll the stack back does not undo it."""
    failed = replace(GOOD, verdict="FAIL", failing=("a/b: row 3",), code=("mine", "b", "c", "d", "e"))
    told = "the stack is that of baseline run-1: look first at what changed in the code of mine, b, c and 2 more"
    assert told == advise(failed).reasons[-1]
    other = advise(replace(failed, stack=(TORCH,), code=("mine",)))
    assert ("roll back", "so did the code of mine: no older stack undoes that") == (other.advice, other.reasons[-1])


def test_a_run_of_a_part_is_no_baseline() -> None:
    """The command runs the whole matrix, at this canary's level and with its cards: such a run can be accepted."""
    part = replace(GOOD, baseline=None, whole=("serving.yaml", "--level", "full", "--device", "cuda"))
    (reason,) = advise(part, typed=Typed(cards=("my cards",))).reasons
    assert "baseline accept" not in reason
    command = "qualify run serving.yaml --level full --device cuda --cards 'my cards'"
    assert reason.endswith(f"this run is about a part of the matrix; accept one of the whole: {command}")


def test_a_promotion_names_what_is_waived() -> None:
    """Owner, case and last day stand beside the advice."""
    reasons = advise(replace(GOOD, waived="a/b by jane until 2026-12-31 (w0)")).reasons
    assert ("nothing got worse against baseline run-1", "waived: a/b by jane until 2026-12-31 (w0)") == reasons


SLOWER = "k prefill b1 (m, fp32, causal): +4.1 % [+3.2, +5.0], confirmed by duel-1"
DUEL = DuelSeen(id="duel-1", against="older", cells=3, suspects=("a", "b"), acquitted=("a", "c"))


@pytest.mark.parametrize(
    ("duel", "advice", "reason"),
    [
        (DUEL, "promote", "duel-1 against older: 3 cells decided; 1 case that looked slower is not"),
        (replace(DUEL, cells=1, suspects=(), acquitted=()), "promote", "duel-1 against older: 1 cell decided"),
        (DuelSeen(suspects=("a",), why_not="no"), "hold", "1 case looks slower, and no duel could check that: no"),
        (replace(DUEL, slower=(SLOWER,)), "hold", SLOWER),
        (replace(DUEL, slower=(SLOWER,), within=True), "promote", f"{SLOWER}, within the budgets of the matrix"),
        (replace(DUEL, undecided=("x: AMBIGUOUS, 2 pairs",)), "hold", "duel-1 against older did not decide every cell"),
        (replace(DUEL, undecided=("x: AMBIGUOUS, 2 pairs",), within=True), "hold", "x: AMBIGUOUS, 2 pairs"),
        (
            DuelSeen(suspects=("a", "b"), why_not="environment older is gone"),
            "hold",
            "2 cases look slower, and no duel could check that: environment older is gone",
        ),
    ],
)
def test_a_duel_decides_what_two_runs_cannot(duel: DuelSeen, advice: str, reason: str) -> None:
    """Confirmed beyond the budgets, open, or not fought: hold. What it calls the same is no reason to hold."""
    counsel = advise(replace(GOOD, duel=duel))
    assert advice == counsel.advice
    assert reason in "\n".join(counsel.reasons)
