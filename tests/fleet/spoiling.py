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
    bounds = call.cu_seqlens_q.tolist()
    for start, end in pairwise(bounds):
        q, k, v = (tensor[start:end].float().transpose(0, 1) for tensor in (call.q, call.k, call.v))
        hidden = torch.ones(end - start, end - start, dtype=torch.bool, device=q.device).triu(1)
        scores = (q @ k.transpose(1, 2) * call.scale).masked_fill(hidden, float("-inf"))
        out[start:end] = (scores.softmax(-1) @ v).transpose(0, 1)
    if here and here == os.environ.get("SPOILED_CARD"):
        out[0, 0, 0] *= 1.5
    return out.to(call.out_dtype)
