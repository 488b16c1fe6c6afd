"""Nodes, seats and rollouts. Every function works inside the transaction of its connection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, insert, select, update

from qualify.facts.canary import OPEN, Fire, FireResult, Lease, Node, Rollout, RolloutState, own_lease
from qualify.store import fires as store_fires
from qualify.store.bulk import inserting
from qualify.store.clock import LONGEST_WAIT, believed_until, now_of
from qualify.store.tables import fires, leases, nodes, rollouts, seats

_ROLLOUT = tuple(Rollout.__dataclass_fields__)


def tell(connection: Connection, node: Node) -> None:
    """Stores what a machine reports about itself, in place of its earlier report."""
    row = {
        "service": node.service,
        "node": node.node,
        "canaries": list(node.canaries),
        "stack_key": node.stack_key,
        "device": node.device,
    }
    if not connection.execute(update(nodes).where(nodes.c.lease == node.lease).values(row)).rowcount:
        connection.execute(insert(nodes), {"lease": node.lease, **row})


def load_nodes(connection: Connection, service: str | None) -> list[Node]:
    """The machines of a service, or of all services, by name; also machines that are gone."""
    joined = nodes.join(leases, leases.c.name == nodes.c.lease)
    wanted = select(nodes, leases.c.expires_at.label("until")).select_from(joined).order_by(nodes.c.node)
    if service is not None:
        wanted = wanted.where(nodes.c.service == service)
    return [Node(**{**row, "canaries": tuple(row["canaries"])}) for row in connection.execute(wanted).mappings()]


def take_seat(connection: Connection, service: str, canary: str, stack_key: str, seat_count: int, node: str) -> bool:
    """Gives the node one of the stack's seats: the first nodes get them. False where none is free, or it has one."""
    about = {"lease": service, "canary": canary, "stack_key": stack_key}
    mine = [seats.c[name] == value for name, value in about.items()]
    taken = {row.seat: row.node for row in connection.execute(select(seats.c.seat, seats.c.node).where(*mine))}
    if node in taken.values():
        return False  # it fired for this stack before
    for seat in range(seat_count):
        row = {**about, "seat": seat, "node": node}
        added = inserting(connection)(seats).on_conflict_do_nothing().values(row).returning(seats.c.seat)
        if seat not in taken and connection.execute(added).first():
            return True
    return False


def load_rollouts(connection: Connection, *where: ColumnElement[bool]) -> list[Rollout]:
    """Rollouts, the newest first; those that are dated in the future last."""
    future = rollouts.c.opened_at > believed_until(connection)
    order = (future, rollouts.c.opened_at.desc(), rollouts.c.key)
    rows = connection.execute(select(rollouts).where(*where).order_by(*order))
    return [_rollout(row) for row in rows.mappings()]


def _rollout(row: Mapping[Any, Any]) -> Rollout:
    data = {name: row[name] for name in _ROLLOUT}
    return Rollout(**{**data, "waves": tuple(tuple(wave) for wave in data["waves"])})


def open_rollout(connection: Connection, rollout: Rollout) -> None:
    """Begins a rollout; one that began already stays as it is."""
    row = {name: getattr(rollout, name) for name in _ROLLOUT} | {"waves": [list(wave) for wave in rollout.waves]}
    connection.execute(inserting(connection)(rollouts).on_conflict_do_nothing(), row)


def fires_of(connection: Connection, rollout: Rollout) -> list[Fire]:
    """The fires of the rollout's nodes, the latest first; without those that sum up its waves."""
    mine = (fires.c.rollout == rollout.key, fires.c.canary == rollout.canary, fires.c.node != "")
    return [it for it in store_fires.load(connection, *mine) if it.lease == own_lease(rollout.lease, it.node)]


def waiting(connection: Connection, service: str) -> list[Fire]:
    """Fires of a service that wait for their wave."""
    found = store_fires.load(connection, fires.c.rollout != "", fires.c.wave.is_(None), fires.c.state == "pending")
    return [it for it in found if it.lease == own_lease(service, it.node)]


def let_go(connection: Connection, waits: Iterable[Fire], wave: int) -> None:
    """Lets the waiting fires begin, as part of that wave."""
    ids = [fire.id for fire in waits]
    still = (fires.c.id.in_(ids), fires.c.wave.is_(None), fires.c.state == "pending")
    connection.execute(update(fires).where(*still).values(wave=wave))


def end_without_run(connection: Connection, ended: Sequence[Fire], result: FireResult) -> list[Fire]:
    """Ends open fires of other machines, with a hold on each; returns those that were still open."""
    done = []
    for fire in ended:
        open_yet = (fires.c.id == fire.id, fires.c.state.in_(OPEN), fires.c.attempts == fire.attempts)
        if connection.execute(update(fires).where(*open_yet).values(state="running", epoch=0)).rowcount:
            store_fires.file_result(connection, fire.id, result)
            done.append(fire)
    return done


def end_wave(connection: Connection, lease: Lease, rollout: Rollout, result: FireResult, state: RolloutState) -> int:
    """Files a wave's advice as a fire without a node, then begins the next wave or ends the rollout.

    Returns the id of the fire.
    """
    now = now_of(connection)
    last = state != "open"
    row = {
        **store_fires.blank(now),
        "lease": lease.name,
        "canary": rollout.canary,
        "scheduled_for": _free_moment(connection, lease, rollout, now),
        "trigger": rollout.trigger,
        "reason": f"wave {rollout.wave} of {len(rollout.waves)} of {rollout.key}: {rollout.reason}",
        "state": "running",
        "matrix": rollout.matrix,
        "node": "",
        "rollout": rollout.key,
        "wave": rollout.wave,
        "started_at": now,
    }
    (fire_id,) = connection.execute(insert(fires).returning(fires.c.id), [row]).scalars()
    store_fires.file_result(connection, fire_id, result)
    mine = [rollouts.c[name] == getattr(rollout, name) for name in ("lease", "canary", "key", "wave", "state")]
    after = {"state": state, "ended_at": now} if last else {"wave": rollout.wave + 1}
    connection.execute(update(rollouts).where(*mine).values(after))
    return int(fire_id)


def _free_moment(connection: Connection, lease: Lease, rollout: Rollout, now: datetime) -> datetime:
    """Now, or a little later where the canary has a fire of the same moment."""
    mine = (fires.c.lease == lease.name, fires.c.canary == rollout.canary, fires.c.scheduled_for >= now)
    taken = set(connection.execute(select(fires.c.scheduled_for).where(*mine)).scalars())
    while now in taken:
        now += timedelta(milliseconds=1)
    return now


def shorten(connection: Connection, service: str) -> None:
    """Shortens leases of machines that end later than any lease can: they were written under a wrong clock.

    Such a lease then ends LONGEST_WAIT from now, and its machine's stack counts as seen now. A machine that is alive
    soon writes both again.
    """
    now = now_of(connection)
    until = now + LONGEST_WAIT
    mine = leases.c.name.in_(select(nodes.c.lease).where(nodes.c.service == service))
    connection.execute(update(leases).where(mine, leases.c.looked_at > now).values(looked_at=now))
    connection.execute(update(leases).where(mine, leases.c.expires_at > until).values(expires_at=until))


def abandoned(connection: Connection, service: str, patience: timedelta) -> list[Fire]:
    """Open fires of those machines of the service that gave no sign of life for ``patience``."""
    gone = now_of(connection) - patience
    joined = select(fires.c.id).join(leases, leases.c.name == fires.c.lease)
    ids = joined.where(leases.c.node != "", leases.c.expires_at < gone, fires.c.state.in_(OPEN))
    found = store_fires.load(connection, fires.c.id.in_(ids))
    return [it for it in found if it.lease == own_lease(service, it.node)]
