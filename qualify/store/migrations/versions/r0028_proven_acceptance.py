"""How the person who accepted a baseline is known; for earlier ones it is unknown.

Revision ID: 0028
Revises: 0027
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds a column."""
    op.add_column("baselines", sa.Column("how", sa.Text(), nullable=False, server_default=""))
