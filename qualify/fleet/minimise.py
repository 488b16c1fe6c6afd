"""Shrinks a failing workload while it keeps failing: delta debugging over what a workload consists of.

Each dimension is tried in turn, from the largest step to the smallest. The dimensions are sequences of the batch, keys
and queries of each sequence, heads, head groups, pages, and features that may have nothing to do with it. A candidate
that still fails in the same way becomes the workload; when no candidate does, it is as small as this search can make
it. Nothing is random, so the same failure gives the same script.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from qualify.facts.case import Workload
from qualify.masks import EVERYWHERE, PATTERNS

TRIALS = 60
"""candidates that are tried at most"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Smaller:
    """A candidate, and what was made smaller."""

    what: str
    workload: Workload


@dataclass(frozen=True, kw_only=True, slots=True)
class Shrunk:
    """The end of a search."""

    workload: Workload
    steps: tuple[str, ...]
    """what was made smaller, in order"""
    tried: int


def minimise(
    workload: Workload,
    fails: Callable[[Smaller], bool],
    claimed: Callable[[Smaller], bool] = lambda _: True,
    limit: int = TRIALS,
) -> Shrunk:
    """The smallest workload that the search finds to fail.

    Args:
        fails: whether a candidate fails as the original does; asked at most ``limit`` times.
        claimed: whether a candidate may be tried at all; costs nothing.
    """
    steps: list[str] = []
    seen = {workload}
    tried = 0
    progress = True
    while progress and tried < limit:
        progress = False
        for candidate in candidates(workload):
            if candidate.workload in seen or not claimed(candidate):
                continue
            if tried >= limit:
                break
            seen.add(candidate.workload)
            tried += 1
            if fails(candidate):
                workload, progress = candidate.workload, True
                steps.append(candidate.what)
                break
    return Shrunk(workload=workload, steps=tuple(steps), tried=tried)


def candidates(workload: Workload) -> Iterator[Smaller]:
    """Smaller workloads, the boldest first."""
    yield from _fewer_sequences(workload)
    yield from _shorter(workload)
    yield from _fewer_heads(workload)
    yield from _smaller_pages(workload)
    yield from _fewer_features(workload)


def _fewer_sequences(workload: Workload) -> Iterator[Smaller]:
    """One half or the other, then each quarter left out, then single ones."""
    batch = workload.batch
    size = batch // 2
    while size:
        for first in range(0, batch, size):
            kept = [index for index in range(batch) if not first <= index < first + size]
            if kept:
                yield _with_sequences(workload, kept)
        if batch > 16 and size < batch // 16:
            return
        size //= 2


def _with_sequences(workload: Workload, kept: list[int]) -> Smaller:
    lengths_q = tuple(workload.seqlens_q[index] for index in kept)
    lengths_k = tuple(workload.seqlens_k[index] for index in kept)
    place = {index: number for number, index in enumerate(kept)}
    spans = tuple((place[owner], start, end) for owner, start, end in workload.spans if owner in place)
    return Smaller(
        what=f"batch {workload.batch} to {len(kept)}",
        workload=replace(workload, seqlens_q=lengths_q, seqlens_k=lengths_k, spans=spans),
    )


def _shorter(workload: Workload) -> Iterator[Smaller]:
    """All lengths by a share, queries alone, keys alone, then one key or one query less."""
    for divisor in (8, 2):
        cut = partial(_divided, by=divisor)
        yield _scaled(workload, cut, cut, "lengths")
        yield _scaled(workload, cut, _kept, "queries")
        yield _scaled(workload, _kept, cut, "keys")
    for count in (16, 4, 1):
        cut = partial(_less, by=count)
        yield _scaled(workload, cut, cut, "lengths")
        yield _scaled(workload, cut, _kept, "queries")
        yield _scaled(workload, _kept, cut, "keys")


def _divided(length: int, by: int) -> int:
    return -(-length // by)


def _less(length: int, by: int) -> int:
    return max(1, length - by)


def _kept(length: int) -> int:
    return length


def _scaled(workload: Workload, queries: Callable[[int], int], keys: Callable[[int], int], what: str) -> Smaller:
    """Every non-empty sequence cut; where queries were no more than keys, they stay so."""
    pairs = []
    for q, k in zip(workload.seqlens_q, workload.seqlens_k, strict=True):
        shorter_q, shorter_k = (queries(q) if q else 0), (keys(k) if k else 0)
        pairs.append((min(shorter_q, shorter_k) if q <= k else shorter_q, shorter_k))
    lengths_q, lengths_k = tuple(q for q, _ in pairs), tuple(k for _, k in pairs)
    before = f"{max(workload.seqlens_q)}x{max(workload.seqlens_k)}"
    return Smaller(
        what=f"{what} {before} to {max(lengths_q)}x{max(lengths_k)}",
        workload=workload.with_lengths(lengths_q, lengths_k),
    )


def _fewer_heads(workload: Workload) -> Iterator[Smaller]:
    """One KV head, half of them, one query head for each, half a group."""
    group = workload.heads_q // workload.heads_kv
    for kv, per_group in (
        (1, 1),
        (1, group),
        (workload.heads_kv // 2, group),
        (workload.heads_kv, 1),
        (workload.heads_kv, group // 2),
        (workload.heads_kv - 1, group),
        (workload.heads_kv, group - 1),
    ):
        if kv >= 1 and per_group >= 1:
            what = f"heads {workload.heads_q}/{workload.heads_kv} to {kv * per_group}/{kv}"
            yield Smaller(what=what, workload=replace(workload, heads_q=kv * per_group, heads_kv=kv))


def _smaller_pages(workload: Workload) -> Iterator[Smaller]:
    """No pages, the usual small ones, half the size."""
    size = workload.page_size
    for smaller in dict.fromkeys((0, 16, size // 2)):
        if smaller < size and (smaller or size):
            what = f"pages of {size} to {f'pages of {smaller}' if smaller else 'none'}"
            yield Smaller(what=what, workload=replace(workload, page_size=smaller))


def _fewer_features(workload: Workload) -> Iterator[Smaller]:
    """Without what may have nothing to do with it."""
    if workload.sinks:
        yield Smaller(what="no sinks", workload=replace(workload, sinks=False))
    if workload.softcap:
        yield Smaller(what="no softcap", workload=replace(workload, softcap=0.0))
    if workload.mask.windowed:
        yield Smaller(what="no window", workload=workload.masked(window=EVERYWHERE))
    if workload.mask.pattern:
        yield Smaller(what=f"no {PATTERNS[workload.mask.pattern].noun}", workload=workload.masked(pattern="", size=0))
    if workload.spans:
        yield Smaller(what="no image spans", workload=replace(workload, spans=()))
    if workload.latent:
        yield Smaller(what="values of their own", workload=replace(workload, latent=False))
    if workload.mask.causal:
        yield Smaller(what="no causal mask", workload=workload.masked(causal=False))
