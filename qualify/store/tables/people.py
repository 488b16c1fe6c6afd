"""What people said and did; APPEND_ONLY names the tables in which no row changes or vanishes."""

from __future__ import annotations

from sqlalchemy import Column, Index, Table

from qualify.facts.deletion import Deletable
from qualify.facts.people import AuditAction, HoldActionKind
from qualify.facts.run import Verdict
from qualify.store.tables.columns import flag, key, metadata, one_of, part_of, word, words
from qualify.store.types import UtcTime

signoffs = Table(
    "signoffs",
    metadata,
    key("id"),
    part_of("runs.id", "run_id"),
    word("sha256"),
    flag("sealed"),
    word("verdict"),
    words("by"),
    words("role"),
    words("reason"),
    Column("at", UtcTime, nullable=False),
    # The imported file that it is from; empty = it was given here.
    words("origin"),
    # How the person is known.
    words("how"),
    Index(None, "run_id"),
    one_of("verdict", Verdict),
)

revocations = Table(
    "revocations",
    metadata,
    part_of("signoffs.id", "signoff_id", primary_key=True),
    words("by"),
    words("reason"),
    Column("at", UtcTime, nullable=False),
)

comments = Table(
    "comments",
    metadata,
    key("id"),
    # NULL where the comment is about its case in all runs: it stays when a run is removed.
    part_of("runs.id", "run_id", nullable=True),
    words("case_id"),
    words("by"),
    words("text"),
    Column("at", UtcTime, nullable=False),
    words("origin"),
    Index(None, "run_id"),
    Index(None, "case_id"),
)

hold_actions = Table(
    "hold_actions",
    metadata,
    key("id"),
    part_of("holds.id", "hold_id"),
    word("kind"),
    words("by"),
    words("reason"),
    Column("at", UtcTime, nullable=False),
    words("how"),
    Index(None, "hold_id"),
    one_of("kind", HoldActionKind),
)

audit = Table(
    "audit",
    metadata,
    key("id"),
    words("who"),
    words("how"),
    words("address"),
    word("action"),
    words("subject"),
    flag("allowed"),
    words("detail"),
    Column("at", UtcTime, nullable=False),
    one_of("action", AuditAction),
)

# No foreign key: the run is no longer there. Triggers of the database add a row where somebody deletes by hand.
deletions = Table(
    "deletions",
    metadata,
    key("id"),
    word("what"),
    words("name"),
    words("matrix"),
    Column("started_at", UtcTime, nullable=False),
    word("sha256"),
    words("by"),
    words("how"),
    words("reason"),
    Column("at", UtcTime, nullable=False),
    Index(None, "name"),
    Index(None, "matrix", "started_at"),
    one_of("what", Deletable),
)

APPEND_ONLY = (signoffs, revocations, hold_actions, audit, deletions)
"""tables whose rows nobody can change or remove: triggers of the database refuse it"""
