"""The code that the kernels of a run were.

Revision ID: 0009
Revises: 0008
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds a column, which stays empty for the runs that are stored."""
    op.add_column("runs", sa.Column("code", sa.Text(), nullable=True))
