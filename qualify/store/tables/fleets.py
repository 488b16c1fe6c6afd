"""Fleets, their cards and the shares of production shapes."""

from __future__ import annotations

from sqlalchemy import Column, Index, Table

from qualify.facts.devices import DeviceKind
from qualify.facts.fleet import CardState, FleetState, ShareState
from qualify.facts.placement import Spread
from qualify.facts.run import Verdict
from qualify.store.tables.columns import json, metadata, one_of, part_of, real, whole, words
from qualify.store.types import Json, UtcTime

fleets = Table(
    "fleets",
    metadata,
    words("id", primary_key=True),
    words("matrix"),
    words("matrix_hash"),
    words("engine"),
    words("device"),
    words("spread"),
    real("least_coverage"),
    words("state"),
    whole("epoch"),
    Column("created_at", UtcTime, nullable=False),
    Column("finished_at", UtcTime),
    json("notes"),
    Column("cells", Json("cells"), nullable=False, server_default="[]"),
    Index(None, "created_at"),
    one_of("device", DeviceKind),
    one_of("spread", Spread),
    one_of("state", FleetState),
)

fleet_cards = Table(
    "fleet_cards",
    metadata,
    part_of("fleets.id", "fleet_id", primary_key=True),
    words("uuid", primary_key=True),
    whole("attempt", primary_key=True),
    words("node"),
    words("name"),
    words("state"),
    words("reason"),
    # No foreign key: retention may remove the run, the history keeps its id.
    words("run_id", nullable=True),
    words("verdict", nullable=True),
    whole("epoch"),
    Index(None, "run_id"),
    one_of("state", CardState),
    one_of("verdict", Verdict),
)

fleet_shares = Table(
    "fleet_shares",
    metadata,
    part_of("fleets.id", "fleet_id", primary_key=True),
    whole("number", primary_key=True),
    words("node"),
    json("cells"),
    words("state"),
    words("reason"),
    # As in fleet_cards.
    words("run_id", nullable=True),
    words("verdict", nullable=True),
    whole("epoch"),
    one_of("state", ShareState),
    one_of("verdict", Verdict),
)
