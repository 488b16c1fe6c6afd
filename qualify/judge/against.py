"""The comparison of a verdict with an earlier run: the accepted baseline, or any other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from qualify.cards.load import LoadedKernel
from qualify.errors import NoVerdict, UsageError
from qualify.facts.baseline import Baseline
from qualify.facts.checks import CHECK_VERSION
from qualify.facts.run import Run
from qualify.facts.typed import Typed
from qualify.judge.judged import Against, Judged, judge
from qualify.seal.keys import PublicKey
from qualify.store.store import Store
from qualify.verdict.compare import Side, compare
from qualify.verdict.gate import forbid_drift, without_verdict
from qualify.verdict.slower import slower_among

BASELINE = "baseline"
"""the word that stands for the accepted run of a matrix on a device model"""


def compare_with(
    store: Store,
    judged: Judged,
    against: str,
    kernels: Mapping[str, LoadedKernel],
    *,
    now: datetime,
    waivers: Path | None = None,
    keys: Sequence[PublicKey] = (),
) -> Judged:
    """The verdict, compared with ``baseline`` or another run, and what the matrix forbids to change.

    Args:
        keys: one of these must have sealed the other run, too; empty = it needs no seal.

    Raises:
        NoVerdict: nobody accepted a baseline for the matrix on that device model.
        UsageError: the other run is this one. The baseline may be: then nothing changed since it was accepted.
    """
    baseline = current_baseline(store, judged) if against == BASELINE else None
    run_id = baseline.run_id if baseline else store.resolve(against)
    if baseline is None and judged.runs == (run_id,):
        why = f"was to be compared with {against!r}, which is the same run"
        raise the_same_run(store, judged.run, why, judged.typed)
    other = judge(store, run_id, kernels, now=now, waivers=waivers, keys=keys)
    comparison = compare(side_of(other), side_of(judged))
    conclusion, forbidden = forbid_drift(judged.conclusion, comparison, judged.matrix.policy.drift)
    if other.future:
        told = f"run {run_id} is dated in the future ({other.future:%Y-%m-%d %H:%M} UTC): it is not believed"
        comparison = replace(comparison, caveats=(*comparison.caveats, told))
        conclusion = without_verdict(conclusion)
    if other.unsealed:
        comparison = replace(comparison, caveats=(*comparison.caveats, other.notes[0]))
        conclusion = without_verdict(conclusion)
    seen = Against(comparison=comparison, baseline=baseline, forbidden=forbidden)
    slower = slower_among(comparison.times, run=run_id, accepted_by=baseline.accepted_by if baseline else "")
    return replace(judged, conclusion=conclusion, against=seen, slower=slower)


def the_same_run(store: Store, run: Run, why: str, typed: Typed) -> UsageError:
    """A comparison of a run with itself, which would say that nothing changed, whatever did."""
    others = (it.id for it in store.runs(run.matrix) if it.started_at < run.started_at)
    before = next(others, "")
    hint = f"Try: {typed.command('diff', before, run.id)}" if before else f"No earlier run of {run.matrix} is stored."
    return UsageError(f"run {run.id} {why}: nothing can differ. {hint}")


def side_of(judged: Judged) -> Side:
    """A judged run, as comparisons take it."""
    return Side(run=judged.run, records=judged.records, judgements=judged.conclusion.judgements)


def current_baseline(store: Store, judged: Judged) -> Baseline:
    """The accepted run of the matrix on the device model that the evidence is from."""
    run = judged.run
    if run.stack is None:
        raise NoVerdict(f"run {run.id} has no stack, so no baseline can be chosen for it: its first worker never began")
    found = store.baseline(run.matrix, run.stack.device.variant)
    if found is None:
        raise NoVerdict(
            f"no baseline of {run.matrix} on {run.stack.device.variant}. Accept a run that qualified: "
            "qualify baseline accept RUN --by NAME --reason TEXT"
        )
    return found


def accepted(store: Store, judged: Judged, *, by: str, reason: str, now: datetime) -> Baseline | None:
    """Make a run the baseline of its matrix and device model; None where its evidence does not allow it.

    Raises:
        UsageError: the run is the baseline already, or name or reason are empty.
    """
    run = judged.run
    if not by.strip() or not reason.strip():
        raise UsageError("--by and --reason: say who accepts the run, and why; both stay with it for ever")
    if why_not(judged) or run.stack is None:
        return None
    variant = run.stack.device.variant
    current = store.baseline(run.matrix, variant)
    if current and current.run_id == run.id:
        raise UsageError(
            f"run {run.id} is the baseline of {run.matrix} on {variant} since {current.accepted_at:%Y-%m-%d}"
        )
    baseline = Baseline(
        matrix=run.matrix,
        variant=variant,
        run_id=run.id,
        accepted_by=by.strip(),
        reason=reason.strip(),
        accepted_at=now,
    )
    store.accept(baseline)
    return baseline


def why_not(judged: Judged) -> str:
    """Why a run cannot become a baseline; empty where it can."""
    run = judged.run
    if judged.future:
        return f"it is dated in the future ({judged.future:%Y-%m-%d %H:%M} UTC): a clock is wrong"
    if run.state != "completed":
        return f"the run is {'not finished' if run.state == 'running' else run.state}"
    if run.narrowed:
        return "the run was narrowed by --select or --kernel, and a baseline stands for the whole matrix"
    if run.check_version != CHECK_VERSION:
        return f"it was made with check version {run.check_version}, this qualify has {CHECK_VERSION}"
    if judged.conclusion.expired:
        return f"a waiver has expired: {judged.conclusion.expired[0].waiver.place}"
    return {
        "FAIL": "a case or a production shape fails, and no waiver accepts it",
        "INCONCLUSIVE": "not everything was decided",
    }.get(judged.conclusion.verdict, "")
