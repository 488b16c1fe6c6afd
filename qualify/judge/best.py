"""The fastest kernel of each production shape, among the kernels that are proven there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from qualify.facts.best import BestKernel, TimedKernel
from qualify.facts.outcome import evidence_of
from qualify.facts.run import CellJudgement, Record
from qualify.judge.judged import Judged
from qualify.verdict.origin import origin_of

CONFIDENCE = 0.95


def best_kernels(judged: Judged) -> list[BestKernel]:
    """One entry for each production shape, in the order of the plan."""
    records: dict[str, list[Record]] = {}
    for record in judged.records:
        records.setdefault(record.case.cell, []).append(record)
    return [_best(cell, records[cell.cell]) for cell in judged.conclusion.required if cell.cell in records]


def _best(cell: CellJudgement, records: Sequence[Record]) -> BestKernel:
    timed = sorted(
        (kernel for record in records if record.case.kernel in cell.proven_by for kernel in _timed(record)),
        key=lambda kernel: (kernel.us, kernel.kernel),
    )
    case = records[0].case
    workload = case.workload
    return BestKernel(
        shape=cell.cell,
        model=case.model,
        phase=case.phase,
        dtype=case.dtype,
        mask=case.mask,
        batch=workload.batch,
        longest_q=max(workload.seqlens_q),
        longest_k=max(workload.seqlens_k),
        heads_q=workload.heads_q,
        heads_kv=workload.heads_kv,
        head_dim=workload.head_dim,
        page_size=workload.page_size,
        fastest=timed[0] if timed else None,
        others=tuple(timed[1:]),
    )


def _timed(record: Record) -> list[TimedKernel]:
    evidence = evidence_of(record.outcome)
    if evidence is None or evidence.timing is None:
        return []
    samples = evidence.timing.samples_us
    low, high = median_interval(samples)
    origin = origin_of(record.outcome)
    return [
        TimedKernel(
            kernel=record.case.kernel,
            case=record.case.id,
            us=median(samples),
            low_us=low,
            high_us=high,
            card=evidence.device_uuid,
            measured_by=origin.run if origin else "",
            cold=evidence.timing.cold,
        )
    ]


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """Two samples between which the median lies with 95 % confidence, as far as the number of samples allows.

    The number of samples below the median is binomial, whatever the distribution. Fewer than six samples are not
    enough for that confidence: then the interval is all of them.
    """
    ordered, count = sorted(samples), len(samples)
    below = 0
    chance = 0.0
    while below < count // 2:
        chance += math.comb(count, below) / 2**count
        if 2 * chance > 1 - CONFIDENCE:
            break
        below += 1
    below = max(below - 1, 0)
    return ordered[below], ordered[count - 1 - below]
