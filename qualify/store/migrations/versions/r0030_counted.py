"""How many cases a plan has, and how many findings an outcome: whoever deletes the last one is seen.

Revision ID: 0030
Revises: 0029
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds columns, which stay empty for what is stored: nobody knows what was deleted from it."""
    op.add_column("runs", sa.Column("planned", sa.BigInteger(), nullable=True))
    op.add_column("outcomes", sa.Column("finding_count", sa.BigInteger(), nullable=True))
