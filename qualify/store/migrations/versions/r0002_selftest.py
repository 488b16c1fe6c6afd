"""The selftest's results, and with which checks a run was made.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Adds the column to runs, which were all made with version 1 until now, and the three tables."""
    op.add_column("runs", sa.Column("check_version", sa.BigInteger(), nullable=False, server_default="1"))
    op.create_table(
        "selftests",
        sa.Column("id", _KEY, autoincrement=True, nullable=False),
        sa.Column("check_version", sa.BigInteger(), nullable=False),
        sa.Column("qualify_version", sa.Text(), nullable=False),
        sa.Column("levels", sa.Text(), nullable=False),
        sa.Column("select", sa.Text(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("wall_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_selftests")),
    )
    op.create_index(op.f("ix_selftests_check_version_id"), "selftests", ["check_version", "id"])
    op.create_table(
        "planted_faults",
        sa.Column("selftest_id", _KEY, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("mirrors", sa.Text(), nullable=False),
        sa.Column("does", sa.Text(), nullable=False),
        sa.Column("equivalent", sa.Text(), nullable=False),
        sa.Column("detections", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["selftest_id"], ["selftests.id"], name=op.f("fk_planted_faults_selftest_id_selftests")
        ),
        sa.PrimaryKeyConstraint("selftest_id", "position", name=op.f("pk_planted_faults")),
    )
    op.create_table(
        "correct_kernels",
        sa.Column("selftest_id", _KEY, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("does", sa.Text(), nullable=False),
        sa.Column("runs", sa.BigInteger(), nullable=False),
        sa.Column("alarms", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["selftest_id"], ["selftests.id"], name=op.f("fk_correct_kernels_selftest_id_selftests")
        ),
        sa.PrimaryKeyConstraint("selftest_id", "position", name=op.f("pk_correct_kernels")),
    )
