"""Workloads beside a case's own: shortened, or different in exactly one thing that the card claims."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from qualify.cards.kernel import PageSizeClaim
from qualify.facts.case import Workload
from qualify.facts.dtypes import DTYPES, FORMATS
from qualify.masks import PATTERNS
from qualify.run.checks.interface import Subject

SHORT = 96
"""most keys of the longest sequence of a shortened workload, which serves checks of calls, not of sizes"""
ROUND = 64
"""keys of a window, including the query's own; a multiple of a tile, as the windows of models are"""
PAGE = 16
"""keys of a page, for a case without pages"""
FAR = (1 << 16) + 3
"""left side of a window that is longer than every shortened sequence"""


def shortened(workload: Workload) -> Workload:
    """The first four sequences of the workload, shortened in the same proportion for queries and keys."""
    pairs = list(zip(workload.seqlens_q, workload.seqlens_k, strict=True))[:4]
    longest = max(key for _, key in pairs)
    if longest <= SHORT:
        return workload.with_lengths(tuple(q for q, _ in pairs), tuple(k for _, k in pairs))
    keys = tuple(-(-key * SHORT // longest) for _, key in pairs)
    return workload.with_lengths(tuple(-(-q * SHORT // longest) for q, _ in pairs), keys)


def differing(subject: Subject) -> Iterator[tuple[str, Workload]]:
    """(what differs, workload that differs in it), limited to what the card claims; each workload once."""
    told = {subject.workload}
    for name, other in _differing(subject):
        if other not in told:
            told.add(other)
            yield name, other


def _differing(subject: Subject) -> Iterator[tuple[str, Workload]]:
    """The same with repetitions: a workload that already has sinks occurs more than once."""
    yield from _other_sizes(subject.workload)
    if subject.card.jit == "never":  # otherwise each of these would have to be compiled
        yield from _other_features(subject)
        yield from _other_dtypes(subject)
        yield from _other_pages(subject)


def _other_sizes(workload: Workload) -> Iterator[tuple[str, Workload]]:
    """Another scale, and other sequences. Compiled kernels, too, take these without a new compilation."""
    yield "scale", replace(workload, scale=workload.scale * 0.375)
    yield "length (longer)", lengthened(workload)
    yield "length (shorter)", _shorter(workload)
    yield "batch", workload.with_lengths(workload.seqlens_q * 2, workload.seqlens_k * 2)
    turned = workload.with_lengths(workload.seqlens_q[::-1], workload.seqlens_k[::-1])
    if (turned.seqlens_q, turned.seqlens_k) != (workload.seqlens_q, workload.seqlens_k):
        yield "order of sequences", turned  # totals and maxima stay the same, so a key of these is too coarse


def _other_features(subject: Subject) -> Iterator[tuple[str, Workload]]:
    """Another mask, softcap or sinks, alone and together with a window."""
    workload, claims = subject.workload, subject.card.claims
    if workload.mask.causal and "full" in claims.masks and not workload.mask.windowed and not workload.mask.pattern:
        yield "mask", workload.masked(causal=False)
    windowed = _windowed(subject)
    if windowed:
        yield "window", windowed
    yield from other_masks(subject)
    yield from _other_patterns(subject)
    if "softcap" in claims.features:
        yield "softcap", replace(workload, softcap=_other_softcap(workload))
    if "sinks" in claims.features:
        yield "sinks", replace(workload, sinks=not workload.sinks)
    if windowed:
        yield from _beside_window(subject, windowed)


def _other_dtypes(subject: Subject) -> Iterator[tuple[str, Workload]]:
    """Every other claimed dtype whose queries have no descale factor."""
    workload, claims = subject.workload, subject.card.claims
    for dtype in claims.dtypes:
        descaled = FORMATS[DTYPES[dtype].q].descaled or FORMATS[workload.q_format].descaled
        if not descaled and dtype != workload.dtype:
            descale = claims.fp8.descale if FORMATS[DTYPES[dtype].kv].descaled else ""
            yield f"dtype ({dtype})", replace(workload, dtype=dtype, descale=descale)


def _other_pages(subject: Subject) -> Iterator[tuple[str, Workload]]:
    """Larger pages, and a paged cache instead of a packed one or the other way round."""
    workload, claims = subject.workload, subject.card.claims
    sizes = claims.page_size
    if workload.page_size and (sizes is None or sizes.max is None or 2 * workload.page_size <= sizes.max):
        yield "page size", replace(workload, page_size=2 * workload.page_size)
    if {"packed", "paged"} <= set(claims.layouts):
        yield "layout", replace(workload, page_size=0 if workload.page_size else _page_size(sizes))


def lengthened(workload: Workload) -> Workload:
    """The workload with every sequence twice as long; a single query stays single."""
    queries = workload.seqlens_q if max(workload.seqlens_q) == 1 else tuple(q * 2 for q in workload.seqlens_q)
    return workload.with_lengths(queries, tuple(k * 2 for k in workload.seqlens_k))


def _shorter(workload: Workload) -> Workload:
    queries, keys = (tuple(-(-each // 2) for each in lengths) for lengths in (workload.seqlens_q, workload.seqlens_k))
    return workload.with_lengths(queries, keys)


def other_masks(subject: Subject) -> Iterator[tuple[str, Workload]]:
    """Masks that differ in one number: a kernel's key may hold only the others, or only that there is a mask."""
    workload, masks = subject.workload, subject.card.claims.masks
    left, right = workload.mask.window
    for side, window in (("left", (left // 2, right)), ("right", (left, right // 2))):
        if not workload.mask.causal and window != workload.mask.window:
            yield f"window ({side} side)", workload.masked(window=window)
    if workload.mask.causal and left > 0 and right == 0:
        yield "window (right side)", workload.masked(window=(left, -1))  # the mask is causal in both cases
    if not workload.mask.pattern and not workload.spans:
        for side, window, kind in (("left", (0, ROUND // 4), "band"), ("right", (ROUND // 4, 0), "window")):
            if kind in masks:
                yield f"window ({side} side of 0)", workload.masked(causal=False, window=window)
    if not workload.mask.causal or workload.mask.windowed:
        return
    image = _image(workload)
    if "spans" in masks and not workload.mask.pattern and image:
        at, start, end = image
        yield "image", replace(workload, spans=(image,))
        yield "image (its place)", replace(workload, spans=((at, start + 1, end + 1),))
        if "sinks" in subject.card.claims.features:
            yield "sinks and image", replace(workload, sinks=True, spans=(image,))
    if "window" in masks and not workload.mask.pattern:
        yield "window (beyond 2^16)", workload.masked(window=(FAR, 0))  # an index of 16 bits makes 3 of FAR


def _other_patterns(subject: Subject) -> Iterator[tuple[str, Workload]]:
    """Other sizes of the workload's own pattern, or of each one under a causal mask, also with sinks and an image."""
    workload, claims = subject.workload, subject.card.claims
    own, image, longest = workload.mask, _image(workload), max(workload.seqlens_k)
    for pattern, facts in PATTERNS.items():
        size = own.size if pattern == own.pattern else 0
        if pattern not in claims.masks or longest <= 2 or not (size or (own.causal and not own.windowed)):
            continue
        first, second = (replace(own, pattern=pattern, size=other) for other in facts.others(size, longest))
        if not workload.spans or first.step == 1:  # under a mask with gaps there are no images
            yield f"{pattern} mask", replace(workload, mask=first)
            yield f"{pattern} mask (its size)", replace(workload, mask=second)
            if "sinks" in claims.features:
                yield f"{pattern} mask and sinks", replace(workload, mask=first, sinks=True)
        if "spans" in claims.masks and not own.pattern and image and first.step == 1:
            yield f"{pattern} mask and image", replace(workload, mask=first, spans=(image,))


def _image(workload: Workload) -> tuple[int, int, int] | None:
    """(sequence, start, end) of an image: the first half of a sequence's queries; None where none has enough."""
    for at, (queries, keys) in enumerate(zip(workload.seqlens_q, workload.seqlens_k, strict=True)):
        if 4 <= queries <= keys:
            return at, keys - queries, keys - queries + queries // 2
    return None


def _windowed(subject: Subject) -> Workload | None:
    """The workload with a window, or with half of its own window; None where the card claims none."""
    workload = subject.workload
    if "window" not in subject.card.claims.masks or workload.mask.pattern:
        return None
    longest = max(workload.seqlens_k)
    own = ROUND - 1 if longest > ROUND else longest // 3
    left = own if workload.mask.window[0] < 0 else workload.mask.window[0] // 2
    return workload.masked(causal=True, window=(left, 0))


def _beside_window(subject: Subject, windowed: Workload) -> Iterator[tuple[str, Workload]]:
    """Workloads with a window and another feature, as in layers of real models."""
    workload, claims = subject.workload, subject.card.claims
    if "softcap" in claims.features and windowed != workload:
        yield "window and softcap", replace(windowed, softcap=_other_softcap(workload))
    if "sinks" in claims.features and windowed != workload:
        yield "window and sinks", replace(windowed, sinks=True)
    image = _image(workload)
    if "spans" in claims.masks and image:
        yield "window and image", replace(windowed, spans=(image,))


def other_parameters(subject: Subject) -> Workload:
    """The workload with another scale; with another window and softcap too, if claimed and not to be compiled."""
    workload = subject.workload
    other = replace(workload, scale=workload.scale * 0.375)
    if subject.card.jit != "never":
        return other
    windowed = _windowed(subject)
    if windowed:
        other = replace(other, mask=windowed.mask)
    softcap = "softcap" in subject.card.claims.features
    return replace(other, softcap=_other_softcap(workload)) if softcap else other


def _other_softcap(workload: Workload) -> float:
    return workload.softcap * 0.5 or 2.0


def _page_size(claimed_sizes: PageSizeClaim | None) -> int:
    """The least claimed page size that is at least PAGE, else the largest claimed one."""
    if claimed_sizes is None:
        return PAGE
    step, least = claimed_sizes.multiple_of, max(claimed_sizes.min, min(PAGE, claimed_sizes.max or PAGE))
    return -(-least // step) * step
