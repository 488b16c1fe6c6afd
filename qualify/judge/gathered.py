"""The verdict on a matrix from whatever fresh evidence is stored, without running anything.

A stored outcome counts for a case of today's plan where everything that can change it is the same. That is the workload
and the kernel card (the case's content hash), the policy that evidence is made under, the checks and the stack. Its
level is the same or higher. The newest outcome counts, whatever it says. One of a lower level counts where it speaks
against the case, because a higher level checks the same and more. A case without an outcome is not run, and gives no
verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from qualify.cards.environments import in_environments
from qualify.cards.load import LoadedKernel, LoadedMatrix, parse_matrix
from qualify.cards.terms import terms_by_kernel
from qualify.cards.waivers import refuse_broad
from qualify.errors import NoVerdict, UsageError
from qualify.facts.case import Case, Level
from qualify.facts.checks import CHECK_VERSION
from qualify.facts.clock import is_future
from qualify.facts.differing import stack_words
from qualify.facts.environment import environment_of
from qualify.facts.outcome import Measured, NotRun, Outcome, Refused, findings_of
from qualify.facts.run import Record, Run
from qualify.facts.stack import Stack
from qualify.facts.terms import Terms
from qualify.facts.typed import PLAIN, Typed, level_words
from qualify.facts.waiver import Waiver
from qualify.judge.code import changed_code, changed_environments, code_here, foreign_environments, ran_code
from qualify.judge.judged import Judged, again, fresh_words, rules_of
from qualify.judge.notes import deleted_note, reused_note, skewed_note, unasserted_note
from qualify.judge.seals import Seals
from qualify.judge.signoffs import signed_off
from qualify.plan.code import CodeHere
from qualify.plan.plan import Plan, make_plan
from qualify.seal.keys import PublicKey
from qualify.store.store import Store
from qualify.verdict.consistency import matrix_contradiction
from qualify.verdict.gate import conclude
from qualify.verdict.origin import MAX_AGE, made_under, newest, oldest, origin_of, weaker

LOOKED_AT = 500
"""the newest runs of the matrix in which evidence is searched"""
Outdated = Callable[[Run], Mapping[str, str]]
"""why a run's evidence of kernels does not count, by kernel"""
OTHERS = 3
"""other stacks with fresh evidence that notes name"""
LOOKED_BACK = 8
"""unusable runs that are read to tell why a case has no evidence"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fresh:
    """Which evidence counts."""

    now: datetime
    max_age: timedelta
    level: Level
    """at least"""
    code: CodeHere | None = None
    """the machine whose code must have made the evidence; None = any code"""
    stack: str | Stack = ""
    """a stack, or the beginning of a fingerprint; empty = the stack of the newest run"""
    keys: tuple[PublicKey, ...] = ()
    """one of these must have sealed a run; empty = it needs no seal"""
    typed: Typed = PLAIN
    """what printed commands repeat"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reject:
    """A run whose evidence cannot be used, at least that of some kernels."""

    run: Run
    reason: str = ""
    """of all its evidence; empty = only of some kernels'"""
    kernels: Mapping[str, str] = field(default_factory=dict)
    """reasons by kernel"""

    def why(self, kernel: str) -> str:
        """Why the run's evidence of the kernel does not count; empty where that is not known."""
        reason = self.reason or self.kernels.get(kernel, "")
        return f"{reason} (run {self.run.id})" if reason else ""

    def __str__(self) -> str:
        reasons = self.reason or "; ".join(f"{name}: {why}" for name, why in self.kernels.items())
        return f"{reasons} (run {self.run.id})"


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
    runs, ahead = _runs(store, plan.matrix, wanted.now)
    stack, others = _stack(store, matrix, runs, wanted)
    own = [run for run in runs if run.stack and run.stack.agrees_with(stack)]
    outdated = _outdated(plan, kernels, own, wanted)
    seals = Seals(store, wanted.keys)
    usable, unusable = _usable(matrix, runs, stack, wanted, outdated, seals)
    rejects = [*ahead, *unusable]
    found, sources, by_case = _collect(seals, plan, usable, wanted, outdated)
    reasons = _reasons(store, plan, found, rejects)
    latest = sources[0] if sources else own[0]
    judged_as = _whole_run(latest, matrix, terms_by_kernel(kernels, plan.kernels))
    records = _records(plan, found, reasons)
    refuse_broad(waivers, matrix.card.policy.waivers, [record.case.id for record in records])
    conclusion = conclude(records, rules_of(judged_as, matrix.card, kernels, waivers, wanted.now))
    begun = min(oldest(run, records) for run in sources or [latest])
    return Judged(
        run=replace(judged_as, started_at=begun),
        records=records,
        conclusion=conclusion,
        selftest=store.selftest(CHECK_VERSION),
        runs=tuple(run.id for run in sources),
        notes=(
            *_missing_note(records, rejects),
            *_source_notes(seals, sources),
            *reused_note(records, wanted.typed.command("run", *fresh_words(latest, matrix.typed))),
            *unasserted_note(records),
            *deleted_note(store, latest),
            *others,
        ),
        waivers_path=waivers_path,
        matrix=matrix.card,
        signoffs=signed_off(store, [run.id for run in sources]),
        again=again(latest, wanted.level, fresh=wanted.max_age < MAX_AGE),
        sources=by_case,
        typed=wanted.typed,
    )


def _runs(store: Store, matrix: str, now: datetime) -> tuple[list[Run], list[Reject]]:
    """The newest runs of a matrix that say what they ran on, newest first; and those that are dated in the future.

    Raises NoVerdict where all of them are.
    """
    stored = [run for run in store.runs(matrix, limit=LOOKED_AT) if run.stack is not None]
    ahead = [Reject(run=run, reason=_ahead(run, now)) for run in stored if is_future(newest(run, ()), now)]
    if stored and len(ahead) == len(stored):
        raise NoVerdict(f"every run of {matrix} in {store.where} is {ahead[0]}")
    future = {reject.run.id for reject in ahead}
    return [run for run in stored if run.id not in future], ahead


def _whole_run(latest: Run, matrix: LoadedMatrix, terms: Mapping[str, Terms]) -> Run:
    """The newest run as one that ran the whole matrix as it is today."""
    return replace(
        latest,
        matrix_source=matrix.source,
        matrix_hash=matrix.content_hash,
        matrix_path=str(matrix.path),
        traffic_source=matrix.traffic_source,
        terms=terms,
        select="",
        kernel="",
        state="completed",
    )


def _outdated(plan: Plan, kernels: Mapping[str, LoadedKernel], own: Sequence[Run], wanted: Fresh) -> Outdated:
    """A function that tells why a run's evidence of kernels does not count: other code, or another environment's stack.

    An environment's stack is that of the newest run that has it as it is now.

    Args:
        own: the runs on the stack that is judged, newest first.
    """
    planned = list(dict.fromkeys(case.kernel for case in plan.cases))
    code = code_here(wanted.code, planned, kernels)
    now = wanted.code.environments if wanted.code and wanted.code.every else {}
    names = {environment_of(kernel) for kernel in planned} - {""}
    as_now = [run for run in own if not changed_environments(run, now, planned)]
    stacks = {name: next(filter(None, (run.stack_of(name) for run in as_now)), None) for name in names}

    def outdated(run: Run) -> Mapping[str, str]:
        changed = changed_code(run, code) | changed_environments(run, now, planned)
        return changed | foreign_environments(run, stacks, planned)

    return outdated


def _usable(
    matrix: LoadedMatrix, runs: Sequence[Run], stack: Stack, wanted: Fresh, outdated: Outdated, seals: Seals
) -> tuple[list[Run], list[Reject]]:
    """The runs whose evidence may count, newest first, and the runs whose evidence counts in part or not at all.

    Args:
        stack: what is judged.
        outdated: why a run's evidence of kernels does not count, by kernel.
    """
    usable, rejects = [], []
    for run in runs:
        if run.stack is None or not run.stack.agrees_with(stack):
            why = f"only on another stack: {stack_words(run.stack, stack)}"
        else:
            why = _why_not(run, matrix, wanted) or seals.why_not(run)
        if not why:
            usable.append(run)
        if not why and weaker(run.level, wanted.level):
            why = f"only at level {run.level}"
        changed = {} if why else outdated(run)
        if why or changed:
            rejects.append(Reject(run=run, reason=why, kernels=changed))
    return usable, rejects


def _ahead(run: Run, now: datetime) -> str:
    """Why a run that is dated in the future is not believed."""
    dated = newest(run, ())
    return (
        f"dated in the future: {dated:%Y-%m-%d %H:%M} UTC, and it is {now:%Y-%m-%d %H:%M} UTC; the "
        "clock of that machine or of this one is wrong"
    )


def _stack(store: Store, loaded: LoadedMatrix, runs: Sequence[Run], wanted: Fresh) -> tuple[Stack, list[str]]:
    """The stack whose evidence counts, and a note where other stacks have fresh evidence too."""
    matrix, make = loaded.card.matrix, wanted.typed.command("run", loaded.typed, *level_words(wanted.level))
    stacks = {run.stack.fingerprint: run.stack for run in runs if run.stack}
    if not stacks:
        raise NoVerdict(f"no run of {matrix} in {store.where} yet. Make one: {make}")
    if not wanted.stack:
        chosen = next(iter(stacks.values()))
        fresh = [run.stack for run in runs if run.stack and wanted.now - run.started_at <= wanted.max_age]
        return chosen, _others(chosen, fresh)
    if isinstance(wanted.stack, Stack):
        matching = [stack for stack in stacks.values() if stack.agrees_with(wanted.stack)]
        newest = next(iter(stacks.values()))
        asked = f"this machine's stack. The newest is of another one ({stack_words(newest, wanted.stack)})"
    else:
        matching = [stack for name, stack in stacks.items() if name.startswith(wanted.stack)]
        known = ", ".join(_named(stack) for stack in list(stacks.values())[:5])
        asked = f"the stack {wanted.stack[:12]}; there is one on {known}"
    if not matching:
        raise NoVerdict(f"no run of {matrix} on {asked}. Run it there: {make}")
    if not all(stack.agrees_with(matching[0]) for stack in matching):
        raise UsageError(f"--stack {wanted.stack}: {len(matching)} stacks begin so; type more of the fingerprint")
    return matching[0], []


def _others(chosen: Stack, fresh: Sequence[Stack]) -> list[str]:
    """A note on each other stack that has fresh evidence: what differs there, and how it is judged."""
    stacks = {stack.fingerprint: stack for stack in fresh if not stack.agrees_with(chosen)}
    told = "fresh evidence of another stack is not judged here"
    return [
        f"{told} ({stack_words(chosen, stack)}); --stack {name[:12]} judges it"
        for name, stack in list(stacks.items())[:OTHERS]
    ]


def _named(stack: Stack) -> str:
    """A stack as people tell stacks apart."""
    versions = [f"{name} {stack.version(name)}" for name in ("driver", "torch") if stack.version(name)]
    return f"{stack.fingerprint[:12]} ({', '.join([stack.device.name, *versions])})"


def _why_not(run: Run, matrix: LoadedMatrix, wanted: Fresh) -> str:
    """Why the evidence of a run on the right stack does not count at any level; empty where it does."""
    if wanted.now - run.started_at > wanted.max_age:
        return f"stale: begun {run.started_at:%Y-%m-%d %H:%M} UTC"
    if run.check_version != CHECK_VERSION:
        return f"only with check version {run.check_version}, this is {CHECK_VERSION}"
    edited = matrix_contradiction(run)
    if edited or run.matrix_hash == matrix.content_hash:
        return edited
    if made_under(parse_matrix(run.matrix_source, run.matrix_path).policy) != made_under(matrix.card.policy):
        return "only under another policy of reference, claims or timeouts"
    return ""


def _counts(moment: datetime, wanted: Fresh) -> bool:
    """Whether evidence that began at this moment is fresh, and not dated in the future."""
    return wanted.now - moment <= wanted.max_age and not is_future(moment, wanted.now)


def _speaks_against(outcome: Outcome) -> bool:
    """Whether a higher level could not have said better."""
    return not isinstance(outcome, Measured) or any(it.verdict == "fail" for it in findings_of(outcome))


def _collect(
    seals: Seals, plan: Plan, usable: Sequence[Run], wanted: Fresh, outdated: Outdated
) -> tuple[dict[str, Outcome], list[Run], dict[str, str]]:
    """The newest outcome of each planned case; the runs that gave them, newest first; and the run of each case."""
    open_cases = {case.id: case.content_hash for case in plan.cases}
    known = {run.id for run in usable}
    found: dict[str, Outcome] = {}
    sources = []
    by_case: dict[str, str] = {}
    for run in usable:
        if not open_cases:
            break
        before, changed = len(found), outdated(run)
        for record in seals.records(run.id):
            if isinstance(record.outcome, NotRun) or open_cases.get(record.case.id) != record.case.content_hash:
                continue
            if record.case.kernel in changed and ran_code(record.outcome):
                continue
            if weaker(run.level, wanted.level) and not _speaks_against(record.outcome):
                continue
            origin = origin_of(record.outcome)
            if origin and (origin.run in known or not _counts(origin.began_at, wanted)):
                continue  # the run that measured it is asked in its own turn
            found[record.case.id] = record.outcome
            by_case[record.case.id] = run.id
            del open_cases[record.case.id]
        if len(found) > before:
            sources.append(run)
    return found, sources, by_case


def _reasons(
    store: Store, plan: Plan, found: Mapping[str, Outcome], rejects: Sequence[Reject]
) -> Callable[[Case], str]:
    """Why a case has no evidence: the newest run that has the case, and what that run lacks."""
    missing = {case.id for case in plan.cases} - set(found)
    why: dict[str, str] = {}
    for reject in rejects[:LOOKED_BACK]:
        if missing <= set(why):
            break
        for name in store.done(reject.run.id) & missing:
            if reason := reject.why(name.rpartition("/")[2]):
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


def _source_notes(seals: Seals, sources: Sequence[Run]) -> list[str]:
    """Who sealed the runs that evidence is from, and whose clock was wrong."""
    return [*(note for run in sources for note in seals.note(run)), *skewed_note(sources)]


def _missing_note(records: Sequence[Record], rejects: Sequence[Reject]) -> list[str]:
    lacking = sum(isinstance(record.outcome, NotRun) for record in records)
    if not lacking:
        return []
    nearest = f"; the newest run that does not count: {rejects[0]}" if rejects else ""
    return [f"{lacking} of {len(records)} cases have no evidence that counts{nearest}"]
