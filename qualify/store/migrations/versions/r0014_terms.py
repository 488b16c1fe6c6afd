"""What the cards of a run promised, which broad waivers were accepted with a baseline, what a changing stack changes.

Revision ID: 0014
Revises: 0012
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds three columns, which stay empty for what is stored."""
    op.add_column("runs", sa.Column("terms", sa.Text(), nullable=True))
    op.add_column("baselines", sa.Column("waivers", sa.Text(), nullable=True))
    op.add_column("watched_stacks", sa.Column("changes", sa.Text(), nullable=True))
