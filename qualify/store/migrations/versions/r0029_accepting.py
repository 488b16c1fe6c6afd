"""The audit log says who accepted a baseline, and who logged out.

Revision ID: 0029
Revises: 0028
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

_ACTIONS = ("sign", "revoke", "comment", "acknowledge", "release", "accept", "login", "logout", "request")


def upgrade() -> None:
    """Allows two more actions; no stored line has them."""
    values = ", ".join(f"'{action}'" for action in _ACTIONS)
    with op.batch_alter_table("audit") as table:
        table.drop_constraint(op.f("ck_audit_action"), type_="check")
        table.create_check_constraint(op.f("ck_audit_action"), sa.text(f'"action" IN ({values})'))
    if op.get_bind().dialect.name != "postgresql":
        _protect()


def _protect() -> None:
    """The triggers of revision 0016 again: SQLite copied the table without them."""
    for event in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER audit_no_{event.lower()} BEFORE {event} ON audit "
            "BEGIN SELECT RAISE(ABORT, 'rows of audit are append-only'); END"
        )
