"""Digests of outputs and inputs, the card of each outcome, and where a run was placed.

Revision ID: 0018
Revises: 0017
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds columns, which stay empty for what is stored: each run took its machine's first card."""
    op.add_column("runs", sa.Column("placement", sa.Text(), nullable=True))
    for name in ("output_digest", "inputs_digest", "device_uuid"):
        op.add_column("outcomes", sa.Column(name, sa.Text(), nullable=True))
