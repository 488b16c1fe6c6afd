"""16-bit queries beside an fp8 cache as a dtype.

Revision ID: 0007
Revises: 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_DTYPES = "\"{0}\" IN ('bf16', 'fp16', 'fp32', 'fp8_e4m3', 'bf16_kv_fp8_e4m3', 'fp16_kv_fp8_e4m3')"


def upgrade() -> None:
    """Widens two CHECK constraints of ``cases``; what was stored keeps its meaning."""
    # SQLite changes no constraint of a table: there Alembic rebuilds it.
    with op.batch_alter_table("cases") as cases:
        for name in ("dtype", "workload_dtype"):
            cases.drop_constraint(op.f(f"ck_cases_{name}"), type_="check")
            cases.create_check_constraint(op.f(f"ck_cases_{name}"), sa.text(_DTYPES.format(name)))
