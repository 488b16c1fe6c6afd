"""Which stored evidence counts for a matrix as it is planned today, without running anything.

A stored outcome counts for a case of today's plan where everything that can change it is the same. That is the workload
and the kernel card (the case's content hash), the policy that evidence is made under, the checks and the stack. Its
level is the same or higher. One of a lower level counts where it speaks against the case, because a higher level checks
the same and more. Of several outcomes of a case, :mod:`qualify.judge.counted` says which one counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from qualify.cards.load import LoadedKernel, LoadedMatrix
from qualify.errors import NoVerdict, UsageError
from qualify.facts.checks import CHECK_VERSION
from qualify.facts.clock import is_future
from qualify.facts.differing import stack_words
from qualify.facts.environment import environment_of
from qualify.facts.run import Run
from qualify.facts.stack import Stack
from qualify.facts.typed import level_words
from qualify.judge.code import (
    available_here,
    changed_code,
    changed_environments,
    code_here,
    foreign_environments,
)
from qualify.judge.counted import Counted
from qualify.judge.evidence import EDITED, STALE, Fresh, FreshEvidence, Outdated, Reject, stale_words
from qualify.judge.seals import Seals
from qualify.judge.stored import UNREAD, stored_matrix, unread
from qualify.plan.plan import Plan
from qualify.store.store import Store
from qualify.verdict.consistency import run_contradiction
from qualify.verdict.origin import (
    last_of,
    latest_begin,
    made_under,
    newest,
    oldest,
    perhaps_newer,
    weaker,
)

LOOKED_AT = 500
"""how many of the matrix's newest runs are searched for evidence; more, where more began within the allowed age"""
OTHERS = 3
"""notes name at most so many other stacks with fresh evidence"""


def find_fresh(
    store: Store,
    seals: Seals,
    matrix: LoadedMatrix,
    plan: Plan,
    kernels: Mapping[str, LoadedKernel],
    wanted: Fresh,
) -> FreshEvidence:
    """The newest outcome that counts of each planned case.

    Raises:
        NoVerdict: the store has no run of the matrix that is not dated in the future, or none on the asked stack.
        UsageError: several stacks are meant.
    """
    runs, ahead = _runs(store, plan.matrix, wanted)
    stack, notes = _stack(store, matrix, runs, wanted)
    own = [run for run in runs if run.stack and run.stack.agrees_with(stack)]
    outdated = _outdated(plan, kernels, own, wanted)
    usable, unusable = _usable(store, matrix, runs, stack, wanted, outdated, seals)
    available = available_here(wanted.code, plan.kernels, kernels, stack.device)
    counted = Counted(seals, plan, usable, wanted, outdated, available)
    found = counted.found
    sources = {name: run.id for name, (run, _) in found.items()}
    gave = [run for run in usable if run.id in set(sources.values())]
    return FreshEvidence(
        outcomes={name: outcome for name, (_, outcome) in found.items()},
        sources=sources,
        runs=gave,
        latest=gave[0] if gave else own[0],
        rejects=[*ahead, *counted.rejects, *_hidden(unusable, gave)],
        notes=[*counted.notes.values(), *notes],
    )


def _hidden(rejects: Sequence[Reject], gave: Sequence[Run]) -> list[Reject]:
    """The rejects, with notes asked for on what may be newer than all that counts.

    That is the newest run that lacks only its seal: otherwise nobody would notice where somebody breaks the seal of a
    failed run, so that an older run counts. And the newest that only a clock makes stale, and the newest whose matrix
    this qualify cannot read: each may have failed.
    """
    if not gave:
        return list(rejects)
    unsealed = next((it for it in rejects if it.unsealed), None)
    behind = next((it for it in rejects if it.behind), None)
    other = next((it for it in rejects if it.reason.startswith(UNREAD)), None)
    told = set()
    if unsealed and unsealed.run.started_at > gave[0].started_at:
        told.add(unsealed.run.id)
    told |= {it.run.id for it in (behind, other) if it and perhaps_newer(it.run, gave[0])}
    return [replace(it, told=True) if it.run.id in told else it for it in rejects]


def _runs(store: Store, matrix: str, wanted: Fresh) -> tuple[list[Run], list[Reject]]:
    """The newest runs of a matrix that say what they ran on, newest first; and those that are dated in the future.

    Of two clocks that differed, that one counts which makes a run older.

    Raises NoVerdict where all of them are.
    """
    now = wanted.now
    stored = [run for run in _newest_of(store, matrix, wanted) if run.stack is not None]
    ahead = [Reject(run=run, reason=_ahead(run, now)) for run in stored if is_future(newest(run), now)]
    if stored and len(ahead) == len(stored):
        raise NoVerdict(f"every run of {matrix} in {store.where} is {ahead[0]}")
    future = {reject.run.id for reject in ahead}
    believed = sorted((run for run in stored if run.id not in future), key=oldest, reverse=True)
    return believed, [replace(it, told=it is ahead[0]) for it in ahead]


def _newest_of(store: Store, matrix: str, wanted: Fresh) -> list[Run]:
    """The newest runs of a matrix, and all that began within the allowed age: one fleet alone may make thousands."""
    limit = LOOKED_AT
    found = store.runs(matrix, limit=limit)
    while len(found) == limit and timedelta() <= wanted.now - found[-1].started_at <= wanted.max_age:
        limit *= 4
        found = store.runs(matrix, limit=limit)
    return found


def _outdated(plan: Plan, kernels: Mapping[str, LoadedKernel], own: Sequence[Run], wanted: Fresh) -> Outdated:
    """A function that tells why a run's evidence of kernels does not count: other code, or another environment's stack.

    The stack of an environment is taken from the newest run in which the environment was as it is now, and what this
    run had not mapped from those before it.

    Args:
        own: the runs on the stack that is judged, newest first.
    """
    planned = list(dict.fromkeys(case.kernel for case in plan.cases))
    code = code_here(wanted.code, planned, kernels)
    now = wanted.code.environments if wanted.code and wanted.code.every else {}
    names = {environment_of(kernel) for kernel in planned} - {""}
    as_now = [run for run in own if not changed_environments(run, now, planned)]
    stacks = {name: _known_stack(run.stack_of(name) for run in as_now) for name in names}

    def outdated(run: Run) -> Mapping[str, str]:
        changed = changed_code(run, code) | changed_environments(run, now, planned)
        return changed | foreign_environments(run, stacks, planned)

    return outdated


def _known_stack(stacks: Iterable[Stack | None]) -> Stack | None:
    """The first stack, with what only those know that agree with it; None where nobody reported one."""
    known: Stack | None = None
    for stack in filter(None, stacks):
        if known is None:
            known = stack
        elif stack.agrees_with(known):
            known = known.with_parts_of(stack)
    return known


def _usable(
    store: Store,
    matrix: LoadedMatrix,
    runs: Sequence[Run],
    stack: Stack,
    wanted: Fresh,
    outdated: Outdated,
    seals: Seals,
) -> tuple[list[Run], list[Reject]]:
    """The runs whose evidence may count, newest first, and the runs whose evidence counts in part or not at all.

    All of them agree with each other: a file that two had mapped is the same, also where the newest had not mapped it.

    Args:
        stack: what is judged.
        outdated: why a run's evidence of kernels does not count, by kernel.
    """
    usable, rejects = [], []
    for run in runs:
        if run.stack is None or not run.stack.agrees_with(stack):
            why = f"made on another stack: {stack_words(run.stack, stack)}"
        else:
            why = _why_not(store, run, matrix, wanted)
        unsealed = "" if why else seals.why_not(run)
        why = why or unsealed
        if not why and run.stack:
            usable.append(run)
            stack = stack.with_parts_of(run.stack)
        if not why and weaker(run.level, wanted.level):
            why = f"made at level {run.level}, below {wanted.level}"
        changed = {} if why else outdated(run)
        if why or changed:
            rejects.append(
                Reject(
                    run=run,
                    reason=why,
                    kernels=changed,
                    unsealed=bool(unsealed),
                    behind=why.startswith(STALE) and _is_behind(run, wanted),
                    told=why.startswith(EDITED),
                )
            )
    return usable, rejects


def _ahead(run: Run, now: datetime) -> str:
    """Why a run that is dated in the future is not believed."""
    dated = newest(run)
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
        fresh = [run.stack for run in runs if run.stack and wanted.now - oldest(run) <= wanted.max_age]
        return chosen, _others(chosen, fresh)
    matching, asked = _matching(stacks, wanted.stack)
    if not matching:
        raise NoVerdict(f"no run of {matrix} on {asked}. Run it there: {make}")
    if not all(stack.agrees_with(matching[0]) for stack in matching):
        raise UsageError(f"--stack {wanted.stack} fits {len(matching)} stacks: type more of the fingerprint")
    return matching[0], []


def _matching(stacks: Mapping[str, Stack], wanted: str | Stack) -> tuple[list[Stack], str]:
    """The stored stacks that ``wanted`` means, and words for it, for the message where there is none.

    Args:
        stacks: by fingerprint, that of the newest run first; at least one.
        wanted: a stack, or the beginning of a fingerprint.
    """
    if isinstance(wanted, Stack):
        newest = next(iter(stacks.values()))
        asked = f"this machine's stack. The newest is of another one ({stack_words(newest, wanted)})"
        return [stack for stack in stacks.values() if stack.agrees_with(wanted)], asked
    known = ", ".join(_named(stack) for stack in list(stacks.values())[:5])
    matching = [stack for name, stack in stacks.items() if name.startswith(wanted)]
    return matching, f"the stack {wanted[:12]}; there is one on {known}"


def _others(chosen: Stack, fresh: Sequence[Stack]) -> list[str]:
    """A note on each other stack that has fresh evidence: what differs there, and how it is judged."""
    stacks = {stack.fingerprint: stack for stack in fresh if not stack.agrees_with(chosen)}
    told = "fresh evidence of another stack is not judged here"
    return [
        f"{told} ({stack_words(chosen, stack)}); --stack {name[:12]} judges it"
        for name, stack in list(stacks.items())[:OTHERS]
    ]


def _named(stack: Stack) -> str:
    """A stack in words that tell it apart from others: the beginning of its fingerprint, device and versions."""
    versions = [f"{name} {stack.version(name)}" for name in ("driver", "torch") if stack.version(name)]
    return f"{stack.fingerprint[:12]} ({', '.join([stack.device.name, *versions])})"


def _why_not(store: Store, run: Run, matrix: LoadedMatrix, wanted: Fresh) -> str:
    """Why the evidence of a run on the right stack does not count at any level; empty where it does."""
    if edited := run_contradiction(run):
        return f"{EDITED}{edited}"
    if wanted.now - _last_evidence(store, run, wanted) > wanted.max_age:
        behind = f" by its machine's clock, which was {-(run.clock_skew_s or 0):.0f} s behind the store's"
        return stale_words(run, oldest(run)) + (behind if _is_behind(run, wanted) else "")
    if run.check_version != CHECK_VERSION:
        return f"made with check version {run.check_version}, while this qualify has {CHECK_VERSION}"
    if run.matrix_hash == matrix.content_hash:
        return ""
    if why := unread(run):
        return why
    if made_under(stored_matrix(run).policy) != made_under(matrix.card.policy):
        return "made under another policy (reference, claims or timeouts)"
    return ""


def _last_evidence(store: Store, run: Run, wanted: Fresh) -> datetime:
    """A moment after which the run measured nothing; its start where that is young enough already.

    A killed run does not say when it ended. Its outcomes do.
    """
    began = oldest(run)
    if wanted.now - began <= wanted.max_age:
        return began
    last = last_of(run)
    return min(last) if last else store.last_end(run.id) or began


def _is_behind(run: Run, wanted: Fresh) -> bool:
    """Whether a run that is stale by its machine's clock is fresh by the store's."""
    last = max(last_of(run) or (latest_begin(run),))
    return (run.clock_skew_s or 0) < 0 and wanted.now - last <= wanted.max_age
