"""Could the launches that a card names have done the call? A tiny attention kernel beside the real work could not.

Bounds are generous, so that no correct kernel is doubted. On a GPU: the traced time, on the multiprocessors that the
grid can fill, times the measured ceilings, times :data:`MARGIN`. On a CPU: the tensors that the operators took, which
must hold the call's queries and visible keys and values; times on a CPU depend on whatever else runs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qualify.facts.case import Workload
from qualify.facts.outcome import Launch
from qualify.facts.stack import Ceilings
from qualify.run.measure.timing import work_of

MARGIN = 8.0
"""factor by which a launch may beat the ceilings: few busy multiprocessors clock higher, and traced inputs are warm"""
LEAST_SHARE = 0.1
"""share of the call's elements that the operators must have taken; it is low because an element of a packed format
holds several values"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """What a call needs at least, and what the device can do at most."""

    flops: int
    compulsory_bytes: int
    elements: int
    """of queries, and of the keys and values that a query sees"""
    flops_per_s: float
    bytes_per_s: float
    units: int
    """streaming multiprocessors of the device"""


def need_of(workload: Workload, ceilings: Ceilings, units: int) -> Need:
    """The need of a case on a device.

    Args:
        ceilings: as measured. One that was not measured (the selftest measures none) limits nothing. float32 inputs may
            also reach the products of bf16, for kernels that compute in TF32.
        units: streaming multiprocessors.
    """
    work = work_of(workload)
    lengths = Counter(zip(workload.seqlens_q, workload.seqlens_k, strict=True)).items()
    # Where a sequence has more queries than keys, some queries may see no key and need not be read.
    rows = sum(count * min(pair) for pair, count in lengths)
    keys = sum(count * workload.mask.seen_keys(*pair) for pair, count in lengths)
    stored = workload.head_dim + (0 if workload.latent else workload.head_dim_v)
    rates = ceilings.matmul_flops_per_s
    return Need(
        flops=work.flops,
        compulsory_bytes=work.compulsory_bytes,
        elements=rows * workload.heads_q * workload.head_dim + keys * workload.heads_kv * stored,
        flops_per_s=max(rates.get(name, math.inf) for name in (workload.q_format, "bf16")),
        bytes_per_s=ceilings.copy_bytes_per_s or math.inf,
        units=units,
    )


def too_little(launches: Sequence[Launch], inputs: Mapping[str, int | None] | None, need: Need) -> str:
    """Why the launches cannot have done the call; empty where they can.

    Args:
        launches: all that the card names.
        inputs: on a CPU, elements that operators took, by name; None on a GPU.
    """
    return _too_fast(launches, need) if inputs is None else _too_few_elements(launches, inputs, need)


def _too_few_elements(launches: Sequence[Launch], inputs: Mapping[str, int | None], need: Need) -> str:
    taken = [inputs.get(name, 0) for name in dict.fromkeys(launch.name for launch in launches)]
    if None in taken:
        return ""
    total = sum(elements for elements in taken if elements)
    if total >= LEAST_SHARE * need.elements:
        return ""
    return f"{_names(launches)} took {total:,} elements, and the call's queries, keys and values are {need.elements:,}"


def _too_fast(launches: Sequence[Launch], need: Need) -> str:
    spent_us = sum(launch.duration_us for launch in launches)
    filled_us = sum(launch.duration_us * _share(launch, need.units) for launch in launches)
    flops = MARGIN * filled_us * 1e-6 * need.flops_per_s
    moved = MARGIN * spent_us * 1e-6 * need.bytes_per_s
    if need.flops > flops:
        where = f"{spent_us:.1f} µs on {filled_us / spent_us:.1%} of {need.units} multiprocessors"
        limit = f"{MARGIN:g} times the measured ceiling allow {flops:.2g} FLOPs, the call needs {need.flops:.2g}"
        return f"{_names(launches)} cannot have done the call: {where}, {limit}"
    if need.compulsory_bytes > moved:
        limit = (
            f"{MARGIN:g} times the measured ceiling allow {moved:.2g} bytes, the call needs {need.compulsory_bytes:.2g}"
        )
        return f"{_names(launches)} cannot have done the call: {spent_us:.1f} µs, {limit}"
    return ""


def _share(launch: Launch, units: int) -> float:
    """Share of the multiprocessors that can work at once: a block runs on one of them. Unknown grids fill all."""
    return min(1.0, math.prod(launch.grid) / max(1, units)) if launch.grid else 1.0


def _names(launches: Sequence[Launch]) -> str:
    return ", ".join(dict.fromkeys(launch.name for launch in launches))
