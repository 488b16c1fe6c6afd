"""The cells of a duel that only one side can run.

Revision ID: 0031
Revises: 0030
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds columns, which stay empty for what is stored: nobody knows which cells those duels left out."""
    op.add_column("duels", sa.Column("only_a", sa.Text(), nullable=True))
    op.add_column("duels", sa.Column("only_b", sa.Text(), nullable=True))
