"""Chunked masks, images whose tokens see each other, the phase that checks drafted tokens, and traffic.

Revision ID: 0005
Revises: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_PHASES = "\"phase\" IN ('prefill', 'chunked', 'varlen', 'decode', 'verify')"


def upgrade() -> None:
    """Adds three columns, which are empty in all rows, and widens the CHECK of the phase."""
    op.add_column("cases", sa.Column("chunk", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("cases", sa.Column("spans", sa.Text(), nullable=False, server_default="[]"))
    op.add_column("runs", sa.Column("traffic_source", sa.Text(), nullable=False, server_default=""))
    # SQLite changes no constraint of a table: there Alembic rebuilds it.
    with op.batch_alter_table("cases") as cases:
        cases.drop_constraint(op.f("ck_cases_phase"), type_="check")
        cases.create_check_constraint(op.f("ck_cases_phase"), sa.text(_PHASES))
