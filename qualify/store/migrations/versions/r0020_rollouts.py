"""Nodes, rollouts in waves, and seats; settings of a card as a kind of component.

Revision ID: 0020
Revises: 0019
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

_KINDS = ("driver", "runtime", "distribution", "binary", "firmware", "system", "setting", "code")
_TRIGGERS = ("cron", "stack", "manual")
_STATES = ("open", "promote", "hold", "roll back")


def upgrade() -> None:
    """Adds tables and columns; what is stored belongs to no rollout."""
    with op.batch_alter_table("components") as components:
        components.drop_constraint(op.f("ck_components_kind"), type_="check")
        components.create_check_constraint(op.f("ck_components_kind"), sa.text(_one_of("kind", _KINDS)))
    with op.batch_alter_table("fires") as fires:
        fires.add_column(sa.Column("rollout", sa.Text(), nullable=False, server_default=""))
        fires.add_column(sa.Column("wave", sa.BigInteger()))
    op.create_table(
        "nodes",
        _words("lease"),
        *(_words(name) for name in ("service", "node", "canaries", "stack_key", "device")),
        sa.PrimaryKeyConstraint("lease", name=op.f("pk_nodes")),
    )
    op.create_table(
        "rollouts",
        *(_words(name) for name in ("lease", "canary", "key", "trigger", "reason", "matrix", "waves")),
        sa.Column("wave", sa.BigInteger(), nullable=False),
        _words("state"),
        sa.Column("opened_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("lease", "canary", "key", name=op.f("pk_rollouts")),
        sa.CheckConstraint(sa.text(_one_of("trigger", _TRIGGERS)), name=op.f("ck_rollouts_trigger")),
        sa.CheckConstraint(sa.text(_one_of("state", _STATES)), name=op.f("ck_rollouts_state")),
    )
    op.create_table(
        "seats",
        *(_words(name) for name in ("lease", "canary", "stack_key")),
        sa.Column("seat", sa.BigInteger(), nullable=False),
        _words("node"),
        sa.PrimaryKeyConstraint("lease", "canary", "stack_key", "seat", name=op.f("pk_seats")),
    )


def _words(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=False)


def _one_of(name: str, allowed: tuple[str, ...]) -> str:
    values = ", ".join(f"'{value}'" for value in allowed)
    return f'"{name}" IN ({values})'
