"""Which stored runs the pages show for a matrix on a device model.

The base is the newest run of the whole matrix. A newer run of a part of the matrix replaces it for those kernels of
which it ran at least as many cases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from qualify.facts.overview import RunHead
from qualify.judge.summary import Details, Summary
from qualify.report.columns import Column
from qualify.report.sitepages.parts import run_address


@dataclass(frozen=True, kw_only=True, slots=True)
class Newest:
    """A completed run that pages show for a matrix on a device model, with its failures by kernel and phase."""

    head: RunHead
    summary: Summary | None
    details: Details | None
    """None = the run is being judged"""


def down_to_whole(heads: Sequence[RunHead]) -> tuple[RunHead, ...]:
    """The newest whole run and the newer runs of a part; all runs where none is whole.

    Args:
        heads: runs of one matrix on one device model, the newest first.
    """
    place = next((at for at, head in enumerate(heads) if not head.narrowed), len(heads))
    return tuple(heads[: place + 1])


def stands_on(heads: Sequence[RunHead]) -> RunHead:
    """The newest whole run; the newest run of a part where none is whole.

    Args:
        heads: runs of one matrix on one device model, the newest first; at least one.
    """
    return next((head for head in heads if not head.narrowed), heads[0])


def unfinished(heads: Sequence[RunHead]) -> tuple[RunHead, ...]:
    """The newest whole run of each matrix and device model, where that run has not completed.

    A run without a reported device is left out once a newer run of its matrix has completed on any device.

    Args:
        heads: runs, the newest first.
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
    """What pages show of a matrix on a device model: its base run, then newer runs of a part, the newest first.

    For each kernel the pages show one run: the newest that ran at least as many of its cases as the whole run. A newer
    run of fewer cases is shown too where one of them failed. Waivers and production shapes come from the base run.

    Args:
        runs: runs as :func:`down_to_whole` gives them, the newest first.
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
    """The run, limited to what it found about these kernels.

    Args:
        based: whether it is the base run, whose waivers and production shapes stay.
    """
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


def where() -> tuple[Column[Any], ...]:
    """Columns that say of which run a row is, by its ``head``."""
    return (
        Column(key="matrix", title="Matrix", cell=lambda row: row.head.matrix),
        Column(key="device", title="Device", name=True, cell=lambda row: row.head.variant),
        Column(
            key="run", title="Run", cell=lambda row: row.head.id, code=True, page=lambda row: run_address(row.head.id)
        ),
    )
