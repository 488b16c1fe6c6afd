"""The first schema: everything.

Revision ID: 0001
Revises: nothing
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Creates all tables, each after those that it refers to."""
    _stacks()
    _runs()
    _cases()
    _outcomes()
    _checks()
    _measurements()


def _stacks() -> None:
    op.create_table(
        "stacks",
        sa.Column("id", _KEY, autoincrement=True, nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("device_kind", sa.Text(), nullable=False),
        sa.Column("device_name", sa.Text(), nullable=False),
        sa.Column("compute_capability", sa.Text(), nullable=False),
        sa.Column("units", sa.BigInteger(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("cache_bytes", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("\"device_kind\" IN ('cpu', 'cuda')", name=op.f("ck_stacks_device_kind")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_stacks")),
        sa.UniqueConstraint("fingerprint", name=op.f("uq_stacks_fingerprint")),
    )
    op.create_table(
        "components",
        sa.Column("stack_id", _KEY, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "\"kind\" IN ('driver', 'runtime', 'distribution', 'binary', 'firmware', 'system')",
            name=op.f("ck_components_kind"),
        ),
        sa.ForeignKeyConstraint(["stack_id"], ["stacks.id"], name=op.f("fk_components_stack_id_stacks")),
        sa.PrimaryKeyConstraint("stack_id", "position", name=op.f("pk_components")),
    )
    op.create_table(
        "stack_environment",
        sa.Column("stack_id", _KEY, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["stack_id"], ["stacks.id"], name=op.f("fk_stack_environment_stack_id_stacks")),
        sa.PrimaryKeyConstraint("stack_id", "name", name=op.f("pk_stack_environment")),
    )


def _runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("matrix", sa.Text(), nullable=False),
        sa.Column("matrix_hash", sa.Text(), nullable=False),
        sa.Column("matrix_source", sa.Text(), nullable=False),
        sa.Column("matrix_path", sa.Text(), nullable=False),
        sa.Column("level", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("select", sa.Text(), nullable=False),
        sa.Column("kernel", sa.Text(), nullable=False),
        sa.Column("qualify_version", sa.Text(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("stack_id", _KEY, nullable=True),
        sa.Column("device_uuid", sa.Text(), nullable=True),
        sa.CheckConstraint("\"device\" IN ('cpu', 'cuda')", name=op.f("ck_runs_device")),
        sa.CheckConstraint("\"level\" IN ('smoke', 'full')", name=op.f("ck_runs_level")),
        sa.CheckConstraint("\"state\" IN ('running', 'completed', 'interrupted')", name=op.f("ck_runs_state")),
        sa.ForeignKeyConstraint(["stack_id"], ["stacks.id"], name=op.f("fk_runs_stack_id_stacks")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
    )
    op.create_index(op.f("ix_runs_matrix_started_at"), "runs", ["matrix", "started_at"], unique=False)
    op.create_index(op.f("ix_runs_started_at"), "runs", ["started_at"], unique=False)
    op.create_table(
        "ceilings",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("copy_bytes_per_s", sa.Double(), nullable=False),
        sa.Column("exps_per_s", sa.Double(), nullable=False),
        sa.Column("launch_us", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_ceilings_run_id_runs")),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_ceilings")),
    )
    op.create_table(
        "matmul_ceilings",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("dtype", sa.Text(), nullable=False),
        sa.Column("matmul_flops_per_s", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_matmul_ceilings_run_id_runs")),
        sa.PrimaryKeyConstraint("run_id", "dtype", name=op.f("pk_matmul_ceilings")),
    )


def _cases() -> None:
    op.create_table(
        "cases",
        sa.Column("key", _KEY, autoincrement=True, nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("case_id", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("shape", sa.Text(), nullable=False),
        sa.Column("dtype", sa.Text(), nullable=False),
        sa.Column("mask", sa.Text(), nullable=False),
        sa.Column("kernel", sa.Text(), nullable=False),
        sa.Column("layers", sa.BigInteger(), nullable=False),
        sa.Column("line", sa.BigInteger(), nullable=False),
        sa.Column("content_hash", sa.Text(), nullable=False),
        sa.Column("unclaimed", sa.Text(), nullable=False),
        sa.Column("heads_q", sa.BigInteger(), nullable=False),
        sa.Column("heads_kv", sa.BigInteger(), nullable=False),
        sa.Column("head_dim", sa.BigInteger(), nullable=False),
        sa.Column("head_dim_v", sa.BigInteger(), nullable=False),
        sa.Column("workload_dtype", sa.Text(), nullable=False),
        sa.Column("causal", sa.Boolean(), nullable=False),
        sa.Column("window_left", sa.BigInteger(), nullable=False),
        sa.Column("window_right", sa.BigInteger(), nullable=False),
        sa.Column("softcap", sa.Double(), nullable=False),
        sa.Column("sinks", sa.Boolean(), nullable=False),
        sa.Column("scale", sa.Double(), nullable=False),
        sa.Column("seqlens_q", sa.Text(), nullable=False),
        sa.Column("seqlens_k", sa.Text(), nullable=False),
        sa.Column("page_size", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("\"dtype\" IN ('bf16', 'fp16', 'fp32')", name=op.f("ck_cases_dtype")),
        sa.CheckConstraint("\"phase\" IN ('prefill', 'chunked', 'varlen', 'decode')", name=op.f("ck_cases_phase")),
        sa.CheckConstraint("\"workload_dtype\" IN ('bf16', 'fp16', 'fp32')", name=op.f("ck_cases_workload_dtype")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_cases_run_id_runs")),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_cases")),
        sa.UniqueConstraint("run_id", "case_id", name=op.f("uq_cases_run_id_case_id")),
        sa.UniqueConstraint("run_id", "position", name=op.f("uq_cases_run_id_position")),
    )
    op.create_index(op.f("ix_cases_case_id"), "cases", ["case_id"], unique=False)


def _outcomes() -> None:
    op.create_table(
        "outcomes",
        sa.Column("id", _KEY, autoincrement=True, nullable=False),
        sa.Column("case_key", _KEY, nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=True),
        sa.Column("by", sa.Text(), nullable=True),
        sa.Column("reasons", sa.Text(), nullable=True),
        sa.Column("stage", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("log", sa.Text(), nullable=True),
        sa.Column("limit_s", sa.Double(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("first_call_us", sa.Double(), nullable=True),
        sa.Column("peak_temporary_bytes", sa.BigInteger(), nullable=True),
        sa.Column("wall_s", sa.Double(), nullable=True),
        sa.Column("witness_state", sa.Text(), nullable=True),
        sa.Column("witness_reason", sa.Text(), nullable=True),
        sa.Column("witness_expected", sa.Text(), nullable=True),
        sa.Column("witness_calls", sa.BigInteger(), nullable=True),
        sa.Column("latency_us", sa.Double(), nullable=True),
        sa.Column("launches_per_block", sa.BigInteger(), nullable=True),
        sa.Column("rotated_bytes", sa.BigInteger(), nullable=True),
        sa.Column("cold", sa.Boolean(), nullable=True),
        sa.Column("host_us", sa.Double(), nullable=True),
        sa.Column("flops", sa.BigInteger(), nullable=True),
        sa.Column("compulsory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("exps", sa.BigInteger(), nullable=True),
        sa.Column("roofline_us", sa.Double(), nullable=True),
        sa.Column("bound", sa.Text(), nullable=True),
        sa.Column("ceiling_share", sa.Double(), nullable=True),
        sa.CheckConstraint("\"bound\" IN ('flops', 'bytes', 'exps', 'launch')", name=op.f("ck_outcomes_bound")),
        sa.CheckConstraint("\"by\" IN ('plan', 'library')", name=op.f("ck_outcomes_by")),
        sa.CheckConstraint(
            "\"outcome\" IN ('measured', 'refused', 'substituted', 'crashed', 'timed_out', 'not_run')",
            name=op.f("ck_outcomes_outcome"),
        ),
        sa.CheckConstraint(
            "\"witness_state\" IN ('proven', 'substituted', 'unproven')", name=op.f("ck_outcomes_witness_state")
        ),
        sa.ForeignKeyConstraint(["case_key"], ["cases.key"], name=op.f("fk_outcomes_case_key_cases")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outcomes")),
    )
    op.create_index(op.f("ix_outcomes_case_key_id"), "outcomes", ["case_key", "id"], unique=False)


def _checks() -> None:
    op.create_table(
        "findings",
        sa.Column("outcome_id", _KEY, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("check", sa.Text(), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("values", sa.Text(), nullable=False),
        sa.CheckConstraint("\"verdict\" IN ('pass', 'fail', 'inconclusive', 'note')", name=op.f("ck_findings_verdict")),
        sa.ForeignKeyConstraint(["outcome_id"], ["outcomes.id"], name=op.f("fk_findings_outcome_id_outcomes")),
        sa.PrimaryKeyConstraint("outcome_id", "position", name=op.f("pk_findings")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "statistics",
        sa.Column("outcome_id", _KEY, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("inputs", sa.Text(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("reference", sa.Text(), nullable=False),
        sa.Column("declared_class", sa.Text(), nullable=False),
        sa.Column("measured_class", sa.Text(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("E", sa.Double(), nullable=False),
        sa.Column("E_without_underflow", sa.Double(), nullable=False),
        sa.Column("R", sa.Double(), nullable=False),
        sa.Column("G", sa.Double(), nullable=False),
        sa.Column("beta", sa.Double(), nullable=False),
        sa.Column("beta_limit", sa.Double(), nullable=False),
        sa.Column("lse_rel", sa.Double(), nullable=True),
        sa.Column("lse_base", sa.Text(), nullable=False),
        sa.CheckConstraint("\"lse_base\" IN ('e', '2', '')", name=op.f("ck_statistics_lse_base")),
        sa.ForeignKeyConstraint(["outcome_id"], ["outcomes.id"], name=op.f("fk_statistics_outcome_id_outcomes")),
        sa.PrimaryKeyConstraint("outcome_id", "position", name=op.f("pk_statistics")),
        sqlite_with_rowid=False,
    )


def _measurements() -> None:
    op.create_table(
        "launches",
        sa.Column("outcome_id", _KEY, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("family", sa.Text(), nullable=False),
        sa.Column("generation", sa.Text(), nullable=False),
        sa.Column("grid_x", sa.BigInteger(), nullable=True),
        sa.Column("grid_y", sa.BigInteger(), nullable=True),
        sa.Column("grid_z", sa.BigInteger(), nullable=True),
        sa.Column("block_x", sa.BigInteger(), nullable=True),
        sa.Column("block_y", sa.BigInteger(), nullable=True),
        sa.Column("block_z", sa.BigInteger(), nullable=True),
        sa.Column("registers", sa.BigInteger(), nullable=True),
        sa.Column("shared_bytes", sa.BigInteger(), nullable=True),
        sa.Column("stream", sa.BigInteger(), nullable=True),
        sa.Column("duration_us", sa.Double(), nullable=False),
        sa.CheckConstraint(
            "\"role\" IN ('attention', 'auxiliary', 'gemm', 'softmax', 'unclassified')", name=op.f("ck_launches_role")
        ),
        sa.ForeignKeyConstraint(["outcome_id"], ["outcomes.id"], name=op.f("fk_launches_outcome_id_outcomes")),
        sa.PrimaryKeyConstraint("outcome_id", "position", name=op.f("pk_launches")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "samples",
        sa.Column("outcome_id", _KEY, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("latency_us", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["outcome_id"], ["outcomes.id"], name=op.f("fk_samples_outcome_id_outcomes")),
        sa.PrimaryKeyConstraint("outcome_id", "position", name=op.f("pk_samples")),
        sqlite_with_rowid=False,
    )
