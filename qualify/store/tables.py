"""The schema. Columns bear the names of the facts' fields, so a query reads like the documentation.

::

    stacks ─┬─ components            runs ─┬─ ceilings
            ├─ stack_environment           ├─ matmul_ceilings
            ├─ runs                        ├─ seals
            │                              ├─ run_environments
            └─ run_environments            └─ cases ── outcomes ─┬─ findings
                                                                 ├─ statistics
                                                                 ├─ launches
                                                                 └─ samples

    duels ─┬─ duel_cells   duel_ratios   duel_blocks
           └─ duel_seals

    runs ── baselines                selftests ─┬─ planted_faults
                                                └─ correct_kernels

    leases   schedules   watched_stacks   nodes   rollouts   seats   fires ─┬─ holds ── hold_actions
                                                                           └─ outbox

    fleets ── fleet_cards
    runs ─┬─ signoffs ── revocations             audit   deletions
          └─ comments

Evidence is append-only: a second outcome of a case is another attempt, and the one with the largest ``id``
counts. So are baselines: the largest ``id`` of a matrix, a variant and a name is the current one. Triggers of the
database refuse to change or remove a row of APPEND_ONLY, which no program of ours tries. The tables of the
canary service are its state: rows change there, under the epoch of a lease (leases.py). A run has a lease too
(writers.py).
"""

from __future__ import annotations

from typing import Any, get_args

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    UniqueConstraint,
)

from qualify.facts.canary import Advice, AlertKind, AlertState, FireState, RolloutState, Trigger
from qualify.facts.case import Level, Phase
from qualify.facts.deletion import Deletable
from qualify.facts.devices import DeviceKind
from qualify.facts.dtypes import Dtype
from qualify.facts.duel import DuelVerdict, Way
from qualify.facts.fleet import CardState, FleetState, ShareState
from qualify.facts.outcome import OUTCOMES, Bound, FindingVerdict, Role, WitnessState
from qualify.facts.people import AuditAction, HoldActionKind
from qualify.facts.placement import Spread
from qualify.facts.run import RunState, Verdict
from qualify.facts.stack import ComponentKind
from qualify.store.types import Flag, Json, Real, Repeated, SharedWords, Stored, UtcTime, Whole, Word, Words

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite numbers rows by itself only where the type is exactly INTEGER.
_KEY = BigInteger().with_variant(Integer(), "sqlite")


def _key(name: str) -> Column[int]:
    return Column(name, _KEY, primary_key=True, autoincrement=True)


def _whole(name: str, **options: Any) -> Column[int]:
    nullable = options.pop("nullable", False)
    return Column(name, Whole(name), nullable=nullable, **options)


def _real(name: str, *, nullable: bool = False) -> Column[float]:
    return Column(name, Real(name), nullable=nullable)


def _words(name: str, *, nullable: bool = False, primary_key: bool = False) -> Column[str]:
    return Column(name, Words(name), nullable=nullable, primary_key=primary_key)


def _name(name: str, *, nullable: bool = False) -> Column[str]:
    """Text from outside that many rows of a run repeat."""
    return Column(name, SharedWords(name), nullable=nullable)


def _word(name: str, *, nullable: bool = False) -> Column[str]:
    """Text of qualify's own: a word of a closed list, digits, a digest. Every database takes it as it is."""
    return Column(name, Word(name), nullable=nullable)


def _json(name: str, *, nullable: bool = False) -> Column[Any]:
    return Column(name, Json(name), nullable=nullable)


def _flag(name: str) -> Column[bool]:
    return Column(name, Flag(name), nullable=False)


def _part_of(target: str, name: str, *, primary_key: bool = False, nullable: bool = False) -> Column[Any]:
    return Column(name, ForeignKey(target), primary_key=primary_key, nullable=nullable)


def _one_of(name: str, allowed: Any) -> CheckConstraint:
    """The column holds one of a Literal's values (or of a tuple's)."""
    values = ", ".join(f"'{value}'" for value in get_args(allowed) or allowed)
    return CheckConstraint(f'"{name}" IN ({values})', name=name, info={name: frozenset(get_args(allowed) or allowed)})


stacks = Table(
    "stacks",
    metadata,
    _key("id"),
    _words("fingerprint"),
    _words("device_kind"),
    _words("device_name"),
    _words("compute_capability"),
    _whole("units"),
    _whole("memory_bytes"),
    _whole("cache_bytes"),
    UniqueConstraint("fingerprint"),
    _one_of("device_kind", DeviceKind),
)

components = Table(
    "components",
    metadata,
    _part_of("stacks.id", "stack_id", primary_key=True),
    _whole("position", primary_key=True),
    _words("kind"),
    _words("name"),
    _words("version"),
    _words("digest"),
    _one_of("kind", ComponentKind),
)

stack_environment = Table(
    "stack_environment",
    metadata,
    _part_of("stacks.id", "stack_id", primary_key=True),
    _words("name", primary_key=True),
    _words("value"),
)

runs = Table(
    "runs",
    metadata,
    _words("id", primary_key=True),
    _words("matrix"),
    _words("matrix_hash"),
    _words("matrix_source"),
    _words("matrix_path"),
    _words("traffic_source"),
    _word("level"),
    _word("device"),
    _words("select"),
    _words("kernel"),
    _words("qualify_version"),
    _whole("check_version"),
    Column("started_at", UtcTime, nullable=False),
    Column("finished_at", UtcTime),
    _word("state"),
    _part_of("stacks.id", "stack_id", nullable=True),
    # The card itself: a stack is shared by all cards of one model, so its fingerprint leaves the UUID out.
    _words("device_uuid", nullable=True),
    # By kernel and file; most runs have the same. NULL in runs of before it was noted.
    Column("code", Repeated("code")),
    # By kernel and key of its card, in the same way.
    Column("terms", Repeated("terms")),
    # NULL in runs of before it was measured.
    _real("clock_skew_s", nullable=True),
    # NULL where no card was named.
    _json("placement", nullable=True),
    _one_of("level", Level),
    _one_of("device", DeviceKind),
    _one_of("state", RunState),
    Index(None, "matrix", "started_at"),
    Index(None, "started_at"),
    # Lists of runs, their search and their trend are read from it alone.
    Index("ix_runs_listed", "started_at", "id", "matrix", "state", "stack_id"),
)

run_environments = Table(
    "run_environments",
    metadata,
    _part_of("runs.id", "run_id", primary_key=True),
    _words("name", primary_key=True),
    _words("python"),
    _part_of("stacks.id", "stack_id", nullable=True),
    _words("device_uuid", nullable=True),
)

seals = Table(
    "seals",
    metadata,
    _part_of("runs.id", "run_id", primary_key=True),
    _json("envelope"),
    _word("parts"),
)

ceilings = Table(
    "ceilings",
    metadata,
    _part_of("runs.id", "run_id", primary_key=True),
    _real("copy_bytes_per_s"),
    _real("exps_per_s"),
    _real("launch_us"),
)

matmul_ceilings = Table(
    "matmul_ceilings",
    metadata,
    _part_of("runs.id", "run_id", primary_key=True),
    _words("dtype", primary_key=True),
    _real("matmul_flops_per_s"),
)

cases = Table(
    "cases",
    metadata,
    _key("key"),
    _part_of("runs.id", "run_id"),
    _whole("position"),
    _words("case_id"),
    _name("model"),
    _word("phase"),
    _words("shape"),
    _word("dtype"),
    _name("mask"),
    _name("kernel"),
    _whole("layers"),
    _whole("line"),
    _word("content_hash"),
    Column("unclaimed", Repeated("unclaimed"), nullable=False),
    _whole("heads_q"),
    _whole("heads_kv"),
    _whole("head_dim"),
    _whole("head_dim_v"),
    _word("workload_dtype"),
    _flag("causal"),
    _whole("window_left"),
    _whole("window_right"),
    _real("softcap"),
    _flag("sinks"),
    _real("scale"),
    # Run-length encoded, for example "8192x32,17": 32 sequences of 8192, then one of 17.
    _word("seqlens_q"),
    _word("seqlens_k"),
    _whole("page_size"),
    _word("descale"),
    _whole("pattern_size"),
    _json("spans"),
    _flag("latent"),
    # No CHECK: a kind of mask shall need no migration. Who reads a row with a word of a newer program says so.
    _word("pattern"),
    UniqueConstraint("run_id", "case_id"),
    UniqueConstraint("run_id", "position"),
    Index(None, "case_id"),
    _one_of("phase", Phase),
    _one_of("dtype", Dtype),
    _one_of("workload_dtype", Dtype),
)

outcomes = Table(
    "outcomes",
    metadata,
    _key("id"),
    _part_of("cases.key", "case_key"),
    _word("outcome"),
    # measured, substituted, crashed, timed_out
    _whole("attempt", nullable=True),
    # refused
    _word("by", nullable=True),
    _json("reasons", nullable=True),
    # crashed, timed_out
    _words("stage", nullable=True),
    _words("error", nullable=True),
    _words("log", nullable=True),
    _real("limit_s", nullable=True),
    # not_run
    _words("reason", nullable=True),
    # measured, substituted
    _real("first_call_us", nullable=True),
    _whole("peak_temporary_bytes", nullable=True),
    _real("wall_s", nullable=True),
    _word("witness_state", nullable=True),
    _name("witness_reason", nullable=True),
    _json("witness_expected", nullable=True),
    _whole("witness_calls", nullable=True),
    # … with a timing
    _real("latency_us", nullable=True),
    _whole("launches_per_block", nullable=True),
    _whole("rotated_bytes", nullable=True),
    Column("cold", Flag("cold")),
    _real("host_us", nullable=True),
    _whole("flops", nullable=True),
    _whole("compulsory_bytes", nullable=True),
    _whole("exps", nullable=True),
    _real("roofline_us", nullable=True),
    _word("bound", nullable=True),
    _real("ceiling_share", nullable=True),
    # measured, substituted; NULL in evidence of before they were taken
    _word("output_digest", nullable=True),
    _word("inputs_digest", nullable=True),
    # measured, substituted, crashed, timed_out; NULL = the run's card
    _words("device_uuid", nullable=True),
    Index(None, "case_key", "id"),
    _one_of("outcome", OUTCOMES),
    _one_of("by", ("plan", "library")),
    _one_of("witness_state", WitnessState),
    _one_of("bound", Bound),
)

# The parts of an outcome are found by its id only: without SQLite's hidden row number they take half the space.
findings = Table(
    "findings",
    metadata,
    _part_of("outcomes.id", "outcome_id", primary_key=True),
    _whole("position", primary_key=True),
    _words("check"),
    _word("verdict"),
    _words("detail"),
    _json("values"),
    _one_of("verdict", FindingVerdict),
    sqlite_with_rowid=False,
)

statistics = Table(
    "statistics",
    metadata,
    _part_of("outcomes.id", "outcome_id", primary_key=True),
    _whole("position", primary_key=True),
    _name("inputs"),
    _whole("seed"),
    _name("reference"),
    _name("declared_class"),
    _name("measured_class"),
    _whole("rows"),
    _real("E"),
    _real("E_without_underflow"),
    _real("R"),
    _real("G"),
    _real("G_limit"),
    _real("beta"),
    _real("beta_limit"),
    _whole("worst_sequence", nullable=True),
    _real("lse_rel", nullable=True),
    _word("lse_base"),
    _one_of("lse_base", ("e", "2", "")),
    sqlite_with_rowid=False,
)

launches = Table(
    "launches",
    metadata,
    _part_of("outcomes.id", "outcome_id", primary_key=True),
    _whole("position", primary_key=True),
    _name("name"),
    _whole("count"),
    _word("role"),
    _name("family"),
    _name("generation"),
    *(_whole(f"{what}_{axis}", nullable=True) for what in ("grid", "block") for axis in "xyz"),
    _whole("registers", nullable=True),
    _whole("shared_bytes", nullable=True),
    _whole("stream", nullable=True),
    _real("duration_us"),
    _one_of("role", Role),
    sqlite_with_rowid=False,
)

samples = Table(
    "samples",
    metadata,
    _part_of("outcomes.id", "outcome_id", primary_key=True),
    _whole("position", primary_key=True),
    _real("latency_us"),
    sqlite_with_rowid=False,
)

baselines = Table(
    "baselines",
    metadata,
    _key("id"),
    _words("matrix"),
    _words("variant"),
    _part_of("runs.id", "run_id"),
    _words("accepted_by"),
    _words("reason"),
    Column("accepted_at", UtcTime, nullable=False),
    # Checks by glob; NULL where an older program accepted it.
    _json("waivers", nullable=True),
    _words("name"),
    Index(None, "matrix", "variant", "id"),
    Index(None, "run_id"),
)

duels = Table(
    "duels",
    metadata,
    _words("id", primary_key=True),
    _words("matrix"),
    _words("matrix_hash"),
    _words("select"),
    _words("a"),
    _words("b"),
    _flag("null"),
    _words("device"),
    _words("device_uuid"),
    _part_of("stacks.id", "stack_a_id"),
    _part_of("stacks.id", "stack_b_id"),
    Column("started_at", UtcTime, nullable=False),
    Column("finished_at", UtcTime, nullable=False),
    _flag("complete"),
    _whole("least_pairs"),
    Index(None, "matrix", "started_at"),
)

duel_cells = Table(
    "duel_cells",
    metadata,
    _part_of("duels.id", "duel_id", primary_key=True),
    _whole("position", primary_key=True),
    _words("name"),
    _words("a"),
    _words("b"),
    _word("phase"),
    _word("verdict"),
    _words("reason"),
    _word("way", nullable=True),
    _whole("thrown_away"),
    _real("planted"),
    _json("notes"),
    _one_of("phase", Phase),
    _one_of("verdict", DuelVerdict),
    _one_of("way", Way),
    sqlite_with_rowid=False,
)

duel_ratios = Table(
    "duel_ratios",
    metadata,
    _part_of("duels.id", "duel_id", primary_key=True),
    _whole("position", primary_key=True),
    _words("way", primary_key=True),
    _word("verdict"),
    *(_real(name) for name in ("change", "low", "high", "a_us", "b_us", "detectable", "margin")),
    _whole("pairs"),
    _whole("quads"),
    _one_of("verdict", DuelVerdict),
    sqlite_with_rowid=False,
)

# Every block of every pair of processes: [pair, confirming, thrown away, [[a, a, b, b], ...]] in µs of a launch.
duel_blocks = Table(
    "duel_blocks",
    metadata,
    _part_of("duels.id", "duel_id", primary_key=True),
    _words("cell", primary_key=True),
    _words("way", primary_key=True),
    _json("pairs"),
    sqlite_with_rowid=False,
)

duel_seals = Table(
    "duel_seals",
    metadata,
    _part_of("duels.id", "duel_id", primary_key=True),
    _json("envelope"),
    _word("parts"),
)

selftests = Table(
    "selftests",
    metadata,
    _key("id"),
    _whole("check_version"),
    _words("qualify_version"),
    _json("levels"),
    # Empty where all faults were planted.
    _words("select"),
    Column("started_at", UtcTime, nullable=False),
    _real("wall_s"),
    Index(None, "check_version", "id"),
)

planted_faults = Table(
    "planted_faults",
    metadata,
    _part_of("selftests.id", "selftest_id", primary_key=True),
    _whole("position", primary_key=True),
    _words("name"),
    _words("kind"),
    _words("mirrors"),
    _words("does"),
    _words("equivalent"),
    _json("detections"),
)

correct_kernels = Table(
    "correct_kernels",
    metadata,
    _part_of("selftests.id", "selftest_id", primary_key=True),
    _whole("position", primary_key=True),
    _words("name"),
    _words("does"),
    _whole("runs"),
    _json("alarms"),
)

leases = Table(
    "leases",
    metadata,
    _words("name", primary_key=True),
    _words("holder"),
    _whole("epoch"),
    _whole("beats"),
    Column("expires_at", UtcTime, nullable=False),
    _words("trouble"),
    # Empty for the lease that elects a leader; else the machine whose own fires it owns.
    _words("node"),
    Column("looked_at", UtcTime),
)

schedules = Table(
    "schedules",
    metadata,
    _words("lease", primary_key=True),
    _words("canary", primary_key=True),
    _words("cron"),
    Column("since", UtcTime, nullable=False),
    Column("next_at", UtcTime),
)

watched_stacks = Table(
    "watched_stacks",
    metadata,
    _words("lease", primary_key=True),
    _words("canary", primary_key=True),
    _words("node", primary_key=True),
    _words("fingerprint"),
    _json("stack"),
    Column("seen_at", UtcTime, nullable=False),
    # A fingerprint that has not settled yet; empty where there is none.
    _words("changing_to"),
    Column("changing_since", UtcTime),
    # What differs there; NULL where an older program saw it.
    _json("changes", nullable=True),
)

fires = Table(
    "fires",
    metadata,
    _key("id"),
    _words("lease"),
    _words("canary"),
    Column("scheduled_for", UtcTime, nullable=False),
    _words("trigger"),
    _words("reason"),
    _json("changes"),
    _words("state"),
    _whole("epoch"),
    _words("node"),
    _whole("attempts"),
    Column("next_attempt_at", UtcTime, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("started_at", UtcTime),
    Column("finished_at", UtcTime),
    _words("matrix"),
    # No foreign key: retention may remove the run, the history keeps its id.
    _words("run_id", nullable=True),
    _words("variant"),
    _words("verdict", nullable=True),
    _words("advice", nullable=True),
    _json("reasons"),
    _json("numerics_only"),
    # Empty where it belongs to none; the wave is NULL until it begins.
    _words("rollout"),
    _whole("wave", nullable=True),
    _words("duel_id", nullable=True),
    UniqueConstraint("lease", "canary", "scheduled_for"),
    Index(None, "state", "next_attempt_at"),
    _one_of("trigger", Trigger),
    _one_of("state", FireState),
    _one_of("verdict", Verdict),
    _one_of("advice", Advice),
)

# What each machine tells of itself under its own lease.
nodes = Table(
    "nodes",
    metadata,
    _words("lease", primary_key=True),
    _words("service"),
    _words("node"),
    _json("canaries"),
    _words("stack_key"),
    _words("device"),
)

rollouts = Table(
    "rollouts",
    metadata,
    _words("lease", primary_key=True),
    _words("canary", primary_key=True),
    _words("key", primary_key=True),
    _words("trigger"),
    _words("reason"),
    _words("matrix"),
    _json("waves"),
    _whole("wave"),
    _words("state"),
    Column("opened_at", UtcTime, nullable=False),
    Column("ended_at", UtcTime),
    _one_of("trigger", Trigger),
    _one_of("state", RolloutState),
)

# Who fires for a stack that many machines have: the first ones that come, as many as the card asks for.
seats = Table(
    "seats",
    metadata,
    _words("lease", primary_key=True),
    _words("canary", primary_key=True),
    _words("stack_key", primary_key=True),
    _whole("seat", primary_key=True),
    _words("node"),
)

holds = Table(
    "holds",
    metadata,
    _key("id"),
    _words("canary"),
    _words("node"),
    _words("variant"),
    _words("reason"),
    _part_of("fires.id", "fire_id"),
    Column("since", UtcTime, nullable=False),
    Column("released_at", UtcTime),
    Column("released_by", ForeignKey("fires.id")),
    Index(None, "canary", "node", "variant"),
)

outbox = Table(
    "outbox",
    metadata,
    _words("id", primary_key=True),
    _words("canary"),
    _part_of("fires.id", "fire_id"),
    _words("kind"),
    _words("target"),
    _json("body"),
    _words("state"),
    _whole("attempts"),
    Column("created_at", UtcTime, nullable=False),
    Column("next_attempt_at", UtcTime, nullable=False),
    _words("last_error"),
    UniqueConstraint("fire_id", "target"),
    Index(None, "state", "next_attempt_at"),
    _one_of("kind", AlertKind),
    _one_of("state", AlertState),
)

fleets = Table(
    "fleets",
    metadata,
    _words("id", primary_key=True),
    _words("matrix"),
    _words("matrix_hash"),
    _words("engine"),
    _words("device"),
    _words("spread"),
    _real("least_coverage"),
    _words("state"),
    _whole("epoch"),
    Column("created_at", UtcTime, nullable=False),
    Column("finished_at", UtcTime),
    _json("notes"),
    Column("cells", Json("cells"), nullable=False, server_default="[]"),
    Index(None, "created_at"),
    _one_of("device", DeviceKind),
    _one_of("spread", Spread),
    _one_of("state", FleetState),
)

fleet_cards = Table(
    "fleet_cards",
    metadata,
    _part_of("fleets.id", "fleet_id", primary_key=True),
    _words("uuid", primary_key=True),
    _whole("attempt", primary_key=True),
    _words("node"),
    _words("name"),
    _words("state"),
    _words("reason"),
    # No foreign key: retention may remove the run, the history keeps its id.
    _words("run_id", nullable=True),
    _words("verdict", nullable=True),
    _whole("epoch"),
    Index(None, "run_id"),
    _one_of("state", CardState),
    _one_of("verdict", Verdict),
)

fleet_shares = Table(
    "fleet_shares",
    metadata,
    _part_of("fleets.id", "fleet_id", primary_key=True),
    _whole("number", primary_key=True),
    _words("node"),
    _json("cells"),
    _words("state"),
    _words("reason"),
    # As in fleet_cards.
    _words("run_id", nullable=True),
    _words("verdict", nullable=True),
    _whole("epoch"),
    _one_of("state", ShareState),
    _one_of("verdict", Verdict),
)

signoffs = Table(
    "signoffs",
    metadata,
    _key("id"),
    _part_of("runs.id", "run_id"),
    _word("sha256"),
    _flag("sealed"),
    _word("verdict"),
    _words("by"),
    _words("role"),
    _words("reason"),
    Column("at", UtcTime, nullable=False),
    # The imported file that it is from; empty = it was given here.
    _words("origin"),
    # How the person is known.
    _words("how"),
    Index(None, "run_id"),
    _one_of("verdict", Verdict),
)

revocations = Table(
    "revocations",
    metadata,
    _part_of("signoffs.id", "signoff_id", primary_key=True),
    _words("by"),
    _words("reason"),
    Column("at", UtcTime, nullable=False),
)

comments = Table(
    "comments",
    metadata,
    _key("id"),
    # NULL and a case: it is about the case in all runs, and stays when a run goes.
    _part_of("runs.id", "run_id", nullable=True),
    _words("case_id"),
    _words("by"),
    _words("text"),
    Column("at", UtcTime, nullable=False),
    _words("origin"),
    Index(None, "run_id"),
    Index(None, "case_id"),
)

hold_actions = Table(
    "hold_actions",
    metadata,
    _key("id"),
    _part_of("holds.id", "hold_id"),
    _word("kind"),
    _words("by"),
    _words("reason"),
    Column("at", UtcTime, nullable=False),
    _words("how"),
    Index(None, "hold_id"),
    _one_of("kind", HoldActionKind),
)

audit = Table(
    "audit",
    metadata,
    _key("id"),
    _words("who"),
    _words("how"),
    _words("address"),
    _word("action"),
    _words("subject"),
    _flag("allowed"),
    _words("detail"),
    Column("at", UtcTime, nullable=False),
    _one_of("action", AuditAction),
)

# No foreign key: the run is no longer there. Triggers of the database add a row where somebody deletes by hand.
deletions = Table(
    "deletions",
    metadata,
    _key("id"),
    _word("what"),
    _words("name"),
    _words("matrix"),
    Column("started_at", UtcTime, nullable=False),
    _word("sha256"),
    _words("by"),
    _words("how"),
    _words("reason"),
    Column("at", UtcTime, nullable=False),
    Index(None, "name"),
    Index(None, "matrix", "started_at"),
    _one_of("what", Deletable),
)

APPEND_ONLY = (signoffs, revocations, hold_actions, audit, deletions)
"""tables whose rows nobody can change or remove: triggers of the database refuse it"""

# What the database checks as a row is written is checked again as it is read: a file may have been changed meanwhile.
for _table in metadata.tables.values():
    _words_of = {name: allowed for part in _table.constraints for name, allowed in part.info.items()}
    for _column in _table.columns:
        if isinstance(_column.type, Stored | UtcTime):
            _column.type.nullable = bool(_column.nullable)
        if isinstance(_column.type, Stored):
            _column.type.words = _words_of.get(_column.name, frozenset())
