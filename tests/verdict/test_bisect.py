"""Bisection: what changes together, what stored runs rule out, and the fewest stacks to test."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from builders import make_evidence, make_finding, make_matrix, make_record
from stored_runs import make_run, make_stack

from qualify.facts.comparison import Comparison, StackChange
from qualify.facts.differing import stack_changes
from qualify.facts.outcome import Measured, Outcome
from qualify.facts.stack import Component, Stack
from qualify.verdict.bisect import Bisection, StoredTest, bisect, parts_of, result_of, symptom_of, upgraded_parts
from qualify.verdict.compare import Side, compare
from qualify.verdict.gate import conclude
from qualify.verdict.policy import Rules

PASSED = Measured(evidence=make_evidence())
WRONG = Measured(evidence=make_evidence(make_finding("fail", "sees key 9")))
NAMES = ("vllm", "numpy", "xformers", "transformers", "kernels")
OLD = make_stack(**dict.fromkeys(NAMES, "1"))
NEW = make_stack(**dict.fromkeys(NAMES, "2"))


def change(component: str, kind: Any = "distribution") -> StackChange:
    """A component that changed."""
    return StackChange(component=component, kind=kind, before="1", after="2")


def comparison(before: Stack, after: Stack, *outcomes: tuple[Outcome, Outcome]) -> Comparison:
    """Two runs on those stacks; a pair of outcomes for each case."""
    rules = Rules(matrix=make_matrix().card, patterns={}, partial=False)
    sides = []
    for stack, which in ((before, 0), (after, 1)):
        records = [make_record(pair[which], f"k{number}") for number, pair in enumerate(outcomes)]
        judgements = conclude(records, rules).judgements
        sides.append(Side(run=replace(make_run(), stack=stack), records=records, judgements=judgements))
    return compare(*sides)


def test_what_is_installed_together_is_one_part() -> None:
    """Torch moves its libraries; without it they move by themselves; files count only alone."""
    found = parts_of(
        [
            change("torch"),
            change("triton"),
            change("cudnn", "runtime"),
            change("nvidia-cudnn-cu13"),
            change("vllm"),
            change("libcudnn.so", "binary"),
            change("driver", "driver"),
            change("NVIDIA H100", "device"),
            change("units", "device"),
            change("nvidia-cutlass-dsl"),
        ]
    )
    assert {
        "torch": ["torch", "triton", "cudnn", "nvidia-cudnn-cu13"],
        "vllm": ["vllm"],
        "driver": ["driver"],
        "device": ["NVIDIA H100", "units"],
        "nvidia-cutlass-dsl": ["nvidia-cutlass-dsl"],
    } == {part.name: [item.component for item in part.changes] for part in found}
    alone = parts_of([change("nvidia-cudnn-cu13"), change("cudnn", "runtime"), change("triton")])
    assert ["cudnn", "triton"] == [part.name for part in alone]
    assert ["a.so", "b.so"] == [part.name for part in parts_of([change("a.so", "binary"), change("b.so", "binary")])]


@pytest.mark.parametrize("count", range(1, 6))
def test_the_fewest_tests_tell_every_component_apart(count: int) -> None:
    """ceil(log2(n)) stacks, whose outcomes name whichever is to blame."""
    before = make_stack(**dict.fromkeys(NAMES[:count], "1"))
    after = make_stack(**dict.fromkeys(NAMES[:count], "2"))
    whole = comparison(before, after, (PASSED, WRONG))
    symptom = symptom_of(whole, [item.id for item in whole.verdicts])
    parts = parts_of(whole.stack)
    made = bisect(whole, symptom, parts, ())
    assert math.ceil(math.log2(count)) == len(made.tests)
    for guilty in NAMES[:count]:
        tested = tuple(
            StoredTest(run=make_run(), upgraded=upgraded, result="bad" if guilty in upgraded else "good")
            for upgraded in made.tests
        )
        assert (guilty,) == bisect(whole, symptom, parts, tested).candidates


def mixed(*upgraded: str, **more: str) -> Stack:
    """The old stack with some components of the new one."""
    return make_stack(**({name: "2" if name in upgraded else "1" for name in NAMES} | more))


@pytest.mark.parametrize(
    ("stack", "expected"),
    [
        (OLD, ()),
        (NEW, NAMES),
        (mixed("vllm"), ("vllm",)),
        (mixed("vllm", "kernels"), ("vllm", "kernels")),
        (mixed(numpy="1.5"), None),
        (mixed(torch="2.12.0"), None),
        (mixed("vllm", extra="1"), None),
    ],
)
def test_a_stack_between_the_two_is_recognised(stack: Stack, expected: tuple[str, ...] | None) -> None:
    """Each component as in one of the two, and nothing else changed."""
    assert expected == upgraded_parts(parts_of(list(stack_changes(OLD, NEW))), OLD, stack)


def test_half_a_part_is_no_test() -> None:
    """Torch without its libraries is a stack that nobody can install."""
    old = make_stack(torch="1", triton="1")
    parts = parts_of(list(stack_changes(old, make_stack(torch="2", triton="2"))))
    assert ["torch"] == [part.name for part in parts]
    assert upgraded_parts(parts, old, make_stack(torch="2", triton="1")) is None
    assert ("torch",) == upgraded_parts(parts, old, make_stack(torch="2", triton="2"))


def test_mapped_files_are_looked_over() -> None:
    """A file belongs to what installed it."""
    stack = mixed("vllm")
    mapped = Component(kind="binary", name="x.so", version="", digest="1")
    assert ("vllm",) == upgraded_parts(
        parts_of(list(stack_changes(OLD, NEW))), OLD, replace(stack, components=(*stack.components, mapped))
    )


def bisected(*tested: tuple[tuple[str, ...], Any]) -> Bisection:
    """After those tests."""
    whole = comparison(OLD, NEW, (PASSED, WRONG))
    runs = tuple(StoredTest(run=make_run(), upgraded=upgraded, result=result) for upgraded, result in tested)
    return bisect(whole, symptom_of(whole, [it.id for it in whole.verdicts]), parts_of(whole.stack), runs)


@pytest.mark.parametrize(
    ("tested", "candidates"),
    [
        ([], NAMES),
        ([(("vllm", "numpy"), "bad")], ("vllm", "numpy")),
        ([(("vllm", "numpy"), "good")], ("xformers", "transformers", "kernels")),
        ([(("vllm", "numpy"), "bad"), (("vllm",), "good")], ("numpy",)),
        ([(("vllm", "numpy"), "mixed")], NAMES),
        ([((), "bad")], ()),
        ([(("vllm",), "bad"), (("vllm",), "good")], ()),
    ],
)
def test_stored_runs_rule_out(tested: list[Any], candidates: tuple[str, ...]) -> None:
    """Bad: among the upgraded. Good: not among them. Contradictions leave nobody."""
    made = bisected(*tested)
    assert candidates == made.candidates
    assert [item[1] for item in tested] == [item.result for item in made.tested]
    assert len(made.tests) == max(0, len(candidates) - 1).bit_length()


def test_the_worst_topic_is_the_symptom() -> None:
    """A failure before a drift; nothing worse, no symptom."""
    whole = comparison(OLD, NEW, (PASSED, WRONG), (WRONG, PASSED))
    symptom = symptom_of(whole, [it.id for it in whole.verdicts])
    assert symptom is not None
    assert ("verdicts", ["k0"]) == (symptom.topic, [it.id.rpartition("/")[2] for it in symptom.changes])
    assert symptom_of(whole, ["other"]) is None
    assert (None, (), ()) == (
        symptom_of(comparison(OLD, NEW, (WRONG, PASSED)), ["k0"]),
        bisect(whole, None, parts_of(whole.stack), ()).candidates,
        bisect(whole, None, parts_of(whole.stack), ()).tests,
    )
    assert symptom == bisect(whole, symptom, (), ()).symptom


@pytest.mark.parametrize("states", list(product((True, False), repeat=2)))
def test_the_result_of_a_run_is_that_of_all_its_cases(states: tuple[bool, bool]) -> None:
    """All bad, none, or some."""
    whole = comparison(OLD, NEW, (PASSED, WRONG), (PASSED, WRONG))
    symptom = symptom_of(whole, [it.id for it in whole.verdicts])
    assert symptom is not None
    middle = comparison(OLD, mixed("vllm"), *((PASSED, WRONG if bad else PASSED) for bad in states))
    ids = [it.id for it in symptom.changes]
    expected = "bad" if all(states) else "mixed" if any(states) else "good"
    assert expected == result_of(symptom, middle, ids)
    assert result_of(symptom, middle, []) is None
