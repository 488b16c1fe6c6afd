"""Chunked masks, and images whose tokens see each other.

Revision ID: 0005
Revises: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the two columns to cases, none of which had either until now."""
    op.add_column("cases", sa.Column("chunk", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("cases", sa.Column("spans", sa.Text(), nullable=False, server_default="[]"))
