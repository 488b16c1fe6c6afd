"""What a kernel's library launches along one axis of a call, and where that changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Axis = Literal["seqlen", "context", "batch", "head_dim", "group", "page_size"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """Values of an axis over which the same is launched, as far as it was traced."""

    first: int
    last: int
    launched: str
    """names of the attention kernels (and their grids, where those were asked for), or how the call ended"""
    exact: bool
    """whether the value after ``last`` was traced, so that the cliff is there and nowhere else"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Map:
    """What a kernel launches along one axis."""

    axis: Axis
    traced: int
    """values that were tried"""
    segments: tuple[Segment, ...]
