"""How the person of a sign-off, or of what was done about a hold, is known.

Revision ID: 0027
Revises: 0026
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

# The line of the audit log was written in the same transaction. Where several lines match and do not agree, nothing is
# said: such a sign-off counts as unproven.
_AGREED = """
    UPDATE {table} SET how = coalesce((
        SELECT CASE WHEN min(audit.how) = max(audit.how) THEN min(audit.how) ELSE '' END FROM audit
        WHERE audit.allowed AND audit.who = {table}."by" AND audit.action = {action}
        AND audit.subject = {subject} AND audit.detail = {detail}
    ), '')
"""
_SIGNED = _AGREED.format(
    table="signoffs",
    action="'sign'",
    subject="'run ' || signoffs.run_id",
    detail="'as ' || signoffs.role || ': ' || signoffs.reason",
)
_HELD = _AGREED.format(
    table="hold_actions",
    action="hold_actions.kind",
    subject="'hold ' || CAST(hold_actions.hold_id AS TEXT)",
    detail="hold_actions.reason",
)


def upgrade() -> None:
    """Adds a column to both, and fills it from the audit log.

    Not in a batch: SQLite would copy the table, and its triggers would stay behind.
    """
    for table, fill in (("signoffs", _SIGNED), ("hold_actions", _HELD)):
        op.add_column(table, sa.Column("how", sa.Text(), nullable=False, server_default=""))
        _let_go(table)
        op.execute(fill)
        _protect(table)


def _let_go(table: str) -> None:
    """Lets rows be changed, within this migration."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute(f"ALTER TABLE {table} DISABLE TRIGGER {table}_append_only")
    else:
        op.execute(f"DROP TRIGGER {table}_no_update")


def _protect(table: str) -> None:
    """The trigger of revision 0016 again."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute(f"ALTER TABLE {table} ENABLE TRIGGER {table}_append_only")
        return
    op.execute(
        f"CREATE TRIGGER {table}_no_update BEFORE UPDATE ON {table} "
        f"BEGIN SELECT RAISE(ABORT, 'rows of {table} are append-only'); END"
    )
