"""Duels: their cells, ratios and blocks of times, and their seals."""

from __future__ import annotations

from sqlalchemy import Column, Index, Table

from qualify.facts.case import Phase
from qualify.facts.duel import DuelVerdict, Way
from qualify.store.tables.columns import flag, json, metadata, one_of, part_of, real, whole, word, words
from qualify.store.types import UtcTime

duels = Table(
    "duels",
    metadata,
    words("id", primary_key=True),
    words("matrix"),
    words("matrix_hash"),
    words("select"),
    words("a"),
    words("b"),
    flag("null"),
    words("device"),
    words("device_uuid"),
    part_of("stacks.id", "stack_a_id"),
    part_of("stacks.id", "stack_b_id"),
    Column("started_at", UtcTime, nullable=False),
    Column("finished_at", UtcTime, nullable=False),
    flag("complete"),
    whole("least_pairs"),
    json("only_a", nullable=True),
    json("only_b", nullable=True),
    json("code", nullable=True),
    json("content", nullable=True),
    # NULL where it was fought here, and in duels that were imported before qualify noted it.
    Column("received_at", UtcTime),
    Index(None, "matrix", "started_at"),
)

duel_cells = Table(
    "duel_cells",
    metadata,
    part_of("duels.id", "duel_id", primary_key=True),
    whole("position", primary_key=True),
    words("name"),
    words("a"),
    words("b"),
    word("phase"),
    word("verdict"),
    words("reason"),
    word("way", nullable=True),
    whole("thrown_away"),
    real("planted"),
    json("notes"),
    one_of("phase", Phase),
    one_of("verdict", DuelVerdict),
    one_of("way", Way),
    sqlite_with_rowid=False,
)

duel_ratios = Table(
    "duel_ratios",
    metadata,
    part_of("duels.id", "duel_id", primary_key=True),
    whole("position", primary_key=True),
    words("way", primary_key=True),
    word("verdict"),
    *(real(name) for name in ("change", "low", "high", "a_us", "b_us", "detectable", "margin")),
    whole("pairs"),
    whole("quads"),
    one_of("verdict", DuelVerdict),
    sqlite_with_rowid=False,
)

# Every block of every pair of processes: [pair, confirming, thrown away, [[a, a, b, b], ...]] in µs of a launch.
duel_blocks = Table(
    "duel_blocks",
    metadata,
    part_of("duels.id", "duel_id", primary_key=True),
    words("cell", primary_key=True),
    words("way", primary_key=True),
    json("pairs"),
    sqlite_with_rowid=False,
)

duel_seals = Table(
    "duel_seals",
    metadata,
    part_of("duels.id", "duel_id", primary_key=True),
    json("envelope"),
    word("parts"),
)
