"""Seals of runs, and how far the runner's clock was from the store's.

Revision ID: 0013
Revises: 0012
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds a table and a column; the runs that are stored are not sealed, and nobody measured their clocks."""
    op.add_column("runs", sa.Column("clock_skew_s", sa.Double(), nullable=True))
    op.create_table(
        "seals",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("envelope", sa.Text(), nullable=False),
        sa.Column("parts", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_seals_run_id_runs")),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_seals")),
    )
