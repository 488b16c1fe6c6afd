"""What the counters of a GPU said of the attention kernels of one call, beside what the run measured of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelCounters:
    """One attention kernel; every figure is of one launch, the mean of those that were profiled."""

    name: str
    """as the profiler gives it"""
    launches: int
    """that were profiled"""
    read_bytes: float | None
    """from the memory of the device; None = the card has no such counter"""
    written_bytes: float | None
    tensor_share: float | None
    """share of its cycles in which the tensor cores worked: 1.0 = always"""
    duration_us: float | None
    """under the profiler, at its clocks: never quoted as a time"""


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseCounters:
    """One case."""

    case: str
    run: str
    kernels: tuple[KernelCounters, ...]
    """in the order of their first launch"""
    compulsory_bytes: int | None
    """each visible input read once, each output written once; None where the run has not timed the case"""
    latency_us: float | None
    """as the run measured it"""
    copy_bytes_per_s: float | None
    """what the card reached in the run; None = unknown"""
