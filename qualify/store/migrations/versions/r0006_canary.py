"""The canary service: leases, schedules, watched stacks, fires, holds and the outbox of alerts.

Revision ID: 0006
Revises: 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Adds the tables; nothing that is stored changes."""
    _service()
    _fires()
    _outcomes()


def _service() -> None:
    op.create_table(
        "leases",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("beats", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("trouble", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leases")),
    )
    op.create_table(
        "schedules",
        sa.Column("canary", sa.Text(), nullable=False),
        sa.Column("cron", sa.Text(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("canary", name=op.f("pk_schedules")),
    )
    op.create_table(
        "watched_stacks",
        sa.Column("canary", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("stack", sa.Text(), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("changing_to", sa.Text(), nullable=False),
        sa.Column("changing_since", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("canary", "node", name=op.f("pk_watched_stacks")),
    )


def _fires() -> None:
    op.create_table(
        "fires",
        sa.Column("id", _KEY, autoincrement=True, nullable=False),
        sa.Column("canary", sa.Text(), nullable=False),
        sa.Column("scheduled_for", sa.DateTime(timezone=True), nullable=False),
        sa.Column("trigger", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("changes", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.Column("next_attempt_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("matrix", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("variant", sa.Text(), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=True),
        sa.Column("advice", sa.Text(), nullable=True),
        sa.Column("reasons", sa.Text(), nullable=False),
        sa.Column("numerics_only", sa.Text(), nullable=False),
        sa.CheckConstraint("\"trigger\" IN ('cron', 'stack', 'manual')", name=op.f("ck_fires_trigger")),
        sa.CheckConstraint(
            "\"state\" IN ('pending', 'running', 'completed', 'refused', 'failed')", name=op.f("ck_fires_state")
        ),
        sa.CheckConstraint(
            "\"verdict\" IN ('PASS', 'FAIL', 'WAIVED', 'INCONCLUSIVE', 'NOT_REQUIRED')", name=op.f("ck_fires_verdict")
        ),
        sa.CheckConstraint("\"advice\" IN ('promote', 'hold', 'roll back')", name=op.f("ck_fires_advice")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_fires")),
        sa.UniqueConstraint("canary", "scheduled_for", name=op.f("uq_fires_canary_scheduled_for")),
    )
    op.create_index(op.f("ix_fires_state_next_attempt_at"), "fires", ["state", "next_attempt_at"])


def _outcomes() -> None:
    op.create_table(
        "holds",
        sa.Column("id", _KEY, autoincrement=True, nullable=False),
        sa.Column("canary", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("variant", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("fire_id", _KEY, nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("released_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("released_by", _KEY, nullable=True),
        sa.ForeignKeyConstraint(["fire_id"], ["fires.id"], name=op.f("fk_holds_fire_id_fires")),
        sa.ForeignKeyConstraint(["released_by"], ["fires.id"], name=op.f("fk_holds_released_by_fires")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_holds")),
    )
    op.create_index(op.f("ix_holds_canary_node_variant"), "holds", ["canary", "node", "variant"])
    op.create_table(
        "outbox",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("canary", sa.Text(), nullable=False),
        sa.Column("fire_id", _KEY, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("next_attempt_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_error", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "\"kind\" IN ('promote', 'hold', 'roll back', 'refused', 'failed')", name=op.f("ck_outbox_kind")
        ),
        sa.CheckConstraint("\"state\" IN ('pending', 'sent', 'dead')", name=op.f("ck_outbox_state")),
        sa.ForeignKeyConstraint(["fire_id"], ["fires.id"], name=op.f("fk_outbox_fire_id_fires")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outbox")),
        sa.UniqueConstraint("fire_id", "target", name=op.f("uq_outbox_fire_id_target")),
    )
    op.create_index(op.f("ix_outbox_state_next_attempt_at"), "outbox", ["state", "next_attempt_at"])
