"""Fleets that share a matrix: its production shapes, and which node ran which of them.

Revision ID: 0024
Revises: 0023
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

_STATES = ("PLANNED", "COVERED", "BUSY", "LOST", "REFUSED", "MISSING")
_VERDICTS = ("PASS", "FAIL", "WAIVED", "INCONCLUSIVE", "NOT_REQUIRED")


def upgrade() -> None:
    """Adds a column and a table; no fleet of before shared a matrix across nodes."""
    op.add_column("fleets", sa.Column("cells", sa.Text(), nullable=False, server_default="[]"))
    op.create_table(
        "fleet_shares",
        sa.Column("fleet_id", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("node", "cells", "state", "reason")),
        *(sa.Column(name, sa.Text(), nullable=True) for name in ("run_id", "verdict")),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["fleet_id"], ["fleets.id"], name=op.f("fk_fleet_shares_fleet_id_fleets")),
        sa.PrimaryKeyConstraint("fleet_id", "number", name=op.f("pk_fleet_shares")),
        _one_of("fleet_shares", "state", _STATES),
        _one_of("fleet_shares", "verdict", _VERDICTS),
    )


def _one_of(table: str, name: str, words: tuple[str, ...]) -> sa.CheckConstraint:
    values = ", ".join(f"'{word}'" for word in words)
    return sa.CheckConstraint(f'"{name}" IN ({values})', name=op.f(f"ck_{table}_{name}"))
