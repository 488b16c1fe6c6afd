"""Whose a baseline is, for example a branch's.

Revision ID: 0015
Revises: 0014
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds a column; every baseline that is stored is the one that others fall back to."""
    op.add_column("baselines", sa.Column("name", sa.Text(), nullable=False, server_default=""))
