"""Wrong kernels on purpose: a correct one whose call or result is edited, and one whose parts are replaced."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from builders import alter
from torch import Tensor

from qualify.run.adapters.interface import AttentionCall, Prepared
from qualify.run.adapters.tiled_torch import Sequence, TiledTorch, bounds_of, gather_paged, sequence_of
from qualify.selftest.kernel import specimen_named

EditCall = Callable[[AttentionCall], AttentionCall]
EditResult = Callable[[AttentionCall, Tensor, Tensor], Any]


class Edited:
    """A correct kernel that is given another call, or whose result is changed on the way back."""

    def __init__(self, *, call: EditCall | None = None, result: EditResult | None = None) -> None:
        self.edit_call = call or (lambda call: call)
        self.edit_result = result or (lambda call, out, lse: (out, lse))

    def prepare(self, call: AttentionCall) -> Prepared:
        prepared = TiledTorch().prepare(self.edit_call(call))
        return Prepared(launch=lambda: self.edit_result(call, *prepared.launch()), result=lambda native: native)


def changed(**fields: Any) -> Edited:
    """A kernel that takes these fields of every call for something else."""
    return Edited(call=lambda call: alter(call, **fields))


class CapAfterMask:
    """The planted fault: a softcap that comes after the mask. It gives an LSE, or none."""

    def __init__(self, *, lse: bool = True) -> None:
        self.lse = lse

    def prepare(self, call: AttentionCall) -> Prepared:
        """Ready to be launched."""
        kernel = specimen_named("cap-after-mask").make()
        return Prepared(
            launch=lambda: kernel.launch(call), result=lambda native: (native[0], native[1] if self.lse else None)
        )


class Dense:
    """A kernel that holds one sequence's scores whole; correct as it is, and each part can be replaced."""

    def __init__(self, **parts: Callable[..., Any]) -> None:
        for name, part in parts.items():
            assert hasattr(self, name), name
            setattr(self, name, part)

    def mask(self, i: Tensor, j: Tensor, seqlen_q: int, seqlen_k: int, call: AttentionCall) -> Tensor:
        """(seqlen_q, seqlen_k) bool."""
        seen: Tensor = call.mask.visible(i, j, seqlen_q, seqlen_k)
        return seen.expand(seqlen_q, seqlen_k)

    def kv_head(self, head: int, heads_q: int, heads_kv: int) -> int:
        """KV head of a query head."""
        return head // (heads_q // heads_kv)

    def keys(self, call: AttentionCall, index: int, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a sequence, (seqlen_k, heads_kv, dim)."""
        if call.block_table is None:
            return call.k[first:last], call.v[first:last]
        pages = call.block_table[index]
        return gather_paged(call.k, pages, last - first), gather_paged(call.v, pages, last - first)

    def buffer(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Where the output goes."""
        return torch.zeros(*shape, dtype=dtype)

    def prepare(self, call: AttentionCall) -> Prepared:
        return Prepared(launch=lambda: self._attend(call), result=lambda native: native)

    def _attend(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        bounds_q, bounds_k = bounds_of(call)
        out = self.buffer(*call.q.shape[:2], call.v.shape[-1], dtype=call.out_dtype)
        lse = torch.full((call.q.shape[1], call.q.shape[0]), -math.inf)
        for index in range(len(bounds_q) - 1):
            rows = slice(bounds_q[index], bounds_q[index + 1])
            k, v = self.keys(call, index, bounds_k[index], bounds_k[index + 1])
            if not len(k) or rows.start == rows.stop:
                continue
            i = torch.arange(rows.stop - rows.start).view(-1, 1)
            j = torch.arange(len(k)).view(1, -1)
            seen = self.mask(i, j, len(i), len(k), call)
            for head in range(call.q.shape[1]):
                kv = self.kv_head(head, call.q.shape[1], k.shape[1])
                sink = None if call.sinks is None else call.sinks[head]
                done = _attend_head(call, call.q[rows, head].float(), k[:, kv].float(), v[:, kv].float(), seen, sink)
                out[rows, head], lse[head, rows] = done[0].to(call.out_dtype), done[1]
        return out, lse


def _attend_head(
    call: AttentionCall, q: Tensor, k: Tensor, v: Tensor, seen: Tensor, sink: Tensor | None
) -> tuple[Tensor, Tensor]:
    """One head of one sequence: out (seqlen_q, head_dim_v) and lse (seqlen_q,)."""
    scores = q @ k.T * call.scale
    if call.softcap:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    scores = scores.masked_fill(~seen, -math.inf)
    row_max = scores.amax(-1, keepdim=True)
    base = torch.where(row_max == -math.inf, 0.0, row_max)
    p = torch.exp(scores - base)
    total = p.sum(-1, keepdim=True)
    empty = total == 0
    own = base + torch.log(total)
    whole = own if sink is None else torch.logaddexp(own, sink)
    out = p.to(call.v.dtype).float() @ v / torch.where(empty, 1.0, total) * torch.exp(own - whole)
    return torch.where(empty, 0.0, out), torch.where(empty, -math.inf, whole).squeeze(-1)


class EightBit:
    """A kernel that computes in fp8: weights times ``weight_scale`` are rounded to e4m3; correct but for its edits."""

    def __init__(self, weight_scale: float = 256.0, gain: float = 1.0) -> None:
        self.weight_scale = weight_scale
        self.gain = gain

    def prepare(self, call: AttentionCall) -> Prepared:
        return Prepared(launch=lambda: self._attend(call), result=lambda native: native)

    def _attend(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        bounds_q, bounds_k = bounds_of(call)
        out = torch.zeros(*call.q.shape[:2], call.v.shape[-1], dtype=call.out_dtype)
        lse = torch.full((call.q.shape[1], call.q.shape[0]), -math.inf)
        for index in range(len(bounds_q) - 1):
            rows = slice(bounds_q[index], bounds_q[index + 1])
            if rows.start == rows.stop or bounds_k[index] == bounds_k[index + 1]:
                continue
            done, sums = self._sequence(call, sequence_of(call, index, bounds_q, bounds_k))
            out[rows], lse[:, rows] = done.flatten(0, 1).transpose(0, 1).to(call.out_dtype), sums.flatten(0, 1)
        return out, lse

    def _sequence(self, call: AttentionCall, sequence: Sequence) -> tuple[Tensor, Tensor]:
        scores = sequence.q @ sequence.k[:, None].transpose(-1, -2) * call.scale
        if call.softcap:
            scores = call.softcap * torch.tanh(scores / call.softcap)
        i, j = torch.arange(scores.shape[-2])[:, None], torch.arange(scores.shape[-1])
        seen = call.mask.visible(i, j, len(i), len(j))
        scores = scores.masked_fill(~seen, -math.inf)
        base = scores.amax(-1, keepdim=True).clamp(min=-1e30)
        p = torch.exp(scores - base)
        total = p.sum(-1, keepdim=True)
        empty = total == 0
        own = base + torch.log(total)
        sink = None if call.sinks is None else call.sinks.view(*p.shape[:2], 1, 1)
        whole = own if sink is None else torch.logaddexp(own, sink)
        rounded = (p * self.weight_scale).to(torch.float8_e4m3fn).float() / (self.weight_scale / self.gain)
        out = torch.where(empty, 0.0, rounded @ sequence.v[:, None] / total * torch.exp(own - whole))
        if call.v_descale is not None:
            out = out * call.v_descale[sequence.index].view(-1, 1, 1, 1)
        return out, torch.where(empty, -math.inf, whole).squeeze(-1)
