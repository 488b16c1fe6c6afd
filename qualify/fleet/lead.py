"""One leader for a fleet: it takes the lease, lets its nodes run, and ends whatever it started."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from qualify.errors import InfrastructureError, RunBusy, UsageError
from qualify.facts.fleet import FINAL, Fleet, FleetCard, FleetShare, NodePlan
from qualify.facts.typed import PLAIN, Typed
from qualify.fleet import drive
from qualify.fleet.drive import Drive, FleetOrder, Say
from qualify.fleet.engine import FleetEngine
from qualify.fleet.intake import Intake
from qualify.fleet.inventory import kind_of, node_name
from qualify.fleet.patience import Patience
from qualify.fleet.shared import SharedDrive
from qualify.fleet.silence import silent
from qualify.run.process.folder import remove_folder
from qualify.seal.keys import signing_key
from qualify.store.store import Store
from qualify.text import unsaid

SPOOL = "fleet-"
"""how the names of the folders begin that hold what nodes sent"""


@contextmanager
def spool_in(out: Path, say: Say, typed: Typed = PLAIN, name: str = "") -> Iterator[Path]:
    """A folder for what nodes send. Where the fleet ends early, and the store has not taken all of it, it stays.

    Args:
        say: takes a line that names the folder, with the command that stores what is in it.
        typed: what the command repeats.
        name: of the fleet, where it has one already: for :func:`take_left`.

    Raises:
        InfrastructureError: the folder cannot be made.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{SPOOL}{name}-" if name else SPOOL, dir=out))
    except OSError as error:
        raise InfrastructureError(
            f"no folder for the files of nodes can be made in {out}: {error.strerror or error}. Nothing was run."
        ) from error
    keep = False
    try:
        yield folder
    except BaseException:
        keep = any(folder.glob(f"*{FINAL}"))
        raise
    finally:
        if keep:
            command = typed.command("ingest", str(folder))
            say(f"what nodes had measured, and the store did not take, lies in {folder}: {command}")
        else:
            remove_folder(folder)


def take_left(out: Path, name: str, store: Store, say: Say) -> None:
    """Store what nodes had sent to a leader of that fleet that was killed on this machine, and remove its folder."""
    for folder in out.glob(f"{SPOOL}{name}-*"):
        with Intake(store, (), Patience(say, drive.LONGEST_AWAY_S)) as intake:
            for taken in intake.take(sorted(folder.glob(f"*{FINAL}"))):
                say(f"an earlier leader of {name} had {taken.file.name}: {taken.refused or 'stored'}")
        remove_folder(folder)


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
        order = replace(order, plan=as_before(store, before, order.plan))
    if spread == "shard" and not order.keys and (key := signing_key()):
        order = replace(order, keys=(key.public,))  # it seals the whole, and answers for every share
    dead = order.dead or silent(lambda: store.fleets.dated_ahead(fleet_id, drive.LEASE_S), drive.LEASE_S, say)
    lease = store.fleets.lead(fleet_id, this_leader(), drive.LEASE_S, dead)
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


def as_before(store: Store, fleet: Fleet, plan: NodePlan) -> NodePlan:
    """The plan of another attempt; options that the user left out are those of the first attempt.

    Raises:
        UsageError: it is another plan than the fleet's. Its cards would be covered by other cases.
    """
    _refuse_other("MATRIX", f"--again {fleet.id}", fleet.matrix_hash[:12], plan.matrix_hash[:12])
    _refuse_other("--device", f"--again {fleet.id}", fleet.device, kind_of(plan.device))
    parts: list[FleetCard | FleetShare] = [*store.fleets.cards(fleet.id), *store.fleets.shares(fleet.id)]
    ids = [part.run_id for part in parts if part.run_id]
    run = next((found for name in ids for found in store.runs_of([name]).values()), None)
    if run is None and ids:
        raise UsageError(
            f"--again {fleet.id}: none of its runs is stored any more (`qualify db deletions`), so nobody knows which "
            "cases covered its cards. Start a new fleet without --again."
        )
    if run is None:
        return replace(plan, spread=fleet.spread)
    _refuse_other("--kernel", f"--again {fleet.id}", run.kernel, plan.kernel)
    _refuse_other("--level", f"--again {fleet.id}", run.level, plan.level)
    select = plan.select
    if fleet.spread == "repeat":
        _refuse_other("--select", f"--again {fleet.id}", run.select, plan.select)
        select = run.select or None
    return replace(plan, spread=fleet.spread, select=select, kernel=run.kernel or None, level=run.level)


def _refuse_other(option: str, again: str, before: str, typed: str | None) -> None:
    if typed and typed != before:
        raise UsageError(
            f"{again}: that fleet ran with {option} {before or '(none)'}, and not with {typed}. Its cards would be "
            f"covered by other cases: leave {option} as it was, or start a new fleet without --again."
        )


def this_leader() -> str:
    """How this process signs a lease that it takes now."""
    return f"{node_name()}:{os.getpid()}:{secrets.token_hex(4)}"
