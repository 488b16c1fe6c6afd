"""A run leaves a store as one file and enters another one unchanged, or not at all."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import struct
import threading
import tracemalloc
import types
import typing
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import dumps
import pytest
import store_examples as examples
from cli_process import call
from sealing import new_pair, seal_run
from sqlalchemy import Engine, create_engine, event, select
from stored_runs import IDS, sound_run

from qualify.errors import InfrastructureError, LeaseLost, RunBusy, StoreError, UsageError
from qualify.facts.case import Case
from qualify.facts.duel import Duel
from qualify.facts.environment import Environment
from qualify.facts.outcome import Outcome
from qualify.facts.people import Comment, SignOff
from qualify.facts.run import Record, Run, RunState
from qualify.fleet.writers import this_process
from qualify.masks import Mask
from qualify.seal.keys import SigningKey
from qualify.store import Store, tables
from qualify.store.address import parse
from qualify.store.archive import Attached, Moved
from qualify.store.retention import holds
from qualify.store.tables import metadata
from qualify.store.transfer import FORMAT, read, write

RUN = examples.run(1).id
ATTEMPTS = len(examples.outcomes()) + 1
OF_THE_STORE = {"received_at"}
"""fields that no file holds"""
SHAPES = {
    "qualify.export/1": "cf96ed445e2d",
    "qualify.export/2": "259e21ba5529",
    "qualify.export/3": "cf20833f3626",
    "qualify.export/4": "fb2b973f0f22",
    "qualify.export/5": "52c70f05181c",
    "qualify.export/6": "14438520ef3e",
    "qualify.export/7": "4cf78f10c610",
    "qualify.export/8": "41de83ee6b73",
    "qualify.export/9": "99363ce1fede",
    "qualify.export/10": "c1e8b242f017",
    "qualify.export/11": "b86458aaeda7",
    "qualify.export/12": "aafb44eb4053",
    "qualify.export/13": "adfcf76bcefc",
    "qualify.export/14": "96ce9ea97303",
}


def _shape(kind: Any) -> Any:
    """The fields of a record and the records in them, without words that only explain."""
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        names = (field.name for field in dataclasses.fields(kind) if field.name not in OF_THE_STORE)
        return {name: _shape(hints[name]) for name in names}
    arguments = typing.get_args(kind)
    if not arguments:
        return getattr(kind, "__name__", repr(kind))
    union = isinstance(kind, types.UnionType)
    return ["union" if union else str(typing.get_origin(kind)), *map(_shape, arguments)]


def test_other_records_are_another_format() -> None:
    """Where a field of one of these records changed, VERSION in transfer.py is raised, and its shape added here."""
    shape = json.dumps([_shape(kind) for kind in (Run, Case, Outcome, Duel, SignOff, Comment)])
    assert SHAPES[FORMAT] == hashlib.sha256(shape.encode()).hexdigest()[:12]


def _lines(file: Path) -> list[bytes]:
    return gzip.decompress(file.read_bytes()).splitlines(keepends=True)


@pytest.fixture
def filled(full_sqlite: Path, tmp_path: Path) -> Iterator[Store]:
    """An SQLite store with a run of every kind of outcome, and another run."""
    with Store.open(str(shutil.copy(full_sqlite, tmp_path / "filled.db"))) as store:
        yield store


@pytest.fixture
def file(filled: Store, tmp_path: Path) -> Path:
    """That run as a file."""
    path = tmp_path / "run.jsonl.gz"
    filled.export_run(RUN, path)
    return path


def test_a_run_comes_back_through_both_databases(filled: Store, empty_postgres: str, tmp_path: Path) -> None:
    """SQLite to PostgreSQL to SQLite: the same bytes each time, and the same records."""
    files = [tmp_path / f"{number}.gz" for number in range(3)]
    first = filled.export_run(RUN, files[0])
    assert Moved(run=RUN, cases=ATTEMPTS, outcomes=ATTEMPTS, sha256=first.sha256, new=False, signoffs=2) == first
    for number, address in enumerate((empty_postgres, str(tmp_path / "last.db"))):
        with Store.open(address) as store:
            store.begin(examples.run(3))
            store.add_cases(examples.run(3).id, examples.cases(3))  # so that no key is what it was
            store.add(examples.run(3).id, [examples.simple(examples.case(0))])
            assert dataclasses.replace(first, new=True) == store.import_run(files[number])
            assert first == store.export_run(RUN, files[number + 1])
            assert repr(filled.records(RUN)) == repr(store.records(RUN))
            assert repr(filled.run(RUN)) == repr(_as_it_ran(store.run(RUN)))
    assert files[0].read_bytes() == files[1].read_bytes() == files[2].read_bytes()


def _as_it_ran(run: Run) -> Run:
    """The run without what only the store that it came to knows."""
    assert run.received_at is not None
    return dataclasses.replace(run, received_at=None)


def _rows(address: str) -> dict[str, list[str]]:
    """Every row of every table, by the table's name."""
    engine = create_engine(parse(address))
    try:
        with engine.connect() as connection:
            ordered = {
                table: select(*(column for column in table.columns if column.name not in OF_THE_STORE)).order_by(
                    *table.primary_key.columns
                )
                for table in metadata.sorted_tables
            }
            return {table.name: list(map(repr, connection.execute(rows))) for table, rows in ordered.items()}
    finally:
        engine.dispose()


def _of_a_run() -> set[str]:
    """The tables that hold something of a run: its own row, its parts, and its stack.

    What people say, duels and baselines stand beside it: tests of their own say how they travel.
    """
    holders = {*(column.table for column in holds()), tables.comments, tables.duels}
    found = {tables.runs, tables.stacks}
    for table in metadata.sorted_tables:  # a table comes after those that it refers to
        if table not in holders and {key.column.table for key in table.foreign_keys} & found:
            found.add(table)
    return {table.name for table in found}


def test_every_row_of_a_run_travels(empty_postgres: str, tmp_path: Path) -> None:
    """Plan, refusals, outcomes, findings, statistics, launches, samples, stack and ceilings: no table stays behind."""
    source, file = str(tmp_path / "source.db"), tmp_path / "run.gz"
    with Store.open(source) as store:
        dumps.fill_run(store)
        store.export_run(RUN, file)
    left = _rows(source)
    assert _of_a_run() == {table for table, rows in left.items() if rows}
    for address in (empty_postgres, str(tmp_path / "target.db")):
        with Store.open(address) as store:
            store.import_run(file)
            store.export_run(RUN, file)
        assert left == _rows(address)


def test_replaced_attempts_travel_too(file: Path) -> None:
    """The outcomes of a case are all there, in their order."""
    lines = [json.loads(line) for line in _lines(file)]
    assert [{"measured", "crashed"}] == [{line["outcome"]["outcome"] for line in lines if line.get("of") == 0}]
    assert FORMAT == lines[0]["format"]
    body = b"".join(_lines(file)[:-1])
    assert {"sha256": hashlib.sha256(body).hexdigest()} == lines[-1]


def test_importing_again_changes_nothing(empty_store: str, file: Path) -> None:
    """A store that has the run says so."""
    with Store.open(empty_store) as store:
        assert [True, False] == [store.import_run(file).new for _ in range(2)]
        assert [RUN] == [run.id for run in store.runs()]
        assert ATTEMPTS == len(store.records(RUN))


GROWING = examples.run(4, environments={"next": Environment(python="/opt/next/bin/python")})
"""a run that goes on while it is exported"""
PLAN = examples.cases(len(examples.outcomes()))


def grow(store: Store, path: Path, *, upto: int, state: RunState = "running", key: SigningKey | None = None) -> Path:
    """The run as a file, begun where the store lacks it, and with so many outcomes."""
    if GROWING.id not in [run.id for run in store.runs()]:
        store.begin(GROWING)
        store.add_cases(GROWING.id, PLAN)
    there = len(store.done(GROWING.id))
    records = [Record(case=case, outcome=outcome) for case, outcome in zip(PLAN, examples.outcomes(), strict=True)]
    if there < upto:
        store.set_stack(GROWING.id, examples.stack(), examples.ceilings())
        store.set_environments(GROWING.id, {"next": examples.stack()})
        store.add(GROWING.id, records[there:upto])
    if state != "running":
        store.finish(GROWING.id, state, examples.ENDED)
    if key:
        seal_run(store, GROWING.id, key)
    store.export_run(GROWING.id, path)
    return path


@pytest.mark.parametrize("before", [0, 5])
def test_an_unfinished_run_gets_what_a_later_file_has_more(
    filled: Store, empty_store: str, tmp_path: Path, before: int
) -> None:
    """The copy is the run then: an export of it is the file, byte for byte. An earlier file is refused as such."""
    early = grow(filled, tmp_path / "early.gz", upto=before)
    whole = grow(filled, tmp_path / "whole.gz", upto=len(PLAN), state="completed", key=new_pair(tmp_path).signing)
    with Store.open(empty_store) as store:
        moved = [store.import_run(it) for it in (early, whole, whole)]
        assert [(True, False), (False, True), (False, False)] == [(it.new, it.grown) for it in moved]
        store.export_run(GROWING.id, tmp_path / "again.gz")
        assert whole.read_bytes() == (tmp_path / "again.gz").read_bytes()
        with pytest.raises(UsageError, match=r"The file is of an earlier moment: .* there is nothing to do\.$"):
            store.import_run(early)


def test_when_a_run_came_grows_with_it(filled: Store, empty_store: str, tmp_path: Path) -> None:
    """Its age counts from there: neither what a later file adds nor what is run here since then is as old."""
    parts = [grow(filled, tmp_path / f"{upto}.gz", upto=upto, state="interrupted") for upto in (3, 5)]
    came = [filled.run(GROWING.id).received_at]
    with Store.open(empty_store) as store:
        for part in parts:
            store.import_run(part)
            came.append(store.run(GROWING.id).received_at)
        store.resume(GROWING.id)
        store.finish(GROWING.id, "completed", examples.ENDED)
        came.append(store.run(GROWING.id).received_at)
    assert came.pop(0) is None, "it ran there"
    assert came == sorted({it for it in came if it})


def test_of_two_imports_of_the_rest_one_adds_it(filled: Store, empty_postgres: str, tmp_path: Path) -> None:
    """The other one waits, and finds it there."""
    part = grow(filled, tmp_path / "part.gz", upto=3)
    whole = grow(filled, tmp_path / "whole.gz", upto=len(PLAN), state="completed")
    with ExitStack() as stack:
        stores = [stack.enter_context(Store.open(empty_postgres)) for _ in range(2)]
        stores[0].import_run(part)
        ready = threading.Barrier(2)
        pool = stack.enter_context(ThreadPoolExecutor(2))
        moved = pool.map(lambda store: store.import_run(whole, lambda *_: ready.wait(60)), stores)
        assert [False, True] == sorted(it.grown for it in moved)
        stores[0].export_run(GROWING.id, tmp_path / "again.gz")
        assert whole.read_bytes() == (tmp_path / "again.gz").read_bytes()


def test_an_import_waits_once_for_a_store_that_is_locked(file: Path, tmp_path: Path) -> None:
    """Whoever holds the lock may stand still: a second wait would be as long as the first."""
    path, refused = tmp_path / "copy.db", list[str]()
    with Store.open(str(path)) as store:
        store.import_run(file)
    with Store.open(str(path), busy_timeout_s=0) as store, closing(sqlite3.connect(path)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        event.listen(Engine, "handle_error", noted := lambda context: refused.append(str(context.original_exception)))
        try:
            with pytest.raises(StoreError, match=r"stayed locked .* or was stopped .*: find it .*kill -CONT"):
                store.import_run(file)
        finally:
            event.remove(Engine, "handle_error", noted)
    assert ["database is locked"] == refused


def other_plan(store: Store) -> None:
    """The run has been planned otherwise."""
    store.begin(GROWING)
    store.add_cases(GROWING.id, PLAN[::-1])


def other_outcome(store: Store) -> None:
    """It was resumed in two places, and measured otherwise."""
    store.begin(GROWING)
    store.add_cases(GROWING.id, PLAN)
    store.set_stack(GROWING.id, examples.stack(), examples.ceilings())
    store.add(GROWING.id, [Record(case=PLAN[0], outcome=examples.outcomes()[1])])


def other_stack(store: Store) -> None:
    """It was measured with another driver."""
    store.begin(GROWING)
    store.set_stack(GROWING.id, examples.stack(driver="570.1"), None)


def ended(store: Store) -> None:
    """It is complete, with no outcome."""
    store.begin(GROWING)
    store.finish(GROWING.id, "completed", examples.ENDED)


def begun_otherwise(store: Store) -> None:
    """Its selection is another."""
    store.begin(dataclasses.replace(GROWING, select="*/prefill"))


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (other_plan, "The file lacks the plan as it is stored"),
        (other_outcome, f"The file lacks the outcome of {PLAN[0].id} as it is stored"),
        (other_stack, "The file lacks stack of the run as it is stored"),
        (ended, "The stored run is complete, and nothing is added to it"),
        (begun_otherwise, "The file lacks select of the run as it is stored"),
    ],
)
def test_a_longer_file_that_contradicts_the_copy_is_refused(
    filled: Store, tmp_path: Path, made: Callable[[Store], None], why: str
) -> None:
    """Whatever it is, the copy stays as it was, and the message names it."""
    whole = grow(filled, tmp_path / "whole.gz", upto=len(PLAN), state="completed")
    with Store.open(str(tmp_path / "copy.db")) as store:
        made(store)
        before = store.evidence(GROWING.id)
        with pytest.raises(UsageError, match=re.escape(why)) as refused:
            store.import_run(whole)
        assert "Nothing was imported." in str(refused.value)
        assert repr(before) == repr(store.evidence(GROWING.id))  # a NaN in it does not equal itself


def test_a_sealed_part_is_completed_by_what_is_sealed(filled: Store, tmp_path: Path) -> None:
    """What nobody signed does not take the place of what somebody did; nor does anything while the run is written."""
    key = new_pair(tmp_path).signing
    part = grow(filled, tmp_path / "part.gz", upto=3, state="interrupted", key=key)
    filled.resume(GROWING.id)
    longer = grow(filled, tmp_path / "longer.gz", upto=5)
    whole = grow(filled, tmp_path / "whole.gz", upto=len(PLAN), state="completed", key=key)
    with Store.open(str(tmp_path / "copy.db")) as store:
        store.import_run(part)
        with pytest.raises(UsageError, match="The stored part is sealed, and the file is not"):
            store.import_run(longer)
        store.claim(GROWING.id, this_process(), 60.0)
        with pytest.raises(RunBusy, match="is being run by"):
            store.import_run(whole)
        store.release(GROWING.id)
        store.claim(GROWING.id, this_process(), 0.0)  # of a process that sleeps since
        assert store.import_run(whole).grown
        with pytest.raises(LeaseLost):
            store.resume(GROWING.id)
        found = store.evidence(GROWING.id)
        as_it_ran = dataclasses.replace(found, run=_as_it_ran(found.run))
        assert repr(filled.evidence(GROWING.id)) == repr(as_it_ran)


@pytest.mark.parametrize("chunk", [0, 64])
def test_a_file_of_format_5_keeps_its_masks(file: Path, chunk: int) -> None:
    """Until format 5 a workload spelled its mask in three fields."""

    def older(lines: list[Any]) -> None:
        lines[0].update(format="qualify.export/5")
        del lines[-1]  # its seal
        for line in lines:
            if "case" in line:
                del line["case"]["workload"]["mask"]
                line["case"]["workload"] |= {"causal": True, "window": [9, 0], "chunk": chunk}

    _changed(file, older)
    pattern: Any = "chunked" if chunk else ""
    expected = Mask(causal=True, window=(9, 0), pattern=pattern, size=chunk)
    assert {expected} == {case.workload.mask for case in read(file).run.cases}


def test_a_file_of_format_6_has_no_environments(file: Path) -> None:
    """They are none in a run of before; its masks are read as they are."""

    def older(lines: list[Any]) -> None:
        lines[0].update(format="qualify.export/6", run=_line_of(lines, "run").pop("run"))
        del lines[0]["run"]["environments"]
        lines[:] = [line for line in lines if line]
        del lines[-1]  # its seal

    cases = read(file).run.cases
    _changed(file, older)
    assert {} == read(file).run.run.environments
    assert cases == read(file).run.cases


def test_a_run_that_only_began_travels(empty_store: str, tmp_path: Path) -> None:
    """A run without stack, plan and outcomes is one as well."""
    file = tmp_path / "begun.gz"
    with Store.open(str(tmp_path / "other.db")) as other, Store.open(empty_store) as store:
        other.begin(examples.run(1, finished_at=examples.STARTED + timedelta(hours=1)))
        other.export_run(RUN, file)
        store.import_run(file)
        assert other.run(RUN) == _as_it_ran(store.run(RUN))


def _line_of(lines: list[Any], what: str) -> Any:
    """The last line that holds that."""
    return [line for line in lines if what in line][-1]


def _changed(file: Path, change: Callable[[list[Any]], object], *, digest: bool = True) -> None:
    """Writes the file again with other lines, and with a digest that fits them; without what people said."""
    lines = [json.loads(line) for line in _lines(file)][:-1]
    lines = [line for line in lines if not {"signoff", "comment"} & line.keys()]
    change(lines)
    body = b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)
    trailer = {"sha256": hashlib.sha256(body if digest else b"").hexdigest()}
    file.write_bytes(gzip.compress(body + json.dumps(trailer).encode() + b"\n"))


def _rerun(file: Path, **changes: Any) -> None:
    """Writes the file again with other fields of the run."""
    _changed(file, lambda lines: _line_of(lines, "run")["run"].update(changes))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda file: file.unlink(), "No such file"),
    "folder": (lambda file: (file.unlink(), file.mkdir()), "it is a folder"),
    "empty": (lambda file: file.write_bytes(b""), "no exported run"),
    "text": (lambda file: file.write_text("notes of somebody\n"), "no exported run"),
    "cut": (lambda file: file.write_bytes(file.read_bytes()[:-100]), "cut off or damaged"),
    "half": (lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]), "cut off or damaged"),
    "bit": (lambda file: file.write_bytes(_flipped(file.read_bytes())), "damaged"),
    "cut lines": (lambda file: file.write_bytes(gzip.compress(b"".join(_lines(file)[:-1]))), "digest"),
    "swapped": (lambda file: _changed(file, lambda lines: lines.append(lines.pop(3)), digest=False), "was changed"),
    "format": (
        lambda file: _changed(file, lambda lines: lines[0].update(format="qualify.export/1")),
        f"reads qualify.export/2 to {FORMAT}. Import it with the version of qualify that wrote it",
    ),
    "newer": (
        lambda file: _changed(file, lambda lines: lines[0].update(format="qualify.export/99")),
        f"reads qualify.export/2 to {FORMAT}. A newer qualify wrote it: install that version here",
    ),
    "other": (lambda file: _changed(file, lambda lines: lines[0].pop("format")), "no format"),
    "no run": (
        lambda file: _changed(file, lambda lines: _line_of(lines, "run").pop("run")),
        "its records cannot be read",
    ),
    "run id": (
        lambda file: _rerun(file, id="../../x"),
        "run id '../../x'",
    ),
    "state": (
        lambda file: _rerun(file, state="paused"),
        "records cannot be read",
    ),
    "twice": (lambda file: _changed(file, lambda lines: lines.insert(1, lines[1])), "a case is there twice"),
    "no case": (lambda file: _changed(file, lambda lines: _line_of(lines, "of").update(of=-1)), "names no case"),
    "far case": (
        lambda file: _changed(file, lambda lines: _line_of(lines, "of").update(of=99)),
        "records cannot be read",
    ),
    "nested": (lambda file: file.write_bytes(gzip.compress(b"[" * 100_000 + b"\n{}\n")), "no exported run"),
}


def _flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_adds_nothing(file: Path, empty_sqlite: str, damage: str) -> None:
    """It is a usage error that says what is wrong with which file."""
    make, message = DAMAGES[damage]
    make(file)
    with Store.open(empty_sqlite) as store:
        with pytest.raises(UsageError, match=message) as caught:
            store.import_run(file)
        assert [] == store.runs()
    assert str(caught.value).startswith(f"{file}: ")
    assert "Nothing was imported." in str(caught.value)


def test_a_database_that_refuses_a_record_has_none(empty_store: str, file: Path) -> None:
    """What fails in the middle leaves nothing of the run."""

    def beyond(lines: list[Any]) -> None:
        _line_of(lines, "of").update(outcome={**examples_outcome(), "attempt": 2**64})
        del lines[-1]  # its seal

    _changed(file, beyond)
    with Store.open(empty_store) as store:
        with pytest.raises(StoreError):
            store.import_run(file)
        assert [] == store.runs()


def examples_outcome() -> dict[str, Any]:
    """A crash as a file has it."""
    return {"outcome": "crashed", "stage": "call", "error": "x", "log": "", "attempt": 1, "findings": []}


def test_a_place_that_cannot_be_written(filled: Store, tmp_path: Path) -> None:
    """The message names it, the run is still stored, and nothing is left behind."""
    with pytest.raises(InfrastructureError, match=r"none/x.gz: the evidence cannot be written there \(No such file"):
        filled.export_run(RUN, tmp_path / "none" / "x.gz")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InfrastructureError, match="is a folder, which qualify does not replace"):
        filled.export_run(RUN, tmp_path / "folder")
    assert ["filled.db", "folder"] == sorted(path.name for path in tmp_path.iterdir() if "-" not in path.name)


def test_two_exports_into_one_file_at_once(filled: Store, tmp_path: Path) -> None:
    """Each writes a file of its own, and the one that ends last has the name; nothing else stays in the folder."""
    path, other = tmp_path / "out" / "latest.gz", examples.run(2).id
    path.parent.mkdir()

    def meanwhile() -> Iterator[Any]:
        filled.export_run(other, path)
        assert other == read(path).run.run.id
        yield from ()

    write(filled.evidence(RUN), path, Attached(signoffs=meanwhile()))
    assert RUN == read(path).run.run.id
    assert [path] == list(path.parent.iterdir())


def test_an_interrupted_export_leaves_nothing(filled: Store, tmp_path: Path) -> None:
    """After Ctrl-C the former file is whole, and no half one lies beside it. An export has the mode of a new file."""
    path = tmp_path / "out" / "run.gz"
    path.parent.mkdir()
    filled.export_run(RUN, path)
    (tmp_path / "usual").touch()
    assert (tmp_path / "usual").stat().st_mode == path.stat().st_mode

    def interrupted() -> Iterator[Any]:
        yield signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        write(filled.evidence(RUN), path, Attached(signoffs=interrupted()))
    assert RUN == read(path).run.run.id
    assert [path] == list(path.parent.iterdir())


def test_the_commands(filled: Store, new_postgres: str, tmp_path: Path) -> None:
    """Export to a file and import from it, as text and as JSON; a damaged file is exit 2."""
    run = sound_run(tmp_path / "filled.db")
    out = call("db", "export", run[:-1], "--out", "run.gz", "--db", "filled.db", "--json", cwd=tmp_path)
    assert (0, "") == (out.code, out.err)
    assert ("qualify.db-export/1", run, "run.gz") == tuple(out.data[key] for key in ("schema", "run", "file"))
    into = call("db", "import", "run.gz", "--db", new_postgres, cwd=tmp_path)
    assert (0, "") == (into.code, into.err)
    counts = f"{len(IDS)} cases, {len(IDS)} outcomes"
    assert f"run {run} added, {counts}, sha256 {out.data['sha256']}" in into.out
    again = call("db", "import", "run.gz", "--db", new_postgres, "--json", cwd=tmp_path)
    assert (0, False, out.data["sha256"]) == (again.code, again.data["new"], again.data["sha256"])
    (tmp_path / "run.gz").write_bytes((tmp_path / "run.gz").read_bytes()[:200])
    damaged = call("db", "import", "run.gz", cwd=tmp_path)
    assert (2, "") == (damaged.code, damaged.out)
    assert damaged.err.startswith("qualify: run.gz: it is no exported run or duel, or was cut off or damaged")
    named = call("db", "export", run[:-1], "--db", "filled.db", cwd=tmp_path)
    assert (0, "") == (named.code, named.err)
    assert named.out.startswith(f"{run}.jsonl.gz: run {run}, ")
    kinds = (b'{"case":', b'{"of":', b'{"run":')
    evidence = b"".join(line for line in _lines(tmp_path / f"{run}.jsonl.gz") if line.startswith(kinds))
    assert hashlib.sha256(evidence).hexdigest() == out.data["sha256"]
    unknown = call("db", "export", "2020", "--out", "x.gz", "--db", "filled.db", cwd=tmp_path)
    assert (2, "") == (unknown.code, unknown.out)


def test_a_run_that_may_go_on_is_told(filled: Store, tmp_path: Path) -> None:
    """A store that has it as it is now lacks what comes later: whoever moves it knows before."""
    run = sound_run(tmp_path / "filled.db")
    with Store.open(str(tmp_path / "filled.db")) as store:
        store.finish(run, "interrupted", examples.STARTED)
    note = f"note: run {run} is interrupted. Once it has gone on, export it again: an import then adds the rest.\n"
    for words in (("export", run, "--out", "run.gz", "--db", "filled.db"), ("import", "run.gz", "--db", "other.db")):
        ended = call("db", *words, cwd=tmp_path)
        assert (0, note) == (ended.code, ended.err), words


def _packed(line: bytes, *, times: int) -> bytes:
    """What gzip makes of a line so many times; it looks back over none of them, so one is packed for all."""
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    one = packer.compress(line) + packer.flush(zlib.Z_FULL_FLUSH)
    checksum = 0
    for _ in range(times):
        checksum = zlib.crc32(line, checksum)
    head, end = b"\x1f\x8b\x08" + bytes(7), struct.pack("<II", checksum, len(line) * times)
    return head + one * times + packer.flush() + end


def test_what_would_fill_the_memory_is_packed() -> None:
    """As gzip reads it."""
    assert b"abc\n" * 3 == gzip.decompress(_packed(b"abc\n", times=3))


@pytest.mark.parametrize("line", [b"\0" * (1 << 20), b'{"case":' + b" " * (1 << 20) + b"\n"], ids=["no line", "lines"])
def test_a_file_that_would_fill_the_memory(tmp_path: Path, store: Store, line: bytes) -> None:
    """What unpacks to far more than evidence could is refused while it is unpacked, a part at a time."""
    path = tmp_path / "burst.jsonl.gz"
    path.write_bytes(_packed(line, times=300))
    assert path.stat().st_size < 400_000
    tracemalloc.start()
    with pytest.raises(UsageError, match=r"unpacks to more than 100 times its size|a line of more than 64 MiB") as told:
        store.import_run(path)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "Nothing was imported" in str(told.value)
    assert most_bytes < 200 << 20


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
def test_what_is_no_file_is_not_opened(tmp_path: Path, store: Store, kind: str) -> None:
    """A pipe without a writer would wait for ever, on the way in and out; a device would be replaced by the run."""
    path = tmp_path / "run.jsonl.gz"
    with ExitStack() as stack:
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "socket":
            stack.enter_context(socket.socket(socket.AF_UNIX)).bind(str(path))
        else:
            path.symlink_to("/dev/null")
        with pytest.raises(UsageError, match=f"it is a {kind}, and only a regular file is read"):
            store.import_run(path)
        store.begin(examples.run(1))
        with pytest.raises(InfrastructureError, match=f"is a {kind}, which qualify does not replace"):
            store.export_run(RUN, path)
        assert not path.is_file()
