"""When the case of an outcome ended.

Revision ID: 0033
Revises: 0032
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds a column, which stays empty for what is stored: of those outcomes only the times of their runs are known."""
    op.add_column("outcomes", sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True))
