"""Fires, schedules and watched stacks belong to a lease; every machine has a lease of its own.

Revision ID: 0010
Revises: 0009
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

# Rows of runs' writers are no leases of a service.
_LEASE = "coalesce((SELECT min(name) FROM leases WHERE name NOT LIKE 'run:%'), 'canary')"


def upgrade() -> None:
    """Adds columns. What is stored goes to the lease that there is, and to the default's name where there is none."""
    with op.batch_alter_table("leases") as leases:
        leases.add_column(sa.Column("node", sa.Text(), nullable=False, server_default=""))
        leases.add_column(sa.Column("looked_at", sa.DateTime(timezone=True)))
    _belongs("schedules", _LEASE, ["lease", "canary"])
    op.add_column("schedules", sa.Column("next_at", sa.DateTime(timezone=True)))
    # A machine's own lease is called LEASE@NODE.
    own = f"{_LEASE} || '@' || node"
    _belongs("watched_stacks", own, ["lease", "canary", "node"])
    _add_lease("fires", _LEASE)
    op.execute(f"UPDATE fires SET lease = {own} WHERE \"trigger\" = 'stack'")  # noqa: S608 - all of it is above
    with op.batch_alter_table("fires") as fires:
        fires.drop_constraint(op.f("uq_fires_canary_scheduled_for"), type_="unique")
        fires.create_unique_constraint(
            op.f("uq_fires_lease_canary_scheduled_for"), ["lease", "canary", "scheduled_for"]
        )


def _belongs(table: str, lease: str, key: list[str]) -> None:
    """Adds the lease to a table and to its primary key."""
    _add_lease(table, lease)
    with op.batch_alter_table(table) as changed:
        changed.drop_constraint(op.f(f"pk_{table}"), type_="primary")
        changed.create_primary_key(op.f(f"pk_{table}"), key)


def _add_lease(table: str, lease: str) -> None:
    op.add_column(table, sa.Column("lease", sa.Text(), nullable=False, server_default=""))
    op.execute(f"UPDATE {table} SET lease = {lease}")  # noqa: S608 - all of it is above
