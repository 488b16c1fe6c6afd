"""The comparison of a verdict with an earlier run: the accepted baseline, or any other."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from qualify.cards.load import LoadedKernel
from qualify.errors import NoVerdict, UsageError
from qualify.facts.baseline import Baseline
from qualify.facts.checks import CHECK_VERSION
from qualify.facts.comparison import Comparison
from qualify.facts.run import Run
from qualify.facts.typed import Typed
from qualify.judge.beside import baseline_of, contradicting, demand_of, since_run, stars_of
from qualify.judge.judged import Against, Judged, judge
from qualify.judge.notes import contradiction_note
from qualify.judge.signing import Person
from qualify.seal.keys import PublicKey
from qualify.store.store import Store
from qualify.verdict.compare import Side, compare, why_untimed
from qualify.verdict.gate import forbid_drift, without_verdict
from qualify.verdict.slower import in_both, slower_among
from qualify.verdict.weaker import asked_less

BASELINE = "baseline"
"""stands for the accepted run of a matrix on a device model; a name may follow behind a colon"""
NAME = re.compile(r"[^\s:][^\s]{0,199}")
"""what a baseline may be called: the name of any branch fits"""


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
    """The verdict, compared with ``baseline``, ``baseline:NAME`` or a run, under the changes that the matrix forbids.

    Args:
        keys: one of these must have sealed the other run, too; empty = it needs no seal.

    Raises:
        NoVerdict: nobody accepted a baseline for the matrix on that device model.
        UsageError: ``against`` names the judged run itself. A baseline may be that run: then nothing changed since.
    """
    word, _, name = against.partition(":")
    if name or against.endswith(":"):
        check_name(name, f"--against {against}")
    baseline = current_baseline(store, judged, name) if word == BASELINE else None
    run_id = baseline.run_id if baseline else store.resolve(against)
    if baseline is None and judged.run.id == run_id:
        why = f"was to be compared with {against!r}, which is the same run"
        raise the_same_run(store, judged.run, why, judged.typed)
    policy = judged.matrix.policy.waivers
    other = judge(
        store, run_id, kernels, now=now, waivers=waivers, waiver_policy=policy, keys=keys, like=judged.records
    )
    comparison = _comparison(store, judged, other, baseline)
    unnamed = baseline is not None and baseline.name != name
    told = [f"nobody accepted a baseline for {name}: this is the one without a name"] if unnamed else []
    conclusion, forbidden = forbid_drift(judged.conclusion, comparison, judged.matrix.policy.drift)
    if doubts := _doubts(other):
        conclusion = without_verdict(conclusion)
    comparison = replace(comparison, caveats=(*comparison.caveats, *told, *doubts))
    seen = Against(
        comparison=comparison,
        baseline=baseline,
        forbidden=forbidden,
        records=other.records,
        doubt=other.unsealed or contradicting(other.contradiction),
    )
    slower = slower_among(comparison.times, run=run_id, accepted_by=baseline.who if baseline else "")
    untimed = why_untimed(comparison.before, comparison.after, in_both(other.records, judged.records))
    return replace(
        judged,
        conclusion=conclusion,
        against=seen,
        since=since_run(judged, other.run, baseline),
        slower=slower,
        untimed=untimed.what if untimed else "",
    )


def _comparison(store: Store, judged: Judged, other: Judged, baseline: Baseline | None) -> Comparison:
    """What changed since the other run; where both are of one matrix, also which requirements became weaker.

    Args:
        baseline: the acceptance of the other run, which says what was waived then; None where a run was named.
    """
    comparison = compare(side_of(other), side_of(judged))
    if other.run.matrix != judged.run.matrix:
        return comparison
    then = demand_of(store, other)
    then = replace(then, stars=baseline.waivers) if baseline else then
    return replace(comparison, weaker=asked_less(then, demand_of(store, judged)))


def _doubts(other: Judged) -> list[str]:
    """Why a comparison with the run gives no verdict."""
    found = []
    if other.future:
        dated = f"dated in the future ({other.future:%Y-%m-%d %H:%M} UTC)"
        found.append(f"run {other.run.id} is {dated}: it is not believed")
    unsealed = [other.notes[0]] if other.unsealed else []
    return [*found, *unsealed, *contradiction_note(other.run, other.contradiction)]


def the_same_run(store: Store, run: Run, why: str, typed: Typed) -> UsageError:
    """The error of comparing a run with itself: the comparison would never show a change."""
    others = (it.id for it in store.runs(run.matrix) if it.started_at < run.started_at)
    before = next(others, "")
    hint = f"Try: {typed.command('diff', before, run.id)}" if before else f"No earlier run of {run.matrix} is stored."
    return UsageError(f"run {run.id} {why}: nothing can differ. {hint}")


def side_of(judged: Judged) -> Side:
    """A judged run, as comparisons take it."""
    return Side(run=judged.run, records=judged.records, judgements=judged.conclusion.judgements)


def check_name(name: str, option: str) -> None:
    """Raises UsageError where a baseline cannot have that name; ``option`` is what the user typed."""
    if not NAME.fullmatch(name):
        raise UsageError(f"{option}: give a name of at most 200 characters without spaces, for example a branch's")


def current_baseline(store: Store, judged: Judged, name: str = "") -> Baseline:
    """The baseline of that name for the matrix on the evidence's device model, else the baseline without a name."""
    run = judged.run
    if run.stack is None:
        raise NoVerdict(f"run {run.id} has no stack, so no baseline can be chosen for it: its first worker never began")
    variant, found = run.stack.device.variant, baseline_of(store, run, name)
    if found is None:
        named, one = f" named {name}" if name else "", judged.typed.accept("RUN", "first baseline", name)
        todo = f"Run {run.id} does not qualify: accept one that does: {one}"
        if judged.conclusion.verdict == "PASS":
            todo = f"Run {run.id} and this evidence differ in their cases: accept a run that qualifies: {one}"
            if _is_the_run(store, judged):
                todo = f"Run {run.id} can become the first: {judged.typed.accept(run.id, 'first baseline', name)}"
        raise NoVerdict(f"no baseline{named} of {run.matrix} on {variant}. {todo}")
    if why := store.retention.gone(found.run_id):
        raise NoVerdict(
            f"the baseline of {run.matrix} on {variant} that {found.who} accepted on "
            f"{found.accepted_at:%Y-%m-%d} has no evidence any more: {why}"
        )
    return found


def _is_the_run(store: Store, judged: Judged) -> bool:
    """Whether the evidence is the run itself: all of its cases, and no case of another run."""
    named = {record.case.id for record in judged.records}
    alone = all(judged.source(name) == judged.run.id for name in named)
    return alone and named == {record.case.id for record in store.records(judged.run.id, "times")}


def accepted(
    store: Store, judged: Judged, *, by: Person, reason: str, now: datetime, name: str = ""
) -> Baseline | None:
    """Make a run the baseline of its matrix and device model; None where its evidence does not allow it.

    Raises:
        UsageError: the run is the baseline already, or the reason is empty.
    """
    run = judged.run
    if not reason.strip():
        raise UsageError("--reason: say why you accept the run; that stays with it for ever")
    if why_not(judged) or run.stack is None:
        return None
    variant = run.stack.device.variant
    current = store.baseline(run.matrix, variant, name)
    if current and current.run_id == run.id:
        whose = f" for {name}" if name else ""
        raise UsageError(
            f"run {run.id} is the baseline of {run.matrix} on {variant}{whose} since {current.accepted_at:%Y-%m-%d}"
        )
    baseline = Baseline(
        matrix=run.matrix,
        variant=variant,
        run_id=run.id,
        accepted_by=by.name,
        reason=reason.strip(),
        accepted_at=now,
        waivers=stars_of(judged.conclusion),
        name=name,
        how=by.how,
    )
    subject = f"run {run.id} as the baseline of {run.matrix} on {variant}{f' for {name}' if name else ''}"
    store.accept(baseline, by.entry("accept", subject, baseline.reason))
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
    if judged.conclusion.verdict != "FAIL" and judged.outdated:
        return judged.outdated
    return {
        "FAIL": "a case or a production shape fails, and no waiver accepts it",
        "INCONCLUSIVE": "not everything was decided",
    }.get(judged.conclusion.verdict, "")
