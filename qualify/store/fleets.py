"""Fleets in the database: the cards that a fleet expects before it places anything, and what became of each.

One row stands for one card in one attempt of a fleet. Every write first checks, in the same transaction, that the
caller still has the fleet's lease (leases.py). So a leader that wakes late writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, Connection, Text, and_, delete, func, insert, or_, select, type_coerce, update

from qualify.errors import NoVerdict, UsageError
from qualify.facts import codec
from qualify.facts.canary import Lease
from qualify.facts.fleet import Fleet, FleetCard, FleetShare, Slow
from qualify.facts.placement import Placement
from qualify.facts.run import RunState
from qualify.facts.vote import Ballot
from qualify.store import leases, reading
from qualify.store.bulk import insert_rows
from qualify.store.clock import believed_until, now_of
from qualify.store.database import Database
from qualify.store.leases import OF_FLEETS
from qualify.store.reading import chunks
from qualify.store.tables import cases, findings, fleet_cards, fleet_shares, fleets, outcomes, runs, stacks
from qualify.store.types import texts

_FLEET = tuple(Fleet.__dataclass_fields__)
_CARD = tuple(FleetCard.__dataclass_fields__)
_SHARE = tuple(FleetShare.__dataclass_fields__)
RAN = ("measured", "substituted", "crashed", "timed_out")
"""outcomes of cases that a card began"""
_PORTION = 5_000
"""rows that are fetched at once"""


class Fleets:
    """The fleets of one database; :attr:`qualify.store.Store.fleets`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def lead(self, fleet_id: str, holder: str, ttl_s: float, dead: Lease | None = None) -> Lease | None:
        """Takes the fleet's lease with a new epoch; None where somebody else has it."""
        name = f"{OF_FLEETS}{fleet_id}"
        with self._database.writing() as connection:
            return leases.acquire(connection, name, holder, timedelta(seconds=ttl_s), dead)

    def dated_ahead(self, fleet_id: str, ttl_s: float) -> Lease | None:
        """The fleet's lease if a wrong clock dated it: it ends later than one of ``ttl_s`` seconds can. Else None."""
        with self._database.reading() as connection:
            return leases.dated_ahead(connection, f"{OF_FLEETS}{fleet_id}", timedelta(seconds=ttl_s))

    def renew(self, lease: Lease, ttl_s: float) -> None:
        """Keeps the lease for another while. Raises LeaseLost where another leader took the fleet over."""
        with self._database.writing() as connection:
            leases.renew(connection, lease, timedelta(seconds=ttl_s), "")

    def release(self, lease: Lease) -> None:
        """Ends the lease now."""
        with self._database.writing() as connection:
            leases.release(connection, lease)

    def plan(self, lease: Lease, fleet: Fleet, expected: Sequence[FleetCard]) -> None:
        """Stores the fleet and the cards that it expects, before anything is placed."""
        with self._leading(lease, in_file=True) as connection:
            connection.execute(insert(fleets), _fleet_row(connection, lease, fleet))
            _add_cards(connection, lease, fleet.id, expected)

    def attempt(self, lease: Lease, fleet_id: str, again: Sequence[FleetCard], named: Iterable[str] = ()) -> None:
        """Stores another attempt on some cards.

        Args:
            named: names that stood for cards with unknown UUIDs. ``again`` has these cards, so the names are removed.
        """
        with self._leading(lease, in_file=True) as connection:
            for uuid in named:
                mine = (fleet_cards.c.fleet_id == fleet_id, fleet_cards.c.uuid == uuid)
                connection.execute(delete(fleet_cards).where(*mine))
            _add_cards(connection, lease, fleet_id, again)

    def settle(self, lease: Lease, fleet_id: str, told: Iterable[FleetCard]) -> None:
        """Stores what became of expected cards. Raises UsageError for a card that is not expected in that attempt."""
        with self._leading(lease) as connection:
            for card in told:
                values = {name: getattr(card, name) for name in ("state", "reason", "run_id", "verdict")}
                values["epoch"] = lease.epoch
                mine = (fleet_cards.c.fleet_id == fleet_id, fleet_cards.c.uuid == card.uuid)
                wanted = update(fleet_cards).where(*mine, fleet_cards.c.attempt == card.attempt).values(values)
                if not connection.execute(wanted).rowcount:
                    raise UsageError(f"fleet {fleet_id} expects no card {card.uuid} in attempt {card.attempt}")

    def share(self, lease: Lease, fleet_id: str, share: FleetShare) -> None:
        """Stores a share before it is placed, and again with what became of it."""
        row = _share_row(lease, fleet_id, share)
        mine = (fleet_shares.c.fleet_id == fleet_id, fleet_shares.c.number == share.number)
        with self._leading(lease) as connection:
            if not connection.execute(update(fleet_shares).where(*mine).values(row)).rowcount:
                connection.execute(insert(fleet_shares), row)

    def shares(self, fleet_id: str) -> list[FleetShare]:
        """The shares of a matrix that is divided among nodes, in the order in which the leader gave them out."""
        wanted = select(fleet_shares).where(fleet_shares.c.fleet_id == fleet_id).order_by(fleet_shares.c.number)
        with self._database.reading() as connection:
            rows = connection.execute(wanted).mappings()
            return [
                FleetShare(**{**{name: row[name] for name in _SHARE}, "cells": tuple(row["cells"])}) for row in rows
            ]

    def end(self, lease: Lease, fleet_id: str, notes: Sequence[str] = ()) -> None:
        """Ends the fleet: nothing more is placed. Adds new notes, and drops earlier notes about slow cards."""
        with self._leading(lease) as connection:
            before = connection.execute(select(fleets.c.notes).where(fleets.c.id == fleet_id)).scalar_one()
            values: dict[str, Any] = {"state": "ended", "finished_at": now_of(connection), "epoch": lease.epoch}
            kept = [note for note in before if Slow.read(note) is None]
            values["notes"] = list(dict.fromkeys([*kept, *notes]))
            connection.execute(update(fleets).where(fleets.c.id == fleet_id).values(values))

    def fleet(self, fleet_id: str) -> Fleet:
        """The fleet of that id, or the only one whose id starts with it; ``latest`` is the newest.

        Raises NoVerdict where no fleet is stored, UsageError where the id fits none or several.
        """
        found = self.fleets(limit=None)
        if not found:
            raise NoVerdict(f"no fleet in {self._database.where} yet: `qualify fleet MATRIX` runs one")
        meant = found[:1] if fleet_id == "latest" else [item for item in found if item.id.startswith(fleet_id)]
        exact = [item for item in meant if item.id == fleet_id] or meant
        if len(exact) != 1:
            named = ", ".join(item.id for item in (exact or found)[:5])
            begin = f"{len(exact)} fleets begin" if exact else "no fleet begins"
            raise UsageError(f"{begin} with {fleet_id!r}. Fleets that are stored: {named}")
        return exact[0]

    def fleets(self, limit: int | None = 50) -> list[Fleet]:
        """The newest fleets first; those that are dated in the future last."""
        with self._database.reading() as connection:
            future = fleets.c.created_at > believed_until(connection)
            wanted = select(fleets).order_by(future, fleets.c.created_at.desc(), fleets.c.id.desc()).limit(limit)
            return [_fleet(row) for row in connection.execute(wanted).mappings()]

    def cards(self, fleet_id: str) -> list[FleetCard]:
        """The newest attempt on every card of the fleet."""
        newest = select(fleet_cards.c.uuid, func.max(fleet_cards.c.attempt).label("attempt"))
        newest = newest.where(fleet_cards.c.fleet_id == fleet_id).group_by(fleet_cards.c.uuid)
        latest = newest.subquery()
        same = and_(fleet_cards.c.uuid == latest.c.uuid, fleet_cards.c.attempt == latest.c.attempt)
        wanted = select(fleet_cards).join(latest, same).where(fleet_cards.c.fleet_id == fleet_id)
        with self._database.reading() as connection:
            rows = connection.execute(wanted.order_by(fleet_cards.c.node, fleet_cards.c.uuid)).mappings()
            return [FleetCard(**{name: row[name] for name in _CARD}) for row in rows]

    def whole(self, fleet: Fleet) -> str | None:
        """The id of the newest completed run that is made of all shares of the fleet; None where there is none."""
        placed = self._placed(fleet.id, fleet.matrix)
        return next((run for run, place, state in placed if place.is_whole and state == "completed"), None)

    def parts(self, fleet_id: str, matrix: str) -> dict[str, RunState]:
        """The runs of single nodes that name the fleet, with their states, the newest first."""
        return {run: state for run, place, state in self._placed(fleet_id, matrix) if not place.is_whole}

    def _placed(self, fleet_id: str, matrix: str) -> Iterator[tuple[str, Placement, RunState]]:
        """The runs that name a fleet, the newest first; those that are dated in the future last."""
        place = type_coerce(runs.c.placement, Text)
        wanted = select(runs.c.id, runs.c.placement, runs.c.state).where(runs.c.matrix == matrix)
        wanted = wanted.where(place.contains(fleet_id, autoescape=True))
        with self._database.reading() as connection:
            for row in connection.execute(wanted.order_by(*reading.newest(connection))):
                placement = codec.from_data(Placement, row.placement)
                if placement.fleet == fleet_id:
                    yield str(row.id), placement, row.state

    def collected(self, lease: Lease, fleet: Fleet, cards: Sequence[FleetCard], shares: Sequence[FleetShare]) -> None:
        """Stores what nodes ran without a leader: the fleet, its cards and its shares. They replace earlier ones."""
        with self._leading(lease) as connection:
            for table in (fleet_cards, fleet_shares):
                connection.execute(delete(table).where(table.c.fleet_id == fleet.id))
            connection.execute(delete(fleets).where(fleets.c.id == fleet.id))
            connection.execute(insert(fleets), _fleet_row(connection, lease, fleet))
            _add_cards(connection, lease, fleet.id, cards)
            insert_rows(connection, fleet_shares, [_share_row(lease, fleet.id, share) for share in shares])

    def fingerprints(self, run_ids: Sequence[str]) -> dict[str, str]:
        """The fingerprint of the stack of each run; one whose stack is unknown is left out."""
        wanted = select(runs.c.id, stacks.c.fingerprint).join(stacks, runs.c.stack_id == stacks.c.id)
        with self._database.reading() as connection:
            return {
                row.id: row.fingerprint
                for some in chunks(run_ids)
                for row in connection.execute(wanted.where(runs.c.id.in_(some)))
            }

    def dated(self, run_ids: Sequence[str]) -> dict[str, bool]:
        """Those of some runs that are stored, and whether each is dated in the future."""
        with self._database.reading() as connection:
            until = believed_until(connection)
            future = or_(runs.c.started_at > until, func.coalesce(runs.c.finished_at, runs.c.started_at) > until)
            wanted = select(runs.c.id, future.label("future"))
            return {
                row.id: bool(row.future)
                for some in chunks(run_ids)
                for row in connection.execute(wanted.where(runs.c.id.in_(some)))
            }

    def ballots(self, run_ids: Sequence[str]) -> Iterator[Ballot]:
        """For each case of some runs, what each card returned, where a digest was taken; sorted by case."""
        with self._database.reading() as connection:
            failed = _failed(connection, run_ids)
            wanted = _latest(run_ids).order_by(cases.c.case_id, runs.c.id)
            for row in connection.execute(wanted, execution_options={"yield_per": _PORTION}):
                yield Ballot(
                    case=row.case_id,
                    kernel=row.kernel,
                    card=row.device_uuid or row.own,
                    stack=row.fingerprint,
                    inputs=row.inputs_digest or "",
                    output=row.output_digest,
                    failed=row.id in failed,
                )

    def ran(self, run_ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """By UUID of a card, the ids of those cases of some runs whose last outcome is from that card."""
        newest = select(func.max(outcomes.c.id)).join(cases, cases.c.key == outcomes.c.case_key)
        newest = newest.where(_of_runs(run_ids)).group_by(outcomes.c.case_key)
        card = func.coalesce(outcomes.c.device_uuid, runs.c.device_uuid)
        wanted = (
            select(card.label("card"), cases.c.case_id)
            .select_from(outcomes)
            .join(cases, cases.c.key == outcomes.c.case_key)
            .join(runs, runs.c.id == cases.c.run_id)
            .where(outcomes.c.id.in_(newest), outcomes.c.outcome.in_(RAN), card.is_not(None))
            .order_by(card, cases.c.case_id)
        )
        with self._database.reading() as connection:
            found = groupby(connection.execute(wanted), key=lambda row: str(row.card))
            return {name: tuple(row.case_id for row in rows) for name, rows in found}

    def times(self, run_ids: Sequence[str]) -> list[tuple[str, str, float]]:
        """(UUID of the card, case id, latency in µs) of every timed case of some runs."""
        with self._database.reading() as connection:
            rows = connection.execute(_latest(run_ids).where(outcomes.c.latency_us.is_not(None)))
            return [(row.device_uuid or row.own, row.case_id, row.latency_us) for row in rows]

    @contextmanager
    def _leading(self, lease: Lease, *, in_file: bool = False) -> Iterator[Connection]:
        with self._database.writing(in_file=in_file) as connection:
            leases.fence(connection, lease)
            yield connection


def _add_cards(connection: Connection, lease: Lease, fleet_id: str, given: Sequence[FleetCard]) -> None:
    rows = [{**{name: getattr(card, name) for name in _CARD}, "fleet_id": fleet_id} for card in given]
    insert_rows(connection, fleet_cards, [{**row, "epoch": lease.epoch} for row in rows])


def _fleet_row(connection: Connection, lease: Lease, fleet: Fleet) -> dict[str, Any]:
    """A fleet that is stored now."""
    told = {"epoch": lease.epoch, "created_at": now_of(connection), "notes": list(fleet.notes)}
    return {name: getattr(fleet, name) for name in _FLEET} | told | {"cells": list(fleet.cells)}


def _share_row(lease: Lease, fleet_id: str, share: FleetShare) -> dict[str, Any]:
    own = {name: getattr(share, name) for name in _SHARE}
    return own | {"cells": list(share.cells), "epoch": lease.epoch, "fleet_id": fleet_id}


def _fleet(row: Mapping[Any, Any]) -> Fleet:
    return Fleet(**{**{name: row[name] for name in _FLEET}, "notes": texts(row["notes"]), "cells": tuple(row["cells"])})


def _of_runs(run_ids: Sequence[str]) -> ColumnElement[bool]:
    return cases.c.run_id.in_(run_ids)


def _latest(run_ids: Sequence[str]) -> Any:
    """Selects the last outcome of each case of some runs, where a digest was taken."""
    newest = select(func.max(outcomes.c.id)).join(cases, cases.c.key == outcomes.c.case_key)
    newest = newest.where(_of_runs(run_ids)).group_by(outcomes.c.case_key)
    return (
        select(
            outcomes.c.id,
            cases.c.case_id,
            cases.c.kernel,
            outcomes.c.device_uuid,
            runs.c.device_uuid.label("own"),
            stacks.c.fingerprint,
            outcomes.c.inputs_digest,
            outcomes.c.output_digest,
            outcomes.c.latency_us,
        )
        .select_from(outcomes)
        .join(cases, cases.c.key == outcomes.c.case_key)
        .join(runs, runs.c.id == cases.c.run_id)
        .join(stacks, stacks.c.id == runs.c.stack_id)
        .where(outcomes.c.id.in_(newest), outcomes.c.output_digest.is_not(None))
    )


def _failed(connection: Connection, run_ids: Sequence[str]) -> set[int]:
    """The ids of those outcomes of some runs in which a check failed."""
    wanted = (
        select(findings.c.outcome_id)
        .join(outcomes, outcomes.c.id == findings.c.outcome_id)
        .join(cases, cases.c.key == outcomes.c.case_key)
        .where(_of_runs(run_ids), findings.c.verdict == "fail")
    )
    return set(connection.execute(wanted).scalars())
