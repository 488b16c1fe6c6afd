"""Deletions: what is left of a run or a duel that was deleted, also by hand.

Revision ID: 0022
Revises: 0021
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_COLUMNS = '("what", "name", "matrix", "started_at", "sha256", "by", "how", "reason", "at")'
_BY_HAND = "'SQL', ''"


def upgrade() -> None:
    """Adds the table, and triggers: its rows stay, and whoever deletes a run or a duel by hand leaves a row in it."""
    op.create_table(
        "deletions",
        sa.Column("id", _KEY, autoincrement=True, nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("what", "name", "matrix")),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("sha256", "by", "how", "reason")),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("\"what\" IN ('run', 'duel')", name=op.f("ck_deletions_what")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deletions")),
    )
    op.create_index(op.f("ix_deletions_name"), "deletions", ["name"])
    op.create_index(op.f("ix_deletions_matrix_started_at"), "deletions", ["matrix", "started_at"])
    protect, trace = (
        (_protect_postgres, _trace_postgres)
        if op.get_bind().dialect.name == "postgresql"
        else (_protect_sqlite, _trace_sqlite)
    )
    protect()
    for what in ("run", "duel"):
        trace(what)


# qualify notes a deletion in the transaction that deletes, just before. What was noted in the last minute is that one.


def _trace_sqlite(what: str) -> None:
    op.execute(
        f"CREATE TRIGGER {what}s_deleted AFTER DELETE ON {what}s "  # noqa: S608 - words of this file
        "WHEN NOT EXISTS (SELECT 1 FROM deletions "
        "WHERE name = OLD.id AND \"at\" > strftime('%Y-%m-%d %H:%M:%f', 'now', '-1 minute')) "
        f"BEGIN INSERT INTO deletions {_COLUMNS} VALUES ('{what}', OLD.id, OLD.matrix, OLD.started_at, '', '', "
        f"{_BY_HAND}, strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'); END"
    )


def _trace_postgres(what: str) -> None:
    op.execute(
        f"CREATE FUNCTION qualify_{what}_deleted() RETURNS trigger LANGUAGE plpgsql AS "  # noqa: S608 - words of this file
        "$$ BEGIN "
        "IF NOT EXISTS (SELECT 1 FROM deletions WHERE name = OLD.id "
        "AND \"at\" > clock_timestamp() - interval '1 minute') THEN "
        f"INSERT INTO deletions {_COLUMNS} VALUES ('{what}', OLD.id, OLD.matrix, OLD.started_at, '', '', "
        f"{_BY_HAND}, clock_timestamp()); END IF; RETURN NULL; END $$"
    )
    op.execute(
        f"CREATE TRIGGER {what}s_deleted AFTER DELETE ON {what}s FOR EACH ROW EXECUTE FUNCTION qualify_{what}_deleted()"
    )


def _protect_sqlite() -> None:
    for event in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER deletions_no_{event.lower()} BEFORE {event} ON deletions "
            "BEGIN SELECT RAISE(ABORT, 'rows of deletions are append-only'); END"
        )


def _protect_postgres() -> None:
    op.execute(
        "CREATE TRIGGER deletions_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON deletions "
        "FOR EACH STATEMENT EXECUTE FUNCTION qualify_append_only()"
    )
