"""A mask has a pattern by name, with its size; until now chunks were the only one.

Revision ID: 0011
Revises: 0010
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Names the pattern of every mask that has chunks, and calls their size that of the pattern."""
    op.alter_column("cases", "chunk", new_column_name="pattern_size")
    op.add_column("cases", sa.Column("pattern", sa.Text(), nullable=False, server_default=""))
    op.execute("UPDATE cases SET pattern = 'chunked' WHERE pattern_size > 0")
