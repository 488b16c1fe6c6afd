"""A verdict beside the accepted baseline: which cases became slower, and which requirements became weaker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from qualify.cards.terms import unnoted
from qualify.facts.baseline import Baseline
from qualify.facts.case import Level
from qualify.facts.comparison import Since
from qualify.facts.run import Conclusion, Record, Run
from qualify.facts.typed import Typed
from qualify.facts.waiver import IN_FORCE, bare_stars
from qualify.facts.weaker import Weaker
from qualify.judge.evidence import EDITED
from qualify.judge.judged import Judged, edited_words
from qualify.judge.notes import first_of
from qualify.judge.seals import Seals
from qualify.judge.stored import UNREAD, stored_matrix, unread
from qualify.seal.keys import PublicKey
from qualify.store.store import Store
from qualify.verdict.compare import changed_since, why_untimed
from qualify.verdict.consistency import contradictory_times
from qualify.verdict.gate import forbid_slower, forbid_weaker, without_verdict
from qualify.verdict.slower import NOISE, in_both, slowdown
from qualify.verdict.weaker import Demand, asked_less

LIMITS = (
    "policy.drift.times is fail, so slower cases fail the gate. That does not prove a slower kernel: two runs of one "
    f"stack differ by {NOISE:.1%} without any change, and by more on a busy or hot machine"
)
"""the note on a verdict that fails because of slower cases"""


def beside_baseline(store: Store, judged: Judged, name: str = "", keys: Sequence[PublicKey] = ()) -> Judged:
    """The verdict after a comparison with the accepted baseline: slower cases and weaker requirements may change it.

    It stays as it is where nobody accepted a baseline of the matrix on that device model. Times that were already
    compared with another run are not compared again.

    Args:
        name: of the baseline to compare with, where no comparison was made yet. Where no baseline has that name, the
            one without a name is taken.
        keys: one of these must have sealed the baseline's run, or there is no verdict; empty = it needs no seal.
    """
    baseline = judged.against.baseline if judged.against else None
    baseline = baseline or baseline_of(store, judged.run, name)
    if baseline and (why := store.retention.gone(baseline.run_id)):
        told = f"the accepted baseline cannot be compared with: {why}"
        return replace(judged, notes=(*judged.notes, told), conclusion=without_verdict(judged.conclusion))
    if baseline:
        before, records, why = _evidence_of(store, judged, baseline, keys)
        if why:
            todo = _todo(_run_to_accept(store, judged, before), judged.typed, baseline, why)
            told = f"the accepted baseline, run {before.id}, does not count: {why}. {todo}"
            return replace(judged, notes=(*judged.notes, told), conclusion=without_verdict(judged.conclusion))
        judged = with_weaker(store, judged, baseline, before, records)
        if not judged.against:
            judged = _with_slower(judged, baseline, before, records)
            judged = replace(judged, since=since_run(judged, before, baseline))
    return _times(judged)


def _evidence_of(
    store: Store, judged: Judged, baseline: Baseline, keys: Sequence[PublicKey]
) -> tuple[Run, Sequence[Record], str]:
    """The baseline's run, its records, and why they do not count (empty: they do), without reading a run twice."""
    against = judged.against
    if against and against.comparison.before.id == baseline.run_id:
        return against.comparison.before, against.records, against.doubt
    seals = Seals(store, keys)
    before = seals.run(baseline.run_id)
    if why := seals.why_not(before) or contradicting(edited_words(store, before)) or unread(before):
        return before, (), why
    if keys:
        records: Sequence[Record] = seals.records(baseline.run_id)
    else:
        records = store.records(baseline.run_id, "times", like=judged.records)
    edited = [f"{case}: {how}" for case, how in contradictory_times(records).items()]
    return before, records, contradicting(first_of(edited))


def contradicting(edited: str) -> str:
    """Why a run does not count, where it contradicts itself; else empty."""
    return f"{EDITED}{edited}" if edited else ""


def _run_to_accept(store: Store, judged: Judged, before: Run) -> str:
    """The judged run, where it may take the place of the earlier one; else the word for a run that is to be chosen."""
    return judged.run.id if judged.conclusion.verdict == "PASS" and _acceptable(store, judged, before) else "RUN"


def _todo(run: str, typed: Typed, baseline: Baseline, why: str) -> str:
    """What to do about a baseline that does not count.

    Args:
        run: what may be accepted in its place.
    """
    if why.startswith(EDITED):
        advice, reason = "Find out who edited it, then accept another run", "the run accepted before was edited"
    elif why.startswith(UNREAD):
        advice, reason = "Accept another run", "this qualify cannot read the run accepted before"
    else:
        advice = "If that is no surprise, accept a run that one of the keys sealed"
        reason = "the run accepted before has no seal that counts"
    return f"{advice}: {typed.accept(run, reason, baseline.name)}"


def baseline_of(store: Store, run: Run, name: str) -> Baseline | None:
    """The accepted run of the matrix on the device model; None where nobody accepted one."""
    if run.stack is None:
        return None
    variant = run.stack.device.variant
    return store.baseline(run.matrix, variant, name) or store.baseline(run.matrix, variant)


def with_weaker(store: Store, judged: Judged, baseline: Baseline, before: Run, records: Sequence[Record]) -> Judged:
    """The verdict with the requirements that are weaker than the baseline's; it fails where the policy forbids them."""
    run = judged.run
    if run.narrowed:
        return judged
    then = Demand(
        run=before,
        matrix=stored_matrix(before),
        records=records,
        stars=baseline.waivers,
    )
    now = demand_of(store, judged)
    notes = (*judged.notes, *_unknown(then, now))
    changes = asked_less(then, now)
    if not changes:
        return replace(judged, notes=notes)
    weaker = Weaker(
        run=before.id,
        accepted_by=baseline.accepted_by,
        proven=baseline.proven,
        accepted_at=baseline.accepted_at,
        name=baseline.name,
        changes=changes,
        forbidden=then.matrix.policy.forbid_weaker or now.matrix.policy.forbid_weaker,
        acceptable=_acceptable(store, judged, before),
    )
    return replace(judged, notes=notes, weaker=weaker, conclusion=forbid_weaker(judged.conclusion, weaker))


def demand_of(store: Store, judged: Judged) -> Demand:
    """What a verdict asks, under its waivers of today."""
    return Demand(
        run=judged.run,
        matrix=judged.matrix,
        records=judged.records,
        stars=stars_of(judged.conclusion),
        levels=_levels(store, judged),
    )


def _acceptable(store: Store, judged: Judged, before: Run) -> bool:
    """Whether a user can make today's requirements those of the baseline by accepting the judged run."""
    run = judged.run
    if judged.runs[:1] != (run.id,) or run.id == before.id or run.state != "completed":
        return False
    return store.run(run.id).matrix_hash == run.matrix_hash and set(judged.sources.values()) <= {run.id}


def stars_of(conclusion: Conclusion) -> dict[str, str]:
    """The waivers in force whose glob covers every kernel or every case: by glob, their checks, one a line."""
    found: dict[str, set[str]] = {}
    for use in conclusion.waivers:
        if use.state in IN_FORCE and bare_stars(use.waiver.select):
            found.setdefault(use.waiver.select, set()).update(use.waiver.checks)
    return {glob: "\n".join(sorted(checks)) for glob, checks in found.items()}


def _levels(store: Store, judged: Judged) -> Mapping[str, Level]:
    """By case id, the level of evidence that comes from another run than the judged one."""
    known = {name: store.run(name).level for name in set(judged.sources.values())}
    return {case: known[run] for case, run in judged.sources.items()}


def _unknown(then: Demand, now: Demand) -> tuple[str, ...]:
    """What an older qualify did not note."""
    found = []
    if then.run.terms is None or now.run.terms is None:
        run = then.run if then.run.terms is None else now.run
        found.append(f"run {run.id} of an older qualify did not note what its cards promise: cards are not compared")
    elif keys := unnoted(then.run.terms, now.run.terms):
        told = f"did not note all that its cards promise. Not compared: {', '.join(keys)}"
        found.append(f"run {then.run.id} of an older qualify {told}")
    if then.stars is None:
        found.append("an older qualify accepted the baseline and did not note its waivers: they are not compared")
    return tuple(found)


def _with_slower(judged: Judged, baseline: Baseline, before: Run, records: Sequence[Record]) -> Judged:
    """The verdict with the cases that became slower on the baseline's card."""
    slower = slowdown(before, records, judged.run, judged.records, accepted_by=baseline.who)
    why = why_untimed(before, judged.run, in_both(records, judged.records))
    untimed = f"{why.what} since run {before.id}, and {why.because}" if why else ""
    return replace(judged, slower=slower, untimed=untimed)


def since_run(judged: Judged, before: Run, baseline: Baseline | None) -> Since | None:
    """What changed since an earlier run; None where that is the judged run itself.

    Args:
        baseline: the acceptance of the earlier run; None where a run was named.
    """
    if before.id == judged.run.id:
        return None
    kernels = dict.fromkeys(record.case.kernel for record in judged.records)
    return changed_since(before, judged.run, kernels, baseline)


def _times(judged: Judged) -> Judged:
    """The verdict under the matrix's policy for slower cases."""
    if judged.matrix.policy.drift.times != "fail":
        return judged
    conclusion = forbid_slower(judged.conclusion, judged.slower, judged.untimed)
    notes = [f"policy.drift.times is fail, and times are not compared: {judged.untimed}"] if judged.untimed else []
    notes += [LIMITS] if judged.slower else []
    return replace(judged, conclusion=conclusion, notes=(*judged.notes, *notes))
