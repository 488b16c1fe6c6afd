"""Sign-offs and comments that came with an imported file: the file that they are from.

Revision ID: 0023
Revises: 0022
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds a column to both; what is stored was said here.

    Not in a batch: SQLite would copy the table, and its triggers would stay behind.
    """
    for table in ("signoffs", "comments"):
        op.add_column(table, sa.Column("origin", sa.Text(), nullable=False, server_default=""))
