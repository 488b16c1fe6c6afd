"""Facts into the database. Every function works inside the transaction of its connection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from sqlalchemy import Connection, Table, delete, insert, select, type_coerce, update
from sqlalchemy.exc import IntegrityError

from qualify.errors import UsageError
from qualify.facts.case import Case
from qualify.facts.differing import stack_words
from qualify.facts.outcome import Outcome
from qualify.facts.run import Record, Run
from qualify.facts.seal import Seal
from qualify.facts.stack import Ceilings, Stack
from qualify.store import tables
from qualify.store.bulk import insert_rows, new_ids
from qualify.store.mapping.cases import case_row
from qualify.store.mapping.outcomes import finding_rows, launch_rows, outcome_row, sample_rows, statistics_rows
from qualify.store.mapping.row import Row
from qualify.store.mapping.runs import (
    ceilings_row,
    component_rows,
    environment_rows,
    matmul_rows,
    run_environment_rows,
    run_row,
    stack_row,
)
from qualify.store.reading import chunks, load_runs
from qualify.store.types import Words

_PARTS: tuple[tuple[Table, Callable[[Outcome, int], list[Row]]], ...] = (
    (tables.findings, finding_rows),
    (tables.statistics, statistics_rows),
    (tables.launches, launch_rows),
    (tables.samples, sample_rows),
)


def insert_run(connection: Connection, run: Run) -> None:
    """Adds the run with its environments, and its stacks and ceilings where they are known already."""
    add_stacks(connection, run.stacks)
    connection.execute(insert(tables.runs), run_row(run))
    insert_rows(connection, tables.run_environments, run_environment_rows(run))
    if run.stack:
        attach_stack(connection, run.id, run.stack)
    attach_environments(connection, run.id, {name: one.stack for name, one in run.environments.items() if one.stack})
    if run.ceilings:
        attach_ceilings(connection, run.id, run.ceilings)


def attach_stack(connection: Connection, run_id: str, stack: Stack) -> None:
    """Stores the stack of a run. A run keeps its first stack; another stack is a UsageError."""
    found = connection.execute(
        select(tables.stacks.c.fingerprint)
        .join(tables.runs, tables.runs.c.stack_id == tables.stacks.c.id)
        .where(tables.runs.c.id == run_id)
    ).one_or_none()
    if found is None:
        values = {"stack_id": stack_key(connection, stack), "device_uuid": stack.device.uuid}
        update_run(connection, run_id, values)
    elif found.fingerprint != stack.fingerprint:
        raise UsageError(
            f"run {run_id} cannot continue on another stack ({_differing(connection, run_id, '', stack)}): one run is "
            "evidence about one stack. Start a new run."
        )


def attach_environments(connection: Connection, run_id: str, stacks: Mapping[str, Stack]) -> None:
    """Stores the stacks of a run's environments. Each keeps its first stack; another stack is a UsageError."""
    part, known = tables.run_environments.c, tables.stacks.c
    joined = tables.run_environments.outerjoin(tables.stacks, part.stack_id == known.id)
    fingerprint = type_coerce(known.fingerprint, Words("fingerprint", nullable=True)).label("fingerprint")
    rows = connection.execute(select(part.name, fingerprint).select_from(joined).where(part.run_id == run_id))
    found: dict[str, str | None] = {row.name: row.fingerprint for row in rows}
    add_stacks(connection, (stack for name, stack in stacks.items() if found.get(name, "") is None))
    for name, stack in stacks.items():
        if name not in found:
            raise UsageError(f"run {run_id} has no environment {name}. It has: {', '.join(sorted(found)) or 'none'}.")
        if found[name] is None:
            values = {"stack_id": stack_key(connection, stack), "device_uuid": stack.device.uuid}
            changing = update(tables.run_environments).where(part.run_id == run_id, part.name == name)
            connection.execute(changing.values(values))
        elif found[name] != stack.fingerprint:
            differs = _differing(connection, run_id, name, stack)
            raise UsageError(
                f"environment {name} of run {run_id} is another stack now ({differs}): one run is evidence about one "
                "stack of each. Start a new run."
            )


def _differing(connection: Connection, run_id: str, environment: str, stack: Stack) -> str:
    """The differences between a run's stack and another one, in words."""
    (run,) = load_runs(connection, tables.runs.c.id == run_id)
    return stack_words(run.stack_of(environment), stack)


def attach_ceilings(connection: Connection, run_id: str, ceilings: Ceilings) -> None:
    """Adds the run's ceilings. Ceilings that are there stay, because its timings were judged by them."""
    known = select(tables.ceilings.c.run_id).where(tables.ceilings.c.run_id == run_id)
    if connection.execute(known).first() is None:
        connection.execute(insert(tables.ceilings), ceilings_row(ceilings, run_id))
        insert_rows(connection, tables.matmul_ceilings, matmul_rows(ceilings, run_id))


def set_seal(connection: Connection, run_id: str, seal: Seal | None) -> None:
    """Replaces the run's seal; None removes it."""
    connection.execute(delete(tables.seals).where(tables.seals.c.run_id == run_id))
    if seal:
        row = {"run_id": run_id, "envelope": dict(seal.envelope), "parts": seal.parts}
        connection.execute(insert(tables.seals), row)


def update_run(connection: Connection, run_id: str, values: Row) -> None:
    """Changes columns of the run."""
    connection.execute(update(tables.runs).where(tables.runs.c.id == run_id).values(values))


def insert_cases(connection: Connection, run_id: str, cases: Iterable[Case]) -> int:
    """Adds the plan's cases, in its order; returns how many there are."""
    rows = [case_row(case, run_id, position) for position, case in enumerate(cases)]
    insert_rows(connection, tables.cases, rows)
    return len(rows)


def insert_records(connection: Connection, run_id: str, records: Sequence[Record]) -> Sequence[int]:
    """Adds outcomes of planned cases, with all their parts; returns the ids of the outcomes."""
    keys = _case_keys(connection, run_id, [record.case.id for record in records])
    ids = new_ids(connection, tables.outcomes, len(records))
    rows = [
        {"id": key, **outcome_row(record.outcome, keys[record.case.id])}
        for record, key in zip(records, ids, strict=True)
    ]
    insert_rows(connection, tables.outcomes, rows)
    for table, rows_of in _PARTS:
        parts = [row for record, key in zip(records, ids, strict=True) for row in rows_of(record.outcome, key)]
        insert_rows(connection, table, parts)
    return ids


def has_outcome(connection: Connection, run_id: str, outcome_id: int) -> bool:
    """Whether the run has an outcome of that id."""
    joined = tables.outcomes.join(tables.cases, tables.cases.c.key == tables.outcomes.c.case_key)
    wanted = select(tables.outcomes.c.id).select_from(joined)
    wanted = wanted.where(tables.outcomes.c.id == outcome_id, tables.cases.c.run_id == run_id)
    return connection.execute(wanted).first() is not None


def add_stacks(connection: Connection, stacks: Iterable[Stack]) -> None:
    """Adds the stacks that are not stored yet, before anything else of a transaction and in one order for all.

    Two transactions that add the same stacks in different orders would wait for each other on PostgreSQL.
    """
    for stack in sorted(stacks, key=lambda stack: stack.fingerprint):
        stack_key(connection, stack)


def stack_key(connection: Connection, stack: Stack) -> int:
    """The id of the stack; a stack that is not stored yet is added."""
    known = select(tables.stacks.c.id).where(tables.stacks.c.fingerprint == stack.fingerprint)
    found: int | None = connection.execute(known).scalar_one_or_none()
    if found is None:
        found = _added_stack_id(connection, stack) or connection.execute(known).scalar_one()
    return found


def _added_stack_id(connection: Connection, stack: Stack) -> int | None:
    """Adds the stack and returns its id; None where another process has added it meanwhile."""
    try:
        with connection.begin_nested():
            return _insert_stack(connection, stack)
    except IntegrityError:
        return None


def _insert_stack(connection: Connection, stack: Stack) -> int:
    adding = insert(tables.stacks).returning(tables.stacks.c.id)
    stack_id: int = connection.execute(adding, stack_row(stack)).scalar_one()
    insert_rows(connection, tables.components, component_rows(stack, stack_id))
    insert_rows(connection, tables.stack_environment, environment_rows(stack, stack_id))
    return stack_id


def _case_keys(connection: Connection, run_id: str, case_ids: Sequence[str]) -> dict[str, int]:
    """The key of every case by its id. An id that is not in the run's plan is a UsageError."""
    keys: dict[str, int] = {}
    for some in chunks(sorted(set(case_ids))):
        planned = select(tables.cases.c.case_id, tables.cases.c.key).where(
            tables.cases.c.run_id == run_id, tables.cases.c.case_id.in_(some)
        )
        keys.update((row.case_id, row.key) for row in connection.execute(planned))
    missing = [case_id for case_id in case_ids if case_id not in keys]
    if missing:
        raise UsageError(
            f"run {run_id} has no case {missing[0]} in its plan ({len(missing)} of {len(case_ids)} records). "
            "Store the plan with add_cases before its outcomes."
        )
    return keys
