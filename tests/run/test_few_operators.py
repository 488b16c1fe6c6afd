"""What the judge launches and how often it waits: on a GPU, each costs the host more than the arithmetic."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from operators import counted
from subjects import make_call, make_subject
from torch.utils._python_dispatch import _disable_current_modes

from qualify.facts.accuracy import class_named
from qualify.run.adapters.interface import AttentionCall
from qualify.run.adapters.tiled_torch import create
from qualify.run.bits import inputs_digest
from qualify.run.checks.budget import compare
from qualify.run.checks.census import Census
from qualify.run.checks.contract import written
from qualify.run.checks.difference import difference
from qualify.run.checks.interface import Check
from qualify.run.checks.poison import Poison
from qualify.run.checks.suffix import Suffix
from qualify.run.checks.two_scores import make_halves, make_probe
from qualify.run.golden.accuracy import judge
from qualify.run.golden.reference import golden
from qualify.run.host.local import LocalKernel
from qualify.run.inputs.tensors import clone

BATCH = {"seqlens_q": (40, 17, 33), "seqlens_k": (50, 64, 70)}


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[AttentionCall]:
    """The calls that the kernel gets; what it does itself is not counted."""
    found, run = list[AttentionCall](), LocalKernel.run

    def uncounted(kernel: LocalKernel, call: AttentionCall) -> object:
        with _disable_current_modes():
            found.append(call)
            return run(kernel, call)

    monkeypatch.setattr(LocalKernel, "run", uncounted)
    return found


def test_an_output_is_judged_with_one_wait() -> None:
    """In each class, for a batch too; nothing is launched for terms that the class does not have."""
    call = make_call(dtype="bf16", **BATCH)
    found = golden(call)
    out = create({}).prepare(call).launch()[0][found.rows]
    for name in ("bf16", "fp32"):
        with counted() as seen:
            judge(found, out, class_named(name))
        assert 0 == seen.waits.index("cpu")  # what follows is computed on the host
        assert 1 == seen.waits.count("cpu")
        assert len(seen.launched) <= 140


def test_what_breaks_a_class_is_not_compared_in_a_tighter_one() -> None:
    """A kernel in bf16 breaks fp16, so nobody asks whether it keeps fp32."""
    subject = make_subject(dtype="bf16", **BATCH)
    call = subject.inputs().call
    found, result = subject.golden(call), subject.run(call)
    launched = {}
    for measure in (False, True):
        with counted() as seen:
            compare(subject, call, found, result, "normal", 0, measure=measure)
        launched[measure] = len(seen.launched)
    assert launched[True] - launched[False] <= 60
    assert torch.equal(found.sequence.unique(), torch.arange(found.sequences))


def test_results_and_inputs_are_compared_with_one_wait() -> None:
    """Output and LSE together; and all tensors of a call together, with what is around them."""
    subject = make_subject(page_size=16, sinks=True, **BATCH)
    inputs = subject.inputs()
    before, one, other = clone(inputs), subject.run(inputs.call), subject.run(inputs.call)
    with counted() as seen:
        assert difference(subject, one, other) is None
    assert ["tolist"] == seen.waits
    with counted() as seen:
        assert written(subject, before, inputs) is None
    assert ["tolist"] == seen.waits


def test_a_census_waits_once_for_each_call(calls: list[AttentionCall]) -> None:
    """Counts and LSE are read together, and no key is looked for where all have a label."""
    subject = make_subject(seqlens_q=(100,), seqlens_k=(300,), sinks=True)
    with counted() as seen:
        (found,) = Census().run(subject)
    assert "pass" == found.verdict
    assert ["tolist"] * len(calls) == seen.waits


@pytest.mark.parametrize(("lengths", "waits"), [(BATCH, 3), ({"seqlens_q": (9, 3), "seqlens_k": (4, 3)}, 7)])
def test_a_call_is_compared_with_few_waits(lengths: dict[str, Any], waits: int) -> None:
    """Whether all is finite, the LSE, and the errors; where some rows see no key, also which, and what they hold."""
    subject = make_subject(**lengths)
    call = subject.inputs().call
    found, result = subject.golden(call), subject.run(call)
    with counted() as seen:
        findings, _ = compare(subject, call, found, result, "normal", 0, measure=False)
    assert ["pass"] == [finding.verdict for finding in findings]
    at = seen.waits.index("cpu")
    assert waits == len(seen.waits[: at + 1])
    assert not {"index", "equal", "_unique2"} & {*seen.waits}


def test_probes_share_what_they_have_in_common() -> None:
    """The second probe of a workload makes no groups of keys again, and no probe copies values that it replaces."""
    subject = make_subject(sinks=True, **BATCH)
    make_probe(subject, 0.0)
    launched = []
    halves = make_halves(subject.workload, subject.device)
    for shared in (None, halves):
        with counted() as seen:
            make_probe(subject, 30.0, halves=shared)
        launched.append(seen.launched)
    assert len(launched[1]) <= len(launched[0]) - 12
    assert 2 + 3 == launched[1].count("clone")  # of keys and values, in which it writes, and of three small tensors


@pytest.mark.parametrize(
    ("check", "window", "waits"),
    [
        (Suffix(), (9, 0), ["nonzero", "nonzero", "tolist", "tolist", "nonzero", "nonzero", "tolist"]),
        (Poison(), (-1, -1), ["tolist", "tolist", "tolist"]),
    ],
    ids=["suffix", "poison"],
)
def test_what_a_row_does_not_see_is_found_with_one_wait_each(
    check: Check, window: tuple[int, int], waits: list[str]
) -> None:
    """The keys of a split and of the neighbours, and the queries; the keys that no query sees; each comparison."""
    subject = make_subject(window=window, seqlens_q=(4, 17, 33), seqlens_k=(50, 64, 70))
    check.run(subject)  # what is kept for later calls is not counted
    with counted() as seen:
        (found,) = check.run(subject)
    assert "pass" == found.verdict
    assert waits == seen.waits


def test_a_digest_of_inputs_takes_few_operators() -> None:
    """Three for each tensor, however long its words are, and four for all."""
    call = make_call(page_size=16, sinks=True, **BATCH)
    inputs_digest(call)
    with counted() as seen:
        inputs_digest(call)
    assert ["tolist"] == seen.waits
    assert 4 + 1 + 3 * 7 == len(seen.launched)


@pytest.mark.parametrize(("page_size", "most"), [(0, 58), (16, 62)])
def test_a_golden_result_takes_few_operators(page_size: int, most: int) -> None:
    """One block of equal sequences: nothing is padded, and all numbers of a row and head are stored at once."""
    call = make_call(seqlens_q=(40, 40), seqlens_k=(50, 50), page_size=page_size)
    with counted() as seen:
        golden(call)
    assert ["tolist"] == seen.waits
    assert len(seen.launched) <= most
