"""State of the canary service: rows change under the epoch of a lease."""

from __future__ import annotations

from sqlalchemy import Column, ForeignKey, Index, Table, UniqueConstraint

from qualify.facts.canary import Advice, AlertKind, AlertState, FireState, RolloutState, Trigger
from qualify.facts.run import Verdict
from qualify.store.tables.columns import json, key, metadata, one_of, part_of, whole, words
from qualify.store.types import UtcTime

leases = Table(
    "leases",
    metadata,
    words("name", primary_key=True),
    words("holder"),
    whole("epoch"),
    whole("beats"),
    Column("expires_at", UtcTime, nullable=False),
    words("trouble"),
    # Empty for the lease that elects a leader; else the machine whose own fires it owns.
    words("node"),
    Column("looked_at", UtcTime),
)

schedules = Table(
    "schedules",
    metadata,
    words("lease", primary_key=True),
    words("canary", primary_key=True),
    words("cron"),
    Column("since", UtcTime, nullable=False),
    Column("next_at", UtcTime),
)

watched_stacks = Table(
    "watched_stacks",
    metadata,
    words("lease", primary_key=True),
    words("canary", primary_key=True),
    words("node", primary_key=True),
    words("fingerprint"),
    json("stack"),
    Column("seen_at", UtcTime, nullable=False),
    # A fingerprint that has not settled yet; empty where there is none.
    words("changing_to"),
    Column("changing_since", UtcTime),
    # What differs in that stack; NULL where an older qualify saw it.
    json("changes", nullable=True),
)

fires = Table(
    "fires",
    metadata,
    key("id"),
    words("lease"),
    words("canary"),
    Column("scheduled_for", UtcTime, nullable=False),
    words("trigger"),
    words("reason"),
    json("changes"),
    words("state"),
    whole("epoch"),
    words("node"),
    whole("attempts"),
    Column("next_attempt_at", UtcTime, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("started_at", UtcTime),
    Column("finished_at", UtcTime),
    words("matrix"),
    # No foreign key: retention may remove the run, the history keeps its id.
    words("run_id", nullable=True),
    words("variant"),
    words("verdict", nullable=True),
    words("advice", nullable=True),
    json("reasons"),
    json("numerics_only"),
    # The key of its rollout; empty where it belongs to none. The wave is NULL until the wave begins.
    words("rollout"),
    whole("wave", nullable=True),
    words("duel_id", nullable=True),
    UniqueConstraint("lease", "canary", "scheduled_for"),
    Index(None, "state", "next_attempt_at"),
    one_of("trigger", Trigger),
    one_of("state", FireState),
    one_of("verdict", Verdict),
    one_of("advice", Advice),
)

# What each machine reports about itself under its own lease.
nodes = Table(
    "nodes",
    metadata,
    words("lease", primary_key=True),
    words("service"),
    words("node"),
    json("canaries"),
    words("stack_key"),
    words("device"),
)

rollouts = Table(
    "rollouts",
    metadata,
    words("lease", primary_key=True),
    words("canary", primary_key=True),
    words("key", primary_key=True),
    words("trigger"),
    words("reason"),
    words("matrix"),
    json("waves"),
    whole("wave"),
    words("state"),
    Column("opened_at", UtcTime, nullable=False),
    Column("ended_at", UtcTime),
    one_of("trigger", Trigger),
    one_of("state", RolloutState),
)

# Which machines fire for a stack that many have: the first ones that see it, as many as the canary's card asks for.
seats = Table(
    "seats",
    metadata,
    words("lease", primary_key=True),
    words("canary", primary_key=True),
    words("stack_key", primary_key=True),
    whole("seat", primary_key=True),
    words("node"),
)

holds = Table(
    "holds",
    metadata,
    key("id"),
    words("canary"),
    words("node"),
    words("variant"),
    words("reason"),
    part_of("fires.id", "fire_id"),
    Column("since", UtcTime, nullable=False),
    Column("released_at", UtcTime),
    Column("released_by", ForeignKey("fires.id")),
    Index(None, "canary", "node", "variant"),
)

outbox = Table(
    "outbox",
    metadata,
    words("id", primary_key=True),
    words("canary"),
    part_of("fires.id", "fire_id"),
    words("kind"),
    words("target"),
    json("body"),
    words("state"),
    whole("attempts"),
    Column("created_at", UtcTime, nullable=False),
    Column("next_attempt_at", UtcTime, nullable=False),
    words("last_error"),
    UniqueConstraint("fire_id", "target"),
    Index(None, "state", "next_attempt_at"),
    one_of("kind", AlertKind),
    one_of("state", AlertState),
)
