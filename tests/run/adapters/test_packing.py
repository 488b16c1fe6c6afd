"""Layouts and refusals that the adapters of libraries share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
import torch
from builders import CAUSAL, alter, make_mask, sees

from qualify.cards.load import load_kernels
from qualify.facts.adapters import ADAPTERS as FACTS
from qualify.masks import MaskKind, parse
from qualify.run.adapters.flash_attn import FlashAttn2
from qualify.run.adapters.flash_attn_cute import FlashAttn4
from qualify.run.adapters.flashinfer import FlashInfer
from qualify.run.adapters.flashinfer_mla import FlashInferMla
from qualify.run.adapters.flashmla import FlashMla
from qualify.run.adapters.interface import Adapter, AttentionCall, LibraryRefusal
from qualify.run.adapters.packing import (
    PLAIN,
    WINDOWED,
    boolean_mask,
    left_window,
    live_sequences,
    page_list,
    refusals,
    refuse,
    to_dense,
    to_packed,
)
from qualify.run.adapters.torch_sdpa import BACKENDS, TorchSdpa
from qualify.run.adapters.vllm_flash_attn import VllmFlashAttn, exact_bf16
from qualify.run.adapters.vllm_triton import VllmTriton


def bounds(lengths: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)


def packed_call(seqlens_q: tuple[int, ...], seqlens_k: tuple[int, ...]) -> AttentionCall:
    """A call whose row i holds the value i, with two heads and two elements."""
    q = torch.arange(sum(seqlens_q), dtype=torch.float32)[:, None, None].expand(-1, 2, 2)
    k = torch.arange(sum(seqlens_k), dtype=torch.float32)[:, None, None].expand(-1, 2, 2)
    return AttentionCall(
        q=q,
        k=k,
        v=k,
        cu_seqlens_q=bounds(seqlens_q),
        cu_seqlens_k=bounds(seqlens_k),
        seqused_k=None,
        block_table=None,
        max_seqlen_q=max(seqlens_q),
        max_seqlen_k=max(seqlens_k),
        scale=1.0,
        mask=CAUSAL,
        out_dtype=torch.float32,
    )


def test_equal_lengths_become_a_view_without_a_copy() -> None:
    """Two sequences of three rows share the memory of the packed tensor."""
    packed = torch.arange(6.0)[:, None, None].repeat(1, 2, 4)
    dense = to_dense(packed, (0, 3), (3, 3))
    assert (2, 2, 3, 4) == tuple(dense.shape)
    assert packed.data_ptr() == dense.data_ptr()
    assert [3.0, 4.0, 5.0] == dense[1, 0, :, 0].tolist()


def test_a_view_keeps_the_strides_of_a_slice() -> None:
    """A tensor cut out of a fused projection is viewed, not copied."""
    fused = torch.randn(6, 3, 4)
    dense = to_dense(fused[:, 1:2], (0, 3), (3, 3))
    assert fused[:, 1:2].data_ptr() == dense.data_ptr()
    assert torch.equal(fused[3:, 1], dense[1, 0])


def test_ragged_lengths_are_padded_with_zeros() -> None:
    """The shorter sequence ends in zeros."""
    dense = to_dense(torch.arange(1.0, 5.0)[:, None, None], (0, 1), (1, 3))
    assert [[1.0, 0.0, 0.0], [2.0, 3.0, 4.0]] == dense[:, 0, :, 0].tolist()


def test_equal_lengths_with_a_gap_are_copied() -> None:
    """Rows of a sequence that was cut out are not part of the dense form."""
    dense = to_dense(torch.arange(5.0)[:, None, None], (0, 3), (2, 2))
    assert [[0.0, 1.0], [3.0, 4.0]] == dense[:, 0, :, 0].tolist()


@pytest.mark.parametrize(
    ("starts", "lengths", "total"),
    [((0, 3), (3, 3), 6), ((0, 1), (1, 3), 4), ((0, 3), (2, 2), 5), ((0, 3), (1, 3), 6)],
)
def test_packing_undoes_the_dense_form(starts: tuple[int, ...], lengths: tuple[int, ...], total: int) -> None:
    """Every row of a sequence comes back to its place, every other row is 0."""
    packed = torch.arange(1.0, total + 1)[:, None, None].repeat(1, 2, 3)
    rows = torch.zeros(total, dtype=torch.bool)
    for start, length in zip(starts, lengths, strict=True):
        rows[start : start + length] = True
    expected = packed * rows[:, None, None]
    assert torch.equal(expected, to_packed(to_dense(packed, starts, lengths), starts, lengths, total))


def test_sequences_without_queries_or_keys_are_cut_out() -> None:
    """First, middle and last empty sequences leave the others with their places."""
    sequences = live_sequences(packed_call((0, 4, 2, 3, 1), (5, 6, 0, 4, 0)))
    assert ((0, 6), (4, 3)) == (sequences.q_starts, sequences.q_lengths)
    assert ((5, 11), (6, 4)) == (sequences.k_starts, sequences.k_lengths)
    assert sequences.ragged


def test_a_boolean_mask_aligns_each_sequence_to_its_own_corner() -> None:
    """Causal with 1 of 3 and 2 of 2 keys: the padding key is hidden."""
    sequences = live_sequences(packed_call((1, 2), (3, 2)))
    mask = boolean_mask(CAUSAL, sequences, torch.device("cpu"))
    assert (2, 1, 2, 3) == tuple(mask.shape)
    assert [True, True, True] == mask[0, 0, 0].tolist()
    assert [[True, False, False], [True, True, False]] == mask[1, 0].tolist()


def test_a_mask_of_equal_lengths_is_shared_by_the_batch() -> None:
    """A window over equal sequences needs one mask for all."""
    sequences = live_sequences(packed_call((3, 3), (3, 3)))
    mask = boolean_mask(make_mask(window=(1, -1)), sequences, torch.device("cpu"))
    assert [[[[True, False, False], [True, True, False], [False, True, True]]]] == mask.tolist()


def paged_call(seqused: list[int], table: list[list[int]], page_size: int) -> AttentionCall:
    """A paged decode call over a pool of 16 pages."""
    pool = torch.zeros(16, page_size, 2, 2)
    return replace(
        packed_call((1,) * len(seqused), (1,) * len(seqused)),
        k=pool,
        v=pool,
        cu_seqlens_k=None,
        seqused_k=torch.tensor(seqused, dtype=torch.int32),
        block_table=torch.tensor(table, dtype=torch.int32),
    )


def test_a_page_list_holds_the_used_pages_only() -> None:
    """Lengths 5, 0, 4 and 1 in pages of 4; unused entries of the table may hold anything."""
    pages = page_list(paged_call([5, 0, 4, 1], [[7, 3], [-9, 999], [2, -1], [5, 0]], 4))
    assert [0, 2, 2, 3, 4] == pages.indptr.tolist()
    assert [7, 3, 2, 5] == pages.indices.tolist()
    assert [1, 0, 4, 1] == pages.last_page_len.tolist()
    assert {torch.int32} == {pages.indptr.dtype, pages.indices.dtype, pages.last_page_len.dtype}


@pytest.mark.parametrize(
    ("causal", "window", "expected"),
    [(True, (-1, -1), (True, -1)), (True, (7, 3), (True, 7)), (False, (7, 0), (True, 7)), (False, (7, -1), (False, 7))],
)
def test_a_window_that_ends_at_the_query_is_causal(
    causal: bool, window: tuple[int, int], expected: tuple[bool, int]
) -> None:
    """A right side of 0, or one that the causal mask covers, needs no right side."""
    call = alter(packed_call((2,), (4,)), causal=causal, window=window)
    assert expected == left_window(call, "library")


def test_a_right_side_is_refused_with_its_value() -> None:
    """Keys after the query cannot be bounded by a library that has no word for it."""
    call = alter(packed_call((2,), (4,)), causal=False, window=(7, 3))
    with pytest.raises(LibraryRefusal, match=r"window=\(7, 3\)"):
        left_window(call, "library")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"window": (9, 0)}, r"no window mask: causal, window \(9, 0\)"),
        ({"softcap": 30.0}, "softcap=30.0"),
        ({"sinks": torch.zeros(2)}, "no sinks: 2 given"),
        ({"bidirectional_spans": torch.zeros(3, 3, dtype=torch.int32)}, "spans: 3 given"),
        ({"q_descale": torch.ones(1, 2)}, "q_descale given"),
        ({"v": torch.zeros(4, 2, 5)}, "head_dim_v=5 must equal head_dim=2"),
        ({"out_dtype": torch.bfloat16}, r"dtype q=torch\.float32, .*, out=torch\.bfloat16 is none of bf16, fp16"),
        ({}, "dtype fp32 is none of bf16, fp16$"),
    ],
)
def test_what_a_library_cannot_honour_is_refused_with_its_value(changes: dict[str, object], reason: str) -> None:
    """No parameter is dropped silently."""
    with pytest.raises(LibraryRefusal, match=reason):
        refuse(alter(packed_call((4,), (4,)), **changes), "library", masks=PLAIN)


@pytest.mark.parametrize("masks", [PLAIN, WINDOWED])
def test_a_kind_of_mask_that_nobody_declared_is_refused(masks: frozenset[MaskKind]) -> None:
    """Whatever kinds there will be: a library gets none that its adapter does not name."""
    call = alter(packed_call((4,), (4,)), chunk=2)
    with pytest.raises(LibraryRefusal, match="no chunked mask: causal, chunks of 2"):
        refuse(call, "library", masks=masks, dtypes={"fp32"})


def test_a_paged_cache_is_refused_with_its_page_size() -> None:
    """A library without pages says so."""
    with pytest.raises(LibraryRefusal, match="page_size=4"):
        refuse(paged_call([4], [[1]], 4), "library", masks=PLAIN, dtypes={"fp32"})


def test_everything_that_a_library_honours_passes() -> None:
    """No refusal where each parameter has its word."""
    call = alter(packed_call((4,), (4,)), window=(9, 0), softcap=30.0, sinks=torch.zeros(2), v=torch.zeros(4, 2, 5))
    refuse(call, "library", masks=WINDOWED, softcap=True, sinks=True, head_dim_v=True, dtypes={"fp32"})


def test_a_clean_no_of_a_library_is_a_refusal() -> None:
    """The first line of its message is the reason."""
    with pytest.raises(LibraryRefusal, match=r"^library: head_size 320 > 256$"), refusals("library"):
        raise RuntimeError("head_size 320 > 256\nstack")


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        torch.OutOfMemoryError("no room"),
        RuntimeError("BatchDecode failed with error invalid argument"),
    ],
)
def test_a_failure_of_the_device_is_not_a_refusal(error: RuntimeError) -> None:
    """A broken device must not look like a library that declines."""
    with pytest.raises(type(error)) as caught, refusals("library"):
        raise error
    assert error is caught.value


def flex_attention() -> Adapter:
    """Imported by the tests of it alone: with it comes torch's compiler, a second of each process that collects."""
    from qualify.run.adapters.flex_attention import FlexAttention

    return FlexAttention()


# None stands for the library: a refusal must come before anything of it is touched.
ADAPTERS: dict[str, Callable[[], Adapter]] = {
    "flash-attn 2": lambda: FlashAttn2(library=None),
    "flash-attn 4": lambda: FlashAttn4(library=None),
    "vLLM 2": lambda: VllmFlashAttn(library=None, version=2),
    "vLLM 3": lambda: VllmFlashAttn(library=None, version=3),
    "vLLM Triton": lambda: VllmTriton(library=None),
    "FlashInfer": lambda: FlashInfer(library=None, backend="fa2", use_tensor_cores=False),
    "FlexAttention": flex_attention,
}


WITHOUT_DILATION: dict[str, tuple[Adapter, ...]] = {
    "flash_attn": (FlashAttn2(library=None),),
    "flash_attn_cute": (FlashAttn4(library=None),),
    "flashinfer": tuple(FlashInfer(library=None, backend=it, use_tensor_cores=False) for it in ("fa2", "fa3")),
    "flashinfer_mla": tuple(FlashInferMla(library=None, backend=backend) for backend in ("fa2", "fa3")),
    "flashmla": (FlashMla(library=None),),
    "torch_sdpa": tuple(TorchSdpa(backend=backend, is_causal=False) for backend in BACKENDS),
    "vllm_flash_attn": tuple(VllmFlashAttn(library=None, version=version) for version in (2, 3)),
    "vllm_triton": (VllmTriton(library=None),),
}
"""adapters, by module, none of whose cards claims dilated masks"""
WITHOUT_SPANS = tuple(library for library in ADAPTERS if library != "vLLM Triton")


def half(call: AttentionCall, **changes: object) -> AttentionCall:
    """The call in bf16, with other parameters."""
    tensors = {"q": call.q.bfloat16(), "k": call.k.bfloat16(), "v": call.v.bfloat16(), "out_dtype": torch.bfloat16}
    altered: AttentionCall = alter(call, **{**tensors, **changes})
    return altered


@pytest.mark.parametrize(
    ("library", "changes", "reason"),
    [
        *((library, {"k_descale": torch.ones(1, 2)}, "k_descale") for library in ADAPTERS),
        *((library, {"bidirectional_spans": torch.zeros(1, 3)}, "bidirectional spans") for library in WITHOUT_SPANS),
        *(
            (
                library,
                {"out_dtype": torch.float32},
                r"dtype q=torch.bfloat16, .*, out=torch.float32 is none of bf16, fp16",
            )
            for library in ADAPTERS
        ),
        *((library, {"sinks": torch.zeros(2)}, "sinks") for library in ("flash-attn 2", "vLLM 2", "FlashInfer")),
        ("FlexAttention", {"sinks": torch.zeros(2)}, "sinks"),
        ("vLLM 3", {"sinks": torch.tensor([0.5, 0.3])}, "sink 1 is 0.3"),
        ("flash-attn 2", {"v": torch.zeros(4, 2, 5, dtype=torch.bfloat16)}, "head_dim_v=5"),
        ("vLLM Triton", {"causal": False, "window": (3, 1)}, r"window=\(3, 1\)"),
        ("vLLM Triton", {"causal": False, "window": (3, -1)}, r"window=\(3, -1\)"),
        ("vLLM Triton", {"causal": False, "chunk": 2}, "causal mask only: chunk=2"),
        ("vLLM Triton", {"chunk": 2, "window": (3, 0)}, r"not both: window=\(3, 0\), chunk=2"),
        ("FlashInfer", {}, r"\(head_dim, head_dim_v\)=\(2, 2\)"),
    ],
)
def test_an_adapter_refuses_before_it_calls_its_library(library: str, changes: dict[str, object], reason: str) -> None:
    """Each parameter without a word in the library is named with its value."""
    with pytest.raises(LibraryRefusal, match=reason):
        ADAPTERS[library]().prepare(half(packed_call((4,), (4,)), **changes))


def test_the_other_adapters_have_a_card_that_claims_dilated_masks() -> None:
    """So each adapter either declares them or is in the table of those that refuse them."""
    claiming = {each.card.adapter for each in load_kernels().values() if "dilated" in each.card.claims.masks}
    assert {"flex_attention", "tiled_torch"} == claiming
    assert {facts.name for facts in FACTS} == claiming | set(WITHOUT_DILATION)


@pytest.mark.parametrize("mask", ["dilated3x2", "causal.dilated2", "full.dilated2"])
@pytest.mark.parametrize("module", WITHOUT_DILATION)
def test_an_adapter_without_the_word_refuses_a_dilated_mask(module: str, mask: str) -> None:
    """Before it touches its library. SDPA accepted it once, and FlashAttention would compute the window alone."""
    for adapter in WITHOUT_DILATION[module]:
        with pytest.raises(LibraryRefusal, match=r"no dilated mask: .*dilation of 2"):
            adapter.prepare(half(replace(packed_call((4,), (4,)), mask=parse(mask))))


def test_flash_attention_2_refuses_small_pages() -> None:
    """Its functions want pages of 256 keys, however many queries there are."""
    with pytest.raises(LibraryRefusal, match="page_size=4 is not a multiple of 256"):
        ADAPTERS["flash-attn 2"]().prepare(half(paged_call([4], [[1]], 4)))
    unequal = half(paged_call([9, 9], [[1], [2]], 16), cu_seqlens_q=bounds((1, 3)))
    with pytest.raises(LibraryRefusal, match="page_size=16 is not a multiple of 256"):
        ADAPTERS["flash-attn 2"]().prepare(unequal)


def test_sinks_that_bf16_holds_are_cast() -> None:
    """A cast that changes nothing is allowed."""
    cast = exact_bf16(torch.tensor([0.5, -3.0]), "library")
    assert ([0.5, -3.0], torch.bfloat16) == (cast.tolist(), cast.dtype)


@pytest.mark.parametrize(
    ("seqlens_q", "seqlens_k"), [((3, 3), (5, 5)), ((2, 3), (4, 3)), ((0, 2, 2, 1), (3, 2, 0, 4)), ((4,), (2,))]
)
@pytest.mark.parametrize(
    "sides",
    [
        {"causal": True, "window": (-1, -1)},
        {"causal": False, "window": (1, 1)},
        {"causal": True, "window": (2, -1)},
        {"causal": True, "window": (2, 0), "dilation": 2},
        {"causal": False, "window": (-1, -1), "dilation": 3},
    ],
    ids=str,
)
def test_the_flex_mask_shows_each_sequence_its_own_keys(
    seqlens_q: tuple[int, ...], seqlens_k: tuple[int, ...], sides: dict[str, Any]
) -> None:
    """The block mask's function, cell by cell, against the words of the contract."""
    from qualify.run.adapters.flex_attention import mask_of

    call = alter(packed_call(seqlens_q, seqlens_k), **sides)
    mask_mod = mask_of(call)
    assert mask_mod is not None
    dense = len(set(seqlens_q)) == 1 and len(set(seqlens_k)) == 1
    shapes = [(seqlens_q[0], seqlens_k[0])] if dense else list(zip(seqlens_q, seqlens_k, strict=True))
    expected = torch.zeros(sum(q for q, _ in shapes), sum(k for _, k in shapes), dtype=torch.bool)
    start_q = start_k = 0
    for seqlen_q, seqlen_k in shapes:
        for i in range(seqlen_q):
            for j in range(seqlen_k):
                expected[start_q + i, start_k + j] = sees(i, j, seqlen_q, seqlen_k, **sides)
        start_q, start_k = start_q + seqlen_q, start_k + seqlen_k
    zero = torch.tensor(0)
    rows, columns = torch.arange(expected.shape[0])[:, None], torch.arange(expected.shape[1])[None, :]
    assert expected.tolist() == mask_mod(zero, zero, rows, columns).tolist()


def test_an_open_mask_of_equal_lengths_needs_no_function() -> None:
    """Every query sees every key: FlexAttention runs without a mask."""
    from qualify.run.adapters.flex_attention import mask_of

    assert mask_of(alter(packed_call((3, 3), (5, 5)), causal=False)) is None
