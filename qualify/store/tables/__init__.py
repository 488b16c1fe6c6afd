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
database refuse to change or remove a row of APPEND_ONLY; qualify itself never tries to. The tables of the
canary service are its state: rows change there, under the epoch of a lease (leases.py). A run has a lease too
(writers.py).
"""

from __future__ import annotations

from qualify.store.tables.columns import check_when_read, metadata
from qualify.store.tables.duels import duel_blocks, duel_cells, duel_ratios, duel_seals, duels
from qualify.store.tables.evidence import (
    baselines,
    cases,
    ceilings,
    components,
    findings,
    launches,
    matmul_ceilings,
    outcomes,
    run_environments,
    runs,
    samples,
    seals,
    stack_environment,
    stacks,
    statistics,
)
from qualify.store.tables.fleets import fleet_cards, fleet_shares, fleets
from qualify.store.tables.people import APPEND_ONLY, audit, comments, deletions, hold_actions, revocations, signoffs
from qualify.store.tables.selftests import correct_kernels, planted_faults, selftests
from qualify.store.tables.service import fires, holds, leases, nodes, outbox, rollouts, schedules, seats, watched_stacks

__all__ = [
    "APPEND_ONLY",
    "audit",
    "baselines",
    "cases",
    "ceilings",
    "comments",
    "components",
    "correct_kernels",
    "deletions",
    "duel_blocks",
    "duel_cells",
    "duel_ratios",
    "duel_seals",
    "duels",
    "findings",
    "fires",
    "fleet_cards",
    "fleet_shares",
    "fleets",
    "hold_actions",
    "holds",
    "launches",
    "leases",
    "matmul_ceilings",
    "metadata",
    "nodes",
    "outbox",
    "outcomes",
    "planted_faults",
    "revocations",
    "rollouts",
    "run_environments",
    "runs",
    "samples",
    "schedules",
    "seals",
    "seats",
    "selftests",
    "signoffs",
    "stack_environment",
    "stacks",
    "statistics",
    "watched_stacks",
]

check_when_read()
