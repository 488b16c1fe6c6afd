"""What the kernel cards of a run promised, and which waivers were in force when a baseline was accepted.

Revision ID: 0014
Revises: 0012
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds two columns; of what is stored nobody noted either."""
    op.add_column("runs", sa.Column("terms", sa.Text(), nullable=True))
    op.add_column("baselines", sa.Column("waivers", sa.Text(), nullable=True))
