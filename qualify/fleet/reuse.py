"""What an earlier run measured and this one need not: the same call, on the same card and stack, by the same checks.

Only a settled pass of the same code is taken over. Whatever failed, crashed, timed out, proved nothing or contradicts
itself is run again, and so is a third party's function, which may call what the stack does not list. Evidence that is
nearly as old as allowed (24 hours by default) is gathered anew. Otherwise a gate with the same limit would soon call
the run's evidence stale.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from packaging.requirements import Requirement

from qualify.cards.kernel import CALL, KernelCard
from qualify.cards.load import parse_matrix
from qualify.facts.adapters import options_of
from qualify.facts.clock import is_future
from qualify.facts.code import Code
from qualify.facts.outcome import Measured, NotRun, card_of
from qualify.facts.run import Record, Run
from qualify.facts.stack import Stack
from qualify.fleet.request import Request
from qualify.fleet.sealing import sealed_records
from qualify.fleet.sharing import calls_of, first_of_each, shared, without_note
from qualify.store.store import Store
from qualify.verdict.consistency import contradictions, run_contradiction
from qualify.verdict.faults import failed_cards, own_card
from qualify.verdict.origin import (
    end_of,
    ended_later,
    is_settled,
    made_at,
    made_under,
    origin_of,
    reaches,
    taken_over,
    weaker,
    went_on,
)

YOUNG = 0.9
"""evidence up to this share of the allowed age is taken over: the rest is time for the run, and the gate after it"""
LOOKED_AT = 50
"""newest runs of the matrix among which evidence is looked for"""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Newest:
    """The newest outcome of a call."""

    run: Run
    """that has it"""
    ends: tuple[datetime, datetime] | None
    """when its case ended, by both clocks; None where nobody knows"""
    settled: Measured | None
    """the outcome where it may be taken over"""


def settled_before(request: Request, store: Store, run: Run, stacks: Mapping[str, Stack]) -> list[Record]:
    """Records of the plan's cases that earlier runs settled, equal calls included, each with its origin.

    Args:
        stacks: what this run's kernels run on, by environment, with the libraries of all of them loaded; that of this
            interpreter (empty name) always. Nothing is taken over for an environment that is missing.
    """
    first = {case.content_hash: case for case in first_of_each(request.plan.cases)}
    cards = {name: kernel.card for name, kernel in request.kernels.items()}
    wanted = {
        digest
        for digest, case in first.items()
        if case.environment in stacks and is_observed(cards[case.kernel], stacks[case.environment])
    }
    earlier = list(_earlier(request, store, run, stacks[""]))
    known = {before.id for before in earlier if before.state != "running"}
    newest: dict[str, _Newest] = {}
    first_end = run.started_at
    dated: dict[str, set[str]] = {}
    for before in earlier:
        if wanted <= newest.keys() and not reaches(before, first_end):
            continue
        found = _outcomes_of(request, store, before, run, stacks, known, wanted)
        dated[before.id] = {digest for digest, it in found.items() if it.ends}
        newest |= {digest: it for digest, it in found.items() if _replaces(it, newest.get(digest))}
        first_end = min([first_end, *(min(it.ends) for it in found.values() if it.ends)])
    calls = calls_of(request.plan.cases)
    taken: list[Record] = []
    for digest, it in newest.items():
        if it.settled is None or _is_refuted(it, digest, earlier, dated):
            continue
        again = Record(case=first[digest], outcome=taken_over(without_note(it.settled), it.run))
        taken += shared(again, calls)
    return taken


def _outcomes_of(
    request: Request,
    store: Store,
    before: Run,
    run: Run,
    stacks: Mapping[str, Stack],
    known: Collection[str],
    wanted: Collection[str],
) -> dict[str, _Newest]:
    """By content hash, the outcomes of an earlier run that say something about the wanted calls.

    A run that goes on, or was killed, gives nothing that may be taken over, but its failures are seen.

    Args:
        known: ids of the ended runs. What one of them measured first is taken from that run itself.
    """
    key = request.signing_key
    records = sealed_records(store, before, key) if key else store.records(before.id)
    if store.edited(before):
        return {}
    failed, now = failed_cards(records, own_card(before)), run.code or {}
    found: dict[str, _Newest] = {}
    for record in records:
        case, outcome = record.case, record.outcome
        if case.content_hash not in wanted or isinstance(outcome, NotRun):
            continue
        if _code(before, case.kernel) != now.get(case.kernel):
            continue
        there = before.stack_of(case.environment)
        if there is None or not there.agrees_with(stacks[case.environment]):
            continue
        settled: Measured | None = None
        if (card_of(outcome) or own_card(before)) not in failed:  # nothing that such a card measured counts
            origin, fresh = origin_of(outcome), _fresh(made_at(outcome, before, run.started_at), run, request)
            if origin and (origin.run in known or not fresh):
                continue  # the run that measured it is looked at itself, or the evidence is too old
            if isinstance(outcome, Measured) and is_settled(outcome) and not contradictions(record, before.level):
                own = outcome.evidence.device_uuid in ("", stacks[""].device.uuid)
                if not (fresh and own) or before.state == "running" or weaker(before.level, run.level):
                    continue
                settled = outcome
        ends = end_of(outcome, before, run.started_at)
        found.setdefault(case.content_hash, _Newest(run=before, ends=ends, settled=settled))
    return found


def _replaces(found: _Newest, other: _Newest | None) -> bool:
    """Whether an outcome counts in the place of one of a run that began later."""
    if other is None:
        return True
    if found.ends is None or other.ends is None:
        return False
    later = ended_later(found.ends, other.ends)
    return found.settled is None if later is None else later


def _is_refuted(found: _Newest, digest: str, earlier: Iterable[Run], dated: Mapping[str, Collection[str]]) -> bool:
    """Whether a run that began earlier went on after this one began, and may have a newer outcome of the call.

    Args:
        dated: by run, the calls of which it says when they ended.
    """
    beside = (other for other in earlier if went_on(other, found.run))
    return any(
        found.ends is None or (digest not in dated.get(other.id, ()) and reaches(other, min(found.ends)))
        for other in beside
    )


def _earlier(request: Request, store: Store, run: Run, stack: Stack) -> Iterator[Run]:
    """Runs of the matrix whose evidence may stand for this run's, or speak against it, newest first."""
    for before in store.runs(run.matrix, limit=LOOKED_AT):
        same = (before.check_version, before.qualify_version) == (run.check_version, run.qualify_version)
        if before.id == run.id or before.stack is None or not same or is_future(before.started_at, run.started_at):
            continue
        last = before.finished_at or store.last_end(before.id) or before.started_at
        if run.started_at - last > request.max_age or before.stack.device.uuid != stack.device.uuid:
            continue
        if not before.stack.agrees_with(stack) or run_contradiction(before):
            continue
        policy = parse_matrix(before.matrix_source, before.matrix_path).policy
        if made_under(policy) == made_under(request.matrix.card.policy):
            yield before


def _code(run: Run, kernel: str) -> Code | None:
    return (run.code or {}).get(kernel)


def _fresh(moment: datetime, run: Run, request: Request) -> bool:
    """Whether evidence of that moment may stand in a run: neither too old, nor dated after the run."""
    return run.started_at - moment <= request.max_age * YOUNG and not is_future(moment, run.started_at)


def is_observed(card: KernelCard, stack: Stack) -> bool:
    """Whether a change of the kernel's code would show in the stack, or in qualify's version."""
    if card.adapter == CALL or options_of(card.adapter) is None:
        return False
    return any(stack.version(Requirement(text).name) for text in card.shipped_by)
