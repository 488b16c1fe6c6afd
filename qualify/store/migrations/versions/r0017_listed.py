"""An index that holds all that a list of runs needs, so that no list reads whole runs.

Revision ID: 0017
Revises: 0016
"""

from __future__ import annotations

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds an index; nothing that is stored changes."""
    op.create_index("ix_runs_listed", "runs", ["started_at", "id", "matrix", "state", "stack_id"])
