"""Fleets: the cards that must be covered, and what became of each.

Revision ID: 0019
Revises: 0018
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

_DEVICES = ("cpu", "cuda")
_SPREADS = ("shard", "repeat")
_STATES = ("running", "ended")
_CARDS = ("PLANNED", "COVERED", "BUSY", "LOST", "REFUSED", "MISSING")
_VERDICTS = ("PASS", "FAIL", "WAIVED", "INCONCLUSIVE", "NOT_REQUIRED")


def upgrade() -> None:
    """Adds two tables."""
    op.create_table(
        "fleets",
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("id", "matrix", "matrix_hash", "engine")),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("device", "spread")),
        sa.Column("least_coverage", sa.Double(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True)),
        sa.Column("notes", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_fleets")),
        _one_of("fleets", "device", _DEVICES),
        _one_of("fleets", "spread", _SPREADS),
        _one_of("fleets", "state", _STATES),
    )
    op.create_index(op.f("ix_fleets_created_at"), "fleets", ["created_at"])
    op.create_table(
        "fleet_cards",
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("fleet_id", "uuid")),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("node", "name", "state", "reason")),
        *(sa.Column(name, sa.Text(), nullable=True) for name in ("run_id", "verdict")),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["fleet_id"], ["fleets.id"], name=op.f("fk_fleet_cards_fleet_id_fleets")),
        sa.PrimaryKeyConstraint("fleet_id", "uuid", "attempt", name=op.f("pk_fleet_cards")),
        _one_of("fleet_cards", "state", _CARDS),
        _one_of("fleet_cards", "verdict", _VERDICTS),
    )
    op.create_index(op.f("ix_fleet_cards_run_id"), "fleet_cards", ["run_id"])


def _one_of(table: str, name: str, words: tuple[str, ...]) -> sa.CheckConstraint:
    values = ", ".join(f"'{word}'" for word in words)
    return sa.CheckConstraint(f'"{name}" IN ({values})', name=op.f(f"ck_{table}_{name}"))
