"""Cards of a fleet whose hardware failed.

Revision ID: 0026
Revises: 0025
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

_STATES = ("PLANNED", "COVERED", "BUSY", "LOST", "REFUSED", "MISSING", "BAD")


def upgrade() -> None:
    """Allows one more state; no stored card has it."""
    values = ", ".join(f"'{state}'" for state in _STATES)
    with op.batch_alter_table("fleet_cards") as table:
        table.drop_constraint(op.f("ck_fleet_cards_state"), type_="check")
        table.create_check_constraint(op.f("ck_fleet_cards_state"), sa.text(f'"state" IN ({values})'))
