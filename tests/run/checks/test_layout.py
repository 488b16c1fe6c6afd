"""layout: kernels that assume strides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from faults import Edited
from subjects import make_subject
from torch import Tensor

from qualify.facts.outcome import Finding
from qualify.run.adapters.interface import AttentionCall, LibraryRefusal
from qualify.run.adapters.tiled_torch import TiledTorch
from qualify.run.checks.layout import Layout


def layout(adapter: Any = None, **workload: Any) -> list[Finding]:
    """What the check finds."""
    subject = make_subject(adapter, level="full", **workload)
    assert "" == Layout().skips(subject)
    return Layout().run(subject)


def as_if_contiguous(tensor: Tensor) -> Tensor:
    """The same memory read with the strides of a contiguous tensor, as far as it reaches."""
    usual = torch.empty(tensor.shape, device="meta").stride()
    reach = tensor.storage_offset() + sum((n - 1) * step for n, step in zip(tensor.shape, usual, strict=True))
    if reach >= tensor.untyped_storage().nbytes() // tensor.element_size():
        return tensor
    return torch.as_strided(tensor, tensor.shape, usual, tensor.storage_offset())


def ignoring(*names: str) -> Edited:
    """A kernel that ignores the strides of some tensors."""
    return Edited(call=lambda call: replace(call, **{name: as_if_contiguous(getattr(call, name)) for name in names}))


@pytest.mark.parametrize("names", [("q",), ("k",), ("v",), ("q", "k", "v")], ids=str)
def test_ignored_strides_are_caught(names: tuple[str, ...]) -> None:
    """Of any tensor."""
    (finding,) = layout(ignoring(*names))
    assert "fail" == finding.verdict


SMALL = ["cu_seqlens_q", "cu_seqlens_k", "seqused_k", "block_table", "bidirectional_spans", "sinks", "k_descale"]


@pytest.mark.parametrize("name", SMALL)
def test_the_place_of_small_tensors_in_their_memory_is_asked(name: str) -> None:
    """A kernel that reads one from where its memory begins reads other numbers."""
    workload: dict[str, Any] = {"seqlens_q": (5, 30), "seqlens_k": (40, 33), "sinks": True, "spans": ((1, 5, 25),)}
    workload |= {"page_size": 16} if name in {"seqused_k", "block_table"} else {}
    workload |= {"dtype": "fp8_e4m3"} if name == "k_descale" else {}

    def from_the_start(call: AttentionCall) -> AttentionCall:
        tensor = getattr(call, name)
        return replace(call, **{name: tensor.as_strided(tensor.shape, tensor.stride(), 0)})

    found = layout(Edited(call=from_the_start), **workload)[0]
    assert ("fail", "small tensors at an offset") == (found.verdict, found.values["layout"])


def test_strides_of_pages_are_caught() -> None:
    """A cache whose keys and values are interleaved."""
    (finding,) = layout(ignoring("k"), seqlens_q=(1, 1), seqlens_k=(40, 33), page_size=16)
    assert "fail" == finding.verdict


def values_like_keys(call: AttentionCall) -> AttentionCall:
    """Values are read with the strides of keys, as far as they reach."""
    reach = call.v.storage_offset() + sum(
        (size - 1) * step for size, step in zip(call.v.shape, call.k.stride(), strict=True)
    )
    if reach >= call.v.untyped_storage().nbytes() // call.v.element_size():
        return call
    return replace(call, v=torch.as_strided(call.v, call.v.shape, call.k.stride(), call.v.storage_offset()))


@pytest.mark.parametrize("pages", [{}, {"seqlens_q": (1, 1), "seqlens_k": (40, 33), "page_size": 16}], ids=str)
def test_one_set_of_strides_for_keys_and_values_is_caught(pages: dict[str, Any]) -> None:
    """Wherever both are laid out alike it does not show."""
    finding, *_ = layout(Edited(call=values_like_keys), **pages)
    assert "fail" == finding.verdict
    assert "values" in str(finding.values["layout"])


def test_what_lies_between_rows_must_not_be_read() -> None:
    """A kernel that sums over more elements than head_dim, and counts on zeros there."""

    def wide(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        step = call.q.stride(0) - call.q.shape[1] * call.q.stride(1)
        if call.q.stride(1) > call.q.shape[-1] and step == 0:
            beyond = call.q.as_strided((len(call.q), call.q.shape[1], 1), call.q.stride(), call.q.shape[-1])
            return out + 0 * beyond, lse
        return out, lse

    (finding,) = layout(Edited(result=wide))
    assert ("fail", "padded") == (finding.verdict, finding.values["layout"])


def test_a_stride_of_one_element_must_not_be_used() -> None:
    """A kernel that takes the stride of its only KV head for the length of a row."""

    def by_head_stride(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        return (out * 0, lse) if call.k.stride(1) < call.k.shape[-1] else (out, lse)

    finding, *_ = layout(Edited(result=by_head_stride), heads_kv=1)
    assert ("fail", "of any stride where one element stands") == (finding.verdict, finding.values["layout"])


@pytest.mark.parametrize(
    "workload",
    [
        {},
        {"seqlens_q": (1,), "seqlens_k": (1,)},
        {"heads_kv": 1},
        {"head_dim_v": 32},
        {"seqlens_q": (1, 1), "seqlens_k": (40, 33), "page_size": 16},
    ],
    ids=str,
)
def test_a_correct_kernel_passes(workload: dict[str, Any]) -> None:
    """Other roundings at most."""
    assert {"pass", "note"} >= {finding.verdict for finding in layout(**workload)}


def test_a_refusal_is_told() -> None:
    """A library that wants contiguous rows says so."""

    class Choosy(TiledTorch):
        def prepare(self, call: AttentionCall) -> Any:
            if not call.q.is_contiguous():
                raise LibraryRefusal("q must be contiguous")
            return super().prepare(call)

    notes = [finding for finding in layout(Choosy()) if finding.verdict == "note" and "refuses" in finding.detail]
    assert 4 == len(notes)


def test_a_block_table_that_is_taken_for_contiguous_is_caught() -> None:
    """Its rows stand further apart than they are long."""
    (finding,) = layout(ignoring("block_table"), seqlens_q=(1, 1), seqlens_k=(40, 33), page_size=16)
    assert ("fail", "a block table with longer rows") == (finding.verdict, finding.values["layout"])


def test_factors_that_are_taken_for_contiguous_are_caught() -> None:
    """Those of the second sequence are read behind the first one's."""

    def edit(call: AttentionCall) -> AttentionCall:
        assert call.k_descale is not None
        whole = call.k_descale.untyped_storage().nbytes() // 4
        flat = call.k_descale.as_strided((whole,), (1,), 0)
        dense = flat[torch.arange(call.k_descale.numel()) % whole] * torch.arange(1, call.k_descale.numel() + 1)
        own = call.k_descale if call.k_descale.is_contiguous() else dense.view(call.k_descale.shape)
        return replace(call, k_descale=own)

    (finding,) = layout(Edited(call=edit), seqlens_q=(20, 30), dtype="fp8_e4m3")
    assert ("fail", "factors of one sequence") == (finding.verdict, finding.values["layout"])


@pytest.mark.parametrize("dtype", ["bf16", "fp8_e4m3"])
def test_small_tensors_of_any_stride_pass(dtype: str) -> None:
    """For a kernel that reads strides."""
    (finding,) = layout(seqlens_q=(1, 1), seqlens_k=(40, 33), page_size=16, dtype=dtype)
    assert "pass" == finding.verdict
    assert "a block table with longer rows" in finding.detail
    assert ("factors of one sequence" in finding.detail) == (dtype == "fp8_e4m3")
