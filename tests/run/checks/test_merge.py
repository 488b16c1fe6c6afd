"""merge: an LSE that cannot be used to merge."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from builders import make_card
from faults import Edited
from subjects import make_subject
from torch import Tensor

from qualify.facts.outcome import Finding
from qualify.run.adapters.interface import AttentionCall
from qualify.run.checks.interface import Result
from qualify.run.checks.merge import Merge, merged

DECODE: dict[str, Any] = {"seqlens_q": (1,) * 3, "seqlens_k": (70, 33, 64)}
SEVERAL_OR_MASKED = "it needs one query per sequence, without window, pattern or image spans"


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


def test_an_lse_that_was_claimed_and_is_missing_fails() -> None:
    """Without it nothing can be merged."""
    finding = merge(Edited(result=lambda call, out, lse: (out, None)))
    assert ("fail", "the card claims an LSE and the kernel returned none") == (finding.verdict, finding.detail)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "fp8_e4m3", "bf16_kv_fp8_e4m3"])
@pytest.mark.parametrize("workload", [{}, {"sinks": True}, {"softcap": 50.0}, {"page_size": 16}], ids=str)
def test_a_correct_kernel_passes(dtype: str, workload: dict[str, Any]) -> None:
    """Sinks are counted once, and both parts have the factors of the whole."""
    assert "pass" == merge(dtype=dtype, **workload).verdict


@pytest.mark.parametrize(
    ("why", "workload", "features"),
    [
        ("the card claims no LSE", {}, ["gqa"]),
        (SEVERAL_OR_MASKED, {"seqlens_q": (5,), "seqlens_k": (9,)}, ["lse", "gqa"]),
        (SEVERAL_OR_MASKED, {"seqlens_q": (1, 5, 1)}, ["lse", "gqa"]),
        (SEVERAL_OR_MASKED, {"spans": ((0, 3, 9),)}, ["lse", "gqa"]),
        (SEVERAL_OR_MASKED, {"window": (9, 0)}, ["lse", "gqa"]),
        (SEVERAL_OR_MASKED, {"chunk": 20}, ["lse", "gqa"]),
        ("lengths differ", {"seqlens_k": (70, 70, 64)}, ["lse", "gqa"]),
        ("nothing to split", {"seqlens_k": (70, 2, 70)}, ["lse", "gqa", "ragged"]),
        ("nothing to split", {"seqlens_k": (2, 2, 2)}, ["lse", "gqa"]),
    ],
)
def test_where_it_does_not_apply(why: str, workload: dict[str, Any], features: list[str]) -> None:
    """The reason is told."""
    assert why == Merge().skips(make_subject(card=make_card(features=features), **(DECODE | workload)))


@pytest.mark.parametrize(
    ("claims", "workload", "first"),
    [
        ({}, {}, (0, 9, 18)),
        ({}, {"sinks": True}, (20, 9, 18)),
        ({"features": ["lse", "gqa", "ragged"]}, {}, (20, 9, 18)),
        ({"features": ["lse", "gqa", "empty"]}, {"seqlens_k": (70,) * 3}, (20, 20, 20)),
        ({}, {"seqlens_q": (1,), "seqlens_k": (70,)}, (20,)),
        ({}, {"seqlens_q": (1, 1), "seqlens_k": (70, 33)}, (0, 9)),
        ({}, {"seqlens_k": (3, 3, 700)}, (0, 1, 200)),
    ],
    ids=str,
)
def test_parts_are_uneven_and_one_is_empty(
    claims: dict[str, Any], workload: dict[str, Any], first: tuple[int, ...]
) -> None:
    """Two sevenths of the keys and the rest; where the card claims it, one sequence has all in the second part."""
    asked: list[list[int]] = []

    def kept(call: AttentionCall) -> AttentionCall:
        assert call.cu_seqlens_k is not None
        asked.append(call.cu_seqlens_k.diff().tolist())
        return call

    assert "pass" == merge(Edited(call=kept), card=make_card(**claims), **workload).verdict
    whole = (DECODE | workload)["seqlens_k"]
    assert [list(first), [length - part for length, part in zip(whole, first, strict=True)]] == asked


@pytest.mark.parametrize(("off", "verdict"), [(1.7e-5, "pass"), (-1.7e-5, "pass"), (2.3e-5, "fail"), (-2.3e-5, "fail")])
def test_a_merged_lse_may_be_twice_as_far_off_as_one(off: float, verdict: str) -> None:
    """The card claims 1e-5, and two parts have an error each."""
    assert verdict == merge(edited(lambda lse, call: lse * (1 + off))).verdict


@pytest.mark.parametrize(("gain", "verdict"), [(2.0**-6, "pass"), (2.0**-5.5, "fail")])
def test_a_merged_output_may_be_twice_as_far_off_as_one(gain: float, verdict: str) -> None:
    """Both parts were rounded, and what they merge to is once more."""
    finding = merge(Edited(result=lambda call, out, lse: ((out.float() * (1 + gain)).to(out.dtype), lse)))
    assert verdict == finding.verdict, finding.detail
    assert 1.5 < float(finding.values["E"] or 0) < 3.0


@pytest.mark.parametrize("sinks", [None, [0.5, -30.0, 30.0]], ids=str)
@pytest.mark.parametrize("cut", [0, 1, 3])
def test_two_softmaxes_merge_into_one(sinks: list[float] | None, cut: int) -> None:
    """Whatever their weights are; the sink, which both parts have, counts once."""
    scores = torch.tensor([[0.1, 2.0, -3.0, 7.0], [0.0, 0.0, 0.0, 0.0], [-9.0, 9.0, 1.0, 0.0]]).double()
    values = torch.tensor([[1.0, 2.0], [3.0, -4.0], [0.5, 0.0], [-1.0, 8.0]]).double()
    extra = torch.zeros(3, 0).double() if sinks is None else torch.tensor(sinks).double()[:, None]

    def attend(keys: slice) -> Result:
        lse = torch.logsumexp(torch.cat([scores[:, keys], extra], 1), 1)
        weights = torch.exp(scores[:, keys] - lse[:, None]) if scores[:, keys].numel() else scores[:, keys]
        return Result(out=(weights @ values[keys])[None], lse=lse[:, None])

    whole = attend(slice(None))
    out, lse = merged(attend(slice(cut)), attend(slice(cut, None)), None if sinks is None else extra[:, 0])
    assert whole.lse is not None
    torch.testing.assert_close(whole.out, out, rtol=1e-5, atol=1e-9)
    torch.testing.assert_close(whole.lse.T, lse, rtol=1e-9, atol=1e-9)


def test_a_mask_aligned_to_the_top_left_has_no_parts() -> None:
    """One query sees the first key alone there."""
    subject = make_subject(card=make_card(alignment="top_left"), **DECODE)
    assert "under a mask aligned to the top left, a part of the keys is a different call" == Merge().skips(subject)
    assert "" == Merge().skips(make_subject(seqlens_q=(1,), seqlens_k=(3,)))
