"""What the canary service knows: who leads, what fired and why, what it advised, what is held, who gets alerts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from qualify.facts.comparison import StackChange
from qualify.facts.run import Verdict
from qualify.facts.stack import Stack

Trigger = Literal["cron", "stack", "manual"]
FireState = Literal["pending", "running", "completed", "refused", "failed"]
"""refused: the machine was not fit to run on; failed: it ran and could not be brought to an end"""
OPEN: tuple[FireState, ...] = ("pending", "running")
Advice = Literal["promote", "hold", "roll back"]
AlertKind = Literal["promote", "hold", "roll back", "refused", "failed"]
"""how a fire ended, as people read it: its advice, or that there is no evidence"""
AlertEvent = Literal[AlertKind, "released"]
"""what a target may get an alert about; released: a fire passed, and so ended the last hold on its node"""
AlertState = Literal["pending", "sent", "dead"]
Spread = Literal["every-node", "one-per-stack", "sample"]
"""on which nodes a canary fires, of those that serve it"""
RolloutState = Literal["open", "promote", "hold", "roll back"]
"""open: waves are still to come, or to end; else the advice of the wave that ended it"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """Who leads. The epoch grows with every change of the leader and never falls: it is the fencing token."""

    name: str
    holder: str
    epoch: int
    beats: int
    """grows with every renewal, so that a follower sees a sign of life without comparing clocks"""
    expires_at: datetime
    """by the database's clock"""
    trouble: str
    """what the holder complains about, for example a card that it cannot read; empty = nothing"""
    node: str = ""
    """the machine whose own fires it owns (:func:`own_lease`); empty = it elects the leader among machines"""
    looked_at: datetime | None = None
    """when the holder last saw the whole stack of its machine; None for a leader's lease, and after a proper stop"""

    @property
    def service(self) -> str:
        """The lease that the service was started with."""
        return self.name.removesuffix(own_lease("", self.node)) if self.node else self.name


def own_lease(lease: str, node: str) -> str:
    """Name of the lease with which a machine owns the fires of its own stack, whoever leads."""
    return f"{lease}@{node}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """When a canary fires, as the service knows it."""

    canary: str
    cron: str
    """five fields, UTC; empty = none"""
    since: datetime
    """when the service learned these times; it does not make up for earlier ones"""
    next_at: datetime | None = None
    """the first moment that the leader has not filed yet; None = it has not said so yet, or there is none"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched:
    """The stack of one node as one canary saw it last."""

    lease: str
    """the machine's own lease, so that each service remembers its own stacks"""
    canary: str
    node: str
    stack: Stack
    """the stack that the canary fired on last, or else the first that it saw"""
    seen_at: datetime
    changing_to: str
    """fingerprint of another stack that has not settled yet; empty = none"""
    changing_since: datetime | None
    changes: tuple[StackChange, ...] = ()
    """what differs in that other stack"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fire:
    """One time at which a canary was due, and what came of it. A canary has at most one for a moment."""

    id: int
    lease: str
    """name of the lease whose holder runs it"""
    canary: str
    scheduled_for: datetime
    trigger: Trigger
    reason: str
    """why it fired, in one sentence"""
    changes: tuple[StackChange, ...]
    """how the stack changed: as the watcher saw it, and once the fire ran, in the stack that it ran on"""
    state: FireState
    epoch: int
    """epoch of the leader that took it last; 0 = nobody has taken it yet"""
    node: str
    """the machine on which it ran; empty = none yet"""
    attempts: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    matrix: str
    run_id: str | None
    """its run, which retention may have removed since"""
    variant: str
    """the device model; empty where it is not known"""
    verdict: Verdict | None
    advice: Advice | None
    reasons: tuple[str, ...]
    """why it gave this advice"""
    numerics_only: tuple[str, ...]
    """why its times say nothing; empty where they count"""
    rollout: str = ""
    """key of the rollout that it belongs to; empty = none"""
    wave: int | None = None
    """number of its wave in the rollout, from 0; None = the wave has not begun, or there is no rollout"""
    duel_id: str | None = None
    """the duel that it fought; None = none"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A machine that serves canaries, as it describes itself under its own lease."""

    lease: str
    """the machine's own lease (:func:`own_lease`)"""
    service: str
    """the lease that its service was started with"""
    node: str
    canaries: tuple[str, ...]
    """names of the canaries that it serves"""
    stack_key: str
    """equal on machines with equal stacks; empty = it has not looked yet"""
    device: str
    """its device, in words"""
    until: datetime
    """when its lease runs out, or ran out, by the database's clock"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    """One stack, or one moment, for which the nodes of a canary fire in waves. Wave 0 has the first nodes."""

    lease: str
    """lease of the service"""
    canary: str
    key: str
    """``stack KEY``, ``cron MOMENT`` or ``manual MOMENT``"""
    trigger: Trigger
    reason: str
    matrix: str
    waves: tuple[tuple[str, ...], ...]
    """names of the nodes of each wave, fixed when the rollout began"""
    wave: int
    """number of the wave that is under way, or that ended the rollout"""
    state: RolloutState
    opened_at: datetime
    ended_at: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeOutcome:
    """What a fire on a fleet says of one node."""

    node: str
    variant: str
    """device models of those of its cards that ran; empty where none ran"""
    advice: Advice
    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class FireResult:
    """How a fire ended."""

    state: FireState
    matrix: str
    run_id: str | None
    variant: str
    verdict: Verdict | None
    advice: Advice
    reasons: tuple[str, ...]
    numerics_only: tuple[str, ...]
    reason: str | None = None
    """why it fired, told from the stack that it ran on; None = the reason with which it was filed"""
    changes: tuple[StackChange, ...] | None = None
    """how that stack changed; None = the changes with which it was filed"""
    duel_id: str | None = None
    """the duel that it fought; None = none"""
    nodes: tuple[NodeOutcome, ...] | None = None
    """what a fire on a fleet says of each node, as each has its own hold; None = it ran on a machine of its service"""

    @property
    def kind(self) -> AlertKind:
        """What kind of alert tells of it."""
        return self.state if self.state in ("refused", "failed") else self.advice


@dataclass(frozen=True, kw_only=True, slots=True)
class Hold:
    """A canary advises against going on with a node and a device model, until a newer fire passes on both."""

    id: int
    canary: str
    node: str
    variant: str
    """empty where the fire ended before the device was known: a pass of any variant of the node releases it"""
    reason: str
    fire_id: int
    since: datetime
    released_at: datetime | None
    released_by: int | None
    """id of the fire that passed, and so ended the hold"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Letter:
    """An alert for one target, before it is filed."""

    target: str
    """name of the target on the canary's card"""
    kind: AlertKind
    body: Mapping[str, Any]
    """``qualify.alert/1`` as plain JSON, before it gets the form that the target wants"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Alert:
    """A letter in the outbox: sent at least once, or visibly given up."""

    id: str
    """stays the same in every attempt, so that a receiver can drop repeats"""
    canary: str
    fire_id: int
    kind: AlertKind
    target: str
    body: Mapping[str, Any]
    state: AlertState
    attempts: int
    created_at: datetime
    next_attempt_at: datetime
    last_error: str
    """empty = none yet"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """Which fires and alerts a service takes: those of canaries that it knows, and those that nobody took for long."""

    canaries: Collection[str]
    orphaned: timedelta


@dataclass(frozen=True, kw_only=True, slots=True)
class Due:
    """A fire before it is filed."""

    canary: str
    scheduled_for: datetime
    trigger: Trigger
    reason: str
    matrix: str
    changes: tuple[StackChange, ...] = ()
    node: str = ""
    """the node where it must run, because its stack changed, or it was chosen; empty = wherever the leader is"""
    lease: str = ""
    """name of the lease whose holder shall run it; empty = the lease under which it is filed"""
    rollout: str = ""
    """key of the rollout in which it waits for its wave; empty = none"""
