"""The verdict on a matrix from whatever fresh evidence is stored, without running anything.

A case without evidence that counts is not run, and gives no verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from qualify.cards.load import LoadedKernel, LoadedMatrix, in_environments
from qualify.cards.terms import terms_by_kernel
from qualify.cards.waivers import refuse_broad
from qualify.facts.case import Case
from qualify.facts.checks import CHECK_VERSION
from qualify.facts.code import Code
from qualify.facts.environment import Environment, environment_of
from qualify.facts.outcome import NotRun, Outcome, Refused, ran_code
from qualify.facts.run import Record, Run
from qualify.facts.terms import Terms
from qualify.facts.waiver import Waiver
from qualify.judge.evidence import Fresh, FreshEvidence, Reject
from qualify.judge.fresh import find_fresh
from qualify.judge.judged import Judged, again, fresh_words, rules_of
from qualify.judge.notes import deleted_note, reused_note, skewed_note, unasserted_note
from qualify.judge.seals import Seals
from qualify.judge.signoffs import signed_off
from qualify.plan.plan import Plan, make_plan
from qualify.store.store import Store
from qualify.verdict.gate import conclude
from qualify.verdict.origin import MAX_AGE, made_at, oldest, origins_of

LOOKED_BACK = 8
"""unusable runs that are read to tell why a case has no evidence"""


def gather(
    store: Store,
    matrix: LoadedMatrix,
    kernels: Mapping[str, LoadedKernel],
    wanted: Fresh,
    *,
    waivers: Sequence[Waiver],
    waivers_path: str,
) -> Judged:
    """Judge a matrix on fresh evidence of one stack.

    Raises:
        NoVerdict: the store has no run of the matrix that is not dated in the future, or none on the asked stack.
        UsageError: several stacks are meant.
    """
    plan = make_plan(matrix, dict(kernels), typed=wanted.typed)
    kernels = in_environments(kernels, matrix.environments)
    seals = Seals(store, wanted.keys)
    found = find_fresh(store, seals, matrix, plan, kernels, wanted)
    judged_as = _whole_run(found, matrix, terms_by_kernel(kernels, plan.kernels))
    records = _records(plan, found.outcomes, _reasons(store, plan, found))
    refuse_broad(waivers, matrix.card.policy.waivers, [record.case.id for record in records])
    origins = origins_of(records)
    levels = {run.id: run.level for run in found.runs}
    rules = replace(
        rules_of(judged_as, matrix.card, kernels, waivers, wanted.now),
        level=wanted.level,
        made={case: levels[name] for case, name in found.sources.items()},
    )
    begun = min(oldest(run, origins) for run in found.runs or [found.latest])
    return Judged(
        run=replace(judged_as, started_at=begun),
        records=records,
        conclusion=conclude(records, rules),
        selftest=store.selftest(CHECK_VERSION),
        runs=tuple(run.id for run in found.runs),
        origins=origins,
        evidence_since=_since(found, wanted),
        notes=(
            *_missing_note(records, found.rejects),
            *(f"evidence does not count: {reject}" for reject in found.rejects if reject.told),
            *_source_notes(seals, found.runs),
            *reused_note(records, origins, wanted.typed.command("run", *fresh_words(found.latest, matrix.typed))),
            *unasserted_note(records),
            *deleted_note(store, found.latest),
            *found.notes,
        ),
        waivers_path=waivers_path,
        matrix=matrix.card,
        unsealed=_unsealed(records, found.rejects),
        signoffs=signed_off(store, [run.id for run in found.runs]),
        again=again(found.latest, wanted.level, fresh=wanted.max_age < MAX_AGE),
        sources=found.sources,
        typed=wanted.typed,
    )


def _since(found: FreshEvidence, wanted: Fresh) -> datetime:
    """When the oldest evidence that counts was made; where none counts, when the newest run began."""
    runs = {run.id: run for run in found.runs}
    sources = ((runs[name], found.outcomes[case]) for case, name in found.sources.items())
    made = (made_at(outcome, run, wanted.now) for run, outcome in sources if ran_code(outcome))
    return min(made, default=oldest(found.latest))


def _whole_run(found: FreshEvidence, matrix: LoadedMatrix, terms: Mapping[str, Terms]) -> Run:
    """The newest run, changed as if it had run the whole matrix as it is today, with all that the evidence is from."""
    latest, gave = found.latest, _gave(found)
    stack, code, environments = latest.stack, dict[str, Code](), dict[str, Environment]()
    for run, kernels in gave:
        stack = stack.with_parts_of(run.stack) if stack and run.stack else stack
        code = {kernel: files for kernel, files in (run.code or {}).items() if kernel in kernels} | code
        for name in {environment_of(kernel) for kernel in kernels} & run.environments.keys():
            environments[name] = _together(environments.get(name), run.environments[name])
    known = {**latest.environments, **environments}
    return replace(
        latest,
        stack=stack,
        matrix_source=matrix.source,
        matrix_hash=matrix.content_hash,
        matrix_path=str(matrix.path),
        traffic_source=matrix.traffic_source,
        code=code or latest.code,
        terms=terms,
        environments={name: one for name, one in known.items() if name in matrix.environments},
        select="",
        kernel="",
        state="completed",
    )


def _gave(found: FreshEvidence) -> list[tuple[Run, set[str]]]:
    """The runs that evidence is from, newest first, each with the kernels that it gave evidence of."""
    kernels: dict[str, set[str]] = {run.id: set() for run in found.runs}
    for case, run_id in found.sources.items():
        kernels[run_id].add(case.rpartition("/")[2])
    return [(run, kernels[run.id]) for run in found.runs]


def _together(newer: Environment | None, older: Environment) -> Environment:
    """An environment with what two runs that agree know of its stack."""
    if newer is None or newer.stack is None:
        return older
    return replace(newer, stack=newer.stack.with_parts_of(older.stack)) if older.stack else newer


def _reasons(store: Store, plan: Plan, found: FreshEvidence) -> Callable[[Case], str]:
    """A function that tells why a case has no evidence: what the newest run with that case lacks."""
    missing = {case.id for case in plan.cases} - set(found.outcomes)
    why: dict[str, str] = {}
    for reject in found.rejects[:LOOKED_BACK]:
        if missing <= set(why):
            break
        for name in store.done(reject.run.id) & missing:
            if reason := reject.why(name):
                why.setdefault(name, reason)
    return lambda case: f"no evidence that counts: {why.get(case.id, 'never run as planned today')}"


def _records(plan: Plan, found: Mapping[str, Outcome], reason: Callable[[Case], str]) -> list[Record]:
    """Today's plan with the outcomes that were found."""
    refused = [Record(case=case, outcome=Refused(by="plan", reasons=reasons)) for case, reasons in plan.refused]
    return [
        *(
            Record(case=case, outcome=found[case.id] if case.id in found else NotRun(reason=reason(case)))
            for case in plan.cases
        ),
        *refused,
    ]


def _source_notes(seals: Seals, sources: Sequence[Run]) -> list[str]:
    """Who sealed the runs that evidence is from, and whose clock was wrong."""
    return [*(note for run in sources for note in seals.note(run)), *skewed_note(sources)]


def _unsealed(records: Sequence[Record], rejects: Sequence[Reject]) -> str:
    """Why no required key has sealed the evidence that would count; empty where no case lacks only a seal."""
    lacking = any(isinstance(record.outcome, NotRun) for record in records)
    return next((reject.reason for reject in rejects if lacking and reject.unsealed), "")


def _missing_note(records: Sequence[Record], rejects: Sequence[Reject]) -> list[str]:
    lacking = sum(isinstance(record.outcome, NotRun) for record in records)
    if not lacking:
        return []
    nearest = f"; the newest run that does not count: {rejects[0]}" if rejects else ""
    return [f"{lacking} of {len(records)} cases have no evidence that counts{nearest}"]
