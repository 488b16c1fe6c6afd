"""What a kernel's library launches along one axis of a call, and where that changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from qualify.facts.case import Workload

Axis = Literal["seqlen", "context", "batch", "head_dim", "group", "page_size"]
MapPhase = Literal["prefill", "decode"]
AXIS_UNITS: Mapping[Axis, str] = {
    "seqlen": "tokens of the prompt",
    "context": "keys in the cache",
    "batch": "sequences",
    "head_dim": "elements of a head",
    "group": "query heads on one KV head",
    "page_size": "keys in a page",
}
"""what one step along an axis is"""
GRID = " ×"
"""stands before each number of a grid, after the name of its kernel"""
ENDS = ("crashed:", "timed_out", "refused:", "unproven")
"""how what was launched begins where nothing was: how the call ended stands there"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """Values of an axis for which the library launches the same kernels, as far as they were traced."""

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
    """in the order of the axis, at least one"""

    @property
    def title(self) -> str:
        """The axis with its unit."""
        return f"{self.axis} ({AXIS_UNITS[self.axis]})"


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelMaps:
    """The maps of one kernel, and the call that was varied for them."""

    kernel: str
    phase: MapPhase = "prefill"
    """phase of the call that was varied"""
    call: str = ""
    """that call in words"""
    device: str
    library: str = ""
    """name and version of the distribution that carries the kernel; empty = nobody knows"""
    qualify_version: str = ""
    maps: tuple[Map, ...]


def axis_value(workload: Workload, axis: Axis) -> int:
    """The value that a call has on an axis."""
    match axis:
        case "seqlen":
            return max(workload.seqlens_q, default=0)
        case "context":
            return max(workload.seqlens_k, default=0)
        case "batch":
            return workload.batch
        case "head_dim":
            return workload.head_dim
        case "group":
            return workload.heads_q // workload.heads_kv
        case "page_size":
            return workload.page_size
