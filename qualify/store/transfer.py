"""One run as one file, so that evidence moves between stores, also where no network does.

The file is gzip of JSON Lines in the shape of the facts: the format and the run, every case in the order of the plan,
every outcome in the order in which it was stored, also those that a later attempt replaced, and at last the SHA-256
over all lines before. Equal evidence gives equal lines, whichever database it comes from.
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
from qualify.files import kind_of, open_regular
from qualify.store import reading, writing
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
also the environments of a run, version 8 what its kernel cards promised"""
LONGEST_LINE = 1 << 26
"""bytes; the longest line is the first, with the digests of all files behind the kernels"""
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

    @property
    def lines(self) -> Iterator[bytes]:
        """The file's content but for the last line."""
        yield _line({"format": FORMAT, "run": codec.to_data(self.run)})
        for case in self.cases:
            yield _line({"case": codec.to_data(case)})
        places = {case.id: place for place, case in enumerate(self.cases)}
        for record in self.outcomes:
            yield _line({"of": places[record.case.id], "outcome": codec.to_data(record.outcome)})

    @property
    def sha256(self) -> str:
        """The digest of the evidence: over the lines, not over the compressed file."""
        digest = hashlib.sha256()
        for line in self.lines:
            digest.update(line)
        return digest.hexdigest()


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
    cases, outcomes = reading.load_history(connection, run_id)
    return RunArchive(run=found[0], cases=cases, outcomes=outcomes)


def insert(connection: Connection, evidence: RunArchive) -> None:
    """Adds a run that the store does not have."""
    writing.insert_run(connection, evidence.run)
    writing.insert_cases(connection, evidence.run.id, evidence.cases)
    for start in range(0, len(evidence.outcomes), _GROUP):
        writing.insert_records(connection, evidence.run.id, evidence.outcomes[start : start + _GROUP])


def write(evidence: RunArchive, path: Path) -> str:
    """Writes the file, which gets its name only when it is complete; returns the digest.

    Raises:
        InfrastructureError: it cannot be written there.
    """
    if kind := kind_of(path):
        raise InfrastructureError(f"--out {path}: it is {kind}, and the run would replace it. Give the name of a file.")
    unfinished = path.with_name(f".{path.name}.unfinished")
    digest = hashlib.sha256()
    try:
        # Neither name nor time in the header, so that equal evidence gives equal bytes.
        with unfinished.open("wb") as file, gzip.GzipFile("", "wb", 6, file, 0) as packed:
            for line in evidence.lines:
                digest.update(line)
                packed.write(line)
            packed.write(_line({"sha256": digest.hexdigest()}))
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
    while line := packed.readline(LONGEST_LINE + 1):
        room -= len(line)
        if len(line) > LONGEST_LINE:
            raise _refused(path, f"it holds a line of more than {LONGEST_LINE >> 20} MiB", _BURST)
        if room < 0:
            raise _refused(path, f"it unpacks to more than {PACKED} times its size", _BURST)
        yield line.removesuffix(b"\n")


def _checked(path: Path, file: BinaryIO) -> dict[str, Any]:
    """The first line of a file whose digest is right."""
    digest, first, last = hashlib.sha256(), b"", b""
    for number, line in enumerate(_lines(path, file)):
        if number:
            digest.update(last + b"\n")
        first, last = (line if number == 0 else first), line
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
    run = codec.from_data(Run, head["run"])
    if not _RUN_ID.fullmatch(run.id):
        raise ValueError(f"run id {run.id!r}")
    old, cases, outcomes, ids = head["format"] in SIDES, [], [], set()
    for line in lines:
        if "sha256" in line:
            break
        if "case" in line:
            case = codec.from_data(Case, _with_mask(line["case"]) if old else line["case"])
            if case.id in ids:
                raise ValueError("a case is there twice")
            ids.add(case.id)
            cases.append(case)
        elif type(line["of"]) is not int or line["of"] < 0:
            raise ValueError("an outcome names no case")
        else:
            outcomes.append(Record(case=cases[line["of"]], outcome=codec.from_data(Outcome, line["outcome"])))
    return RunArchive(run=run, cases=cases, outcomes=outcomes)


def _with_mask(case: dict[str, Any]) -> dict[str, Any]:
    """A case of a format before 6, with the mask that its workload spelled in three fields."""
    workload = dict(case["workload"])
    chunk = workload.pop("chunk", 0)
    mask = {"causal": workload.pop("causal"), "window": workload.pop("window"), "size": chunk}
    mask["pattern"] = "chunked" if chunk else ""
    return {**case, "workload": {**workload, "mask": mask}}


def differs(path: Path, where: str, stored: RunArchive, given: RunArchive) -> UsageError:
    """The store has the run, and not as the file has it."""
    return _refused(
        path,
        f"{where} has run {stored.run.id} with other content ({stored.run.state}, {len(stored.outcomes)} outcomes; the "
        f"file: {given.run.state}, {len(given.outcomes)})",
        "The run probably went on after one of them was written. Evidence is never replaced: give another store.",
    )


def _line(data: dict[str, Any]) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode() + b"\n"


def _refused(path: Path, happened: str, advice: str) -> UsageError:
    return UsageError(f"{path}: {happened}. Nothing was imported. {advice}")
