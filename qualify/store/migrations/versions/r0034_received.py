"""When a run or a duel came from another store.

Revision ID: 0034
Revises: 0033
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds a column to each, which stays empty for what is stored: nobody noted it."""
    for table in ("runs", "duels"):
        op.add_column(table, sa.Column("received_at", sa.DateTime(timezone=True), nullable=True))
