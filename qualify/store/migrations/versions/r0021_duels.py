"""Duels: what two sides took in turns on one card, with every block, and their seals.

Revision ID: 0021
Revises: 0020
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

PHASES = "'prefill', 'chunked', 'varlen', 'decode', 'verify'"
VERDICTS = "'SLOWER', 'SAME', 'FASTER', 'AMBIGUOUS', 'INCONCLUSIVE'"
WAYS = "'graph', 'graph_warm', 'eager', 'host'"


def _text(name: str, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=nullable)


def _one_of(table: str, column: str, values: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(f'"{column}" IN ({values})', name=op.f(f"ck_{table}_{column}"))


def _of_duel(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["duel_id"], ["duels.id"], name=op.f(f"fk_{table}_duel_id_duels"))


def upgrade() -> None:
    """Adds five tables; there were no duels before."""
    key = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "duels",
        *(_text(name) for name in ("id", "matrix", "matrix_hash", "select", "a", "b")),
        sa.Column("null", sa.Boolean(), nullable=False),
        _text("device"),
        _text("device_uuid"),
        sa.Column("stack_a_id", key, nullable=False),
        sa.Column("stack_b_id", key, nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("complete", sa.Boolean(), nullable=False),
        sa.Column("least_pairs", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["stack_a_id"], ["stacks.id"], name=op.f("fk_duels_stack_a_id_stacks")),
        sa.ForeignKeyConstraint(["stack_b_id"], ["stacks.id"], name=op.f("fk_duels_stack_b_id_stacks")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_duels")),
    )
    op.create_index(op.f("ix_duels_matrix_started_at"), "duels", ["matrix", "started_at"])
    _create_cells()
    op.create_table(
        "duel_blocks",
        *(_text(name) for name in ("duel_id", "cell", "way", "pairs")),
        _of_duel("duel_blocks"),
        sa.PrimaryKeyConstraint("duel_id", "cell", "way", name=op.f("pk_duel_blocks")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "duel_seals",
        *(_text(name) for name in ("duel_id", "envelope", "parts")),
        _of_duel("duel_seals"),
        sa.PrimaryKeyConstraint("duel_id", name=op.f("pk_duel_seals")),
    )


def _create_cells() -> None:
    op.create_table(
        "duel_cells",
        _text("duel_id"),
        sa.Column("position", sa.BigInteger(), nullable=False),
        *(_text(name) for name in ("name", "a", "b", "phase", "verdict", "reason")),
        _text("way", nullable=True),
        sa.Column("thrown_away", sa.BigInteger(), nullable=False),
        sa.Column("planted", sa.Double(), nullable=False),
        _text("notes"),
        _of_duel("duel_cells"),
        sa.PrimaryKeyConstraint("duel_id", "position", name=op.f("pk_duel_cells")),
        _one_of("duel_cells", "phase", PHASES),
        _one_of("duel_cells", "verdict", VERDICTS),
        _one_of("duel_cells", "way", WAYS),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "duel_ratios",
        _text("duel_id"),
        sa.Column("position", sa.BigInteger(), nullable=False),
        _text("way"),
        _text("verdict"),
        *(
            sa.Column(name, sa.Double(), nullable=False)
            for name in ("change", "low", "high", "a_us", "b_us", "detectable", "margin")
        ),
        sa.Column("pairs", sa.BigInteger(), nullable=False),
        sa.Column("quads", sa.BigInteger(), nullable=False),
        _of_duel("duel_ratios"),
        sa.PrimaryKeyConstraint("duel_id", "position", "way", name=op.f("pk_duel_ratios")),
        _one_of("duel_ratios", "verdict", VERDICTS),
        sqlite_with_rowid=False,
    )
