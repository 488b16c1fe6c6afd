"""Cases and their workloads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import groupby
from typing import Any

from qualify.facts.case import Case, Workload
from qualify.masks import PATTERNS, Mask
from qualify.store.failures import DamagedError, UnknownWordError
from qualify.store.mapping.row import Row, fields
from qualify.store.types import decoded

MOST_SEQUENCES = 1 << 22
"""sequences of one case; no plan has more"""
_CASE = tuple(name for name in Case.__dataclass_fields__ if name not in ("id", "unclaimed", "workload"))
_WORKLOAD = (
    "heads_q",
    "heads_kv",
    "head_dim",
    "head_dim_v",
    "softcap",
    "sinks",
    "scale",
    "page_size",
    "descale",
    "latent",
)
_CASE_FIELDS = ("id", *_CASE)
CASE_COLUMNS = ("key", "case_id", *_CASE, "unclaimed")
"""columns of ``cases`` that are not of the workload"""
WORKLOAD_COLUMNS = (
    *_WORKLOAD,
    *("workload_dtype", "causal", "window_left", "window_right", "pattern", "pattern_size"),
    *("seqlens_q", "seqlens_k", "spans"),
)
"""columns of ``cases`` that tell one workload from another"""


def lengths_to_text(lengths: Iterable[int]) -> str:
    """Sequence lengths, run-length encoded: ``(8192, 8192, 17)`` becomes ``8192x2,17``."""
    counted = ((length, sum(1 for _ in same)) for length, same in groupby(lengths))
    return ",".join(f"{length}x{count}" if count > 1 else f"{length}" for length, count in counted)


def lengths_from_text(text: str) -> tuple[int, ...]:
    """The sequence lengths that :func:`lengths_to_text` wrote."""
    pairs = [(int(length), int(count or 1)) for length, _, count in (part.partition("x") for part in _parts_of(text))]
    if sum(count for _, count in pairs) > MOST_SEQUENCES or any(length < 0 or count < 1 for length, count in pairs):
        raise DamagedError(f"the lengths of a batch are {text!r:.60}")
    return tuple(length for length, count in pairs for _ in range(count))


def _parts_of(text: str) -> Iterable[str]:
    return filter(None, text.split(","))


@lru_cache(maxsize=256)
def _spans(text: str) -> tuple[tuple[int, int, int], ...]:
    """The spans of a case, three whole numbers each, from the stored text; most cases have none."""
    value = decoded(text)
    if type(value) is not list or not all(type(span) is list and [int] * 3 == [*map(type, span)] for span in value):
        raise DamagedError(f"the spans of a case are {value!r:.60}")
    return tuple((sequence, start, end) for sequence, start, end in value)


def case_row(case: Case, run_id: str, position: int) -> Row:
    """The row of ``cases``."""
    workload = case.workload
    return {
        "run_id": run_id,
        "position": position,
        "case_id": case.id,
        **fields(case, _CASE),
        "unclaimed": list(case.unclaimed),
        **fields(workload, _WORKLOAD),
        "workload_dtype": workload.dtype,
        **_mask_fields(workload.mask),
        "seqlens_q": lengths_to_text(workload.seqlens_q),
        "seqlens_k": lengths_to_text(workload.seqlens_k),
        "spans": [list(span) for span in workload.spans],
    }


def case_from(values: tuple[Any, ...], workload: Workload) -> Case:
    """The case, from the values of CASE_COLUMNS and its workload."""
    _, *plain, unclaimed = values
    return Case(**dict(zip(_CASE_FIELDS, plain, strict=True)), unclaimed=tuple(unclaimed), workload=workload)


def workload_from(
    values: tuple[Any, ...], case_id: str, lengths: Callable[[str], tuple[int, ...]] = lengths_from_text
) -> Workload:
    """The workload of a case, from the values of WORKLOAD_COLUMNS; the spans are still text.

    Args:
        lengths: the function that reads sequence lengths; a caller that reads many cases gives one that remembers.
    """
    dtype, causal, left, right, pattern, size, seqlens_q, seqlens_k, spans = values[len(_WORKLOAD) :]
    if pattern and pattern not in PATTERNS:
        raise UnknownWordError(f"{case_id}: pattern={pattern!r} is none of {', '.join(PATTERNS)}")
    return Workload(
        **dict(zip(_WORKLOAD, values, strict=False)),
        dtype=dtype,
        mask=_mask(causal, (left, right), pattern, size),
        seqlens_q=lengths(seqlens_q),
        seqlens_k=lengths(seqlens_k),
        spans=_spans(spans),
    )


def _mask_fields(mask: Mask) -> Row:
    left, right = mask.window
    return {
        "causal": mask.causal,
        "window_left": left,
        "window_right": right,
        "pattern": mask.pattern,
        "pattern_size": mask.size,
    }


@lru_cache(maxsize=256)
def _mask(causal: bool, window: tuple[int, int], pattern: Any, size: int) -> Mask:
    """A mask; equal ones are one object."""
    return Mask(causal=causal, window=window, pattern=pattern, size=size)
