"""Class F, and the descales of class I: a parameter that is ignored, shared, or applied in the wrong place."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from qualify.run.adapters.interface import AttentionCall
from qualify.selftest.planning import CallPlan, Tile
from qualify.selftest.simulator import Partial, Simulator
from qualify.selftest.specimen import Fault


class _ScaleOf(Simulator):
    """The scale belongs to a wrong dimension (padded head_dim, or head_dim_v), or the given scale is ignored."""

    def __init__(self, dimension: str) -> None:
        super().__init__()
        self.dimension = dimension

    def scale(self, call: AttentionCall) -> float:
        dim = call.q.shape[-1]
        padded = -(-dim // 64) * 64
        asked = call.scale * math.sqrt(dim)
        return {
            "padded": asked / math.sqrt(padded),
            "default": 1 / math.sqrt(dim),
            "values": asked / math.sqrt(call.v.shape[-1]),
        }[self.dimension]


class _BaseTwoUnscaled(Simulator):
    """The exponential is exp2, without the factor log2(e)."""

    def exp(self, x: Tensor) -> Tensor:
        return torch.exp2(x)


class _CapIgnored(Simulator):
    def cap(self, tile: Tile, scores: Tensor) -> Tensor:
        return scores


class _CapBeforeScale(Simulator):
    def cap(self, tile: Tile, scores: Tensor) -> Tensor:
        return super().cap(tile, scores / tile.plan.scale) * tile.plan.scale


class _CapAfterMask(Simulator):
    """The softcap comes after the mask: tanh turns -inf into -softcap, and hidden keys get weight."""

    def scores(self, tile: Tile, q: Tensor, k: Tensor, first: int) -> Tensor:
        seen = self.seen(tile, first, k.shape[1])
        return self.cap(tile, self.mask(tile, self.product(q, k) * tile.plan.scale, seen))


class _SinkDropped(Simulator):
    def add_sinks(self, call: AttentionCall, tile: Tile, out: Tensor, lse: Tensor) -> Partial:
        return out, lse


class _SinkDroppedUnderWindow(Simulator):
    def add_sinks(self, call: AttentionCall, tile: Tile, out: Tensor, lse: Tensor) -> Partial:
        return (out, lse) if tile.plan.window != (-1, -1) else super().add_sinks(call, tile, out, lse)


class _SinkPerSplit(Simulator):
    def sink(self, call: AttentionCall, tile: Tile, lse: Tensor) -> Tensor:
        splits = sum(bool(len(starts)) for starts in self.splits(tile))
        return super().sink(call, tile, lse) + math.log(max(1, splits))


class _SinkByRow(Simulator):
    def sink(self, call: AttentionCall, tile: Tile, lse: Tensor) -> Tensor:
        assert call.sinks is not None, "only asked where there are sinks"
        rows = torch.arange(tile.start, tile.stop) % len(call.sinks)
        return call.sinks[rows].view(1, -1)


class _SinkScaled(Simulator):
    def sink(self, call: AttentionCall, tile: Tile, lse: Tensor) -> Tensor:
        return super().sink(call, tile, lse) * tile.plan.scale


class _SinkNotInLse(Simulator):
    def add_sinks(self, call: AttentionCall, tile: Tile, out: Tensor, lse: Tensor) -> Partial:
        return super().add_sinks(call, tile, out, lse)[0], lse


class _Descales(Simulator):
    """Descales are edited before they are applied."""

    def descale(self, name: str, call: AttentionCall, plan: CallPlan, index: int) -> Tensor | None:
        return super().descale(name, self.edited(call), plan, index)

    def edited(self, call: AttentionCall) -> AttentionCall:
        """The call with the wrong descales that this kernel uses."""
        return call


class _DescaleOfHeadZero(_Descales):
    def edited(self, call: AttentionCall) -> AttentionCall:
        if call.v_descale is None:
            return call
        return replace(call, v_descale=call.v_descale[:, :1].expand_as(call.v_descale))


class _DescaleDropped(_Descales):
    """The descale of one tensor, or of all, is dropped."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = names

    def edited(self, call: AttentionCall) -> AttentionCall:
        return replace(call, **{f"{name}_descale": None for name in self.names})  # type: ignore[arg-type]


class _DescaleOfSequenceZero(_Descales):
    def edited(self, call: AttentionCall) -> AttentionCall:
        factors = call.k_descale
        return call if factors is None else replace(call, k_descale=factors[:1].expand_as(factors))


class _DescalesSwapped(_Descales):
    def edited(self, call: AttentionCall) -> AttentionCall:
        return replace(call, k_descale=call.v_descale, v_descale=call.k_descale)


class _Biased(Simulator):
    """Every score of a head gets a constant bias, as an ALiBi bias that is off by one position."""

    def cap(self, tile: Tile, scores: Tensor) -> Tensor:
        slopes = torch.exp2(-8 * torch.arange(1, len(scores) + 1) / len(scores))
        return super().cap(tile, scores) + slopes.view(-1, 1, 1)


class _ScaleClamped(Simulator):
    """No scale is larger than 1."""

    def scale(self, call: AttentionCall) -> float:
        return min(1.0, call.scale)


class _SinkDroppedInPages(_SinkDroppedUnderWindow):
    """The sinks are dropped under a window, but only where several queries read a paged cache."""

    def add_sinks(self, call: AttentionCall, tile: Tile, out: Tensor, lse: Tensor) -> Partial:
        several = tile.plan.page_size and tile.seqlen_q > 1
        return super().add_sinks(call, tile, out, lse) if several else Simulator.add_sinks(self, call, tile, out, lse)


FAULTS: tuple[Fault, ...] = (
    Fault(
        name="scale-padded",
        kind="F",
        mirrors="ipex-llm#12619, hip-ep#621",
        does="the scale comes from head_dim padded to a multiple of 64",
        make=partial(_ScaleOf, "padded"),
    ),
    Fault(
        name="scale-ignored",
        kind="F",
        mirrors="pytorch#174049",
        does="the scale is always 1/sqrt(head_dim)",
        make=partial(_ScaleOf, "default"),
    ),
    Fault(
        name="scale-of-values",
        kind="F",
        mirrors="hip-ep#621, x-transformers#190",
        does="the scale comes from head_dim_v",
        make=partial(_ScaleOf, "values"),
    ),
    Fault(
        name="exp2-unscaled",
        kind="F",
        mirrors="x-transformers#190",
        does="exp2 without the factor log2(e)",
        make=_BaseTwoUnscaled,
    ),
    Fault(
        name="cap-ignored",
        kind="F",
        mirrors="flash-attention#1856",
        does="the softcap is ignored",
        make=_CapIgnored,
    ),
    Fault(
        name="cap-before-scale",
        kind="F",
        mirrors="flash-attention#1856",
        does="the softcap is applied to unscaled scores",
        make=_CapBeforeScale,
    ),
    Fault(
        name="cap-after-mask",
        kind="F",
        mirrors="llama.cpp#29034",
        does="the softcap is applied after masking: -inf becomes -softcap",
        make=_CapAfterMask,
    ),
    Fault(
        name="sink-drop",
        kind="F",
        mirrors="modular#6198, vllm#49815",
        does="the sink is missing",
        make=_SinkDropped,
    ),
    Fault(
        name="sink-drop-window",
        kind="A",
        mirrors="vllm#49815",
        does="the sink is missing where there is a window",
        make=_SinkDroppedUnderWindow,
    ),
    Fault(
        name="sink-per-split",
        kind="F",
        mirrors="flash-attention#2634",
        does="the sink is counted once per KV split",
        make=_SinkPerSplit,
    ),
    Fault(
        name="sink-row",
        kind="F",
        mirrors="modular#6591",
        does="the sink is indexed by row, not by head",
        make=_SinkByRow,
    ),
    Fault(
        name="sink-scaled",
        kind="F",
        mirrors="modular#6198",
        does="the sink is multiplied by the softmax scale",
        make=_SinkScaled,
    ),
    Fault(
        name="lse-no-sink",
        kind="G",
        mirrors="flash-attention#2634, vllm-project/flash-attention#34",
        does="the LSE leaves the sink out",
        make=_SinkNotInLse,
    ),
    Fault(
        name="descale-head0",
        kind="I",
        mirrors="vllm#51363, vllm#42580",
        does="the v_descale of head 0 is used for all heads",
        make=_DescaleOfHeadZero,
    ),
    Fault(
        name="descale-drop",
        kind="I",
        mirrors="vllm#51363, sglang#18882",
        does="all descales are dropped",
        make=partial(_DescaleDropped, "q", "k", "v"),
    ),
    Fault(
        name="q-descale-drop",
        kind="I",
        mirrors="sglang#18882",
        does="the q_descale is dropped",
        make=partial(_DescaleDropped, "q"),
    ),
    Fault(
        name="descale-sequence0",
        kind="I",
        mirrors="vllm#42580",
        does="the k_descale of sequence 0 is used for all sequences",
        make=_DescaleOfSequenceZero,
    ),
    Fault(
        name="descale-swap",
        kind="I",
        mirrors="vllm#51363",
        does="k_descale and v_descale are exchanged",
        make=_DescalesSwapped,
    ),
    Fault(
        name="alibi-shift",
        kind="F",
        mirrors="vllm#945",
        does="a per-head constant is added to all scores: only the LSE shifts",
        make=_Biased,
    ),
    Fault(
        name="scale-clamped",
        kind="F",
        mirrors="x-transformers#190",
        does="a scale above 1 is taken for 1",
        make=_ScaleClamped,
    ),
    Fault(
        name="sink-drop-pages",
        kind="A",
        mirrors="vllm#49815",
        does="the sink is missing where several queries read pages through a window",
        make=_SinkDroppedInPages,
    ),
)
"""Faults of parameters."""
