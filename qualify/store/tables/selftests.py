"""Results of the selftest."""

from __future__ import annotations

from sqlalchemy import Column, Index, Table

from qualify.store.tables.columns import json, key, metadata, part_of, real, whole, words
from qualify.store.types import UtcTime

selftests = Table(
    "selftests",
    metadata,
    key("id"),
    whole("check_version"),
    words("qualify_version"),
    json("levels"),
    # Empty where all faults were planted.
    words("select"),
    Column("started_at", UtcTime, nullable=False),
    real("wall_s"),
    Index(None, "check_version", "id"),
)

planted_faults = Table(
    "planted_faults",
    metadata,
    part_of("selftests.id", "selftest_id", primary_key=True),
    whole("position", primary_key=True),
    words("name"),
    words("kind"),
    words("mirrors"),
    words("does"),
    words("equivalent"),
    json("detections"),
)

correct_kernels = Table(
    "correct_kernels",
    metadata,
    part_of("selftests.id", "selftest_id", primary_key=True),
    whole("position", primary_key=True),
    words("name"),
    words("does"),
    whole("runs"),
    json("alarms"),
)
