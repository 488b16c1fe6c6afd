"""The run of a whole matrix out of the runs of its shares: one verdict, one report, one baseline.

Every outcome is that of the share which measured it, with a note that names the share's run. A case that no share
covered has not run, and the reason says what became of its share: such a whole never qualifies.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import TypeVar

from qualify.cards.load import LoadedMatrix, in_environments, load_kernels, load_matrix
from qualify.facts.clock import worse
from qualify.facts.fleet import Fleet, FleetShare, NodePlan
from qualify.facts.outcome import NotRun, Outcome, Refused, card_of, on_card
from qualify.facts.placement import Placement
from qualify.facts.run import Record, Run
from qualify.fleet.agreement import known_with, other_evidence
from qualify.fleet.sealing import Ledger
from qualify.fleet.shares import cells_of
from qualify.fleet.writers import claimed
from qualify.judge.beside import contradicting
from qualify.judge.judged import edited_words
from qualify.judge.seals import Seals
from qualify.plan.plan import Plan, make_plan
from qualify.plan.selection import Selection, selected_by
from qualify.seal.keys import PublicKey, signing_key
from qualify.store.store import Store
from qualify.verdict.origin import taken_over

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """A share that ended, and its run."""

    share: FleetShare
    run: Run
    why_not: str
    """why it does not count; empty where it does"""


def store_whole(store: Store, fleet_id: str, asked: NodePlan, keys: Sequence[PublicKey] = ()) -> Run | None:
    """Store the run of a fleet's whole matrix; it is sealed where QUALIFY_SIGNING_KEY names a key.

    Args:
        asked: what the nodes were told: matrix, cards and selection.
        keys: one of these must have sealed a share, or it does not count; empty = it needs no seal. A leader that
            seals takes its own key where none is given.

    Returns:
        The run; None where no share ended.
    """
    key = signing_key()
    seals = Seals(store, keys or ([key.public] if key else []))
    fleet, shares = store.fleets.fleet(fleet_id), store.fleets.shares(fleet_id)
    loaded = load_matrix(asked.matrix, tuple(map(Path, asked.cards)), {})
    runs = {it.number: seals.run(it.run_id) for it in shares if it.state == "COVERED" and it.run_id}
    doubts = {number: seals.why_not(run) or contradicting(edited_words(store, run)) for number, run in runs.items()}
    first = _first([run for number, run in runs.items() if not doubts[number]] or runs.values(), loaded)
    if first is None:
        return None
    parts = _parts(shares, runs, first, loaded, doubts)
    select, plan = _planned(fleet, asked, loaded, first.kernel)
    found = _found(seals, [it for it in parts if not it.why_not])
    records = list(_records(plan, found, _fates(shares, parts)))
    run = _new(fleet, select, loaded, first, [it.run for it in parts if not it.why_not])
    with claimed(store, run.id):
        store.begin(run)
        ledger = Ledger(store, run.id, key)
        ledger.add_cases([record.case for record in records])
        ledger.add(records)
        ended = ledger.finish(run, "completed")
        ledger.seal(ended)
    return ended


def _parts(
    shares: Iterable[FleetShare],
    runs: Mapping[int, Run],
    first: Run,
    loaded: LoadedMatrix,
    doubts: Mapping[int, str],
) -> list[_Part]:
    """The shares that ended, and why some do not count.

    Args:
        runs: their runs by the number of the share.
        doubts: by the same number, why a run would not count by itself; empty where it would.
    """
    parts: list[_Part] = []
    for share in shares:
        if run := runs.get(share.number):
            why = doubts[share.number] or other_evidence(run, first, loaded)
            parts.append(_Part(share=share, run=run, why_not=why))
            first = first if why else known_with(first, run)
    return parts


def _first(runs: Iterable[Run], loaded: LoadedMatrix) -> Run | None:
    """The run that all others must agree with; which one it is does not depend on the order of the runs."""
    known = [(run.matrix_hash != loaded.content_hash, run.stack.device.uuid, run.id, run) for run in runs if run.stack]
    return min(known, key=lambda item: item[:3])[3] if known else None


def _planned(fleet: Fleet, asked: NodePlan, loaded: LoadedMatrix, kernel: str) -> tuple[str, Plan]:
    """What ``--select`` was for the whole fleet, empty where it runs every shape; and its cases."""
    kernels = in_environments(load_kernels(tuple(map(Path, asked.cards))), loaded.environments)
    for select in dict.fromkeys((asked.select or "", "")):
        plan = make_plan(loaded, kernels, selection=Selection(select=select, kernel=kernel))
        if cells_of(plan, selected=bool(select)) == fleet.cells:
            return select, plan
    select = " ".join(fleet.cells)
    return select, make_plan(loaded, kernels, selection=Selection(select=select, kernel=kernel))


def _found(seals: Seals, parts: Iterable[_Part]) -> dict[tuple[str, str], Outcome]:
    """By case id and content hash, the outcome of the share that ran it, with its card and its run."""
    found: dict[tuple[str, str], Outcome] = {}
    for part in parts:
        assert part.run.stack
        for record in seals.records(part.run.id):
            card = card_of(record.outcome) or part.run.stack.device.uuid
            outcome = taken_over(on_card(record.outcome, card), part.run, f"on {part.share.node}, as its share")
            found[record.case.id, record.case.content_hash] = outcome
    return found


def _fates(shares: Iterable[FleetShare], parts: Iterable[_Part]) -> Callable[[str], str]:
    """A function that tells why the case of an id has no evidence: the fate of the last share that had its shape."""
    why = {it.share.number: it.why_not for it in parts}
    fates = [
        (selected_by(" ".join(it.cells)), f"share {it.number} on {it.node}: {why.get(it.number) or _fate(it)}")
        for it in shares
    ]

    def fate(case_id: str) -> str:
        told = [text for matches, text in fates if matches and matches(case_id)]
        return told[-1] if told else "no node took it"

    return fate


def _fate(share: FleetShare) -> str:
    """What became of a share."""
    if share.state == "COVERED":
        return "its run lacks this case as planned here: its kernel card on that node probably differs"
    return f"{share.state}, {share.reason or 'nothing was heard of it'}"


def _records(plan: Plan, found: Mapping[tuple[str, str], Outcome], fate: Callable[[str], str]) -> Iterator[Record]:
    """Every case of the plan; one that no share covered has not run."""
    refused = {case.id: Refused(by="plan", reasons=reasons) for case, reasons in plan.refused}
    for case in (*plan.cases, *(case for case, _ in plan.refused)):
        outcome = found.get((case.id, case.content_hash)) or refused.get(case.id)
        yield Record(case=case, outcome=outcome or NotRun(reason=f"no card of the fleet covered it: {fate(case.id)}"))


def _new(fleet: Fleet, select: str, loaded: LoadedMatrix, first: Run, runs: Sequence[Run]) -> Run:
    """The run of the whole, which begins now: ages count from when the shares measured the outcomes."""
    now = datetime.now(UTC)
    places = [run.placement for run in runs if run.placement]
    known = reduce(known_with, runs, first)
    return replace(
        known,
        id=f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}",
        matrix_path=str(loaded.path),
        select=select,
        started_at=now,
        finished_at=None,
        state="running",
        code=_united(run.code for run in runs),
        terms=_united(run.terms for run in runs),
        clock_skew_s=reduce(worse, (run.clock_skew_s for run in runs if run.clock_skew_s is not None), None),
        placement=Placement(
            node="",
            spread="shard",
            cards=tuple(sorted({card for place in places for card in place.cards})),
            fleet=fleet.id,
            attempt=max((place.attempt for place in places), default=1),
        ),
        received_at=None,
    )


def _united(parts: Iterable[Mapping[str, T] | None]) -> dict[str, T] | None:
    """The entries of all parts, those of the first one first; None where a part was not noted."""
    found: dict[str, T] = {}
    for part in parts:
        if part is None:
            return None
        found = {**part, **found}
    return found
