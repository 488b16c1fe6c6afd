"""One run as one file, so that evidence moves between stores, also where no network does.

The file is gzip of JSON Lines: the format, then the canonical lines of the evidence (qualify.seal.form), which are
every case in the order of the plan, every outcome in the order in which it was stored, also those that a later attempt
replaced, and the run; then the run's seal, where it has one, and at last the SHA-256 over all lines before. Equal
evidence gives equal lines, whichever database it comes from.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import ValidationError
from sqlalchemy import Connection

from qualify.errors import InfrastructureError, UsageError
from qualify.facts import codec
from qualify.facts.case import Case
from qualify.facts.outcome import Outcome
from qualify.facts.run import Record, Run
from qualify.facts.seal import Seal
from qualify.files import kind_of, open_regular
from qualify.seal.form import case_data, line, outcome_data, plain, run_data
from qualify.seal.parts import digest_of
from qualify.seal.sealed import own_digest
from qualify.store import reading, writing
from qualify.store.mapping import NOT_REACHED
from qualify.store.records import load_history
from qualify.store.tables import runs
from qualify.text import one_line

VERSION = 8
"""of the lines and of the records in them; raise it when a field of Run, Case or Outcome changes"""
FORMAT = f"qualify.export/{VERSION}"
READ = (*(f"qualify.export/{version}" for version in range(2, VERSION)), FORMAT)
SIDES = READ[:4]
"""formats that spell a mask in three fields"""
"""formats that are read: version 3 only added words to the dtypes and descale factors of version 2, version 4 a flag of
calls that were not made before, version 5 the code of a run; version 6 has a mask in place of three fields, version 7
also the environments of a run; version 8 has what its kernel cards promised, the run after its outcomes, no field that
holds its default, and a seal"""
LONGEST_LINE = 1 << 26
"""bytes; the longest line is the run's, with the digests of all files behind the kernels"""
PACKED = 100
"""evidence packs to a tenth or a thirtieth of its size; what unpacks to more than this times its size is none"""
MOST_BYTES = 1 << 24
"""what a file may unpack to however small it is"""
_BURST = "It was probably made to fill the memory of who reads it: take the file from where it was exported."
_AGAIN = "Copy it again, or make it again with `qualify db export`."
_GROUP = 500
# A run's id becomes the name of a folder, and a file may come from anywhere.
_RUN_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunArchive:
    """All of a run: what a file holds."""

    run: Run
    cases: list[Case]
    outcomes: list[Record]
    """every attempt, in the order in which they were stored"""
    seal: Seal | None = None

    @property
    def lines(self) -> Iterator[dict[str, Any]]:
        """The canonical lines of the evidence, before they are written."""
        for case in self.cases:
            yield case_data(case)
        places = {case.id: place for place, case in enumerate(self.cases)}
        for record in self.outcomes:
            yield outcome_data(places[record.case.id], record.outcome)
        yield run_data(self.run)

    @property
    def records(self) -> list[Record]:
        """Every case with the outcome that counts: its last one."""
        last = {record.case.id: record.outcome for record in self.outcomes}
        return [Record(case=case, outcome=last.get(case.id, NOT_REACHED)) for case in self.cases]

    @property
    def sha256(self) -> str:
        """The digest of the evidence, which a seal signs: over its lines, not over the compressed file."""
        return digest_of(self.lines)


@dataclass(frozen=True, kw_only=True, slots=True)
class Moved:
    """What was exported or imported."""

    run: str
    cases: int
    outcomes: int
    """all attempts"""
    sha256: str
    new: bool
    """False where the store that imports had it already"""


def load(connection: Connection, run_id: str) -> RunArchive | None:
    """The run as the store has it; None where it has not."""
    found = reading.load_runs(connection, runs.c.id == run_id)
    if not found:
        return None
    cases, outcomes = load_history(connection, run_id)
    return RunArchive(run=found[0], cases=cases, outcomes=outcomes, seal=reading.load_seal(connection, run_id))


def insert(connection: Connection, evidence: RunArchive) -> None:
    """Adds a run that the store does not have."""
    writing.insert_run(connection, evidence.run)
    writing.insert_cases(connection, evidence.run.id, evidence.cases)
    for start in range(0, len(evidence.outcomes), _GROUP):
        writing.insert_records(connection, evidence.run.id, evidence.outcomes[start : start + _GROUP])
    if evidence.seal:
        writing.set_seal(connection, evidence.run.id, evidence.seal)


def write(evidence: RunArchive, path: Path) -> str:
    """Writes the file, which gets its name only when it is complete; returns the digest of the evidence.

    Raises:
        InfrastructureError: it cannot be written there.
    """
    if kind := kind_of(path):
        raise InfrastructureError(f"--out {path}: it is {kind}, and the run would replace it. Give the name of a file.")
    unfinished = path.with_name(f".{path.name}.unfinished")
    whole, digest = hashlib.sha256(), hashlib.sha256()
    head, tail = line({"format": FORMAT}), _seal_line(evidence.seal)
    try:
        # Neither name nor time in the header, so that equal evidence gives equal bytes.
        with unfinished.open("wb") as file, gzip.GzipFile("", "wb", 6, file, 0) as packed:
            whole.update(head)
            packed.write(head)
            for content in map(line, evidence.lines):
                digest.update(content)
                whole.update(content)
                packed.write(content)
            whole.update(tail)
            packed.write(tail + line({"sha256": whole.hexdigest()}))
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise InfrastructureError(
            f"--out {path}: the run cannot be written there ({error.strerror or error}). It is still in the store: "
            "give another file, in a folder that exists."
        ) from error
    return digest.hexdigest()


def read(path: Path) -> RunArchive:
    """What a file holds. Its digest is checked first, line by line: only then is there anything to keep in memory.

    Raises:
        UsageError: it is no such file, is of another version, or was cut off, changed or packed to burst.
    """
    try:
        with open_regular(path) as file:
            head = _checked(path, file)
            file.seek(0)
            return _records(path, head, _lines(path, file))
    except (EOFError, zlib.error, gzip.BadGzipFile, ValueError, RecursionError) as error:
        raise _refused(path, f"it is no exported run, or it was cut off or damaged ({error})", _AGAIN) from error
    except OSError as error:
        raise _refused(path, error.strerror or str(error), "The name is probably mistyped.") from error


def _lines(path: Path, file: BinaryIO) -> Iterator[bytes]:
    """The unpacked lines. Raises UsageError for more than evidence can make of so few bytes."""
    room = MOST_BYTES + PACKED * os.fstat(file.fileno()).st_size
    packed = gzip.GzipFile(fileobj=file)
    while text := packed.readline(LONGEST_LINE + 1):
        room -= len(text)
        if len(text) > LONGEST_LINE:
            raise _refused(path, f"it holds a line of more than {LONGEST_LINE >> 20} MiB", _BURST)
        if room < 0:
            raise _refused(path, f"it unpacks to more than {PACKED} times its size", _BURST)
        yield text.removesuffix(b"\n")


def _checked(path: Path, file: BinaryIO) -> dict[str, Any]:
    """The first line of a file whose digest is right."""
    digest, first, last = hashlib.sha256(), b"", b""
    for number, text in enumerate(_lines(path, file)):
        if number:
            digest.update(last + b"\n")
        first, last = (text if number == 0 else first), text
    head, trailer = json.loads(first), json.loads(last)
    _check_format(path, head)
    stated = trailer.get("sha256") if isinstance(trailer, dict) else None
    if stated is None:
        raise _refused(path, "it was cut off: the digest at its end is missing", _AGAIN)
    if stated != digest.hexdigest():
        content, says = digest.hexdigest()[:12], one_line(str(stated)[:12])
        raise _refused(path, f"it was changed: its content has the sha256 {content}…, and it says {says}…", _AGAIN)
    return dict(head)


def _check_format(path: Path, head: object) -> None:
    found = head.get("format") if isinstance(head, dict) else None
    if not str(found).startswith(FORMAT.rpartition("/")[0]):
        raise _refused(path, "it is no exported run (no format)", _AGAIN)
    if found not in READ:
        raise _refused(
            path,
            f"it has the format {one_line(str(found)[:60])}, and this qualify reads {' and '.join(READ)}",
            "Import it with the version of qualify that wrote it, bring that store forward with `qualify db upgrade`, "
            "and export the run again.",
        )


def _records(path: Path, head: dict[str, Any], lines: Iterator[bytes]) -> RunArchive:
    """The records of a file whose digest is right, each made of its line at once."""
    try:
        return _evidence(head, map(json.loads, islice(lines, 1, None)))
    except (ValidationError, KeyError, IndexError, TypeError, ValueError) as error:
        detail = " ".join(str(error).split())[:300]
        raise _refused(path, f"its records are none ({detail})", "It was probably not made by qualify.") from error


def _evidence(head: dict[str, Any], lines: Iterator[dict[str, Any]]) -> RunArchive:
    """The evidence of all lines but the first; until format 7 the run stood there."""
    sides, cases, outcomes, ids = head["format"] in SIDES, [], [], set()
    run, seal = head.get("run"), None
    for data in lines:
        match data:
            case {"sha256": _}:
                break
            case {"case": content}:
                case = codec.from_data(Case, _with_mask(content) if sides else content)
                if case.id in ids:
                    raise ValueError("a case is there twice")
                ids.add(case.id)
                cases.append(case)
            case {"of": number, "outcome": content}:
                if type(number) is not int or number < 0:
                    raise ValueError("an outcome names no case")
                outcomes.append(Record(case=cases[number], outcome=codec.from_data(Outcome, content)))
            case {"run": run}:
                pass
            case {"seal": content}:
                seal = codec.from_data(Seal, content)
            case _:
                raise ValueError("a line is neither case, outcome, run nor seal")
    made = codec.from_data(Run, run)
    if not _RUN_ID.fullmatch(made.id):
        raise ValueError(f"run id {made.id!r}")
    return RunArchive(run=made, cases=cases, outcomes=outcomes, seal=seal)


def _with_mask(case: dict[str, Any]) -> dict[str, Any]:
    """A case of a format before 6, with the mask that its workload spelled in three fields."""
    workload = dict(case["workload"])
    chunk = workload.pop("chunk", 0)
    mask = {"causal": workload.pop("causal"), "window": workload.pop("window"), "size": chunk}
    mask["pattern"] = "chunked" if chunk else ""
    return {**case, "workload": {**workload, "mask": mask}}


def refuse_other_seal(path: Path, given: RunArchive) -> None:
    """Raises UsageError where the file's seal states another digest: it was changed after it was sealed."""
    stated = own_digest(given.seal) if given.seal else given.sha256
    if stated != given.sha256:
        detail = f"its evidence has the sha256 {given.sha256[:12]}…, and {stated[:12] or 'nothing'}… was sealed"
        raise _refused(path, detail, f"It was changed after it was sealed. What differs: qualify verify {path}")


def differs(path: Path, where: str, stored: RunArchive, given: RunArchive) -> UsageError:
    """The store has the run, and not as the file has it."""
    return _refused(
        path,
        f"{where} has run {stored.run.id} with other content ({stored.run.state}, {len(stored.outcomes)} outcomes; the "
        f"file: {given.run.state}, {len(given.outcomes)})",
        "The run probably went on after one of them was written. Evidence is never replaced: give another store.",
    )


def _seal_line(seal: Seal | None) -> bytes:
    """The line of the seal; nothing where there is none."""
    return line({"seal": plain(seal)}) if seal else b""


def _refused(path: Path, happened: str, advice: str) -> UsageError:
    return UsageError(f"{path}: {happened}. Nothing was imported. {advice}")
