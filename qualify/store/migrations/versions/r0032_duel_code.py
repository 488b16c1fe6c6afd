"""The code and the cards that a duel timed.

Revision ID: 0032
Revises: 0031
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds columns, which stay empty for what is stored: nobody knows which code those duels timed."""
    op.add_column("duels", sa.Column("code", sa.Text(), nullable=True))
    op.add_column("duels", sa.Column("content", sa.Text(), nullable=True))
