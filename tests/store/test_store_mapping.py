"""Facts become rows without losing a field."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Table

from qualify.facts.case import Case, Workload
from qualify.facts.outcome import (
    Crashed,
    Evidence,
    Finding,
    Launch,
    Measured,
    NotRun,
    Refused,
    Statistics,
    Substituted,
    TimedOut,
    Timing,
    Witness,
)
from qualify.facts.run import Run
from qualify.facts.stack import Ceilings, Component, Device, Stack
from qualify.store import tables
from qualify.store.mapping.cases import lengths_from_text, lengths_to_text

# Where a field's column does not bear the field's name; an empty tuple means rows of another table.
ELSEWHERE: dict[tuple[type, str], tuple[str, ...]] = {
    (Case, "id"): ("case_id",),
    (Case, "workload"): (),
    (Workload, "dtype"): ("workload_dtype",),
    (Workload, "window"): ("window_left", "window_right"),
    (Launch, "grid"): ("grid_x", "grid_y", "grid_z"),
    (Launch, "block"): ("block_x", "block_y", "block_z"),
    (Witness, "state"): ("witness_state",),
    (Witness, "reason"): ("witness_reason",),
    (Witness, "expected"): ("witness_expected",),
    (Witness, "calls"): ("witness_calls",),
    (Witness, "launches"): (),
    (Timing, "samples_us"): (),
    (Evidence, "findings"): (),
    (Evidence, "statistics"): (),
    (Evidence, "witness"): ("witness_state",),
    (Evidence, "timing"): ("latency_us",),
    (Measured, "evidence"): (),
    (Substituted, "evidence"): (),
    (Crashed, "findings"): (),
    (TimedOut, "findings"): (),
    (Run, "stack"): ("stack_id",),
    (Run, "ceilings"): (),
    (Run, "environments"): (),
    (Device, "kind"): ("device_kind",),
    (Device, "name"): ("device_name",),
    (Device, "uuid"): (),
    (Stack, "device"): ("device_name",),
    (Stack, "components"): (),
    (Stack, "environment"): (),
    (Ceilings, "matmul_flops_per_s"): (),
}
PLACES: tuple[tuple[type, Table], ...] = (
    (Case, tables.cases),
    (Workload, tables.cases),
    (Run, tables.runs),
    (Device, tables.stacks),
    (Stack, tables.stacks),
    (Component, tables.components),
    (Ceilings, tables.ceilings),
    (Finding, tables.findings),
    (Launch, tables.launches),
    (Statistics, tables.statistics),
    *((kind, tables.outcomes) for kind in (Witness, Timing, Evidence, Measured, Substituted)),
    *((kind, tables.outcomes) for kind in (Refused, Crashed, TimedOut, NotRun)),
)


@pytest.mark.parametrize(("kind", "table"), PLACES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_every_field_is_a_column(kind: type[Any], table: Table) -> None:
    """A new field of a fact cannot be forgotten in the schema."""
    wanted = {name for field in fields(kind) for name in ELSEWHERE.get((kind, field.name), (field.name,))}
    assert set() == wanted - set(table.columns.keys())


@given(st.lists(st.integers(0, 2**31), max_size=8).map(tuple))
def test_lengths_come_back(lengths: tuple[int, ...]) -> None:
    """Sequence lengths survive their encoding."""
    assert lengths == lengths_from_text(lengths_to_text(lengths))


@pytest.mark.parametrize(
    ("lengths", "text"),
    [((), ""), ((17,), "17"), ((8192,) * 32 + (17,), "8192x32,17"), ((1,) * 65_536, "1x65536"), ((0, 0, 5), "0x2,5")],
)
def test_equal_lengths_are_counted(lengths: tuple[int, ...], text: str) -> None:
    """A batch of equal sequences is a few characters, and reads as one would say it."""
    assert text == lengths_to_text(lengths)
    assert lengths == lengths_from_text(text)
