"""merge: an LSE that cannot be used to merge."""

from __future__ import annotations

import math
from typing import Any

import pytest
from builders import make_card
from faults import Edited
from subjects import make_subject
from torch import Tensor

from qualify.facts.outcome import Finding
from qualify.run.adapters.interface import AttentionCall
from qualify.run.checks.merge import Merge

DECODE: dict[str, Any] = {"seqlens_q": (1,) * 3, "seqlens_k": (70, 33, 64)}


def merge(adapter: Any = None, **workload: Any) -> Finding:
    """The one finding of the check."""
    subject = make_subject(adapter, level="full", **(DECODE | workload))
    assert "" == Merge().skips(subject)
    (finding,) = Merge().run(subject)
    return finding


def edited(change: Any) -> Edited:
    """A kernel with another LSE."""

    def result(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        return out, change(lse, call)

    return Edited(result=result)


FAULTS: dict[str, Any] = {
    "base 2": lambda lse, call: lse * 1.4426950408889634,
    "the row maximum": lambda lse, call: lse - 1.0 * (call.max_seqlen_k > 40),
    "another head's": lambda lse, call: lse.roll(1, 0),
    "of another sequence": lambda lse, call: lse.roll(1, 1),
    "of equal weight": lambda lse, call: lse * 0,
}


@pytest.mark.parametrize("name", FAULTS)
def test_an_lse_that_merges_wrongly_is_caught(name: str) -> None:
    """Though every output is right by itself."""
    assert "fail" == merge(edited(FAULTS[name])).verdict


def test_an_empty_part_is_merged_too() -> None:
    """A part without keys must weigh nothing: an LSE of 0 weighs as much as a key."""
    wrong = edited(lambda lse, call: lse.masked_fill(lse == -math.inf, 0.0))
    assert "fail" == merge(wrong).verdict
    assert "pass" == merge(wrong, seqlens_q=(1,), seqlens_k=(70,)).verdict, "nothing is empty here"
    assert "pass" == merge(wrong, sinks=True).verdict


def test_an_empty_row_is_read_as_the_card_says() -> None:
    """FlashAttention-2 gives an LSE of +inf, others promise nothing: both weigh nothing in a merge."""

    def nothing(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        empty = lse == -math.inf
        return out.masked_fill(empty.T.unsqueeze(-1), math.nan), lse.masked_fill(empty, math.inf)

    for policy in ({"out": "nan", "lse": "inf"}, {"out": "any", "lse": "any"}):
        assert "pass" == merge(Edited(result=nothing), card=make_card(empty_row=policy)).verdict
    assert "fail" == merge(Edited(result=nothing)).verdict


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("workload", [{}, {"sinks": True}, {"softcap": 50.0}, {"page_size": 16}], ids=str)
def test_a_correct_kernel_passes(dtype: str, workload: dict[str, Any]) -> None:
    """Sinks are counted once."""
    assert "pass" == merge(dtype=dtype, **workload).verdict


@pytest.mark.parametrize(
    ("why", "workload", "features"),
    [
        ("the card claims no LSE", {}, ["gqa"]),
        ("a part of the keys is another mask here", {"seqlens_q": (5,), "seqlens_k": (9,)}, ["lse", "gqa"]),
        ("a part of the keys is another mask here", {"window": (9, 0)}, ["lse", "gqa"]),
        ("lengths differ", {}, ["lse", "gqa"]),
        ("nothing to split", {"seqlens_k": (2, 2, 2)}, ["lse", "gqa"]),
    ],
)
def test_where_it_does_not_apply(why: str, workload: dict[str, Any], features: list[str]) -> None:
    """The reason is told."""
    assert why == Merge().skips(make_subject(card=make_card(features=features), **(DECODE | workload)))
