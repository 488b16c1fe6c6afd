"""Baselines: which run of a matrix somebody accepted for a device model.

Revision ID: 0004
Revises: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Adds the table; runs are accepted from now on."""
    op.create_table(
        "baselines",
        sa.Column("id", _KEY, autoincrement=True, nullable=False),
        sa.Column("matrix", sa.Text(), nullable=False),
        sa.Column("variant", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("accepted_by", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("accepted_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_baselines_run_id_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_baselines")),
    )
    op.create_index(op.f("ix_baselines_matrix_variant_id"), "baselines", ["matrix", "variant", "id"])
    op.create_index(op.f("ix_baselines_run_id"), "baselines", ["run_id"])
