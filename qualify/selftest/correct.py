"""Correct kernels that compute in other ways: every failure of one of them is a false alarm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from qualify.run.adapters.interface import AttentionCall
from qualify.run.golden.comparison import FLUSHED
from qualify.selftest.planning import CallPlan, Tile
from qualify.selftest.simulator import LATENT, Partial, Simulator
from qualify.selftest.specimen import Variant

LAZY = 8 * math.log(2)
"""growth of the row maximum (natural logarithm) up to which nothing is rescaled; P stays at most 256, in every range"""
LOG2_E = 1 / math.log(2)


class _Splits(Simulator):
    """A fixed number of KV splits, also where there are fewer tiles."""

    def __init__(self, count: int, **tiles: Any) -> None:
        super().__init__(**tiles)
        self.count = count

    def split_count(self, tile: Tile) -> int:
        return self.count


class _Reversed(Simulator):
    """Tiles of keys from last to first."""

    def tile_starts(self, tile: Tile, low: int, high: int) -> Sequence[int]:
        return super().tile_starts(tile, low, high)[::-1]


class _EvenFirst(Simulator):
    """Even tiles of keys, then the odd ones: pages are gathered in another order."""

    def tile_starts(self, tile: Tile, low: int, high: int) -> Sequence[int]:
        starts = super().tile_starts(tile, low, high)
        return [*starts[::2], *starts[1::2]]


class _BaseTwo(Simulator):
    """exp2 of scores times log2(e)."""

    def exp(self, x: Tensor) -> Tensor:
        return torch.exp2(x * LOG2_E)


class _FusedBaseTwo(Simulator):
    """exp2 of a fused score · log2(e) - m · log2(e): the second product is rounded, so the largest weight is not 1."""

    def weigh(self, scores: Tensor, base: Tensor) -> Tensor:
        return torch.exp2((scores.double() * LOG2_E - (base * LOG2_E).double()).float())


class _LseFromBaseTwo(_BaseTwo):
    """The LSE is m + ln(2) · log2(l)."""

    def log(self, x: Tensor) -> Tensor:
        return torch.log2(x) * math.log(2)


class _UnclaimedLse(Simulator):
    """The LSE is rounded to bf16, as a by-product that the card does not mention."""

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        out, lse = super().attend(call)
        return out, lse.bfloat16().float()


class _Lazy(Simulator):
    """The accumulator is rescaled only where the maximum grew by more than 2⁸; nothing saturates."""

    def maximum(self, tile: Tile, m: Tensor, scores: Tensor) -> Tensor:
        new = super().maximum(tile, m, scores)
        return torch.where((new > m + LAZY) | (m == -math.inf), new, m)


class _RoundedFirst(Simulator):
    """P is rounded before the row sum. In fp8 it is not, because an LSE with four bits would be useless."""

    def sum_rows(self, tile: Tile, l: Tensor, p: Tensor) -> Tensor:
        return super().sum_rows(tile, l, p if tile.plan.dtype.itemsize == 1 else self.round_p(tile, p))


class _SumByProduct(Simulator):
    """The row sum comes from the matrix product: rounded P times a column of ones. In fp8 unrounded P is summed."""

    def sum_rows(self, tile: Tile, l: Tensor, p: Tensor) -> Tensor:
        if tile.plan.dtype.itemsize == 1:
            return super().sum_rows(tile, l, p)
        return l + torch.matmul(self.round_p(tile, p), torch.ones(p.shape[-1], 1)).squeeze(-1)


class _RoundedPartials(_Splits):
    """Partial results of splits are stored in the output's dtype."""

    def store(self, tile: Tile, number: int, starts: Sequence[int], partial: Partial) -> Partial:
        return partial[0].to(tile.plan.out_dtype).float(), partial[1]


class _TwoHalves(Simulator):
    """q·k is added from two halves of head_dim."""

    def product(self, q: Tensor, k: Tensor) -> Tensor:
        half = q.shape[-1] // 2
        return super().product(q[..., half:], k[..., half:]) + super().product(q[..., :half], k[..., :half])


class _WholeRange(Simulator):
    """No tile is skipped: every tile is visited and masked."""

    def key_range(self, tile: Tile) -> tuple[int, int]:
        return 0, tile.seqlen_k


class _OneAndTheRest(Simulator):
    """Two uneven splits, as stream-K makes them: the first tile, and all others."""

    def splits(self, tile: Tile) -> list[Sequence[int]]:
        starts = self.tile_starts(tile, *self.key_range(tile))
        return [starts[:1], starts[1:]] if len(starts) > 1 else [starts]


class _SinkFirst(Simulator):
    """The sink is the first state of the online softmax; rows without keys are corrected at the end.

    As on a GPU, numbers below the normal range of float32 become 0.
    """

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        self.sinks = call.sinks
        return super().attend(call)

    def split_count(self, tile: Tile) -> int:
        return 1

    def attend_split(self, tile: Tile, q: Tensor, k: Tensor, v: Tensor, starts: Sequence[int]) -> Partial:
        if self.sinks is None:
            return super().attend_split(tile, q, k, v, starts)
        m, l = self.sinks.view(-1, 1).expand(q.shape[:2]), torch.ones(q.shape[:2])
        acc, empty = torch.zeros(*q.shape[:2], v.shape[-1]), torch.ones(q.shape[:2], dtype=torch.bool)
        for first in starts:
            keys = slice(first, first + self.width(tile.seqlen_k))
            scores = self.scores(tile, q, k[:, keys], first)
            empty &= (scores == -math.inf).all(-1)
            m, l, acc = self.step(tile, first, scores, v[:, keys], (m, l, acc))
        return self.normalise(tile, m, torch.where(empty, 0.0, l), acc)

    def exp(self, x: Tensor) -> Tensor:
        return _flushed(super().exp(x))

    def normalise(self, tile: Tile, m: Tensor, l: Tensor, acc: Tensor) -> Partial:
        out, lse = super().normalise(tile, m, l, acc)
        return _flushed(out), lse

    def add_sinks(self, call: AttentionCall, tile: Tile, out: Tensor, lse: Tensor) -> Partial:
        return out, lse


def _flushed(x: Tensor) -> Tensor:
    return torch.where(x.abs() < FLUSHED, 0.0, x)


class _CubicExp(_BaseTwo):
    """In 16-bit and fp8 calls, exp2 by FlashAttention-4's polynomial of degree three: a relative error up to 8.8e-5."""

    COEFFICIENTS = (1.0, 0.6951461434364319, 0.2275643944740295, 0.07711908966302872)

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        self.exact = call.q.dtype == torch.float32
        return super().attend(call)

    def exp(self, x: Tensor) -> Tensor:
        if self.exact:
            return super().exp(x)
        exponent = (x * LOG2_E).clamp(min=-127.0)
        whole = exponent.floor()
        c0, c1, c2, c3 = self.COEFFICIENTS
        part = exponent - whole
        return torch.where(exponent <= -127, 0.0, torch.ldexp(c0 + part * (c1 + part * (c2 + part * c3)), whole))


class _ThreeParts(Simulator):
    """float32 products are added from three products of TF32 parts."""

    def product(self, q: Tensor, k: Tensor) -> Tensor:
        return self.parts(q, k.transpose(-1, -2))

    def accumulate(self, tile: Tile, first: int, acc: Tensor, shrink: Tensor, p: Tensor, v: Tensor) -> Tensor:
        return acc * shrink.unsqueeze(-1) + self.parts(self.round_p(tile, p), v)

    @staticmethod
    def parts(a: Tensor, b: Tensor) -> Tensor:
        """a·b from TF32 parts, without the product of the two low parts."""

        def tf32(x: Tensor) -> Tensor:
            return (x.contiguous().view(torch.int32) + (1 << 12) & -(1 << 13)).view(torch.float32)

        high_a, high_b = tf32(a), tf32(b)
        rest_a, rest_b = tf32(a - high_a), tf32(b - high_b)
        return torch.matmul(rest_a, high_b) + torch.matmul(high_a, rest_b) + torch.matmul(high_a, high_b)


class _ReciprocalSum(Simulator):
    """The epilogue multiplies by 1/l instead of dividing by l."""

    def normalise(self, tile: Tile, m: Tensor, l: Tensor, acc: Tensor) -> Partial:
        out, lse = super().normalise(tile, m, l, acc)
        return torch.where((l == 0).unsqueeze(-1), out, acc * torch.where(l == 0, 1.0, 1 / l).unsqueeze(-1)), lse


class _FactorOnScores(Simulator):
    """K's descale multiplies q instead of k, as in kernels that fold it into the softmax scale."""

    def descale(self, name: str, call: AttentionCall, plan: CallPlan, index: int) -> Tensor | None:
        return None if name == "k" else super().descale(name, call, plan, index)

    def queries(self, call: AttentionCall, plan: CallPlan, index: int) -> Tensor:
        q, factor = super().queries(call, plan, index), super().descale("k", call, plan, index)
        return q if factor is None else q * factor


class _FactorOnOutput(Simulator):
    """The output is rounded, then multiplied by V's descale, then rounded again."""

    def descale_out(self, call: AttentionCall, tile: Tile, out: Tensor, lse: Tensor) -> Partial:
        return super().descale_out(call, tile, out.to(call.out_dtype).float(), lse)


class _OneCache(Simulator):
    """In latent attention, reads the values from the keys and ignores ``v``, as a kernel with one cache does."""

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        if (call.k.shape[-1], call.v.shape[-1]) == LATENT:
            call = replace(call, v=call.k[..., : LATENT[1]])
        return super().attend(call)


class _TwoParts(Simulator):
    """In latent attention, scores of the rotated part and of the latent part are rounded to float32, then added."""

    def product(self, q: Tensor, k: Tensor) -> Tensor:
        if q.shape[-1] != LATENT[0]:
            return super().product(q, k)
        rotated, latent = slice(LATENT[1], None), slice(LATENT[1])
        return super().product(q[..., rotated], k[..., rotated]) + super().product(q[..., latent], k[..., latent])


class _SinkAlone(Simulator):
    """The LSE of a row that sees no key is the sink, as FlashAttention-3 and -4 return it."""

    def add_sinks(self, call: AttentionCall, tile: Tile, out: Tensor, lse: Tensor) -> Partial:
        out, whole = super().add_sinks(call, tile, out, lse)
        return out, whole if call.sinks is None else torch.where(lse == -math.inf, self.sink(call, tile, lse), whole)


class _SplitsByTable(Simulator):
    """The number of KV splits depends on the width of the block table."""

    def split_count(self, tile: Tile) -> int:
        table = tile.plan.table
        return super().split_count(tile) if table is None else 1 + table.shape[1] % 5


VARIANTS: tuple[Variant, ...] = (
    Variant(name="plain", does="the simulator as the faults start from it", make=Simulator),
    Variant(name="small-tiles", does="tiles of 16 queries and 16 keys", make=partial(Simulator, tile_q=16, tile_k=16)),
    Variant(
        name="large-tiles", does="tiles of 128 queries and 64 keys", make=partial(Simulator, tile_q=128, tile_k=64)
    ),
    Variant(name="odd-tiles", does="tiles of 48 queries and 40 keys", make=partial(Simulator, tile_q=48, tile_k=40)),
    Variant(name="reversed-keys", does="tiles of keys from last to first", make=_Reversed),
    Variant(name="other-page-order", does="even tiles of keys, then odd ones", make=_EvenFirst),
    Variant(name="splits-2", does="two KV splits", make=partial(_Splits, 2)),
    Variant(name="splits-3", does="three KV splits and tiles of 16 keys", make=partial(_Splits, 3, tile_k=16)),
    Variant(name="splits-7", does="seven KV splits, most of them empty", make=partial(_Splits, 7)),
    Variant(name="exp2", does="exp2 of scores times log2(e)", make=_BaseTwo),
    Variant(name="exp2-fused", does="exp2 by a fused multiply-add, the maximum scaled apart", make=_FusedBaseTwo),
    Variant(name="lse-exp2", does="LSE from base 2", make=_LseFromBaseTwo),
    Variant(name="lazy-in-range", does="lazy rescaling up to 2^8, nothing saturates", make=_Lazy),
    Variant(
        name="rowsum-rounded",
        does="16-bit P rounded before the row sum; claims its LSE to 2e-3",
        make=_RoundedFirst,
        lse_rel=2e-3,
    ),
    Variant(
        name="rowsum-by-product",
        does="row sum of rounded 16-bit P by the matrix product; claims its LSE to 2e-3",
        make=_SumByProduct,
        lse_rel=2e-3,
    ),
    Variant(
        name="partials-rounded",
        does="partial results of three splits in the output's dtype",
        make=partial(_RoundedPartials, 3),
    ),
    Variant(name="two-halves", does="q·k added from two halves of head_dim", make=_TwoHalves),
    Variant(name="all-tiles", does="no tile is skipped, all are masked", make=_WholeRange),
    Variant(name="descale-on-scores", does="K's descale multiplies q, and so the scores", make=_FactorOnScores),
    Variant(name="descale-on-output", does="V's descale multiplies the rounded output", make=_FactorOnOutput),
    Variant(name="stream-k", does="the first tile of keys is a split, the others are another", make=_OneAndTheRest),
    Variant(
        name="sink-first",
        does="the sink is the first state of the online softmax; float32 has no subnormal numbers",
        make=_SinkFirst,
    ),
    Variant(
        name="exp2-cubic",
        does="exp2 by FlashAttention-4's cubic polynomial in 16 bits; claims its LSE to 1e-4",
        make=_CubicExp,
        lse_rel=1e-4,
    ),
    Variant(name="three-tf32", does="float32 products in three parts of TF32", make=_ThreeParts),
    Variant(name="reciprocal", does="the epilogue multiplies with 1/l", make=_ReciprocalSum),
    Variant(name="sink-alone", does="the LSE of a row without keys is the sink, if there is one", make=_SinkAlone),
    Variant(name="splits-by-table", does="KV splits follow the width of the block table", make=_SplitsByTable),
    Variant(name="one-cache", does="a latent cache: V is taken from K, whatever is given as V", make=_OneCache),
    Variant(name="two-parts", does="a latent cache: scores added from the rotated part and the latent", make=_TwoParts),
    Variant(name="lse-unclaimed", does="an LSE in bf16 that its card does not claim", make=_UnclaimedLse, lse_rel=None),
)
"""All correct kernels of the battery."""
