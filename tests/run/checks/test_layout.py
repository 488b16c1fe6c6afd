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
from qualify.run.checks.layout import LAYOUTS, Layout


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


def test_other_roundings_are_granted_within_the_budget() -> None:
    """One element of a padded call is off by a unit in the last place; where all of them are, the result is biased."""

    def rounded(place: Any) -> Edited:
        def edit(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
            if not call.q.is_contiguous():
                out.view(torch.int16)[place] += 1
            return out, lse

        return Edited(result=edit)

    found = layout(rounded((12, 3, 5)))
    assert {"pass", "note"} == {finding.verdict for finding in found}
    assert any("padded: only rounding differs" in finding.detail for finding in found)
    (finding,) = layout(rounded(slice(None)))
    assert ("fail", "slices of packed QKV") == (finding.verdict, finding.values["layout"])
    assert "|β|" in finding.detail


@pytest.mark.parametrize("since", [2, 11])
def test_a_kernel_that_changes_by_itself_is_not_accused_of_strides(since: int) -> None:
    """The unchanged call does not repeat itself either, and that is what is told, also beside expanded heads."""
    calls: list[int] = []

    def varies(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(1)
        return (out + max(0, len(calls) - since)).to(out.dtype), lse

    (finding,) = layout(Edited(result=varies), dtype="fp8_e4m3", seqlens_q=(20, 30))
    assert ("repeat", "fail") == (finding.check, finding.verdict)


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


PAGES: dict[str, Any] = {"seqlens_q": (1, 1), "seqlens_k": (40, 33), "page_size": 16}
LATENT: dict[str, Any] = {"heads_kv": 1, "head_dim": 96, "head_dim_v": 64, "latent": True}
STRIDES: dict[str, tuple[dict[str, Any], dict[str, list[int]]]] = {
    "slices of packed QKV": ({}, {"q": [12 * 64, 64, 1], "k": [12 * 64, 64, 1], "v": [12 * 64, 64, 1]}),
    "interleaved": ({}, {"q": [512, 64, 1], "k": [256, 64, 1], "v": [256, 64, 1]}),
    "padded": ({}, {"q": [640, 80, 1], "k": [160, 80, 1], "v": [160, 80, 1]}),
    "padded queries": ({}, {"q": [640, 80, 1], "k": [128, 64, 1], "v": [128, 64, 1]}),
    "padded values": ({}, {"q": [512, 64, 1], "k": [128, 64, 1], "v": [160, 80, 1]}),
    "heads first": ({}, {"q": [64, 70 * 64, 1], "k": [64, 70 * 64, 1], "v": [64, 70 * 64, 1]}),
    "unlike keys and values": ({}, {"q": [512, 64, 1], "k": [160, 80, 1], "v": [64, 70 * 64, 1]}),
    "of any stride where one element stands": (
        {"heads_kv": 1},
        {"q": [512, 64, 1], "k": [64, 48, 1], "v": [64, 48, 1]},
    ),
    "expanded": ({}, {"q": [512, 64, 1], "k": [64, 0, 1], "v": [64, 0, 1]}),
    "a block table with longer rows": (PAGES, {"block_table": [8, 1]}),
    "factors of one sequence": (
        PAGES | {"dtype": "fp8_e4m3"},
        {"q_descale": [0, 1], "k_descale": [0, 1], "v_descale": [0, 1]},
    ),
}


@pytest.mark.parametrize("name", STRIDES)
def test_each_layout_has_its_strides(name: str) -> None:
    """And the numbers of the call, but for the layouts that change them for all heads or sequences alike."""
    workload, expected = STRIDES[name]
    call = make_subject(**workload).inputs().call
    arranged = LAYOUTS[name](call)
    assert arranged is not None
    assert expected == {field: list(getattr(arranged, field).stride()) for field in expected}
    for field in expected:
        was = getattr(call, field)
        was = was[..., :1, :].expand(was.shape) if name == "expanded" and field != "q" else was
        was = was[:1].expand(was.shape) if name == "factors of one sequence" else was
        assert torch.equal(was.float(), getattr(arranged, field).float())


@pytest.mark.parametrize(
    ("name", "workload"),
    [
        ("slices of packed QKV", {"seqlens_k": (90,)}),
        ("slices of packed QKV", {"head_dim_v": 32}),
        ("slices of packed QKV", PAGES),
        ("slices of packed QKV", {"dtype": "bf16_kv_fp8_e4m3"}),
        ("interleaved", {"head_dim_v": 32}),
        ("unlike keys and values", LATENT),
        ("padded values", LATENT),
        ("of any stride where one element stands", {}),
        ("expanded", {"heads_kv": 1}),
        ("a block table with longer rows", {}),
        ("a block table with longer rows", {"seqlens_q": (1,), "seqlens_k": (40,), "page_size": 16}),
        ("factors of one sequence", {"dtype": "fp8_e4m3"}),
        ("factors of one sequence", PAGES),
    ],
    ids=str,
)
def test_what_cannot_lie_so_is_left_out(name: str, workload: dict[str, Any]) -> None:
    """Tensors of unlike shapes share no buffer, and the values of latent attention lie in the keys."""
    assert LAYOUTS[name](make_subject(**workload).inputs().call) is None


@pytest.mark.parametrize(("name", "places"), [("offset", (16, 16)), ("offset by 16 bytes", (8, 4))])
def test_tensors_begin_behind_others(name: str, places: tuple[int, int]) -> None:
    """16 elements, or 16 bytes: in bf16 and in fp32."""
    for dtype, place in zip(("bf16", "fp32"), places, strict=True):
        call = make_subject(dtype=dtype).inputs().call
        arranged = LAYOUTS[name](call)
        assert arranged is not None
        assert [place] * 3 == [tensor.storage_offset() for tensor in (arranged.q, arranged.k, arranged.v)]
        assert torch.equal(call.k, arranged.k)


def test_nothing_but_nan_lies_between_padded_rows() -> None:
    """Whoever reads there shows it."""
    arranged = LAYOUTS["padded"](make_subject().inputs().call)
    assert arranged is not None
    whole = arranged.q.as_strided((70, 8, 80), (640, 80, 1))
    assert bool(whole[..., 64:].isnan().all())


def test_small_tensors_stand_behind_16_bytes_of_other_numbers() -> None:
    """Rows of factors stand apart, at multiples of 16 bytes."""
    call = make_subject(**PAGES, dtype="fp8_e4m3", sinks=True).inputs().call
    arranged = LAYOUTS["small tensors at an offset"](call)
    assert arranged is not None
    names = ("cu_seqlens_q", "seqused_k", "block_table", "sinks", "q_descale", "k_descale", "v_descale")
    assert [4] * len(names) == [getattr(arranged, name).storage_offset() for name in names]
    assert [(8, 1)] * 3 == [getattr(arranged, name).stride() for name in names[4:]]
    assert call.block_table is not None
    assert call.block_table.stride() == arranged.block_table.stride()
    for name in names:
        assert torch.equal(getattr(call, name), getattr(arranged, name))
        assert {1.0} == set(getattr(arranged, name).as_strided((4,), (1,), 0).tolist())
