"""A kernel that is right on every card but one: SPOILED_CARD names its UUID. It runs on CPUs and on GPUs.

HOLD_CARD names a card on which it waits as long as a file called ``hold`` lies beside this module.
"""

from __future__ import annotations

import os
import time
from itertools import pairwise
from pathlib import Path

import torch


def attend(call):
    """Packed attention, one sequence after another, in float32; one number is wrong on the spoiled card."""
    here = os.environ.get("QUALIFY_CPU_DEVICE") or os.environ.get("CUDA_VISIBLE_DEVICES")
    while here == os.environ.get("HOLD_CARD") and Path(__file__).with_name("hold").exists():
        time.sleep(0.05)
    out = torch.zeros(*call.q.shape[:2], call.v.shape[-1], device=call.q.device)
    ends = zip(pairwise(call.cu_seqlens_q.tolist()), pairwise(call.cu_seqlens_k.tolist()), strict=True)
    for (start, end), (first, last) in ends:
        q = call.q[start:end].float().transpose(0, 1)
        k, v = (tensor[first:last].float().transpose(0, 1) for tensor in (call.k, call.v))
        scores = q @ k.transpose(1, 2) * call.scale
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device).triu(
            1 + scores.shape[2] - scores.shape[1]
        )
        out[start:end] = (scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v).transpose(0, 1)
    if here and here == os.environ.get("SPOILED_CARD"):
        out[0, 0, 0] *= 1.5
    return out.to(call.out_dtype)
