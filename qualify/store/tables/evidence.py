"""Runs and their evidence: what they ran on, their cases and outcomes, and the accepted baselines."""

from __future__ import annotations

from sqlalchemy import Column, Index, Table, UniqueConstraint

from qualify.facts.case import Level, Phase
from qualify.facts.devices import DeviceKind
from qualify.facts.dtypes import Dtype
from qualify.facts.outcome import OUTCOMES, Bound, FindingVerdict, Role, WitnessState
from qualify.facts.run import RunState
from qualify.facts.stack import ComponentKind
from qualify.store.tables.columns import (
    flag,
    json,
    key,
    metadata,
    one_of,
    part_of,
    real,
    shared_words,
    whole,
    word,
    words,
)
from qualify.store.types import Flag, Repeated, UtcTime

stacks = Table(
    "stacks",
    metadata,
    key("id"),
    words("fingerprint"),
    words("device_kind"),
    words("device_name"),
    words("compute_capability"),
    whole("units"),
    whole("memory_bytes"),
    whole("cache_bytes"),
    UniqueConstraint("fingerprint"),
    one_of("device_kind", DeviceKind),
)

components = Table(
    "components",
    metadata,
    part_of("stacks.id", "stack_id", primary_key=True),
    whole("position", primary_key=True),
    words("kind"),
    words("name"),
    words("version"),
    words("digest"),
    one_of("kind", ComponentKind),
)

stack_environment = Table(
    "stack_environment",
    metadata,
    part_of("stacks.id", "stack_id", primary_key=True),
    words("name", primary_key=True),
    words("value"),
)

runs = Table(
    "runs",
    metadata,
    words("id", primary_key=True),
    words("matrix"),
    words("matrix_hash"),
    words("matrix_source"),
    words("matrix_path"),
    words("traffic_source"),
    word("level"),
    word("device"),
    words("select"),
    words("kernel"),
    words("qualify_version"),
    whole("check_version"),
    Column("started_at", UtcTime, nullable=False),
    Column("finished_at", UtcTime),
    word("state"),
    part_of("stacks.id", "stack_id", nullable=True),
    # The card itself: a stack is shared by all cards of one model, so its fingerprint leaves the UUID out.
    words("device_uuid", nullable=True),
    # By kernel and file; most runs have the same. NULL in runs from before qualify noted it.
    Column("code", Repeated("code")),
    # By kernel and key of its card; most runs have the same. NULL in runs from before qualify noted it.
    Column("terms", Repeated("terms")),
    # NULL in runs from before qualify measured it.
    real("clock_skew_s", nullable=True),
    # NULL where no card was named.
    json("placement", nullable=True),
    # Cases of the plan. NULL until the plan is stored, and in runs from before qualify counted them.
    whole("planned", nullable=True),
    # NULL where it ran here, and in runs that were imported before qualify noted it.
    Column("received_at", UtcTime),
    one_of("level", Level),
    one_of("device", DeviceKind),
    one_of("state", RunState),
    Index(None, "matrix", "started_at"),
    Index(None, "started_at"),
    # This index alone answers lists of runs, their search and their trend.
    Index("ix_runs_listed", "started_at", "id", "matrix", "state", "stack_id"),
)

run_environments = Table(
    "run_environments",
    metadata,
    part_of("runs.id", "run_id", primary_key=True),
    words("name", primary_key=True),
    words("python"),
    part_of("stacks.id", "stack_id", nullable=True),
    words("device_uuid", nullable=True),
)

seals = Table(
    "seals",
    metadata,
    part_of("runs.id", "run_id", primary_key=True),
    json("envelope"),
    word("parts"),
)

ceilings = Table(
    "ceilings",
    metadata,
    part_of("runs.id", "run_id", primary_key=True),
    real("copy_bytes_per_s"),
    real("exps_per_s"),
    real("launch_us"),
)

matmul_ceilings = Table(
    "matmul_ceilings",
    metadata,
    part_of("runs.id", "run_id", primary_key=True),
    words("dtype", primary_key=True),
    real("matmul_flops_per_s"),
)

cases = Table(
    "cases",
    metadata,
    key("key"),
    part_of("runs.id", "run_id"),
    whole("position"),
    words("case_id"),
    shared_words("model"),
    word("phase"),
    words("shape"),
    word("dtype"),
    shared_words("mask"),
    shared_words("kernel"),
    whole("layers"),
    whole("line"),
    word("content_hash"),
    Column("unclaimed", Repeated("unclaimed"), nullable=False),
    whole("heads_q"),
    whole("heads_kv"),
    whole("head_dim"),
    whole("head_dim_v"),
    word("workload_dtype"),
    flag("causal"),
    whole("window_left"),
    whole("window_right"),
    real("softcap"),
    flag("sinks"),
    real("scale"),
    # Run-length encoded, for example "8192x32,17": 32 sequences of 8192, then one of 17.
    word("seqlens_q"),
    word("seqlens_k"),
    whole("page_size"),
    word("descale"),
    whole("pattern_size"),
    json("spans"),
    flag("latent"),
    # No CHECK, so that a new kind of mask needs no migration. A program that does not know the word says so.
    word("pattern"),
    UniqueConstraint("run_id", "case_id"),
    UniqueConstraint("run_id", "position"),
    Index(None, "case_id"),
    one_of("phase", Phase),
    one_of("dtype", Dtype),
    one_of("workload_dtype", Dtype),
)

outcomes = Table(
    "outcomes",
    metadata,
    key("id"),
    part_of("cases.key", "case_key"),
    word("outcome"),
    # measured, substituted, crashed, timed_out
    whole("attempt", nullable=True),
    # refused
    word("by", nullable=True),
    json("reasons", nullable=True),
    # crashed, timed_out
    words("stage", nullable=True),
    words("error", nullable=True),
    words("log", nullable=True),
    real("limit_s", nullable=True),
    # not_run
    words("reason", nullable=True),
    # measured, substituted
    real("first_call_us", nullable=True),
    whole("peak_temporary_bytes", nullable=True),
    real("wall_s", nullable=True),
    word("witness_state", nullable=True),
    shared_words("witness_reason", nullable=True),
    json("witness_expected", nullable=True),
    whole("witness_calls", nullable=True),
    # … with a timing
    real("latency_us", nullable=True),
    whole("launches_per_block", nullable=True),
    whole("rotated_bytes", nullable=True),
    Column("cold", Flag("cold")),
    real("host_us", nullable=True),
    whole("flops", nullable=True),
    whole("compulsory_bytes", nullable=True),
    whole("exps", nullable=True),
    real("roofline_us", nullable=True),
    word("bound", nullable=True),
    real("ceiling_share", nullable=True),
    # measured, substituted; NULL in evidence from before qualify took digests
    word("output_digest", nullable=True),
    word("inputs_digest", nullable=True),
    # measured, substituted, crashed, timed_out; NULL = the run's card
    words("device_uuid", nullable=True),
    # How many rows it has in findings. NULL in outcomes from before qualify counted them.
    whole("finding_count", nullable=True),
    # measured, substituted, crashed, timed_out, refused by the library. NULL in outcomes from before qualify noted it.
    Column("ended_at", UtcTime),
    Index(None, "case_key", "id"),
    one_of("outcome", OUTCOMES),
    one_of("by", ("plan", "library")),
    one_of("witness_state", WitnessState),
    one_of("bound", Bound),
)

# The parts of an outcome are found by its id only: without SQLite's hidden row number they take half the space.
findings = Table(
    "findings",
    metadata,
    part_of("outcomes.id", "outcome_id", primary_key=True),
    whole("position", primary_key=True),
    words("check"),
    word("verdict"),
    words("detail"),
    json("values"),
    one_of("verdict", FindingVerdict),
    sqlite_with_rowid=False,
)

statistics = Table(
    "statistics",
    metadata,
    part_of("outcomes.id", "outcome_id", primary_key=True),
    whole("position", primary_key=True),
    shared_words("inputs"),
    whole("seed"),
    shared_words("reference"),
    shared_words("declared_class"),
    shared_words("measured_class"),
    whole("rows"),
    real("E"),
    real("E_without_underflow"),
    real("R"),
    real("G"),
    real("G_limit"),
    real("beta"),
    real("beta_limit"),
    whole("worst_sequence", nullable=True),
    real("lse_rel", nullable=True),
    word("lse_base"),
    one_of("lse_base", ("e", "2", "")),
    sqlite_with_rowid=False,
)

launches = Table(
    "launches",
    metadata,
    part_of("outcomes.id", "outcome_id", primary_key=True),
    whole("position", primary_key=True),
    shared_words("name"),
    whole("count"),
    word("role"),
    shared_words("family"),
    shared_words("generation"),
    *(whole(f"{what}_{axis}", nullable=True) for what in ("grid", "block") for axis in "xyz"),
    whole("registers", nullable=True),
    whole("shared_bytes", nullable=True),
    whole("stream", nullable=True),
    real("duration_us"),
    one_of("role", Role),
    sqlite_with_rowid=False,
)

samples = Table(
    "samples",
    metadata,
    part_of("outcomes.id", "outcome_id", primary_key=True),
    whole("position", primary_key=True),
    real("latency_us"),
    sqlite_with_rowid=False,
)

baselines = Table(
    "baselines",
    metadata,
    key("id"),
    words("matrix"),
    words("variant"),
    part_of("runs.id", "run_id"),
    words("accepted_by"),
    words("reason"),
    Column("accepted_at", UtcTime, nullable=False),
    # The waived checks, by the waiver's glob; NULL where an older qualify accepted it.
    json("waivers", nullable=True),
    words("name"),
    # How the person is known.
    words("how"),
    Index(None, "matrix", "variant", "id"),
    Index(None, "run_id"),
)
