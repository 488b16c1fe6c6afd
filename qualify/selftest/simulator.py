"""A correct attention kernel in plain torch, one method per step, so that a planted fault replaces one step.

It has the structure of the fused kernels. It keeps a plan between calls. It cuts queries and keys into tiles, looks up
pages, and maps query heads to KV heads. An online softmax follows. KV splits are merged through their LSE, and an
epilogue writes rows. Scores, maxima, sums and accumulators are float32. The weights P are rounded to the dtype of q
before they multiply V. It shares no code with the golden result, nor with the masks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from qualify.run.adapters.interface import AttentionCall
from qualify.selftest.planning import CallPlan, Planner, Tile

RANGE = "qualify::tiled_attention_simulated"
"""name under which the profiler records a call; the witness looks for it"""
LATENT = (96, 64)
"""(head_dim, head_dim_v) of the battery's latent attention; no other case of the battery has these"""
TILE_Q = 64
TILE_K = 32
LONG, LONG_TILE_K = 4096, 1024
"""number of keys from which on tiles of keys are larger, and the keys of such a tile"""
DECODE_SPLITS = 4
"""number of KV splits for a single query; fixed, so that a result does not depend on the batch"""

Partial = tuple[Tensor, Tensor]
"""(out, lse) of a tile of queries over some keys: (heads_q, rows, head_dim_v) and (heads_q, rows) float32"""


class Simulator(Planner):
    """The kernel. One instance lives as long as the process of a real kernel would."""

    def __init__(self, *, tile_q: int = TILE_Q, tile_k: int = TILE_K) -> None:
        super().__init__()
        self.tile_q = tile_q
        self.tile_k = tile_k
        self.calls = 0

    def launch(self, call: AttentionCall) -> Any:
        """One call. The profiler records it as one range, and none of its operators, as it records a real kernel."""
        with torch._C._profiler._RecordFunctionFast(RANGE, [call.q, call.k, call.v]), unrecorded():
            return self.attend(call)

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        """(out, lse) as the call contract says."""
        self.calls += 1
        out, lse = self.allocate(call)
        plan = self.plan(call)
        for index, (first, last) in enumerate(pairwise(plan.bounds_q)):
            if first < last:
                self.attend_sequence(call, plan, index, out, lse)
        return out, lse

    def allocate(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        """Uninitialised memory for the results, so that a row that is not written shows."""
        total_q, heads_q = call.q.shape[:2]
        out = torch.empty(total_q, heads_q, call.v.shape[-1], dtype=call.out_dtype, device=call.q.device)
        return out, torch.empty(heads_q, total_q, dtype=torch.float32, device=call.q.device)

    # Reading

    def attend_sequence(self, call: AttentionCall, plan: CallPlan, index: int, out: Tensor, lse: Tensor) -> None:
        """All tiles of queries of one sequence."""
        length = plan.bounds_q[index + 1] - plan.bounds_q[index]
        q = self.queries(call, plan, index)
        k, v = self.keys(call, plan, index)
        for start in range(0, length, self.tile_q):
            tile = Tile(
                plan=plan,
                index=index,
                start=start,
                stop=min(start + self.tile_q, length),
                seqlen_q=length,
                seqlen_k=plan.lengths_k[index],
            )
            partial = self.attend_tile(tile, q[:, start : tile.stop], k, v)
            partial = self.add_sinks(call, tile, *partial)
            self.write(tile, out, lse, *self.descale_out(call, tile, *partial))

    def queries(self, call: AttentionCall, plan: CallPlan, index: int) -> Tensor:
        """(heads_q, seqlen_q, head_dim) float32, descaled."""
        whole = call.q.as_strided(call.q.shape, plan.strides[0])
        q = whole[plan.bounds_q[index] : plan.bounds_q[index + 1]].float().transpose(0, 1)
        descale = self.descale("q", call, plan, index)
        return q if descale is None else q * descale

    def keys(self, call: AttentionCall, plan: CallPlan, index: int) -> tuple[Tensor, Tensor]:
        """Keys and values for every query head, up to whole tiles: (heads_q, keys, dim) float32, k descaled."""
        seqlen_k = plan.lengths_k[index]
        width = self.width(seqlen_k)
        positions = self.clamp(torch.arange(-(-seqlen_k // width) * width, device=call.k.device), plan, index)
        heads = self.head_map(plan, index)
        read = []
        for name, tensor, strides in (("k", call.k, plan.strides[1]), ("v", call.v, plan.strides[2])):
            slots = self.slots(name, plan, index, positions)
            rows = self.clear(name, self.fetch(name, tensor, strides, slots, plan).float(), seqlen_k)
            alone = rows.shape[1] == 1 and seqlen_k >= LONG  # then copies for all query heads would cost the most
            shared = rows.expand(-1, len(heads), -1) if alone else rows.index_select(1, heads)
            read.append(shared.transpose(0, 1))
        descale = self.descale("k", call, plan, index)
        return (read[0] if descale is None else read[0] * descale), read[1]

    def clamp(self, positions: Tensor, plan: CallPlan, index: int) -> Tensor:
        """Positions, limited to the last key: lanes beyond the end are not read."""
        return positions.clamp(max=plan.lengths_k[index] - 1)

    def slots(self, name: str, plan: CallPlan, index: int, positions: Tensor) -> Tensor:
        """Row of the key (or value) tensor that holds each position; in a paged cache page · page_size + slot."""
        if plan.table is None:
            return positions + plan.starts_k[index]
        pages = self.pages(name, plan, index)
        return pages[positions // plan.page_size] * plan.page_size + positions % plan.page_size

    def pages(self, name: str, plan: CallPlan, index: int) -> Tensor:
        """(max_pages,) the sequence's row of the block table."""
        assert plan.table is not None, "only a paged cache has pages"
        return plan.table[index]

    def fetch(self, name: str, tensor: Tensor, strides: tuple[int, ...], slots: Tensor, plan: CallPlan) -> Tensor:
        """(slots, heads_kv, dim) a copy of rows of the key (or value) tensor."""
        whole = tensor.as_strided(tensor.shape, strides)
        if plan.table is None:
            return whole.index_select(0, slots)
        return whole[slots // plan.page_size, slots % plan.page_size]

    def clear(self, name: str, rows: Tensor, seqlen_k: int) -> Tensor:
        """Set lanes beyond the end to zero, in place."""
        rows[seqlen_k:] = 0.0
        return rows

    def head_map(self, plan: CallPlan, index: int) -> Tensor:
        """(heads_q,) KV head of each query head."""
        return torch.arange(plan.heads_q) // (plan.heads_q // plan.heads_kv)

    def descale(self, name: str, call: AttentionCall, plan: CallPlan, index: int) -> Tensor | None:
        """(heads_q, 1, 1) factor of a quantised tensor; None where there is none."""
        factors: Tensor | None = getattr(call, f"{name}_descale")
        return None if factors is None else factors[index][self.head_map(plan, index)].view(-1, 1, 1)

    # One tile of queries

    def attend_tile(self, tile: Tile, q: Tensor, k: Tensor, v: Tensor) -> Partial:
        """All splits of the keys, merged."""
        splits = self.splits(tile)
        if len(splits) == 1:
            return self.store(tile, 0, splits[0], self.attend_split(tile, q, k, v, splits[0]))
        partials = []
        for number, starts in enumerate(splits):
            partial = self.attend_split(tile, q, k, v, starts) if len(starts) else self.no_keys(q, v)
            partials.append(self.store(tile, number, starts, partial))
        return self.merge(tile, partials)

    def no_keys(self, q: Tensor, v: Tensor) -> Partial:
        """The result of a split that has no keys."""
        return torch.zeros(*q.shape[:2], v.shape[-1]), torch.full(q.shape[:2], -math.inf)

    def splits(self, tile: Tile) -> list[Sequence[int]]:
        """For each split, the first keys of its tiles; later splits may be empty."""
        low, high = self.key_range(tile)
        starts = self.tile_starts(tile, low, high)
        count = self.split_count(tile)
        size = max(1, -(-len(starts) // count))
        return [starts[number * size : (number + 1) * size] for number in range(count)]

    def split_count(self, tile: Tile) -> int:
        """Number of KV splits for a tile of queries."""
        return DECODE_SPLITS if tile.seqlen_q == 1 else 1

    def tile_starts(self, tile: Tile, low: int, high: int) -> Sequence[int]:
        """First keys of the tiles, in the order of the loop."""
        width = self.width(tile.seqlen_k)
        return range(low - low % width, high, width)

    def width(self, seqlen_k: int) -> int:
        """Number of keys of a tile, which depends on the length, as in real kernels."""
        return self.tile_k if seqlen_k < LONG else max(self.tile_k, LONG_TILE_K)

    def key_range(self, tile: Tile) -> tuple[int, int]:
        """First key, and one past the last, that any row of the tile may see."""
        left, right = tile.plan.window
        low, high = 0, tile.seqlen_k
        if tile.plan.spans:
            return low, high
        if tile.plan.causal:
            high = min(high, tile.stop + tile.shift)
        if right >= 0:
            high = min(high, tile.stop + tile.shift + right)
        if left >= 0:
            low = max(0, tile.start + tile.shift - left)
        if tile.plan.pattern == "chunked":
            low = max(low, self.chunk_start(tile, tile.start + tile.shift))
            high = min(high, self.chunk_start(tile, tile.stop - 1 + tile.shift) + tile.plan.size)
        return low, max(low, high)

    def chunk_start(self, tile: Tile, position: int) -> int:
        """First key of the chunk that a position is in."""
        return position // tile.plan.size * tile.plan.size

    def attend_split(self, tile: Tile, q: Tensor, k: Tensor, v: Tensor, starts: Sequence[int]) -> Partial:
        """The online softmax over the tiles of one split."""
        m = torch.full(q.shape[:2], -math.inf, device=q.device)
        l = torch.zeros(q.shape[:2], device=q.device)
        acc = torch.zeros(*q.shape[:2], v.shape[-1], device=q.device)
        width = self.width(tile.seqlen_k)
        for first in starts:
            keys = slice(first, first + width)
            m, l, acc = self.step(tile, first, self.scores(tile, q, k[:, keys], first), v[:, keys], (m, l, acc))
        return self.normalise(tile, m, l, acc)

    def scores(self, tile: Tile, q: Tensor, k: Tensor, first: int) -> Tensor:
        """(heads_q, rows, keys) scaled, capped and masked."""
        capped = self.cap(tile, self.product(q, k).mul_(tile.plan.scale))
        return self.mask(tile, capped, self.seen(tile, first, k.shape[1]))

    def product(self, q: Tensor, k: Tensor) -> Tensor:
        """q·k."""
        return torch.bmm(q, k.transpose(-1, -2))

    def cap(self, tile: Tile, scores: Tensor) -> Tensor:
        """Softcap · tanh(score / softcap)."""
        softcap = tile.plan.softcap
        return softcap * torch.tanh(scores / softcap) if softcap else scores

    def mask(self, tile: Tile, scores: Tensor, seen: Tensor) -> Tensor:
        """-inf where a key is not seen."""
        return torch.where(seen, scores, -math.inf)

    def seen(self, tile: Tile, first: int, count: int) -> Tensor:
        """(rows, count) whether each query of the tile sees each key from ``first`` on."""
        position = self.positions(tile).view(-1, 1)
        key = torch.arange(first, first + count).view(1, -1)
        seen = self.in_band(tile, key - position) & self.in_sequence(tile, key)
        if tile.plan.pattern:
            seen = seen & self.in_pattern(tile, position, key)
        for sequence, start, end in tile.plan.spans:
            if sequence == tile.index:
                seen = seen | ((position >= start) & (position < end) & (key >= start) & (key < end))
        return seen

    def positions(self, tile: Tile) -> Tensor:
        """(rows,) key position of each query."""
        return torch.arange(tile.start + tile.shift, tile.stop + tile.shift)

    def in_band(self, tile: Tile, distance: Tensor) -> Tensor:
        """Whether a key is within causal mask and window.

        Args:
            distance: position of the key minus position of the query.
        """
        left, right = tile.plan.window
        highest = min([0] * tile.plan.causal + [right] * (right >= 0), default=None)
        if highest is None and left < 0:
            return torch.ones_like(distance, dtype=torch.bool)
        if highest is None:
            return distance >= -left
        seen = distance <= highest
        return seen & (distance >= -left) if left >= 0 else seen

    def in_pattern(self, tile: Tile, position: Tensor, key: Tensor) -> Tensor:
        """Whether the query at a position sees a key under the mask's pattern."""
        size = tile.plan.size
        return (key - position) % size == 0 if tile.plan.pattern == "dilated" else key // size == position // size

    def in_sequence(self, tile: Tile, key: Tensor) -> Tensor:
        """Whether a position is that of a key of the sequence, and not beyond its end."""
        return key < tile.seqlen_k

    # The online softmax

    def step(
        self, tile: Tile, first: int, scores: Tensor, v: Tensor, state: tuple[Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Row maximum, row sum and accumulator after one more tile of keys."""
        m, l, acc = state
        new_m = self.maximum(tile, m, scores)
        base = finite(new_m)
        p = self.weigh(scores, base.unsqueeze(-1))
        shrink = self.weigh(m, base)
        return new_m, self.sum_rows(tile, l * shrink, p), self.accumulate(tile, first, acc, shrink, p, v)

    def weigh(self, scores: Tensor, base: Tensor) -> Tensor:
        """exp(scores - base), where the base belongs to the row."""
        return self.exp(scores - base)

    def maximum(self, tile: Tile, m: Tensor, scores: Tensor) -> Tensor:
        """The new row maximum."""
        return torch.maximum(m, scores.amax(-1))

    def exp(self, x: Tensor) -> Tensor:
        """The exponential."""
        return torch.exp(x)

    def log(self, x: Tensor) -> Tensor:
        """The logarithm."""
        return torch.log(x)

    def sum_rows(self, tile: Tile, l: Tensor, p: Tensor) -> Tensor:
        """The row sum, taken before P is rounded."""
        return l + p.sum(-1)

    def accumulate(self, tile: Tile, first: int, acc: Tensor, shrink: Tensor, p: Tensor, v: Tensor) -> Tensor:
        """The accumulator, rescaled, plus P V."""
        return (acc * shrink.unsqueeze(-1)).baddbmm_(self.round_p(tile, p), v)

    def round_p(self, tile: Tile, p: Tensor) -> Tensor:
        """P as the matrix product reads it."""
        return p.to(tile.plan.dtype).float()

    def normalise(self, tile: Tile, m: Tensor, l: Tensor, acc: Tensor) -> Partial:
        """Divide by the row sum; rows without keys give 0 and -inf."""
        empty = l == 0
        out = (acc / l.unsqueeze(-1)).masked_fill_(empty.unsqueeze(-1), 0.0)
        return out, (m + self.log(l)).masked_fill_(empty, -math.inf)

    # Epilogue

    def store(self, tile: Tile, number: int, starts: Sequence[int], partial: Partial) -> Partial:
        """A split's result as the merge will read it.

        Args:
            number: number of the split.
            starts: first keys of its tiles; empty = the split has no keys.
            partial: (out, lse) of the split.
        """
        return partial

    def merge(self, tile: Tile, partials: Sequence[Partial]) -> Partial:
        """Weigh the splits by their LSE."""
        outs, lses = torch.stack([out for out, _ in partials]), torch.stack([lse for _, lse in partials])
        top = lses.amax(0)
        base = finite(top)
        weights = torch.exp(lses - base)
        total = weights.sum(0)
        out = (outs * weights.unsqueeze(-1)).sum(0) / total.masked_fill(total == 0, 1.0).unsqueeze(-1)
        return out, base + torch.log(total)

    def add_sinks(self, call: AttentionCall, tile: Tile, out: Tensor, lse: Tensor) -> Partial:
        """Put each head's sink into the denominator; rows without keys stay as they are."""
        if call.sinks is None:
            return out, lse
        empty = lse == -math.inf
        whole = torch.where(empty, lse, torch.logaddexp(lse, self.sink(call, tile, lse)))
        weight = torch.exp(lse - whole.masked_fill(empty, 0.0))
        return out * weight.unsqueeze(-1), whole

    def sink(self, call: AttentionCall, tile: Tile, lse: Tensor) -> Tensor:
        """The sink's logit for each head and row, broadcastable to ``lse``."""
        assert call.sinks is not None, "only asked where there are sinks"
        return call.sinks.float().view(-1, 1)

    def descale_out(self, call: AttentionCall, tile: Tile, out: Tensor, lse: Tensor) -> Partial:
        """Multiply the result by V's descale."""
        descale = self.descale("v", call, tile.plan, tile.index)
        return (out if descale is None else out * descale), lse

    def write(self, tile: Tile, out: Tensor, lse: Tensor, tile_out: Tensor, tile_lse: Tensor) -> None:
        """Round to the output's dtype and write the rows."""
        begin = tile.plan.bounds_q[tile.index]
        rows = slice(begin + tile.start, begin + tile.stop)
        out[rows] = tile_out.transpose(0, 1).to(out.dtype)
        lse[:, rows] = tile_lse


@contextmanager
def unrecorded() -> Iterator[None]:
    """The profiler records no operators within, but it records allocations."""
    torch.autograd._enable_record_function(False)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.autograd._enable_record_function(True)  # type: ignore[attr-defined]


def finite(m: Tensor) -> Tensor:
    """Row maxima with 0 in place of -inf, so that rows without keys get weights of 0 instead of NaN."""
    return torch.nan_to_num(m, nan=math.nan, posinf=math.inf, neginf=0.0)
