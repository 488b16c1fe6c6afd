"""What the counters of a GPU said of the attention kernels of one call, beside what the run measured of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelCounters:
    """One attention kernel. Every figure is for one launch: the mean over the launches that were profiled."""

    name: str
    """as the profiler gives it"""
    launches: int
    """how many launches were profiled"""
    read_bytes: float | None
    """bytes read from the memory of the device; None = the card has no such counter"""
    written_bytes: float | None
    tensor_share: float | None
    """share of its cycles in which the tensor cores worked: 1.0 = always"""
    duration_us: float | None
    """time under the profiler, at the clocks that it sets: never quoted as a time"""


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseCounters:
    """One case."""

    case: str
    run: str
    kernels: tuple[KernelCounters, ...]
    """in the order of their first launch"""
    compulsory_bytes: int | None
    """bytes of each visible input read once and each output written once; None where the run has not timed the case"""
    latency_us: float | None
    """time of the case, as the run measured it"""
    copy_bytes_per_s: float | None
    """rate of copies that the card reached in the run; None = unknown"""
