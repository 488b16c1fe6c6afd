"""Class E: query heads that read another KV head, and elements of a head in another order."""

from __future__ import annotations

import torch
from torch import Tensor

from qualify.run.adapters.interface import AttentionCall
from qualify.selftest.planning import CallPlan, Tile
from qualify.selftest.simulator import Simulator
from qualify.selftest.specimen import Fault

HEADS_AT_ONCE = 4
"""heads that one block of the kernel handles"""


class _Interleaved(Simulator):
    def head_map(self, plan: CallPlan, index: int) -> Tensor:
        return torch.arange(plan.heads_q) % plan.heads_kv


class _PowerOfTwo(Simulator):
    def head_map(self, plan: CallPlan, index: int) -> Tensor:
        shift = (plan.heads_q // plan.heads_kv).bit_length() - 1
        return (torch.arange(plan.heads_q) >> shift).clamp(max=plan.heads_kv - 1)


class _Square(Simulator):
    """The head number is divided by the number of KV heads instead of the group size: right only if both are equal."""

    def head_map(self, plan: CallPlan, index: int) -> Tensor:
        return (torch.arange(plan.heads_q) // plan.heads_kv).clamp(max=plan.heads_kv - 1)


class _DecodeFirstHead(Simulator):
    """In decode with fewer than eight KV heads, the last group reads KV head 0."""

    def head_map(self, plan: CallPlan, index: int) -> Tensor:
        heads = super().head_map(plan, index)
        decode = plan.bounds_q[index + 1] - plan.bounds_q[index] == 1 and 1 < plan.heads_kv < 8
        return torch.where(heads == plan.heads_kv - 1, 0, heads) if decode else heads


class _PackedRows(Simulator):
    """Query positions are divided by the group size, although the heads of a group are not packed into rows."""

    def positions(self, tile: Tile) -> Tensor:
        group = tile.plan.heads_q // tile.plan.heads_kv
        return torch.arange(tile.start, tile.stop) // group + tile.shift


class _HeadsByFour(Simulator):
    """Heads of the last block are not written where they do not fill it."""

    def write(self, tile: Tile, out: Tensor, lse: Tensor, tile_out: Tensor, tile_lse: Tensor) -> None:
        heads = max(HEADS_AT_ONCE, tile.plan.heads_q // HEADS_AT_ONCE * HEADS_AT_ONCE)
        super().write(tile, out[:, :heads], lse[:heads], tile_out[:heads], tile_lse[:heads])


class _DimTail(Simulator):
    def product(self, q: Tensor, k: Tensor) -> Tensor:
        whole = q.shape[-1] // 32 * 32 or q.shape[-1]
        return super().product(q[..., :whole], k[..., :whole])


class _Fragments(Simulator):
    """Elements of the output change places within fragments of eight."""

    def write(self, tile: Tile, out: Tensor, lse: Tensor, tile_out: Tensor, tile_lse: Tensor) -> None:
        order = torch.arange(tile_out.shape[-1])
        super().write(tile, out, lse, tile_out[..., order // 8 * 8 + order % 4 * 2 + order % 8 // 4], tile_lse)


class _LayerHeads(Simulator):
    """Every layer gets the group size of the first layer that was planned."""

    def __init__(self) -> None:
        super().__init__()
        self.group = 0

    def make_plan(self, call: AttentionCall) -> CallPlan:
        plan = super().make_plan(call)
        self.group = self.group or plan.heads_q // plan.heads_kv
        return plan

    def head_map(self, plan: CallPlan, index: int) -> Tensor:
        return (torch.arange(plan.heads_q) // self.group).clamp(max=plan.heads_kv - 1)


class _Heads128(Simulator):
    """Heads from number 128 on return the results of heads 0, 1, and so on."""

    def write(self, tile: Tile, out: Tensor, lse: Tensor, tile_out: Tensor, tile_lse: Tensor) -> None:
        heads = torch.arange(len(tile_out)) % 128
        super().write(tile, out, lse, tile_out[heads], tile_lse[heads])


class _FifthsOfRows(Simulator):
    """Packed rows are divided by a rounded 1/5 or 1/7, so in such groups the mask of the last query is off by one."""

    def positions(self, tile: Tile) -> Tensor:
        position = super().positions(tile)
        if tile.plan.heads_q // tile.plan.heads_kv not in {5, 7} or tile.seqlen_q == 1:
            return position
        return torch.cat([position[:-1], position[-1:] - 1])


class _SinkOfFifths(Simulator):
    """In groups of 5 and 7 heads, each head uses its neighbour's sink."""

    def sink(self, call: AttentionCall, tile: Tile, lse: Tensor) -> Tensor:
        own = super().sink(call, tile, lse)
        return own.roll(1, 0) if tile.plan.heads_q // tile.plan.heads_kv in {5, 7} else own


class _RowsBeyondTile(Simulator):
    """With two to eight queries, packed rows from number 64 on see what the last query sees."""

    def positions(self, tile: Tile) -> Tensor:
        position, group = super().positions(tile), tile.plan.heads_q // tile.plan.heads_kv
        if not 1 < tile.seqlen_q <= 8:
            return position
        return torch.where(torch.arange(tile.start, tile.stop) * group >= 64, tile.seqlen_k - 1, position)


class _BatchFirstHead(Simulator):
    """In decode of 64 to 1024 sequences with two to seven KV heads, the last group reads KV head 0."""

    def head_map(self, plan: CallPlan, index: int) -> Tensor:
        heads = super().head_map(plan, index)
        lost = plan.bounds_q[-1] == plan.batch and 64 <= plan.batch <= 1024 and 1 < plan.heads_kv < 8
        return torch.where(heads == plan.heads_kv - 1, 0, heads) if lost else heads


class _Swizzled(Simulator):
    """Where the number of KV heads is a multiple of eight, neighbouring KV heads change places."""

    def head_map(self, plan: CallPlan, index: int) -> Tensor:
        heads = super().head_map(plan, index)
        return heads ^ 1 if plan.heads_kv % 8 == 0 else heads


class _TraceOfFirst(Simulator):
    """In 16-bit calls, 2^-11 of the first KV head's values is added to the values of every other KV head."""

    def keys(self, call: AttentionCall, plan: CallPlan, index: int) -> tuple[Tensor, Tensor]:
        k, v = super().keys(call, plan, index)
        if plan.heads_kv == 1 or plan.dtype.itemsize != 2:
            return k, v
        other = torch.arange(plan.heads_q) >= plan.heads_q // plan.heads_kv
        return k, v + v[:1] * (2.0**-11 * other).view(-1, 1, 1)


class _GroupOfTwoTiles(Simulator):
    """With one query, heads of a group from number 64 on repeat the first ones, because only one tile is computed."""

    def write(self, tile: Tile, out: Tensor, lse: Tensor, tile_out: Tensor, tile_lse: Tensor) -> None:
        group, heads = tile.plan.heads_q // tile.plan.heads_kv, torch.arange(len(tile_out))
        if group > 64 and tile.seqlen_q == 1:
            heads = heads // group * group + heads % group % 64
        super().write(tile, out, lse, tile_out[heads], tile_lse[heads])


class _ReciprocalOfGroup(Simulator):
    """A packed row's query is computed with a rounded 1/5 or 1/7: from row 64 on, every 16th query is one too low."""

    def positions(self, tile: Tile) -> Tensor:
        queries, group = torch.arange(tile.start, tile.stop), tile.plan.heads_q // tile.plan.heads_kv
        low = (queries * group >= 64) & (queries % 16 == 0) & (group in {5, 7} and tile.seqlen_q > 1)
        return super().positions(tile) - low.long()


FAULTS: tuple[Fault, ...] = (
    Fault(
        name="gqa-interleave",
        kind="E",
        mirrors="onnx#7274, axlearn#842, jax-js#180",
        does="query head h reads KV head h mod heads_kv",
        make=_Interleaved,
    ),
    Fault(
        name="gqa-pow2",
        kind="E",
        mirrors="mlc-llm#2543",
        does="the group is found by a shift: wrong for ratios that are no power of two",
        make=_PowerOfTwo,
    ),
    Fault(
        name="gqa-square",
        kind="E",
        mirrors="HipKittens#22, ONNXim#34",
        does="the head map is right only where group = heads_kv",
        make=_Square,
    ),
    Fault(
        name="decode-first-head",
        kind="E",
        mirrors="pytorch#193893",
        does="decode with fewer than eight KV heads: the last group reads KV head 0",
        make=_DecodeFirstHead,
    ),
    Fault(
        name="packed-rows",
        kind="E",
        mirrors="flash-attention#2528",
        does="query rows are divided by the GQA ratio before they meet the mask",
        make=_PackedRows,
    ),
    Fault(
        name="heads-by-four",
        kind="E",
        mirrors="flash-linear-attention#1029, tt-metal#50564",
        does="heads beyond a multiple of four are not written",
        make=_HeadsByFour,
    ),
    Fault(
        name="layer-heads",
        kind="E",
        mirrors="vllm#42650",
        does="the GQA ratio of the first layer is kept for all layers",
        make=_LayerHeads,
    ),
    Fault(
        name="d-tail",
        kind="E",
        mirrors="AMD-Ecosystem/flashinfer#83",
        does="the last head_dim mod 32 elements are dropped from q·k",
        make=_DimTail,
    ),
    Fault(
        name="frag-perm",
        kind="I",
        mirrors="flash-attention#2553",
        does="output elements are permuted within fragments of eight",
        make=_Fragments,
    ),
    Fault(
        name="heads-128",
        kind="E",
        mirrors="tt-metal#50564",
        does="heads from number 128 on give the result of others",
        make=_Heads128,
    ),
    Fault(
        name="group-of-5-mask",
        kind="E",
        mirrors="flash-attention#2528",
        does="in groups of 5 and 7 the last row's mask is one key short",
        make=_FifthsOfRows,
    ),
    Fault(
        name="group-of-5-sink",
        kind="E",
        mirrors="modular#6591",
        does="in groups of 5 and 7 a head takes its neighbour's sink",
        make=_SinkOfFifths,
    ),
    Fault(
        name="rows-beyond-64",
        kind="E",
        mirrors="flash-attention#2528, FlashMLA#212",
        does="of up to eight queries packed with their group, rows from 64 on are not masked",
        make=_RowsBeyondTile,
    ),
    Fault(
        name="batch-first-head",
        kind="E",
        mirrors="pytorch#193893",
        does="decode of 64 sequences or more: the last group reads KV head 0",
        make=_BatchFirstHead,
    ),
    Fault(
        name="heads-of-eight",
        kind="E",
        mirrors="pytorch#193893",
        does="with a multiple of eight KV heads, neighbours change places",
        make=_Swizzled,
    ),
    Fault(
        name="trace-of-first",
        kind="E",
        mirrors="onnx#7274",
        does="values of the other KV heads have a trace of KV head 0",
        make=_TraceOfFirst,
    ),
    Fault(
        name="group-of-two-tiles",
        kind="E",
        mirrors="FlashMLA#212",
        does="one query: heads of a group from number 64 on repeat those before",
        make=_GroupOfTwoTiles,
    ),
    Fault(
        name="reciprocal-group",
        kind="E",
        mirrors="flash-attention#2528",
        does="groups of 5 and 7 packed into rows: from row 64 on some queries are taken for the one before",
        make=_ReciprocalOfGroup,
    ),
)
"""Faults of heads and their elements."""
