"""What a matrix stands on: its newest whole run. A newer run of a part stands for kernels that it ran as far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from qualify.facts.overview import RunHead
from qualify.judge.summary import Details, Summary


@dataclass(frozen=True, kw_only=True, slots=True)
class Newest:
    """A completed run that a matrix stands on, on a device model, and what went wrong where in it."""

    head: RunHead
    summary: Summary | None
    details: Details | None
    """None = it is being judged"""


def down_to_whole(heads: Sequence[RunHead]) -> tuple[RunHead, ...]:
    """Among runs, newest first: the newest whole run and the newer runs of a part; all where none is whole."""
    place = next((at for at, head in enumerate(heads) if not head.narrowed), len(heads))
    return tuple(heads[: place + 1])


def stands_on(heads: Sequence[RunHead]) -> RunHead:
    """Of runs, newest first, the newest whole one; the newest of a part where none is whole."""
    return next((head for head in heads if not head.narrowed), heads[0])


def unfinished(heads: Sequence[RunHead]) -> tuple[RunHead, ...]:
    """Of runs, newest first, the newest whole one of each matrix and device model where it has not ended.

    One whose device nobody reported counts until a newer run of its matrix has ended on any device.
    """
    found, told = [], set()
    for head in heads:
        pair = head.matrix, head.variant
        if head.narrowed or pair in told:
            continue
        told |= {pair, (head.matrix, "")} if head.state == "completed" else {pair}
        found += [head] if head.state != "completed" else []
    return tuple(found)


def by_kernel(runs: Sequence[Newest]) -> list[Newest]:
    """What pages show of a matrix on a device model: the run that it stands on, then runs of a part, newest first.

    Of each kernel they tell what the newest run found that ran as many of its cases as the whole run. A newer run of
    fewer cases tells of it too where one of them failed. Waivers and production shapes are those of the first run.

    Args:
        runs: newest first, as :func:`down_to_whole` gives them.
    """
    base = stands_on([it.head for it in runs])
    whole = next(it.details for it in runs if it.head is base) if not base.narrowed else None
    least = whole.cases if whole else {}
    decided: set[str] = set()
    found = []
    for run in runs:
        cases = run.details.cases if run.details else {}
        full = {kernel for kernel in cases if kernel not in decided and cases[kernel] >= least.get(kernel, 0)}
        failed = {it.kernel for it in run.details.troubles if it.verdict == "FAIL"} if run.details else set()
        told = full | failed - decided
        decided |= full
        if run.head is base or told or run.details is None:
            found.append(_only(run, told, based=run.head is base))
    return sorted(found, key=lambda it: it.head is not base)


def _only(run: Newest, kernels: set[str], *, based: bool) -> Newest:
    """The run with what it tells of these kernels."""
    if run.details is None:
        return run
    details = run.details if based else replace(run.details, waivers=(), shapes={})
    return replace(
        run,
        details=replace(
            details,
            shares=tuple(it for it in details.shares if it.kernel in kernels),
            troubles=tuple(it for it in details.troubles if it.kernel in kernels),
        ),
    )
