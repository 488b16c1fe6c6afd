"""fp8 as a dtype with its descale factors, and statistics by sequence.

Revision ID: 0003
Revises: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_DTYPES = "\"{0}\" IN ('bf16', 'fp16', 'fp32', 'fp8_e4m3')"


def upgrade() -> None:
    """Widens two CHECK constraints of ``cases`` and adds columns; what was stored keeps its meaning."""
    op.add_column("statistics", sa.Column("G_limit", sa.Double(), nullable=False, server_default="1.6"))
    op.add_column("statistics", sa.Column("worst_sequence", sa.BigInteger(), nullable=True))
    op.add_column("cases", sa.Column("descale", sa.Text(), nullable=False, server_default=""))
    # SQLite changes no constraint of a table: there Alembic rebuilds it.
    with op.batch_alter_table("cases") as cases:
        for name in ("dtype", "workload_dtype"):
            cases.drop_constraint(op.f(f"ck_cases_{name}"), type_="check")
            cases.create_check_constraint(op.f(f"ck_cases_{name}"), sa.text(_DTYPES.format(name)))
