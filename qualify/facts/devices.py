"""Kinds of device, and what can be said of them without torch; what runs on them is in qualify.run.machine.device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DeviceKind = Literal["cpu", "cuda"]
"""As torch, ``--device`` and cards call them."""
Scale = Literal["small", "large"]
"""How large the calls may be that checks and measurements make: what is free on a GPU takes a CPU minutes."""

HOST: DeviceKind = "cpu"
"""The kind that every machine has: it needs no driver, has no context to lose and shares its memory with us."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """How a machine's devices of a kind are listed before anything heavy is imported."""

    maker: str
    tool: str
    """program that answers ``--query-gpu=index,uuid,name,compute_cap --format=csv,noheader``"""
    chosen_by: str
    """environment variable that says which of them a process sees"""


@dataclass(frozen=True, kw_only=True, slots=True)
class KindFacts:
    """What distinguishes a kind of device."""

    scale: Scale
    units: str
    """what the page calls its units"""
    session_cases: int
    """cases that share a profiler session"""
    listing: Listing | None = None
    """None: every machine has one"""


KINDS: dict[DeviceKind, KindFacts] = {
    "cpu": KindFacts(scale="small", units="Cores", session_cases=8),
    "cuda": KindFacts(
        scale="large",
        units="Multiprocessors",
        session_cases=16,
        listing=Listing(maker="NVIDIA", tool="nvidia-smi", chosen_by="CUDA_VISIBLE_DEVICES"),
    ),
}
"""Where ``auto`` is asked for, the first kind with a listing that the machine has is taken."""
