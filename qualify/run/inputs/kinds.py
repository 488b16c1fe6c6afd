"""The distributions of inputs. Each of them shows a fault that the others do not show.

::

    normal     N(0, 1) everywhere
    peaked     q times 4: a few keys take nearly all the weight
    peaked8    q times 8: one key takes it; scores of tens, so their own rounding shows
    negative   every logit near -120: a maximum that starts at 0 leaves exp(-120), and 0 / 0
    positive   logits near +400, of every second query of each head: exp overflows where no maximum is taken off, and
               exp(-400) is 0 where neighbours share one
    outliers   N(0, 1) + N(0, 100) · Bernoulli(0.001), the distribution of the FlashAttention-3 paper
    offset     v = |N(0, 1)| + 0.5: nothing cancels, so a short or truncating accumulator shows as a gain
    same_sign  v = -|N(0, 1)|, q divided by 4: many weights are nearly 1, where a biased rounding adds up
    sink       the first key takes most of the weight and has a small value: the others' weights come near underflow
    rising     logits rise by 4 with each tile of 64 keys (fall in every second KV head): each tile brings a new maximum

``negative``, ``positive``, ``sink`` and ``rising`` shape the logits through the last element of q and k, so a part of
q·k is known. Under a softcap the logits are no larger than the softcap, where its curve is not flat yet.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from qualify.facts.case import Workload
from qualify.run.inputs.kept import lengths_on, owners_and_positions

InputKind = Literal[
    "normal", "peaked", "peaked8", "negative", "positive", "outliers", "offset", "same_sign", "sink", "rising"
]

LEVELS = {"negative": -120.0, "positive": 400.0}
"""logit of every key, apart from noise"""
SINK_LOGIT = 8.0
"""by how much the sink key's logit is above all others"""
SINK_VALUE = 1 / 16
"""factor on the values of the sink key"""
TILE = 64
STEP = 4.0
"""rise of the logits from one tile to the next"""
DEEPEST = 100.0
"""most that the first logit of a rise is below the last one"""


def draw(shape: tuple[int, ...], kind: InputKind, role: str, generator: torch.Generator) -> Tensor:
    """Float32 values of an input kind for ``q``, ``k`` or ``v``, before :func:`shape_logits`."""
    values = torch.randn(shape, generator=generator, device=generator.device)
    if role == "q" and kind in {"peaked", "peaked8", "same_sign"}:
        return values * {"peaked": 4.0, "peaked8": 8.0, "same_sign": 0.25}[kind]
    if kind == "outliers":
        spikes = torch.rand(shape, generator=generator, device=generator.device) < 0.001
        return values + 10 * torch.randn(shape, generator=generator, device=generator.device) * spikes
    if role == "v" and kind == "offset":
        return values.abs() + 0.5
    if role == "v" and kind == "same_sign":
        return -values.abs()
    return values


def shape_logits(q: Tensor, k: Tensor, v: Tensor, slots: Tensor, kind: InputKind, workload: Workload) -> None:
    """Change q, k and v in place so that the logits have the shape of the kind.

    Args:
        q: (rows, heads_q, head_dim) float32.
        k: (key rows, heads_kv, head_dim) float32.
        v: (key rows, heads_kv, head_dim_v) float32.
        slots: (total_k,) row of ``k`` that holds each key, in packed order.
    """
    if kind in LEVELS:
        level = _below(LEVELS[kind], workload.softcap)
        _set_logits(q, k, torch.tensor(level, device=q.device), workload.scale)
        if kind == "positive":
            q[..., -1] *= _every_second(q)
    elif kind == "sink" and len(slots):
        first = key_positions(workload, q.device) % _period(workload) == 0
        logit = torch.where(first, _below(SINK_LOGIT, workload.softcap), 0.0)
        _set_logits(q, k, logit[:, None], workload.scale, slots)
        v[slots[first]] *= SINK_VALUE
    elif kind == "rising" and len(slots):
        _set_logits(q, k, _rise(workload, q.device), workload.scale, slots)


def sink_level(kind: InputKind, workload: Workload) -> float:
    """Added to the learned sinks, so that they are near the keys' logits (in ``positive``, those of quiet queries)."""
    return _below(LEVELS[kind], workload.softcap) if kind == "negative" else 0.0


def _below(level: float, softcap: float) -> float:
    """The logit, limited to the softcap in both directions."""
    return max(-softcap, min(softcap, level)) if softcap else level


def _set_logits(q: Tensor, k: Tensor, logits: Tensor, scale: float, slots: Tensor | None = None) -> None:
    """Set the last elements of q and k so that they add ``logits`` (keys, heads_kv) to the scores of every query."""
    largest = float((logits / scale).abs().max())
    size = max(largest, 1.0) ** 0.5
    q[..., -1] = size
    if slots is None:
        k[..., -1] = logits / scale / size
    else:
        k[slots, :, -1] = (logits / scale / size).expand(-1, k.shape[1])


def _every_second(q: Tensor) -> Tensor:
    """(rows, heads_q) 1 or 0, from the parity of the binary digits of row and head number.

    So neighbours that a kernel may group together (n and n + 2^i) have different values.
    """

    def digits(size: int) -> Tensor:
        number = torch.arange(size, device=q.device)
        return torch.stack([number >> place & 1 for place in range(max(1, size.bit_length()))]).sum(0)

    rows, heads = (digits(size) for size in q.shape[:2])
    return (rows[:, None] + heads + 1) % 2


def key_positions(workload: Workload, device: torch.device) -> Tensor:
    """(total_k,) position of each packed key within its sequence."""
    return owners_and_positions(workload.seqlens_k, device)[1]


def _period(workload: Workload) -> int:
    """Distance in keys from one sink to the next, such that every query sees a sink, also under a window."""
    left, step = workload.mask.window[0], workload.mask.step
    most = max(1, (left + 1 if left >= 0 else max(workload.seqlens_k)) // step)
    # If period and step have no common factor, the keys of a query meet every residue, so one of them is a sink.
    return next(period for period in range(most, 0, -1) if math.gcd(period, step) == 1)


def _rise(workload: Workload, device: torch.device) -> Tensor:
    """(total_k, heads_kv) logits in steps: rising to 0 at the last key; in odd KV heads, falling from 0 at the first.

    They are limited to DEEPEST below 0.
    """
    position = key_positions(workload, device)
    lengths = lengths_on(workload.seqlens_k, device)
    last = lengths.repeat_interleave(lengths, output_size=len(position)) - 1
    up = position // TILE - last // TILE
    falls = torch.arange(workload.heads_kv, device=device) % 2 == 1
    tiles = torch.where(falls, -(position // TILE)[:, None], up[:, None])
    deepest = _below(DEEPEST, workload.softcap)
    return (STEP * tiles.float()).clamp(min=-deepest)
