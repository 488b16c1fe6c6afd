"""What people say: sign-offs and their revocations, comments, what is done about holds, and the audit log.

Revision ID: 0016
Revises: 0015
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_APPEND_ONLY = ("signoffs", "revocations", "hold_actions", "audit")


def upgrade() -> None:
    """Adds the tables, and triggers that refuse to change or remove what must stay."""
    _signoffs()
    _comments()
    _hold_actions()
    _audit()
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE FUNCTION qualify_append_only() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'rows of % are append-only', TG_TABLE_NAME; END $$"
        )
    for table in _APPEND_ONLY:
        _protect(table)


def _protect(table: str) -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION qualify_append_only()"
        )
        return
    for event in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER {table}_no_{event.lower()} BEFORE {event} ON {table} "
            f"BEGIN SELECT RAISE(ABORT, 'rows of {table} are append-only'); END"
        )


def _signoffs() -> None:
    op.create_table(
        "signoffs",
        sa.Column("id", _KEY, autoincrement=True, nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("sealed", sa.Boolean(), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "\"verdict\" IN ('PASS', 'FAIL', 'WAIVED', 'INCONCLUSIVE', 'NOT_REQUIRED')",
            name=op.f("ck_signoffs_verdict"),
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_signoffs_run_id_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_signoffs")),
    )
    op.create_index(op.f("ix_signoffs_run_id"), "signoffs", ["run_id"])
    op.create_table(
        "revocations",
        sa.Column("signoff_id", _KEY, nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["signoff_id"], ["signoffs.id"], name=op.f("fk_revocations_signoff_id_signoffs")),
        sa.PrimaryKeyConstraint("signoff_id", name=op.f("pk_revocations")),
    )


def _comments() -> None:
    op.create_table(
        "comments",
        sa.Column("id", _KEY, autoincrement=True, nullable=False),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("case_id", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_comments_run_id_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_comments")),
    )
    op.create_index(op.f("ix_comments_run_id"), "comments", ["run_id"])
    op.create_index(op.f("ix_comments_case_id"), "comments", ["case_id"])


def _hold_actions() -> None:
    op.create_table(
        "hold_actions",
        sa.Column("id", _KEY, autoincrement=True, nullable=False),
        sa.Column("hold_id", _KEY, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("\"kind\" IN ('acknowledge', 'release')", name=op.f("ck_hold_actions_kind")),
        sa.ForeignKeyConstraint(["hold_id"], ["holds.id"], name=op.f("fk_hold_actions_hold_id_holds")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_hold_actions")),
    )
    op.create_index(op.f("ix_hold_actions_hold_id"), "hold_actions", ["hold_id"])


def _audit() -> None:
    op.create_table(
        "audit",
        sa.Column("id", _KEY, autoincrement=True, nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("how", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("allowed", sa.Boolean(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "\"action\" IN ('sign', 'revoke', 'comment', 'acknowledge', 'release', 'login', 'request')",
            name=op.f("ck_audit_action"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
