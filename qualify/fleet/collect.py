"""Joins the shards that nodes ran without a leader, as tasks of an array do, into one run of the whole matrix.

What a task has run is in the store: a sealed run that names the array as its fleet and selects one shard of the plan.
Nothing is joined unless every shard is there and all are evidence of the same stack, code and matrix. A second call
finds what the first one has made. Of two at the same time one waits for the other.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from qualify.cards.load import in_environments, load_kernels, load_matrix
from qualify.errors import NoVerdict, RunBusy, UsageError
from qualify.facts import codec
from qualify.facts.canary import Lease
from qualify.facts.case import USUAL_LEVEL
from qualify.facts.code import Code
from qualify.facts.fleet import Fleet, FleetCard, FleetShare, NodePlan
from qualify.facts.run import Run
from qualify.fleet.agreement import known_with, other_evidence
from qualify.fleet.drive import LEASE_S, Say
from qualify.fleet.inventory import kind_of
from qualify.fleet.lead import this_leader
from qualify.fleet.shared import worse_verdict
from qualify.fleet.shares import cells_to_share, shards_of
from qualify.fleet.silence import silent
from qualify.fleet.whole import store_whole
from qualify.judge.beside import contradicting
from qualify.judge.fleet import slow_cards_of
from qualify.judge.judged import edited_words, judge
from qualify.judge.notes import failed_note
from qualify.judge.seals import Seals
from qualify.plan.plan import make_plan
from qualify.plan.selection import Selection, selected_by
from qualify.seal.keys import PublicKey, signing_key
from qualify.store.store import Store
from qualify.verdict.faults import failed_cards, own_card
from qualify.verdict.origin import origins_of

ENGINE = "array"
"""the engine that a fleet without a leader names"""
LOOK_S = 2.0
"""seconds between two looks for missing shards"""
NAMED = 5
"""shards that a message explains"""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Found:
    """What the store has of each shard, by its number."""

    runs: Mapping[int, Run]
    """the run that counts"""
    missing: Mapping[int, str]
    """why there is no run that ended, on cards that did not fail"""
    odd: Mapping[int, str]
    """why no run counts beside those of the other shards"""
    strangers: tuple[str, ...]
    """runs that name the fleet and select no shard of the plan"""


def collect(store: Store, plan: NodePlan, say: Say, *, wait_s: float = 0.0, keys: Sequence[PublicKey] = ()) -> str:
    """Join the shards of ``plan.fleet``; returns the id of the run of the whole matrix.

    Args:
        plan: what the tasks were given: matrix, cards, selection, shards.
        say: takes a line for the log.
        wait_s: how long to wait for shards that are missing.
        keys: one of these must have sealed a shard; empty = as :func:`qualify.fleet.whole.store_whole` says.

    Raises:
        NoVerdict: a shard is missing, or two are evidence of something different. Nothing was written.
        RunBusy: another process joins the same fleet, and does not end.
        UsageError: the plan names no fleet or has no shards; or the fleet is one that a leader ran.
    """
    if not plan.fleet:
        raise UsageError("--fleet is missing: give the name that the tasks got with `qualify node --fleet NAME`.")
    collector = _Collector(store, plan, say, keys)
    collector.wait(time.monotonic() + wait_s)
    with _leading(store, plan.fleet, say) as lease:
        return collector.join(lease)


@contextmanager
def _leading(store: Store, fleet_id: str, say: Say) -> Iterator[Lease]:
    """Wait until nobody else has the fleet's lease, and take it."""
    dead = silent(lambda: store.fleets.dated_ahead(fleet_id, LEASE_S), LEASE_S, say)
    until, told = time.monotonic() + LEASE_S + LOOK_S, False
    while (lease := store.fleets.lead(fleet_id, this_leader(), LEASE_S, dead)) is None:
        if time.monotonic() > until:
            raise RunBusy(f"another process joins the shards of fleet {fleet_id}. Wait until it has ended.")
        if not told:
            told = True
            most = f"at most {LEASE_S + LOOK_S:g} s"
            say(f"another process joins the shards of fleet {fleet_id}, or was killed: waiting for it, {most}")
        time.sleep(0.2)
    try:
        yield lease
    finally:
        store.fleets.release(lease)


class _Collector:
    """One plan, and what the store has of its shards."""

    def __init__(self, store: Store, plan: NodePlan, say: Say, keys: Sequence[PublicKey]) -> None:
        self._store, self._plan, self._say, self._keys = store, plan, say, keys
        cards = tuple(map(Path, plan.cards))
        self._loaded, self._kernels = load_matrix(plan.matrix, cards, {}), load_kernels(cards)
        self._shards = shards_of(self._loaded, plan)
        led = [it.engine for it in store.fleets.fleets(limit=None) if it.id == plan.fleet and it.engine != ENGINE]
        if led:
            raise UsageError(
                f"--fleet {plan.fleet}: this fleet has a leader ({led[0]}), which joins its shares itself. There is "
                "nothing to collect."
            )

    def wait(self, until: float) -> None:
        """Wait until no shard is missing, or until that moment (monotonic clock, s)."""
        known, told = None, -1
        while time.monotonic() < until:
            now = self._store.fleets.parts(self._plan.fleet, self._loaded.card.matrix)
            if now != known:
                known, missing = now, len(self._look().missing)
                if not missing:
                    return
                if missing != told:
                    there = len(self._shards) - missing
                    self._say(f"fleet {self._plan.fleet}: {there} of {len(self._shards)} shards are there")
                told = missing
            time.sleep(max(0.0, min(LOOK_S, until - time.monotonic())))

    def join(self, lease: Lease) -> str:
        """Store the run of the whole, unless an earlier call has made it of the same runs; returns its id."""
        found = self._look()
        if not found.missing:
            found = replace(found, missing=self._failed(found.runs), odd={**found.odd, **self._lacking(found.runs)})
        self._refuse(found)
        whole = self._made_before(found.runs) or self._make(lease, found.runs)
        slow = [str(it) for it in slow_cards_of(self._store, self._plan.fleet)]
        shared = _named_twice(found.runs)
        for note in shared:
            self._say(note)
        self._store.fleets.end(lease, self._plan.fleet, [*shared, *slow])
        return whole

    @property
    def _seals(self) -> Seals:
        """What counts as sealed; made anew, because runs come meanwhile."""
        key = signing_key()
        return Seals(self._store, self._keys or ([key.public] if key else []))

    def _look(self) -> _Found:
        """What the store has of each shard now."""
        seals, plan = self._seals, self._plan
        parts = self._store.fleets.parts(plan.fleet, self._loaded.card.matrix)
        runs = self._store.runs_of(list(parts))
        numbers = {" ".join(cells): number for number, cells in enumerate(self._shards, 1)}
        ended: dict[int, list[Run]] = defaultdict(list)
        missing = dict.fromkeys(numbers.values(), "no run of it is in the store")
        strangers = []
        for run in (runs[name] for name in reversed(parts) if name in runs):  # the newest one says what is missing
            number = numbers.get(run.select) if run.kernel == (plan.kernel or "") else None
            if number is None:
                strangers.append(run.id)
            elif why := _of_another_plan(run, plan) or _unusable(self._store, run, seals):
                missing[number] = why
            else:
                ended[number].insert(0, run)
        chosen, odd = self._agreeing(ended)
        open_ = {number: why for number, why in missing.items() if number not in ended}
        return _Found(runs=chosen, missing=open_, odd=odd, strangers=tuple(strangers))

    def _agreeing(self, ended: Mapping[int, Sequence[Run]]) -> tuple[dict[int, Run], dict[int, str]]:
        """By shard, the newest run that agrees with most shards; and why a shard has no such run.

        Args:
            ended: the runs of each shard, the newest first.
        """
        kinds = {_kind(run): run for some in ended.values() for run in some}
        agreeing = [(kind, self._like(kind, ended)) for _, kind in sorted(kinds.items())]
        if not agreeing:
            return {}, {}
        usual, chosen = max(agreeing, key=lambda pair: len(pair[1]))
        odd = {
            number: f"{_named(some[0])}: {other_evidence(some[0], usual, self._loaded)}"
            for number, some in ended.items()
            if number not in chosen
        }
        return chosen, odd

    def _like(self, usual: Run, ended: Mapping[int, Sequence[Run]]) -> dict[int, Run]:
        """By shard, the newest run that is evidence of the same thing as the usual run."""
        found: dict[int, Run] = {}
        for number, some in ended.items():
            same = next((run for run in some if not other_evidence(run, usual, self._loaded)), None)
            if same:
                found[number], usual = same, known_with(usual, same)
        return found

    def _failed(self, runs: Mapping[int, Run]) -> dict[int, str]:
        """Shards whose run does not count, because a card of it failed."""
        failed = {number: failed_cards(self._store.records(it.id), own_card(it)) for number, it in runs.items()}
        return {
            number: f"{_named(runs[number])}: {'; '.join(failed_note(cards))}"
            for number, cards in failed.items()
            if cards
        }

    def _lacking(self, runs: Mapping[int, Run]) -> dict[int, str]:
        """Shards whose run has not all cases as they are planned here."""
        kernels = in_environments(self._kernels, self._loaded.environments)
        asked = Selection(select=self._plan.select or "", kernel=self._plan.kernel or "")
        planned = make_plan(self._loaded, kernels, selection=asked)
        known = (record.case for run in runs.values() for record in self._store.records(run.id, "times"))
        ran = {(case.id, case.content_hash) for case in known}
        cases = (*planned.cases, *(case for case, _ in planned.refused))
        lacking = [case.id for case in cases if (case.id, case.content_hash) not in ran]
        told: dict[int, str] = {}
        for number, run in runs.items() if lacking else ():
            mine = selected_by(run.select)
            if case := next((it for it in lacking if mine and mine(it)), ""):
                why = "a kernel card on that node probably differs"
                told[number] = f"{_named(run)} lacks {case} as planned here: {why}"
        return told

    def _refuse(self, found: _Found) -> None:
        """Raises NoVerdict where the shards that are there make no whole."""
        bad, fleet = {**found.missing, **found.odd}, self._plan.fleet
        if not bad:
            return
        numbers = sorted(bad)
        lack = [f"{len(found.missing)} missing"] if found.missing else []
        lack += [f"{len(found.odd)} different from most others or from the plan"] if found.odd else []
        reasons = "; ".join(f"shard {number}: {bad[number]}" for number in numbers[:NAMED])
        more = f"; and {len(numbers) - NAMED} more" if len(numbers) > NAMED else ""
        stray = f" Run {found.strangers[0]} names this fleet and ran no shard of this plan." if found.strangers else ""
        raise NoVerdict(
            f"fleet {fleet}: of {len(self._shards)} shards, {' and '.join(lack)}. {reasons}{more}.{stray} Nothing was "
            f"joined. Run shard {','.join(map(str, numbers))} again with --fleet {fleet}, ingest what comes of it, and "
            "collect again."
        )

    def _made_before(self, runs: Mapping[int, Run]) -> str:
        """The whole that an earlier call made of the same runs; empty where there is none, or it did not end."""
        ids = {number: run.id for number, run in runs.items()}
        if {share.number: share.run_id for share in self._store.fleets.shares(self._plan.fleet)} != ids:
            return ""
        fleet = self._store.fleets.fleet(self._plan.fleet)
        whole = self._store.fleets.whole(fleet)
        if whole is None or fleet.state == "ended":
            return whole or ""
        seals = self._seals  # the earlier call was killed, perhaps before it had stored and sealed the whole
        done = set(origins_of(seals.records(whole))) == set(ids.values()) and not seals.why_not(seals.run(whole))
        return whole if done else ""

    def _make(self, lease: Lease, runs: Mapping[int, Run]) -> str:
        """Store the fleet, and the run of its whole; returns its id."""
        now, plan = datetime.now(UTC), self._plan
        shares = [
            FleetShare(
                number=number,
                node=run.placement.node if run.placement else "",
                cells=self._shards[number - 1],
                state="COVERED",
                run_id=run.id,
                verdict=judge(self._store, run.id, self._kernels, now=now, part=True).conclusion.verdict,
            )
            for number, run in sorted(runs.items())
        ]
        self._store.fleets.collected(lease, self._fleet(now), _cards(runs, shares), shares)
        self._store.fleets.renew(lease, LEASE_S)
        whole = store_whole(self._store, plan.fleet, plan, self._keys)
        assert whole is not None  # every shard has ended
        self._say(f"fleet {plan.fleet}: its {len(shares)} shards make up run {whole.id}")
        return whole.id

    def _fleet(self, now: datetime) -> Fleet:
        return Fleet(
            id=self._plan.fleet,
            matrix=self._loaded.card.matrix,
            matrix_hash=self._loaded.content_hash,
            engine=ENGINE,
            device=kind_of(self._plan.device),
            spread="shard",
            least_coverage=1.0,
            state="running",
            epoch=0,
            created_at=now,
            finished_at=None,
            cells=cells_to_share(self._loaded, self._plan),
        )


def _kind(run: Run) -> str:
    """What a run is evidence of, all that :func:`other_evidence` compares: most shards may be alike in any of it."""
    stacks = [one.fingerprint if one else "" for one in map(run.stack_of, ("", *sorted(run.environments)))]
    told = (run.level, run.device, run.check_version, run.qualify_version, sorted(run.environments), stacks)
    return codec.to_json([*told, codec.to_data(run.code, dict[str, Code] | None)])


def _of_another_plan(run: Run, plan: NodePlan) -> str:
    """Why a run is not what the plan asks for, as where the plan was changed since; empty where it is."""
    level, device = plan.level or USUAL_LEVEL, kind_of(plan.device)
    if run.level != level:
        return f"{_named(run)} ran at level {run.level}, and the plan asks for {level}"
    return f"{_named(run)} ran on {run.device}, and the plan asks for {device}" if run.device != device else ""


def _unusable(store: Store, run: Run, seals: Seals) -> str:
    """Why a run of a shard does not count, whatever the others are; empty where it counts."""
    if run.stack is None or run.state != "completed":
        return f"{_named(run)} did not end ({run.state})"
    why = seals.why_not(run) or contradicting(edited_words(store, run))
    return f"{_named(run)}: {why}" if why else ""


def _named(run: Run) -> str:
    return f"run {run.id} on {run.placement.node}" if run.placement else f"run {run.id}"


def _named_twice(runs: Mapping[int, Run]) -> list[str]:
    """A note on every card that several nodes name: containers of one machine may, and two machines cannot."""
    nodes: dict[str, set[str]] = defaultdict(set)
    for place in filter(None, (run.placement for run in runs.values())):
        for uuid in place.cards:
            nodes[uuid].add(place.node)
    return [
        f"{uuid}: {' and '.join(sorted(some))} name this card, and it counts once: {len(nodes)} cards ran "
        f"{len(runs)} shards. Containers of one machine may share a card. Otherwise one of them has a copied inventory "
        "or file: compare `nvidia-smi -L` there, and run its shard again."
        for uuid, some in sorted(nodes.items())
        if len(some) > 1
    ]


def _cards(runs: Mapping[int, Run], shares: Sequence[FleetShare]) -> list[FleetCard]:
    """The cards that ran the shards, each with the worst verdict of what it ran."""
    cards: dict[str, FleetCard] = {}
    for share in shares:
        run = runs[share.number]
        assert run.placement
        assert run.stack
        for uuid in run.placement.cards:
            cards[uuid] = FleetCard(
                node=share.node,
                uuid=uuid,
                name=run.stack.device.name,
                attempt=1,
                state="COVERED",
                run_id=run.id,
                verdict=worse_verdict(cards[uuid].verdict if uuid in cards else None, share.verdict),
            )
    return list(cards.values())
