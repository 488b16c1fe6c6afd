"""The verdict on a matrix from whatever fresh evidence is stored, without running anything.

A stored outcome counts for a case of today's plan where everything that can change it is the same: the workload and the
kernel card (the case's content hash), the policy that evidence is made under, the checks, the stack, and at least
the level. The newest outcome counts, whatever it says; one of a lower level counts where it speaks against the case,
because a higher level asks the same and more. A case without one is not run, and no verdict comes of it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from qualify.assets import shipped
from qualify.cards.load import LoadedKernel, LoadedMatrix, parse_matrix
from qualify.errors import NoVerdict, UsageError
from qualify.facts.case import Case, Level
from qualify.facts.checks import CHECK_VERSION
from qualify.facts.outcome import Measured, NotRun, Outcome, Refused, findings_of
from qualify.facts.run import Record, Run
from qualify.facts.stack import Stack
from qualify.facts.waiver import Waiver
from qualify.judge.judged import Judged, reused_note, rules_of
from qualify.plan.plan import Plan, make_plan
from qualify.store.store import Store
from qualify.verdict.gate import conclude
from qualify.verdict.origin import made_under, oldest, origin_of, weaker

LOOKED_AT = 500
"""newest runs of the matrix among which evidence is looked for"""
LOOKED_BACK = 8
"""runs that cannot be used and are opened to say why a case has no evidence"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fresh:
    """Which evidence counts."""

    now: datetime
    max_age: timedelta
    level: Level
    """at least"""
    stack: str | Stack = ""
    """a stack, or the beginning of a fingerprint; empty = the stack of the newest run"""


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
        NoVerdict: the store has no run of the matrix, or none on the asked stack.
        UsageError: several stacks are meant.
    """
    plan = make_plan(matrix, dict(kernels))
    runs = [run for run in store.runs(plan.matrix, limit=LOOKED_AT) if run.stack is not None]
    stack, others = _stack(store, matrix, runs, wanted)
    own = {run.id for run in runs if run.stack and run.stack.agrees_with(stack)}
    rejects: list[tuple[Run, str]] = []
    usable = []
    for run in runs:
        why = _why_not(run, matrix, wanted) if run.id in own else f"only on another stack (run {run.id})"
        if not why:
            usable.append(run)
        if why or weaker(run.level, wanted.level):
            rejects.append((run, why or f"only at level {run.level} (run {run.id})"))
    found, sources = _collect(store, plan, usable, wanted)
    reasons = _reasons(store, plan, found, rejects)
    newest = sources[0] if sources else next(run for run in runs if run.id in own)
    judged_as = replace(
        newest,
        matrix_source=matrix.source,
        matrix_hash=matrix.content_hash,
        matrix_path=str(matrix.path),
        traffic_source=matrix.traffic_source,
        select="",
        kernel="",
        state="completed",
    )
    records = _records(plan, found, reasons)
    conclusion = conclude(records, rules_of(judged_as, matrix.card, kernels, waivers, wanted.now))
    begun = min(oldest(run, records) for run in sources or [newest])
    return Judged(
        run=replace(judged_as, started_at=begun),
        records=records,
        conclusion=conclusion,
        selftest=store.selftest(CHECK_VERSION),
        runs=tuple(run.id for run in sources),
        notes=(*_missing_note(records, rejects), *reused_note(records), *others),
        waivers_path=waivers_path,
        matrix=matrix.card,
    )


def _stack(store: Store, loaded: LoadedMatrix, runs: Sequence[Run], wanted: Fresh) -> tuple[Stack, list[str]]:
    """The stack whose evidence counts, and a note where other stacks have fresh evidence too."""
    matrix, make = loaded.card.matrix, shlex.join(["qualify", "run", _typed(loaded)])
    stacks = {run.stack.fingerprint: run.stack for run in runs if run.stack}
    if not stacks:
        raise NoVerdict(f"no run of {matrix} in {store.where} yet. Make one: {make}")
    if not wanted.stack:
        chosen = next(iter(stacks.values()))
        fresh = [run.stack for run in runs if run.stack and wanted.now - run.started_at <= wanted.max_age]
        others = sorted({stack.fingerprint[:12] for stack in fresh if not stack.agrees_with(chosen)})
        told = f"fresh evidence lies also on {', '.join(others)}, not judged here: --stack FINGERPRINT judges it"
        return chosen, [told] if others else []
    if isinstance(wanted.stack, Stack):
        matching = [stack for stack in stacks.values() if stack.agrees_with(wanted.stack)]
        asked = f"this machine's stack ({wanted.stack.device.name}, {wanted.stack.fingerprint[:12]})"
    else:
        matching = [stack for name, stack in stacks.items() if name.startswith(wanted.stack)]
        asked = f"the stack {wanted.stack[:12]}"
    if not matching:
        known = ", ".join(name[:12] for name in list(stacks)[:5])
        raise NoVerdict(f"no run of {matrix} on {asked}; there is one on {known}. Run it there: {make}")
    if not all(stack.agrees_with(matching[0]) for stack in matching):
        raise UsageError(f"--stack {wanted.stack}: {len(matching)} stacks begin so; type more of the fingerprint")
    return matching[0], []


def _typed(matrix: LoadedMatrix) -> str:
    """What names the matrix on a command line."""
    return matrix.card.matrix if matrix.path.is_relative_to(shipped("matrices")) else str(matrix.path)


def _why_not(run: Run, matrix: LoadedMatrix, wanted: Fresh) -> str:
    """Why the evidence of a run on the right stack does not count at any level; empty where it does."""
    if wanted.now - run.started_at > wanted.max_age:
        return f"stale: begun {run.started_at:%Y-%m-%d %H:%M} UTC (run {run.id})"
    if run.check_version != CHECK_VERSION:
        return f"only with check version {run.check_version}, this is {CHECK_VERSION} (run {run.id})"
    if run.matrix_hash == matrix.content_hash:
        return ""
    if made_under(parse_matrix(run.matrix_source, run.matrix_path).policy) != made_under(matrix.card.policy):
        return f"only under another policy of reference, claims or timeouts (run {run.id})"
    return ""


def _speaks_against(outcome: Outcome) -> bool:
    """Whether a higher level could not have said better."""
    return not isinstance(outcome, Measured) or any(it.verdict == "fail" for it in findings_of(outcome))


def _collect(store: Store, plan: Plan, usable: Sequence[Run], wanted: Fresh) -> tuple[dict[str, Outcome], list[Run]]:
    """The newest outcome of each planned case, and the runs that they are from, newest first."""
    open_cases = {case.id: case.content_hash for case in plan.cases}
    known = {run.id for run in usable}
    found: dict[str, Outcome] = {}
    sources = []
    for run in usable:
        if not open_cases:
            break
        before = len(found)
        for record in store.records(run.id):
            if isinstance(record.outcome, NotRun) or open_cases.get(record.case.id) != record.case.content_hash:
                continue
            if weaker(run.level, wanted.level) and not _speaks_against(record.outcome):
                continue
            origin = origin_of(record.outcome)
            if origin and (origin.run in known or wanted.now - origin.began_at > wanted.max_age):
                continue  # the run that measured it is asked in its own turn
            found[record.case.id] = record.outcome
            del open_cases[record.case.id]
        if len(found) > before:
            sources.append(run)
    return found, sources


def _reasons(
    store: Store, plan: Plan, found: Mapping[str, Outcome], rejects: Sequence[tuple[Run, str]]
) -> Callable[[Case], str]:
    """Why a case has no evidence: what the newest run that has it lacks."""
    missing = {case.id for case in plan.cases} - set(found)
    why: dict[str, str] = {}
    for run, reason in rejects[:LOOKED_BACK]:
        if missing <= set(why):
            break
        for name in store.done(run.id) & missing:
            why.setdefault(name, reason)
    return lambda case: f"no evidence that counts: {why.get(case.id, 'never run as it is planned today')}"


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


def _missing_note(records: Sequence[Record], rejects: Sequence[tuple[Run, str]]) -> list[str]:
    lacking = sum(isinstance(record.outcome, NotRun) for record in records)
    if not lacking:
        return []
    nearest = f"; the newest run that does not count: {rejects[0][1]}" if rejects else ""
    return [f"{lacking} of {len(records)} cases have no evidence that counts{nearest}"]
