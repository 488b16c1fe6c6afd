"""Time of one call, simply and honestly: median of event-timed blocks after warm-up, on cold inputs.

A block is many launches over rotating copies of the inputs. Where memory allows, the copies take at least five times
the last-level cache, so no launch finds its inputs warm. On a GPU a spin kernel runs ahead of each block while the host
issues it. So the events see the device work back to back, without the host's launch overhead, which is reported apart.
All samples are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from statistics import median

from qualify.facts.case import Level, Workload
from qualify.facts.devices import HOST, DeviceKind, Scale
from qualify.facts.dtypes import FORMATS
from qualify.facts.outcome import OTHERS, TIMING, Bound, Finding, Timing, Value
from qualify.facts.stack import Ceilings
from qualify.run.host.interface import Effort, Samples

COLD_FACTOR = 5
"""the copies take at least so many times the last-level cache"""
MAX_COPIES: dict[Scale, int] = {"small": 4, "large": 24}
"""on a CPU the inputs of small cases stay warm, and the timing says so"""
IMPOSSIBLE_SHARE = 1.1
"""faster than the measured ceiling by more than this is physically impossible"""


COPIES_US = 50_000.0
"""host time that one call of each copy may cost together; a kernel of thousands of launches stays warm, and says so"""
EFFORTS: dict[tuple[Level, Scale], Effort] = {
    ("smoke", "small"): Effort(blocks=3, block_us=1_000, launches=10),
    ("full", "small"): Effort(blocks=7, block_us=10_000, launches=100),
    ("smoke", "large"): Effort(blocks=5, block_us=1_000, launches=50),
    ("full", "large"): Effort(blocks=15, block_us=5_000, launches=200),
}


ONCE = Effort(blocks=1, block_us=1, launches=1)
"""a launch like those that are timed"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What a call must do at least."""

    flops: int
    """2 · heads_q · (head_dim + head_dim_v) · visible pairs"""
    compulsory_bytes: int
    """each visible input read once, each output written once"""
    exps: int
    """heads_q · visible pairs"""


def work_of(workload: Workload) -> Work:
    """Operations and bytes that no correct kernel can avoid."""
    counted = Counter(zip(workload.seqlens_q, workload.seqlens_k, strict=True)).items()
    visible = sum(count * workload.mask.pairs(*pair) for pair, count in counted)
    visible += sum(_added_pairs(workload, *span) for span in workload.spans)
    keys = sum(count * workload.mask.seen_keys(*pair) for pair, count in counted)
    queries = sum(workload.seqlens_q)
    asked = queries * workload.heads_q * workload.head_dim
    cached = keys * workload.heads_kv * (workload.head_dim + (0 if workload.latent else workload.head_dim_v))
    written = queries * workload.heads_q * workload.head_dim_v
    moved = ((asked, workload.q_format), (cached, workload.kv_format), (written, workload.out_format))
    return Work(
        flops=2 * workload.heads_q * (workload.head_dim + workload.head_dim_v) * visible,
        compulsory_bytes=sum(elements * FORMATS[format_].bytes for elements, format_ in moved),
        exps=workload.heads_q * visible,
    )


def _added_pairs(workload: Workload, sequence: int, start: int, end: int) -> int:
    """Pairs that are visible only because their tokens belong to one image."""
    seqlen_q, seqlen_k = workload.seqlens_q[sequence], workload.seqlens_k[sequence]
    added = 0
    for query in range(max(0, start - (seqlen_k - seqlen_q)), end - (seqlen_k - seqlen_q)):
        low, high = workload.mask.key_range(query, seqlen_q, seqlen_k)
        added += (end - start) - max(0, min(high, end) - max(low, start))
    return added


def roofline(work: Work, dtype: str, ceilings: Ceilings) -> tuple[float, Bound]:
    """Least time in µs that the measured ceilings allow, and which one binds."""
    times: dict[Bound, float] = {
        "flops": work.flops / ceilings.matmul_flops_per_s[dtype] * 1e6,
        "bytes": work.compulsory_bytes / ceilings.copy_bytes_per_s * 1e6,
        "exps": work.exps / ceilings.exps_per_s * 1e6,
        "launch": ceilings.launch_us,
    }
    bound = max(times, key=lambda name: times[name])
    return times[bound], bound


def copies_needed(input_bytes: int, cache_bytes: int, budget_bytes: int, call_us: float, scale: Scale) -> int:
    """Copies of the inputs to rotate over, within a memory and a time budget; at least one.

    Args:
        call_us: what one call costs, from the host's side; every copy is prepared and warmed up.
    """
    wanted = -(-COLD_FACTOR * cache_bytes // max(1, input_bytes)) + 1
    affordable = int(COPIES_US / max(call_us, 1.0))
    return max(1, min(wanted, MAX_COPIES[scale], budget_bytes // max(1, input_bytes), affordable))


def timing_of(
    samples: Samples, *, copies: int, workload: Workload, input_bytes: int, cache_bytes: int, ceilings: Ceilings
) -> Timing:
    """What samples of a call say, beside what the device can do.

    Args:
        copies: of the inputs, over which the launches rotated.
        input_bytes: what one copy reads.
        cache_bytes: last-level cache of the device; 0 = unknown.
    """
    work = work_of(workload)
    least, bound = roofline(work, workload.q_format, ceilings)
    latency = median(samples.samples_us)
    footprint = input_bytes * copies
    return Timing(
        latency_us=latency,
        samples_us=samples.samples_us,
        launches_per_block=samples.launches_per_block,
        rotated_bytes=footprint,
        cold=bool(cache_bytes) and footprint >= COLD_FACTOR * cache_bytes,
        host_us=samples.host_us,
        flops=work.flops,
        compulsory_bytes=work.compulsory_bytes,
        exps=work.exps,
        roofline_us=least,
        bound=bound,
        ceiling_share=least / latency if latency else 0.0,
    )


def findings(
    timing: Timing, workload: Workload, ceilings: Ceilings, kind: DeviceKind, others: Collection[int] = ()
) -> list[Finding]:
    """What a timing says: faster than the card can be means that the work was skipped or its output cached.

    Asked on GPUs only: a CPU's caches and clocks have no such firm ceiling.

    Args:
        others: ids of processes that use the card beside this run's. The ceilings may then be too low, because a long
            measurement has to share the card more often than a short call.
    """
    arithmetic = timing.flops / ceilings.matmul_flops_per_s[workload.q_format] * 1e6
    memory = timing.compulsory_bytes / ceilings.copy_bytes_per_s * 1e6 if timing.cold else 0.0
    least = max(arithmetic, memory)
    if kind == HOST or timing.latency_us * IMPOSSIBLE_SHARE >= least:
        return []
    why = "the work was skipped or cached"
    if others:
        why += f", or the ceilings are too low, because {_used(others)} the card too. Run it again when it is free"
    detail = (
        f"{timing.latency_us:.2f} µs is faster than this card can be: {least:.2f} µs for {timing.flops:.3g} FLOPs and "
        f"{timing.compulsory_bytes:.3g} bytes at its measured ceilings; {why}"
    )
    values: dict[str, Value] = {"latency_us": timing.latency_us, "least_us": least}
    return [Finding(check=TIMING, verdict="inconclusive" if others else "fail", detail=detail, values=values)]


def shared(others: Collection[int]) -> Finding:
    """The note on a time that was taken while processes of these ids used the card beside this run's."""
    detail = f"{_used(others)} the card while the call was timed, so it may take less time than it took here"
    return Finding(check=TIMING, verdict="note", detail=detail, values={OTHERS: len(others)})


def _used(others: Collection[int]) -> str:
    return f"{'another process' if len(others) == 1 else 'others'} (pid {', '.join(map(str, others))}) used"
