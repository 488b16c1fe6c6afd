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
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from sqlalchemy import Connection

from qualify.errors import InfrastructureError, UsageError
from qualify.facts import codec
from qualify.facts.case import Case
from qualify.facts.outcome import Outcome
from qualify.facts.run import Record, Run
from qualify.facts.seal import Seal
from qualify.seal.form import case_data, line, outcome_data, plain, run_data
from qualify.seal.parts import digest_of
from qualify.seal.sealed import own_digest
from qualify.store import reading, writing
from qualify.store.mapping import NOT_REACHED
from qualify.store.tables import runs

VERSION = 8
"""of the lines and of the records in them; raise it when a field of Run, Case or Outcome changes"""
FORMAT = f"qualify.export/{VERSION}"
READ = (*(f"qualify.export/{version}" for version in range(2, VERSION)), FORMAT)
SIDES = READ[:4]
"""formats that spell a mask in three fields"""
"""formats that are read: version 3 only added words to the dtypes and descale factors of version 2, version 4 a flag of
calls that were not made before, version 5 the code of a run; version 6 has a mask in place of three fields, version 7
also the environments of a run; version 8 has the run after its outcomes, no field that holds its default, and a seal"""
_AGAIN = "Copy it again, or make it again: qualify db export RUN"
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
    cases, outcomes = reading.load_history(connection, run_id)
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
    """What a file holds.

    Raises:
        UsageError: it is no such file, is of another version, or was cut off or changed.
    """
    try:
        with gzip.open(path) as packed:
            *lines, last = packed.read().removesuffix(b"\n").split(b"\n")
        return _parse(path, lines, last)
    except (EOFError, zlib.error, gzip.BadGzipFile, ValueError, RecursionError) as error:
        raise _refused(path, f"it is no exported run, or it was cut off or damaged ({error})", _AGAIN) from error
    except OSError as error:
        raise _refused(path, error.strerror or str(error), "The name is probably mistyped.") from error


def _parse(path: Path, lines: list[bytes], last: bytes) -> RunArchive:
    head, trailer = json.loads(lines[0] if lines else last), json.loads(last)
    found = head.get("format") if isinstance(head, dict) else None
    if not str(found).startswith(FORMAT.rpartition("/")[0]):
        raise _refused(path, "it is no exported run (no format)", _AGAIN)
    if found not in READ:
        raise _refused(
            path,
            f"it has the format {found}, and this qualify reads {' and '.join(READ)}",
            "Import it with the version of qualify that wrote it, bring that store forward with `qualify db upgrade`, "
            "and export the run again.",
        )
    stated = trailer.get("sha256") if isinstance(trailer, dict) else None
    if stated is None:
        raise _refused(path, "it was cut off: the digest at its end is missing", _AGAIN)
    computed = hashlib.sha256(b"".join(text + b"\n" for text in lines)).hexdigest()
    if stated != computed:
        detail = f"it was changed: its content has the sha256 {computed[:12]}…, and it says {str(stated)[:12]}…"
        raise _refused(path, detail, _AGAIN)
    try:
        return _evidence(head, [json.loads(text) for text in lines[1:]])
    except (ValidationError, KeyError, IndexError, TypeError, ValueError) as error:
        detail = " ".join(str(error).split())[:300]
        raise _refused(path, f"its records are none ({detail})", "It was probably not made by qualify.") from error


def _evidence(head: dict[str, Any], rest: list[dict[str, Any]]) -> RunArchive:
    of = {name: [data for data in rest if name in data] for name in ("case", "of", "run", "seal")}
    if sum(map(len, of.values())) != len(rest):
        raise ValueError("a line is neither case, outcome, run nor seal")
    # Until format 7 the run stood in the first line.
    run = codec.from_data(Run, head["run"] if "run" in head else of["run"][0]["run"])
    if not _RUN_ID.fullmatch(run.id):
        raise ValueError(f"run id {run.id!r}")
    sides = head["format"] in SIDES
    cases = [codec.from_data(Case, _with_mask(data["case"]) if sides else data["case"]) for data in of["case"]]
    if len({case.id for case in cases}) < len(cases):
        raise ValueError("a case is there twice")
    attempts = of["of"]
    if not all(type(data["of"]) is int and data["of"] >= 0 for data in attempts):
        raise ValueError("an outcome names no case")
    outcomes = [Record(case=cases[data["of"]], outcome=codec.from_data(Outcome, data["outcome"])) for data in attempts]
    seal = codec.from_data(Seal, of["seal"][0]["seal"]) if of["seal"] else None
    return RunArchive(run=run, cases=cases, outcomes=outcomes, seal=seal)


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
