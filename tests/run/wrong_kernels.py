"""Kernels with one fault each, as a third party would bring them: torch only, nothing of qualify's."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch

FIELDS = (
    "q",
    "k",
    "v",
    "cu_seqlens_q",
    "cu_seqlens_k",
    "seqused_k",
    "block_table",
    "causal",
    "scale",
    "out_dtype",
)
seen_masks = {}


def keys_of(call, sequence, extra=0):
    """Keys and values of a sequence; ``extra`` reads that many slots past its end."""
    if call.block_table is None:
        first, last = call.cu_seqlens_k[sequence : sequence + 2].tolist()
        return call.k[first:last], call.v[first:last]
    length, size = int(call.seqused_k[sequence]), call.k.shape[1]
    pages = call.block_table[sequence, : -(-length // size)].long()
    return tuple(tensor[pages].flatten(0, 1)[: length + extra] for tensor in (call.k, call.v))


def attend(call, future=0, extra=0, skip=False, base=1.0, gain=1.0, garbage=0.0):
    """Attention in float32 with an optional fault; returns out and lse."""
    total, heads = call.q.shape[:2]
    out = torch.full((total, heads, call.v.shape[-1]), garbage)
    lse = torch.full((heads, total), -math.inf)
    bounds = call.cu_seqlens_q.tolist()
    for sequence in range(len(bounds) - 1):
        rows = slice(bounds[sequence], bounds[sequence + 1])
        k, v = keys_of(call, sequence, extra)
        if rows.start == rows.stop or not len(k):
            continue
        group = heads // k.shape[1]
        q = call.q[rows].float().transpose(0, 1)
        k, v = (tensor.float().transpose(0, 1).repeat_interleave(group, 0) for tensor in (k, v))
        scores = q @ k.transpose(1, 2) * call.scale
        count_q, count_k = scores.shape[1:]
        length = count_k - extra if call.block_table is not None else count_k
        i, j = torch.arange(count_q)[:, None] + (length - count_q), torch.arange(count_k)[None]
        hidden = torch.zeros(count_q, count_k, dtype=torch.bool)
        if call.causal:
            hidden |= j > i + future + extra
        if skip:
            hidden |= j == 3
        scores = scores.masked_fill(hidden, -math.inf)
        out[rows] = (scores.softmax(-1).nan_to_num(0.0) @ v).transpose(0, 1)
        lse[:, rows] = torch.logsumexp(scores, -1)
    return (out * gain).to(call.out_dtype), lse * base


def correct(call):
    return attend(call)


def sees_the_future(call):
    return attend(call, future=1)


def reads_the_tail(call):
    return attend(call, extra=1)


def skips_a_key(call):
    return attend(call, skip=True)


def lse_to_base_2(call):
    return attend(call, base=1 / math.log(2))


def half_a_percent(call):
    return attend(call, gain=1.005)


def returns_no_lse(call):
    return attend(call)[0]


WORKSPACE = torch.zeros(1 << 16, dtype=torch.bfloat16)


def returns_its_workspace(call):
    out, lse = attend(call)
    return WORKSPACE[: out.numel()].view(out.shape).copy_(out), lse


def garbage_in_empty_rows(call):
    return attend(call, garbage=7.0)


def flickers(call):
    out, lse = attend(call)
    return out + 1e-3 * torch.randn(()), lse


def last_row_is_zero(call):
    out, lse = attend(call)
    out[-1] = 0
    return out, lse


def long_ones_are_wrong(call):
    """Wrong where some sequence has more than 20 keys, and only for heads from the second KV head on."""
    out, lse = attend(call)
    longest = max(call.cu_seqlens_k.diff().tolist()) if call.block_table is None else int(call.seqused_k.max())
    if longest > 20 and call.k.shape[-2] > 1:
        out[:, call.q.shape[1] // call.k.shape[-2] :] *= 1.1
    return out, lse


def dies_when_long(call):
    """Ends its process where some sequence has more than 10 queries."""
    if max(call.cu_seqlens_q.diff().tolist()) > 10:
        import ctypes

        ctypes.string_at(0)
    return attend(call)


def hangs_when_batched(call):
    """Never returns for two sequences or more."""
    if len(call.cu_seqlens_q) > 2:
        import ctypes

        ctypes.CDLL(None).pause()
    return attend(call)


def tiles_the_heads(call):
    """Query head h reads KV head h % heads_kv."""
    heads, kv = call.q.shape[1], call.k.shape[-2]
    order = torch.arange(heads).view(heads // kv, kv).t().flatten()
    fake = SimpleNamespace(**{name: getattr(call, name) for name in FIELDS})
    fake.q = call.q[:, order]
    out, lse = attend(fake)
    back = order.argsort()
    return out[:, back], lse[back]


def ignores_the_scale(call):
    fake = SimpleNamespace(**{name: getattr(call, name) for name in FIELDS})
    fake.scale = call.q.shape[-1] ** -0.5 * 1.1
    return attend(fake)


def depends_on_pages(call):
    out, lse = attend(call)
    return (out * (1 + 0.02 * float(call.block_table[0, 0]))).to(out.dtype), lse


def overflows(call):
    """Values beyond a limit that fp16 has."""
    fake = SimpleNamespace(**{name: getattr(call, name) for name in FIELDS})
    fake.v = call.v.clamp(-50, 50)
    return attend(fake)


def ignores_strides(call):
    """Reads keys as if they were contiguous."""
    fake = SimpleNamespace(**{name: getattr(call, name) for name in FIELDS})
    shape = call.k.shape
    fake.k = call.k.as_strided(shape, (shape[1] * shape[2], shape[2], 1))
    return attend(fake)


def keeps_the_first_mask(call):
    """The mask of the first call stays in force."""
    fake = SimpleNamespace(**{name: getattr(call, name) for name in FIELDS})
    fake.causal = seen_masks.setdefault("causal", call.causal)
    return attend(fake)
