"""nan: kernels that hide a NaN, and kernels that hand it to others."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from builders import make_card
from faults import Edited
from subjects import make_subject
from torch import Tensor

from qualify.facts.outcome import Finding
from qualify.run.adapters.interface import AttentionCall
from qualify.run.checks.nan import Nan

CLAIMED = make_card(nan="propagates")
PAGED: dict[str, Any] = {"seqlens_q": (1, 1), "seqlens_k": (20, 33), "page_size": 16}
WORKLOADS: list[dict[str, Any]] = [
    {},
    {"seqlens_q": (9, 0, 40), "window": (7, 0), "softcap": 20.0, "sinks": True},
    {"seqlens_q": (70, 33), "chunk": 16, "head_dim_v": 32},
    {"dtype": "fp8_e4m3", "heads_kv": 1},
    PAGED,
    PAGED | {"dtype": "fp16_kv_fp8_e4m3"},
]


def nan(adapter: Any = None, **workload: Any) -> Finding:
    """The one finding of the check."""
    subject = make_subject(adapter, level="full", card=CLAIMED, **workload)
    assert "" == Nan().skips(subject)
    (finding,) = Nan().run(subject)
    return finding


def cleaned(*names: str) -> Edited:
    """A kernel that reads NaN in some tensors as 0."""

    def edit(call: AttentionCall) -> AttentionCall:
        clean: dict[str, Any] = {
            name: getattr(call, name).float().nan_to_num(nan=0.0).to(getattr(call, name).dtype) for name in names
        }
        return replace(call, **clean)

    return Edited(call=edit)


@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("workload", WORKLOADS, ids=str)
def test_a_hidden_nan_is_caught(name: str, workload: dict[str, Any]) -> None:
    """In the tensor that is cleaned of it."""
    finding = nan(cleaned(name), **workload)
    assert ("fail", name) == (finding.verdict, finding.values["tensor"])
    assert "sees it, but gives a number" in finding.detail


@pytest.mark.parametrize(("name", "place"), [("k", "first"), ("v", "first"), ("k", "middle"), ("v", "middle")])
def test_a_nan_that_is_hidden_at_some_keys_only_is_caught(name: str, place: str) -> None:
    """In a tile that no mask cuts, or in one that is not the last."""

    def edit(call: AttentionCall) -> AttentionCall:
        tensor = getattr(call, name).clone()
        part = slice(0, 8) if place == "first" else slice(24, 48)
        tensor[part] = tensor[part].nan_to_num(nan=0.0)
        return replace(call, **{name: tensor})

    assert ("fail", name) == ((finding := nan(Edited(call=edit), seqlens_q=(70,))).verdict, finding.values["tensor"])


def test_an_output_cleaned_of_nan_is_caught() -> None:
    """The result hides what the arithmetic found."""
    finding = nan(Edited(result=lambda call, out, lse: (out.nan_to_num(nan=0.0), lse)))
    assert ("fail", "q", 0) == (finding.verdict, finding.values["tensor"], finding.values["sequence"])


def test_a_nan_of_a_neighbour_is_caught() -> None:
    """A NaN anywhere makes the first row NaN."""

    def spread(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        return torch.where(out.isnan().any() & (torch.arange(len(out)) == 0).view(-1, 1, 1), torch.nan, out), lse

    finding = nan(Edited(result=spread), seqlens_q=(3, 40))
    assert ("fail", 0) == (finding.verdict, finding.values["sequence"])
    assert "belongs to another sequence, but changes" in finding.detail


def test_a_nan_in_a_query_that_changes_other_rows_is_caught() -> None:
    """One vote of a tile says whether all its rows are rescaled; other roundings of a few are granted."""

    def voted(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        return torch.where(call.q.isnan().any() & ~out.isnan(), out * 1.5, out), lse

    def rounded(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        if bool(call.q.isnan().any()):
            out.view(torch.int16)[2, 3, 5] ^= 1
        return out, lse

    finding = nan(Edited(result=voted), seqlens_q=(40,))
    assert ("fail", "q") == (finding.verdict, finding.values["tensor"])
    assert "belongs to another query or head, but changes" in finding.detail
    assert "pass" == nan(Edited(result=rounded), seqlens_q=(40,)).verdict


def test_a_nan_of_a_neighbouring_head_is_caught() -> None:
    """Padding of a head that reads the next one's keys, times 0."""

    def leak(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        group, leaks = call.q.shape[1] // call.k.shape[1], call.k.isnan().any(-1)
        wrong = leaks.any(0).roll(-1).repeat_interleave(group).view(-1, 1)
        return torch.where(wrong, torch.nan, out), lse

    finding = nan(Edited(result=leak), heads_q=6, heads_kv=3)
    assert ("fail", "k") == (finding.verdict, finding.values["tensor"])
    assert "reads another KV head, but changes" in finding.detail


@pytest.mark.parametrize("workload", WORKLOADS, ids=str)
def test_a_correct_kernel_passes(workload: dict[str, Any]) -> None:
    """Also one that multiplies masked values, NaN among them, by 0."""

    def careless(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        touched = out.isnan().any(-1, keepdim=True).any(0, keepdim=True)
        masked = len(call.cu_seqlens_q) == 2 and not call.q.isnan().any()
        return (torch.where(touched, torch.nan, out) if masked else out), lse

    assert "pass" == nan(**workload).verdict
    assert "pass" == nan(Edited(result=careless), **workload).verdict


def test_it_is_asked_where_the_card_claims_it() -> None:
    """And where some query sees a key."""
    assert "the card does not claim that NaN propagates" == Nan().skips(make_subject(level="full"))
    assert "no query sees a key" == Nan().skips(make_subject(level="full", card=CLAIMED, seqlens_k=(0,)))


@pytest.mark.parametrize("number", [7.0, math.nan])
def test_what_rows_without_keys_hold_is_not_asked_here(number: float) -> None:
    """Whatever the memory held before: numbers in one call, and NaN in the next."""
    calls: list[int] = []

    def left(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(1)
        empty = (lse == -math.inf).T.unsqueeze(-1)
        return out.masked_fill(empty, number if len(calls) % 2 else len(calls)), lse

    card = make_card(nan="propagates", empty_row={"out": "any", "lse": "any"})
    (finding,) = Nan().run(make_subject(Edited(result=left), card=card, seqlens_q=(9, 3), seqlens_k=(4, 3)))
    assert "pass" == finding.verdict, finding.detail


def test_a_kernel_that_changes_by_itself_is_not_accused_of_a_nan() -> None:
    """The unchanged call does not repeat itself either, and that is what is told."""
    calls: list[int] = []

    def varies(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(1)
        return (out + len(calls)).to(out.dtype), lse

    assert ("repeat", "fail") == ((finding := nan(Edited(result=varies))).check, finding.verdict)
