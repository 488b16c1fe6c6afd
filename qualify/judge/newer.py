"""Whether a run is still the last word: a newer one of the same matrix on the same stack may have failed since."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path

from qualify.cards.load import LoadedKernel
from qualify.errors import NOT_QUALIFIED, QualifyError
from qualify.facts.clock import is_future
from qualify.facts.run import Run
from qualify.facts.typed import PLAIN, Typed
from qualify.judge.beside import beside_baseline
from qualify.judge.judged import Judged, judge
from qualify.judge.timed import with_performance
from qualify.plan.code import CodeHere
from qualify.store.store import Store
from qualify.verdict.origin import newest, perhaps_newer

LOOKED_AT = 50
"""how many of the matrix's newest runs are searched"""


def judged_now(
    store: Store,
    run_id: str,
    kernels: Mapping[str, LoadedKernel],
    *,
    now: datetime,
    waivers: Path | None = None,
    code: CodeHere | None = None,
    typed: Typed = PLAIN,
) -> Judged:
    """The verdict on one run beside the accepted baseline and under the budgets of time, whatever its age.

    Args:
        code: as :func:`qualify.judge.judged.judge` takes it.
    """
    judged = beside_baseline(store, judge(store, run_id, kernels, now=now, waivers=waivers, code=code, typed=typed))
    return with_performance(store, judged, now=now, max_age=None)


def newer_failure(
    store: Store,
    run: Run,
    kernels: Mapping[str, LoadedKernel],
    *,
    now: datetime,
    waivers: Path | None = None,
    typed: Typed = PLAIN,
) -> list[str]:
    """The note of :func:`newer_failure_note`, where each newer run is judged for it."""

    def exit_code(other: str) -> int:
        return judged_now(store, other, kernels, now=now, waivers=waivers).conclusion.exit_code

    return newer_failure_note(store, run, exit_code, now, typed)


def newer_failure_note(
    store: Store, run: Run, exit_code: Callable[[str], int], now: datetime, typed: Typed = PLAIN
) -> list[str]:
    """A note on the newest run that is newer than this one, on the same stack, and failed or cannot be judged.

    A run that is narrowed, unfinished or interrupted is looked at, too: a case that failed there has failed.

    Args:
        exit_code: gives that of the gate on the run of an id. QualifyError = that run cannot be judged.
    """
    for other in store.runs(run.matrix, limit=LOOKED_AT):
        if not perhaps_newer(other, run) or is_future(newest(other), now):
            continue
        same = run.stack is not None and other.stack is not None and other.stack.agrees_with(run.stack)
        if same and (what := _what_failed(other, exit_code)):
            see = typed.command("gate", "--run", other.id)
            return [f"run {other.id} is newer than run {run.id}, on the same stack, and {what}. See: {see}"]
    return []


def _what_failed(run: Run, exit_code: Callable[[str], int]) -> str:
    """Why a newer run is worth a note; empty where it may be qualified, or there is no verdict on it."""
    try:
        return "not qualified" if exit_code(run.id) == NOT_QUALIFIED else ""
    except QualifyError:  # its row is damaged, or its matrix is wrong for this qualify: the older run can be judged
        return "cannot be judged"
