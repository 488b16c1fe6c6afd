"""What an earlier run measured and this one need not: the same call, on the same card and stack, by the same checks.

Only a settled pass of the same code is taken over. Whatever failed, crashed, timed out, proved nothing or contradicts
itself is run again, and so is a third party's function, which may call what the stack does not list. Evidence that is
nearly as old as allowed (24 hours by default) is gathered anew. Otherwise a gate with the same limit would soon call
the run's evidence stale.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from qualify.verdict.origin import is_settled, made_under, origin_of, taken_over, weaker, went_on

YOUNG = 0.9
"""evidence up to this share of the allowed age is taken over: the rest is time for the run, and the gate after it"""
LOOKED_AT = 50
"""newest runs of the matrix among which evidence is looked for"""


def settled_before(request: Request, store: Store, run: Run, stacks: Mapping[str, Stack]) -> list[Record]:
    """Records of the plan's cases that earlier runs settled, equal calls included, each with its origin.

    Args:
        stacks: what this run's kernels run on, by environment, with the libraries of all of them loaded; that of this
            interpreter (empty name) always. Nothing is taken over for an environment that is missing.
    """
    first = {case.content_hash: case for case in first_of_each(request.plan.cases)}
    cards = {name: kernel.card for name, kernel in request.kernels.items()}
    open_ = {
        digest
        for digest, case in first.items()
        if case.environment in stacks and is_observed(cards[case.kernel], stacks[case.environment])
    }
    calls = calls_of(request.plan.cases)
    earlier = list(_earlier(request, store, run, stacks[""]))
    known = {before.id for before in earlier}
    key = request.signing_key
    found: list[Record] = []
    now = run.code or {}
    for before in earlier:
        if not open_:
            break
        records = sealed_records(store, before, key) if key else store.records(before.id)
        if store.edited(before):
            continue
        failed = failed_cards(records, own_card(before))
        refuted = any(went_on(other, before) for other in earlier)  # its failures may be the newer outcomes
        for record in records:
            digest, outcome = record.case.content_hash, record.outcome
            origin = origin_of(outcome)
            kernel = record.case.kernel
            if digest not in open_ or isinstance(outcome, NotRun) or _code(before, kernel) != now.get(kernel):
                continue
            there = before.stack_of(record.case.environment)
            if there is None or not there.agrees_with(stacks[record.case.environment]):
                continue
            if (card_of(outcome) or own_card(before)) in failed:
                open_.discard(digest)  # nothing that this card measured counts
                continue
            if origin and (origin.run in known or not _fresh(origin.began_at, run, request)):
                continue  # the run that measured it is looked at itself, or the evidence is too old
            settled = is_settled(outcome) and not refuted and not contradictions(record, before.level)
            if isinstance(outcome, Measured) and settled:
                if outcome.evidence.device_uuid not in ("", stacks[""].device.uuid):
                    continue
                if weaker(before.level, run.level):
                    continue
                again = Record(case=first[digest], outcome=taken_over(without_note(outcome), before))
                found += shared(again, calls)
            open_.discard(digest)  # the newest outcome counts, whatever it says
    return found


def _earlier(request: Request, store: Store, run: Run, stack: Stack) -> Iterator[Run]:
    """Ended runs of the matrix whose evidence may stand for this run's, newest first."""
    for before in store.runs(run.matrix, limit=LOOKED_AT):
        same = (before.check_version, before.qualify_version) == (run.check_version, run.qualify_version)
        if before.id == run.id or before.state == "running" or before.stack is None or not same:
            continue
        if not _fresh(before.started_at, run, request) or before.stack.device.uuid != stack.device.uuid:
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
