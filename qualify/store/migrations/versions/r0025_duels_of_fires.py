"""The duel that a fire fought.

Revision ID: 0025
Revises: 0024
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds a column; no stored fire fought a duel."""
    with op.batch_alter_table("fires") as fires:
        fires.add_column(sa.Column("duel_id", sa.Text()))
