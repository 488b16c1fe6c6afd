"""The portable kernel against attention written out row by row."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from subjects import exact, make_call
from torch import Tensor

from qualify.run.adapters.interface import AttentionCall
from qualify.run.adapters.tiled_torch import create

AWKWARD: dict[str, Any] = {"seqlens_q": (1, 0, 5, 7, 3), "seqlens_k": (9, 3, 5, 4, 0), "head_dim": 8, "scale": 0.4}
MASKS = [(False, (-1, -1)), (True, (-1, -1)), (True, (3, 0)), (False, (2, 5)), (False, (0, -1))]


def run(call: AttentionCall, **options: int) -> tuple[Tensor, Tensor]:
    """Output and LSE of one launch."""
    prepared = create(options).prepare(call)
    out, lse = prepared.result(prepared.launch())
    assert lse is not None
    return out, lse


def assert_exact(call: AttentionCall, tolerance: float = 1e-5, **options: int) -> None:
    """Within float32 of the float64 result, and the contract's values where no key is seen."""
    out, lse = run(call, **options)
    expected = exact(call)
    torch.testing.assert_close(out.double(), expected.out, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(lse.T.double(), expected.lse, rtol=tolerance, atol=tolerance)
    assert ((call.q.shape[1], len(call.q)), torch.float32, call.out_dtype) == (lse.shape, lse.dtype, out.dtype)


@pytest.mark.parametrize(
    ("heads", "mask", "softcap", "sinks", "page_size", "head_dim_v"),
    list(product([(2, 2), (6, 2)], MASKS, [0.0, 5.0], [False, True], [0, 4], [8, 6])),
)
def test_every_feature_against_row_by_row(
    heads: tuple[int, int],
    mask: tuple[bool, tuple[int, int]],
    softcap: float,
    sinks: bool,
    page_size: int,
    head_dim_v: int,
) -> None:
    """Small tiles that do not divide the lengths, in every combination of features."""
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
    assert_exact(call, tile_q=3, tile_k=4)


@pytest.mark.parametrize("page_size", [0, 4])
@pytest.mark.parametrize("chunk", [1, 3, 4, 100])
def test_chunks_against_row_by_row(chunk: int, page_size: int) -> None:
    """Chunks that divide neither the tiles nor the lengths, with queries that begin inside of one."""
    call = make_call(**AWKWARD, dtype="fp32", heads_q=4, heads_kv=2, chunk=chunk, page_size=page_size)
    assert_exact(call, tile_q=3, tile_k=4)


@pytest.mark.parametrize("sides", [{"window": (5, 0)}, {"causal": False}, {"causal": False, "window": (5, 4)}], ids=str)
@pytest.mark.parametrize("dilation", [2, 3, 100])
@pytest.mark.parametrize("tiles", [{"tile_q": 3, "tile_k": 1}, {"tile_q": 1, "tile_k": 2}, {"tile_q": 64}], ids=str)
def test_dilations_against_row_by_row(sides: dict[str, Any], dilation: int, tiles: dict[str, int]) -> None:
    """The first and the last row of a tile see neither its first nor its last key: those are of other phases."""
    lengths: dict[str, Any] = {"seqlens_q": (9, 6, 1, 7), "seqlens_k": (20, 3, 13, 7)}
    call = make_call(**lengths, head_dim=8, dtype="fp32", heads_q=2, heads_kv=1, dilation=dilation, **sides)
    assert_exact(call, **tiles)


def test_images_against_row_by_row() -> None:
    """Tokens of an image see each other under a window, and a later token's window is as before."""
    call = make_call(
        seqlens_q=(9, 4), seqlens_k=(12, 4), dtype="fp32", window=(2, 0), spans=((0, 4, 10), (1, 0, 4)), head_dim=8
    )
    assert_exact(call, tile_q=3, tile_k=4)


@settings(deadline=None, max_examples=40)
@given(
    seqlen_q=st.integers(1, 20),
    seqlen_k=st.integers(1, 20),
    tile_q=st.integers(1, 8),
    tile_k=st.integers(1, 8),
    causal=st.booleans(),
    window=st.tuples(st.integers(-1, 6), st.integers(-1, 6)),
)
def test_tiles_of_any_size(
    seqlen_q: int, seqlen_k: int, tile_q: int, tile_k: int, causal: bool, window: tuple[int, int]
) -> None:
    """Tile edges never show in the result."""
    call = make_call(
        seqlens_q=(seqlen_q,),
        seqlens_k=(seqlen_k,),
        causal=causal,
        window=window,
        dtype="fp32",
        head_dim=4,
        heads_q=2,
        heads_kv=1,
    )
    assert_exact(call, tile_q=tile_q, tile_k=tile_k)


@pytest.mark.parametrize("names", [("q_descale",), ("k_descale",), ("v_descale",)])
def test_descales(names: tuple[str, ...]) -> None:
    """Each factor belongs to one sequence and one KV head."""
    call = make_call(**AWKWARD, dtype="fp32")
    shape = (5, call.k.shape[-2])
    factors = {name: torch.rand(shape, generator=torch.Generator().manual_seed(1)) + 0.5 for name in names}
    assert_exact(replace(call, **factors), tile_q=3, tile_k=4)


def test_bidirectional_spans() -> None:
    """A span reaches past the causal diagonal, across tiles."""
    call = make_call(**AWKWARD | {"seqlens_q": (4, 6), "seqlens_k": (9, 6)}, dtype="fp32")
    spans = torch.tensor([[0, 4, 8], [1, 1, 5]], dtype=torch.int32)
    assert_exact(replace(call, bidirectional_spans=spans), tile_q=2, tile_k=3)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bf16", 2e-2), ("fp16", 2e-3)])
def test_half_precision_keeps_its_dtype(dtype: str, tolerance: float) -> None:
    """Sixteen-bit inputs give sixteen-bit outputs within a few steps; the LSE stays float32."""
    out, lse = run(make_call(dtype=dtype))
    expected = exact(make_call(dtype=dtype))
    torch.testing.assert_close(out.double(), expected.out, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(lse.T.double(), expected.lse, rtol=1e-5, atol=1e-5)


def test_rows_without_a_key_are_zero_even_with_a_sink() -> None:
    """Out 0 and LSE -inf, as the contract says, where more queries than keys leave rows empty."""
    out, lse = run(make_call(seqlens_q=(7,), seqlens_k=(3,), sinks=True))
    assert bool((out[:4] == 0).all())
    assert bool((lse[:, :4] == -math.inf).all())
    assert bool(lse[:, 4:].isfinite().all())


def test_an_unknown_option_is_refused() -> None:
    """A misspelt option on a card does not pass silently."""
    with pytest.raises(ValueError, match="tile_m"):
        create({"tile_m": 64})
