"""The golden result against attention written out row by row."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from builders import make_card
from faults import Edited
from hypothesis import given, settings
from hypothesis import strategies as st
from subjects import BOUNDS, Exact, exact, make_call, make_subject
from torch.profiler import ProfilerActivity, profile

from qualify.run.adapters.interface import AttentionCall
from qualify.run.checks.budget import Budget
from qualify.run.golden import reference
from qualify.run.golden.reference import golden
from qualify.run.golden.result import Golden
from qualify.run.golden.rows import ROW_LIMIT, SAMPLE_ROWS, select_rows
from qualify.run.inputs.tensors import INPUT_KINDS

AWKWARD: dict[str, Any] = {"seqlens_q": (1, 0, 5, 7, 3), "seqlens_k": (9, 3, 5, 4, 0), "head_dim": 8, "scale": 0.4}
MASKS = [(False, (-1, -1)), (True, (-1, -1)), (True, (3, 0)), (False, (2, 5)), (False, (0, -1)), (True, (1, 4))]
WIDE = ("out", "A", "Q", "U", "S", "T")
NARROW = ("lse", "row_max", "gain", *BOUNDS)


def assert_equal(expected: Exact, actual: Golden, tolerance: float = 1e-11) -> None:
    """All parts of the golden result, in the order of the packed rows; T is a difference of squares of scores."""
    order = actual.rows.argsort()
    assert list(range(len(expected.keys))) == actual.rows[order].tolist()
    assert expected.keys.tolist() == actual.keys[order].tolist()
    assert expected.sequence.tolist() == actual.sequence[order].tolist()
    for name in WIDE + NARROW:
        ours = getattr(actual, name)[order].double()
        cancelled = float(actual.score_bound.max()) ** 2 * 1e-14 if name == "T" else 0.0
        right = getattr(expected, name)
        assert ours.shape == right.shape, name
        assert torch.allclose(ours, right, rtol=tolerance, atol=tolerance + cancelled), name


@pytest.mark.parametrize("chunk", [1, 3, 4, 100])
@pytest.mark.parametrize("page_size", [0, 4])
def test_golden_chunks_equal_attention_row_by_row(chunk: int, page_size: int) -> None:
    """Chunks are counted from the first key of each sequence, empty and short ones among them."""
    call = make_call(**AWKWARD, dtype="fp32", heads_q=4, heads_kv=2, chunk=chunk, page_size=page_size)
    assert_equal(exact(call), golden(call, underflow=True, scores=True))


def test_golden_images_equal_attention_row_by_row() -> None:
    """A workload's spans reach the call, and its golden result."""
    call = make_call(
        seqlens_q=(9, 4), seqlens_k=(12, 4), dtype="fp32", window=(2, 0), spans=((0, 4, 10), (1, 0, 4)), head_dim=8
    )
    assert [[0, 4, 10], [1, 0, 4]] == call.bidirectional_spans.tolist()  # type: ignore[union-attr]
    assert_equal(exact(call), golden(call, underflow=True, scores=True))


@pytest.mark.parametrize(
    ("heads", "mask", "softcap", "sinks", "page_size", "head_dim_v"),
    list(product([(2, 2), (6, 2), (4, 1)], MASKS, [0.0, 5.0], [False, True], [0, 4], [8, 6])),
)
def test_golden_equals_attention_row_by_row(
    heads: tuple[int, int],
    mask: tuple[bool, tuple[int, int]],
    softcap: float,
    sinks: bool,
    page_size: int,
    head_dim_v: int,
) -> None:
    """Every combination of features, with empty sequences and more queries than keys in the batch."""
    call = make_call(
        **AWKWARD,
        dtype="fp32",
        heads_q=heads[0],
        heads_kv=heads[1],
        causal=mask[0],
        window=mask[1],
        softcap=softcap,
        sinks=sinks,
        page_size=page_size,
        head_dim_v=head_dim_v,
    )
    assert_equal(exact(call), golden(call, underflow=True, scores=True))


@settings(deadline=None, max_examples=80)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9)), min_size=1, max_size=4).filter(
        lambda pairs: any(q for q, _ in pairs) and any(k for _, k in pairs)
    ),
    heads_kv=st.integers(1, 3),
    group=st.integers(1, 4),
    dims=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    causal=st.booleans(),
    window=st.tuples(st.integers(-1, 5), st.integers(-1, 5)),
    softcap=st.sampled_from([0.0, 3.0, 50.0]),
    sinks=st.booleans(),
    page_size=st.sampled_from([0, 1, 4]),
    dtype=st.sampled_from(["bf16", "fp16", "fp32", "fp8_e4m3", "fp16_kv_fp8_e4m3"]),
    descale=st.sampled_from(["sequence", "head", "tensor"]),
    kind=st.sampled_from(INPUT_KINDS),
    seed=st.integers(0, 2**20),
)
def test_golden_of_any_small_geometry(
    lengths: list[tuple[int, int]],
    heads_kv: int,
    group: int,
    dims: tuple[int, int],
    seed: int,
    kind: str,
    **features: Any,
) -> None:
    """Random batches, heads, dimensions, masks and features."""
    call = make_call(
        kind=kind,
        seed=seed,
        seqlens_q=tuple(q for q, _ in lengths),
        seqlens_k=tuple(k for _, k in lengths),
        heads_q=heads_kv * group,
        heads_kv=heads_kv,
        head_dim=dims[0],
        head_dim_v=dims[1],
        **features,
    )
    assert_equal(exact(call), golden(call, underflow=True, scores=True))


def descaled(call: AttentionCall, *names: str) -> AttentionCall:
    """The call with another descale for every sequence and KV head."""
    shape = (len(call.cu_seqlens_q) - 1, call.k.shape[-2])
    generator = torch.Generator().manual_seed(3)
    return replace(call, **{name: torch.rand(shape, generator=generator) + 0.5 for name in names})


@pytest.mark.parametrize("page_size", [0, 4])
@pytest.mark.parametrize(
    "names", [("q_descale",), ("k_descale",), ("v_descale",), ("q_descale", "k_descale", "v_descale")]
)
def test_descales_are_applied_by_sequence_and_head(names: tuple[str, ...], page_size: int) -> None:
    """Each of q, k and v has a factor of its own for every sequence and KV head."""
    call = descaled(make_call(**AWKWARD, page_size=page_size), *names)
    assert_equal(exact(call), golden(call, underflow=True, scores=True))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [(-1, -1), (2, 0)])
def test_bidirectional_spans_see_each_other(causal: bool, window: tuple[int, int]) -> None:
    """Tokens of a span see all of it, whatever the mask says; other sequences of equal length do not."""
    call = make_call(**AWKWARD | {"seqlens_q": (4, 6, 6), "seqlens_k": (9, 6, 6)}, causal=causal, window=window)
    spans = torch.tensor([[0, 4, 8], [2, 1, 5], [2, 5, 6]], dtype=torch.int32)
    call = replace(call, bidirectional_spans=spans)
    assert_equal(exact(call), golden(call, underflow=True, scores=True))


def test_float32_reference_is_close_and_stays_float32() -> None:
    """The cheaper reference is the same computation in float32."""
    call = make_call(**AWKWARD)
    found = golden(call, dtype=torch.float32, underflow=True, scores=True)
    assert {torch.float32} == {getattr(found, name).dtype for name in WIDE + NARROW}
    assert_equal(exact(call), found, tolerance=2e-5)


def test_reference_does_not_depend_on_the_precision_setting() -> None:
    """A library that lowered float32 products does not lower the reference; the setting is given back."""
    call = make_call(dtype="fp32")
    before = torch.get_float32_matmul_precision()
    try:
        expected = golden(call, dtype=torch.float32).out
        torch.set_float32_matmul_precision("medium")
        assert torch.equal(expected, golden(call, dtype=torch.float32).out)
        assert "medium" == torch.get_float32_matmul_precision()
    finally:
        torch.set_float32_matmul_precision(before)


LIKE: dict[str, Any] = {"seqlens_q": (5, 8, 1, 7, 6), "seqlens_k": (9, 12, 16, 16, 10)}
"""four sequences between the same powers of two, and one that is none of them"""


@pytest.mark.parametrize("page_size", [0, 4])
@pytest.mark.parametrize("chunk", [0, 3])
@pytest.mark.parametrize("names", [(), ("q_descale", "k_descale", "v_descale")])
def test_sequences_of_like_lengths_are_computed_together(names: tuple[str, ...], chunk: int, page_size: int) -> None:
    """Padding shows nowhere: images, chunks, pages and factors are each sequence's own."""
    call = descaled(make_call(**AWKWARD | LIKE, chunk=chunk, page_size=page_size), *names)
    call = replace(call, bidirectional_spans=torch.tensor([[0, 4, 8], [1, 5, 12], [4, 5, 9]], dtype=torch.int32))
    assert_equal(exact(call), golden(call, underflow=True, scores=True))


@pytest.mark.parametrize("seqlens_q", [(5, 5, 1, 5), (5, 7, 1, 8)])
@pytest.mark.parametrize("block_bytes", [1, 700, 5000])
def test_blocks_do_not_change_the_result(
    seqlens_q: tuple[int, ...], block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut into single rows or single sequences, everything is the same."""
    call = make_call(**AWKWARD | {"seqlens_q": seqlens_q, "seqlens_k": (6, 6, 6, 6)}, sinks=True)
    monkeypatch.setattr(reference, "BLOCK_BYTES", {"small": block_bytes})
    assert_equal(exact(call), golden(call, underflow=True, scores=True))


def test_underflow_term_is_left_out_unless_asked() -> None:
    """U costs a product, so only fp16 asks for it."""
    assert golden(make_call()).U is None


def peak_bytes(call: AttentionCall) -> int:
    """High-water mark of the memory that one golden result allocates, as the profiler counts it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as session:
        golden(call)
    level = peak = 0
    assert session.profiler is not None
    results = session.profiler.kineto_results
    assert results is not None
    for event in sorted(results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            level += event.nbytes()
            peak = max(peak, level)
    return peak


@pytest.mark.parametrize("seqlen", [2048, 8192])
def test_the_score_matrix_never_exists(seqlen: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With blocks of 2 MiB the peak stays far below S × S scores, whether all rows are compared or a sample."""
    monkeypatch.setattr(reference, "BLOCK_BYTES", {"small": 2 << 20})
    call = make_call(seqlens_q=(seqlen,), heads_q=2, heads_kv=1, head_dim=16)
    peak = peak_bytes(call)
    assert 2 << 20 < peak < 2 * seqlen * seqlen * 8 / 3


def test_the_caches_of_a_large_batch_are_not_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decode batch of 64 sequences in float64 would take 64 MiB; a few at a time take an eighth at most."""
    monkeypatch.setattr(reference, "BLOCK_BYTES", {"small": 1 << 19})
    call = make_call(seqlens_q=(1,) * 64, seqlens_k=(1024,) * 64, heads_q=4, heads_kv=4, head_dim=16, page_size=16)
    assert peak_bytes(call) < 8 << 20


def test_peak_memory_grows_with_the_length_and_not_with_its_square(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the sequence costs at most twice the memory."""
    monkeypatch.setattr(reference, "BLOCK_BYTES", {"small": 1 << 20})
    short, long = (
        peak_bytes(make_call(seqlens_q=(length,), heads_q=2, heads_kv=1, head_dim=16)) for length in (1024, 2048)
    )
    assert long < 2.2 * short


@pytest.mark.parametrize("seqlen", [0, 1, 127, ROW_LIMIT])
def test_short_sequences_are_compared_in_every_row(seqlen: int) -> None:
    """Up to the limit nothing is sampled."""
    assert list(range(seqlen)) == select_rows(seqlen)


@pytest.mark.parametrize("seqlen", [ROW_LIMIT + 1, 8192, 40_001, 131_072])
def test_long_sequences_keep_their_ends_and_tile_edges(seqlen: int) -> None:
    """The first and the last tile are whole, both sides of tile edges are there, and the rest is random."""
    rows = select_rows(seqlen)
    assert rows == sorted(set(rows))
    assert set(range(128)) | set(range(seqlen - 128, seqlen)) <= set(rows) <= set(range(seqlen))
    edges = [row for row in rows if row % 128 == 0 and 128 <= row < seqlen - 128 and row - 1 in rows]
    assert len(edges) >= min(30, (seqlen - 256) // 128)
    middle = [row for row in rows if 128 <= row < seqlen - 128 and row % 128 not in {0, 127}]
    assert len(middle) > 50
    assert SAMPLE_ROWS <= len(rows) + 1 <= SAMPLE_ROWS + 256
    assert rows == select_rows(seqlen)


def test_sampled_rows_are_the_right_ones() -> None:
    """The golden result of a sampled sequence equals, row for row, the one of all rows."""
    call = make_call(seqlens_q=(3, ROW_LIMIT + 50), heads_q=1, heads_kv=1, head_dim=8, window=(40, 0))
    found = golden(call)
    expected_rows = [0, 1, 2, *(3 + row for row in select_rows(ROW_LIMIT + 50))]
    assert sorted(expected_rows) == sorted(found.rows.tolist())
    for at in range(0, len(found.rows), 97):
        row = int(found.rows[at]) - 3
        if row < 0:
            continue
        keys = slice(3 + max(0, row - 40), 3 + row + 1)
        scores = call.k[keys, 0].double() @ call.q[3 + row, 0].double() * call.scale
        assert math.isclose(float(torch.logsumexp(scores, 0)), float(found.lse[at, 0]), abs_tol=1e-12)
        torch.testing.assert_close(torch.softmax(scores, 0) @ call.v[keys, 0].double(), found.out[at, 0])


FAULTS = {
    "correct": Edited(),
    "wrong scale": Edited(call=lambda call: replace(call, scale=call.scale * 1.1)),
    "one percent": Edited(result=lambda call, out, lse: (out * 1.01, lse)),
    "gain": Edited(result=lambda call, out, lse: ((out.double() * 1.004).to(out.dtype), lse)),
    "lse": Edited(result=lambda call, out, lse: (out, lse * 1.001)),
}


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("fault", FAULTS)
def test_both_references_give_the_same_verdicts(fault: str, dtype: str) -> None:
    """The fp32 reference may judge instead of the fp64 one, on right and on wrong kernels."""
    judged = [
        [
            (finding.check, finding.verdict)
            for finding in Budget().run(make_subject(FAULTS[fault], reference=kind, dtype=dtype, card=make_card()))
        ]
        for kind in (torch.float64, torch.float32)
    ]
    assert judged[0] == judged[1]
    assert ("fail" in {verdict for _, verdict in judged[0]}) == (fault != "correct")
