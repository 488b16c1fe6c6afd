"""The other interpreters that kernels of a run ran in, and what each of them was.

Revision ID: 0012
Revises: 0011
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds a table; the runs that are stored had no environment."""
    op.create_table(
        "run_environments",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("python", sa.Text(), nullable=False),
        sa.Column("stack_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("device_uuid", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_run_environments_run_id_runs")),
        sa.ForeignKeyConstraint(["stack_id"], ["stacks.id"], name=op.f("fk_run_environments_stack_id_stacks")),
        sa.PrimaryKeyConstraint("run_id", "name", name=op.f("pk_run_environments")),
    )
