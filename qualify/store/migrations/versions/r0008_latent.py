"""Calls of latent attention, whose values are the first elements of the keys.

Revision ID: 0008
Revises: 0007
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds a column; until now every call had a tensor of its own for its values."""
    op.add_column("cases", sa.Column("latent", sa.Boolean(), nullable=False, server_default=sa.false()))
