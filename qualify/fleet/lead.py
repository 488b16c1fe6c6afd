"""One leader for a fleet: it takes the lease, lets its nodes run, and ends whatever it started."""

from __future__ import annotations

import os
import secrets
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from qualify.errors import RunBusy
from qualify.fleet import drive
from qualify.fleet.drive import Drive, FleetOrder, Say
from qualify.fleet.engine import FleetEngine
from qualify.fleet.inventory import node_name
from qualify.fleet.shared import SharedDrive
from qualify.store.store import Store
from qualify.text import unsaid


def run_fleet(engine: FleetEngine, order: FleetOrder, store: Store, spool: Path, say: Say, detail: Say = unsaid) -> str:
    """Cover the fleet's cards; returns its id.

    Args:
        spool: folder for files that come from nodes, until they are in the store.
        say: takes a line for the log.
        detail: takes a line for every node that begins, and for every file of it.

    Raises:
        LeaseLost: another process leads the fleet now. Its tasks were ended, and nothing more was written.
        NoVerdict: no node has a card, or every card is covered already.
        RunBusy: another process leads the fleet that shall go on.
        UsageError: no fleet of that id.
    """
    fleet_id, spread = order.id or f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}", order.plan.spread
    if order.again:
        before = store.fleets.fleet(order.again)
        fleet_id, spread = before.id, before.spread
        order = replace(order, plan=replace(order.plan, spread=spread))
    holder = f"{node_name()}:{os.getpid()}:{secrets.token_hex(4)}"
    lease = store.fleets.lead(fleet_id, holder, drive.LEASE_S, order.dead)
    if lease is None:
        raise RunBusy(
            f"another process leads fleet {fleet_id}. Wait until it has ended; if it died, try again after "
            f"{drive.LEASE_S:g} s."
        )
    kind = SharedDrive if spread == "shard" else Drive
    leading = kind(engine, order, store, spool, say, lease, fleet_id, detail)
    try:
        leading.place(leading.expect_again() if order.again else leading.expect())
        leading.listen()
        leading.end()
    finally:
        leading.close()
    return fleet_id
