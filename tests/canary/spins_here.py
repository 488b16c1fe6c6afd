"""A kernel whose upgrade made it slow: beside a file ``upgraded`` it spins, but not in the older environment.

Beside a file ``dawdles`` it sleeps, in both of them.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

TOKENS = 32
"""of the canary's only case; with other lengths, which checks ask for, the upgrade costs nothing"""
ROWS = 32
DAWDLE_S = 0.3


def attend(call):
    """Right; after the upgrade it takes twenty times as long, because a busy machine alone may triple a time."""
    began = time.perf_counter()
    out = right(call)
    if Path(__file__).with_name("dawdles").exists():
        time.sleep(DAWDLE_S)
    upgraded = Path(__file__).with_name("upgraded").exists() and not Path(sys.prefix, "older").exists()
    if upgraded and len(call.q) == TOKENS:
        now = time.perf_counter()
        until = now + 19 * (now - began)
        while time.perf_counter() < until:
            pass
    return out


def right(call):
    """Packed attention, causal or full, a few rows at a time, so that its memory does not grow with the square."""
    out = torch.zeros(*call.q.shape[:2], call.v.shape[-1])
    q_bounds, k_bounds = call.cu_seqlens_q.tolist(), call.cu_seqlens_k.tolist()
    for number, first in enumerate(q_bounds[:-1]):
        keys = slice(k_bounds[number], k_bounds[number + 1])
        k, v = (tensor.float().transpose(0, 1) for tensor in (call.k[keys], call.v[keys]))
        offset = k.shape[1] - (q_bounds[number + 1] - first)
        for row in range(first, q_bounds[number + 1], ROWS):
            rows = slice(row, min(row + ROWS, q_bounds[number + 1]))
            scores = call.q[rows].float().transpose(0, 1) @ k.transpose(1, 2) * call.scale
            if call.causal:
                last = torch.arange(rows.start, rows.stop) - first + offset
                hidden = torch.arange(k.shape[1]) > last[:, None]
                scores = scores.masked_fill(hidden, float("-inf"))
            out[rows] = (scores.softmax(-1) @ v).transpose(0, 1)
    return out.to(call.out_dtype)
