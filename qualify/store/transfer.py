"""Evidence as one file, so that it moves between stores, also where no network does.

A file holds a run, duels, or both. It is gzip of JSON Lines::

    {"format": …}
    {"case": …}                 the canonical lines of the run (qualify.seal.form): every case of the plan,
    {"of": …, "outcome": …}     every outcome as it was stored, also those that a later attempt replaced,
    {"run": …}                  and the run
    {"seal": …}                 where the run is sealed
    {"signoff": …}              what people said of the run; no seal is over it
    {"comment": …}
    {"duel": ID}                before the lines of each duel (qualify.seal.duel_form), and its seal
    {"sha256": …}               over all lines before

Equal evidence gives equal lines, whichever database it comes from.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import ValidationError

from qualify.errors import InfrastructureError, UsageError
from qualify.facts.seal import Seal
from qualify.files import kind_of, open_regular, replacing, why_unread
from qualify.seal.form import line, plain
from qualify.seal.sealed import own_digest
from qualify.store.archive import NOTHING, Archive, Attached, Exported, RunArchive
from qualify.store.unpacking import Unpacking
from qualify.text import one_line, shell_word

VERSION = 14
"""of the lines and of the records in them; raise it when a field of Run, Case, Outcome, Duel, SignOff or Comment
changes"""
FORMAT = f"qualify.export/{VERSION}"
READ = (*(f"qualify.export/{version}" for version in range(2, VERSION)), FORMAT)
"""formats that are read. What each version added to the one before::

    3   words for dtypes and descale factors
    4   a flag for a kind of call that no earlier run made
    5   the code of a run
    6   a mask in place of three fields
    7   the environments of a run
    8   what the kernel cards promised, and a seal; the run follows its outcomes; fields with their default are left out
    9   digests of outputs, and where a run was placed
    10  duels, sign-offs and comments
    11  how many cases the plan of a run has
    12  the cells of a duel that only one side can run
    13  the code and the cards that a duel timed
    14  when the case of an outcome ended
"""
SIDES = READ[:4]
"""formats that spell a mask in three fields"""
LONGEST_LINE = 1 << 26
"""bytes; the longest line is the run's, with the digests of all files behind the kernels"""
PACKED = 100
"""evidence shrinks to a tenth or a thirtieth; a file that unpacks to more than this times its size is refused"""
MOST_BYTES = 1 << 24
"""bytes; every file may unpack to so much, however small it is"""
_BURST = "It was probably made to fill the memory of who reads it: take the file from where it was exported."
ZIP = b"PK\x03\x04"
"""how an exported baseline begins"""
_BASELINE = "`qualify baseline import` checks and reads one."
_NEWER = (
    "A newer qualify wrote it: install that version here. The store comes forward with its first command, and an older "
    "qualify does not read it any more."
)
_OLDER = (
    "Import it with the version of qualify that wrote it, bring that store forward with `qualify db upgrade`, and "
    "export it again."
)
LONGEST_NUMBER = 9
"""digits of a format's number; Python refuses to read a number of thousands"""
_NEVER = "Evidence is never replaced: give another store."
_EITHER = "The run went on in two places, or one of them was edited: qualify verify says which, of a sealed one."
_AGAIN = "Copy it again, or make it again with `qualify db export`."


def write(run: RunArchive | None, path: Path, beside: Attached = NOTHING) -> list[str]:
    """Writes the file, which gets its name only when it is complete; returns the digest of the run and of each duel.

    Raises:
        InfrastructureError: it cannot be written there.
    """
    if kind := kind_of(path):
        raise InfrastructureError(f"--out {path} is {kind}, which qualify does not replace. Give the name of a file.")
    digests: list[str] = []
    try:
        # Neither name nor time in the header, so that equal evidence gives equal bytes.
        with replacing(path) as file, gzip.GzipFile("", "wb", 6, file, 0) as packed:
            whole = hashlib.sha256()
            for content in _written(Exported(run=run, beside=beside), digests):
                whole.update(content)
                packed.write(content)
            packed.write(line({"sha256": whole.hexdigest()}))
    except OSError as error:
        raise InfrastructureError(
            f"--out {path}: the evidence cannot be written there ({error.strerror or error}). It is still in the "
            "store: give another file, in a folder that exists."
        ) from error
    return digests


def _written(given: Exported, digests: list[str]) -> Iterator[bytes]:
    """The lines of a file except the last one. The digest of the run and of each duel is added to ``digests``."""
    yield line({"format": FORMAT})
    if given.run:
        yield from _sealed(given.run, digests)
    for signoff in given.beside.signoffs:
        yield line({"signoff": plain(replace(signoff, id=0, origin="", how=""))})
    for comment in given.beside.comments:
        yield line({"comment": plain(replace(comment, id=0, origin=""))})
    for duel in given.beside.duels:
        yield line({"duel": duel.id})
        yield from _sealed(duel, digests)


def _sealed(given: Archive, digests: list[str]) -> Iterator[bytes]:
    """The lines of a run or a duel, and its seal."""
    digest = hashlib.sha256()
    for content in map(line, given.lines):
        digest.update(content)
        yield content
    digests.append(digest.hexdigest())
    yield _seal_line(given.seal)


def read(path: Path) -> Exported:
    """What a file holds. Its digest is checked first, line by line: only then is there anything to keep in memory.

    Raises:
        UsageError: it is no such file, is of another version, was cut off or changed, or unpacks to far too much.
    """
    try:
        with open_regular(path) as file:
            if file.read(len(ZIP)) == ZIP:
                raise _unreadable(path, "it is a ZIP file, perhaps an exported baseline", _BASELINE)
            file.seek(0)
            head = _checked(path, file)
            file.seek(0)
            return _records(path, head, _lines(path, file))
    except (EOFError, zlib.error, gzip.BadGzipFile, ValueError, RecursionError) as error:
        raise _unreadable(
            path, f"it is no exported run or duel, or was cut off or damaged ({error})", _AGAIN
        ) from error
    except OSError as error:
        raise UsageError(f"{path}: {why_unread(error)}") from error


def _lines(path: Path, file: BinaryIO) -> Iterator[bytes]:
    """The unpacked lines. Raises UsageError where the file unpacks to far more than evidence does."""
    room = MOST_BYTES + PACKED * os.fstat(file.fileno()).st_size
    packed = gzip.GzipFile(fileobj=file)
    while text := packed.readline(LONGEST_LINE + 1):
        room -= len(text)
        if len(text) > LONGEST_LINE:
            raise _unreadable(path, f"it holds a line of more than {LONGEST_LINE >> 20} MiB", _BURST)
        if room < 0:
            raise _unreadable(path, f"it unpacks to more than {PACKED} times its size", _BURST)
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
        raise _unreadable(path, "it was cut off: the digest at its end is missing", _AGAIN)
    if stated != digest.hexdigest():
        content, says = digest.hexdigest()[:12], one_line(str(stated)[:12])
        differ = f"the sha256 of its content is {content}…, but its last line states {says}…"
        raise _unreadable(path, f"it was changed or damaged: {differ}", _AGAIN)
    return dict(head)


def _check_format(path: Path, head: object) -> None:
    found = head.get("format") if isinstance(head, dict) else None
    if not str(found).startswith(FORMAT.rpartition("/")[0]):
        raise _unreadable(path, "it is no exported run or duel (no format)", _AGAIN)
    if found not in READ:
        number = str(found).rpartition("/")[2]
        newer = number.isdecimal() and len(number) < LONGEST_NUMBER and int(number) > VERSION
        raise _unreadable(
            path,
            f"it has the format {one_line(str(found)[:60])}, and this qualify reads {READ[0]} to {FORMAT}",
            _NEWER if newer else _OLDER,
        )


def _records(path: Path, head: dict[str, Any], lines: Iterator[bytes]) -> Exported:
    """The records of a file whose digest is right, each made of its line at once."""
    unpacking = Unpacking(run=head.get("run"), sides=head["format"] in SIDES)
    try:
        for data in map(json.loads, islice(lines, 1, None)):
            unpacking.add(data)
        return unpacking.made()
    except (ValidationError, KeyError, IndexError, TypeError, ValueError) as error:
        detail = " ".join(str(error).split())[:300]
        raise _unreadable(
            path, f"its records cannot be read ({detail})", "It was probably not made by qualify."
        ) from error


def refuse_other_seal(path: Path, given: Archive, sha256: str) -> None:
    """Raises UsageError where the file's seal states another digest: it was changed after it was sealed.

    Args:
        sha256: of what the file holds.
    """
    stated = own_digest(given.seal) if given.seal else sha256
    if stated != sha256:
        sealed = f"{stated[:12]}…" if stated else "none"
        detail = f"the sha256 of its {given.what} is {sha256[:12]}…, but its seal states {sealed}"
        raise _refused(
            path, detail, f"It was changed after it was sealed. What differs: qualify verify {shell_word(str(path))}"
        )


def refuse_lost(path: Path, given: RunArchive) -> None:
    """Raises UsageError where the file has more or fewer cases than the plan of its run."""
    if given.lost:
        raise _refused(path, f"its run contradicts itself: {given.lost}", "The file was probably edited.")


def why_not_more(stored: Archive, given: Archive, look: str) -> str:
    """Why the file does not go on where the stored run or duel ends, and what to do; empty where it does.

    Args:
        look: the command that verifies the stored one.
    """
    if not (isinstance(stored, RunArchive) and isinstance(given, RunArchive)):
        return f"One of them was probably edited: {look}. {_NEVER}"
    if damaged := stored.lost or stored.edited:
        return f"The stored run contradicts itself: {damaged}. Look: {look}. {_NEVER}"
    if stored.lacks(given) == "" and not given.goes_on_from(stored):
        return "The file is of an earlier moment: the store has all of it already, and there is nothing to do."
    if stored.run.state == "completed":
        return f"The stored run is complete, and nothing is added to it. {_EITHER} {_NEVER}"
    if lacking := given.lacks(stored):
        return f"The file lacks {lacking} as it is stored. {_EITHER} {_NEVER}"
    if not given.goes_on_from(stored):
        return f"The file has nothing that the stored run lacks. {_EITHER} {_NEVER}"
    if stored.seal and not given.seal:
        return (
            "The stored part is sealed, and the file is not: seal the run where it ran (QUALIFY_SIGNING_KEY), export "
            "it again, and import that file."
        )
    return ""


def differs(path: Path, where: str, stored: Archive, given: Archive, why: str) -> UsageError:
    """The error for a run or a duel that the store has with other content than the file.

    Args:
        why: what :func:`why_not_more` says.
    """
    told = f"{where} has {stored.what} {stored.id} with other content"
    if isinstance(stored, RunArchive) and isinstance(given, RunArchive):
        here, there = (f"{it.run.state}, {len(it.outcomes)} outcomes" for it in (stored, given))
        told += f" ({here}; the file: {there})"
    return _refused(path, told, why)


def _seal_line(seal: Seal | None) -> bytes:
    """The line of the seal; nothing where there is none."""
    return line({"seal": plain(seal)}) if seal else b""


def _refused(path: Path, happened: str, advice: str) -> UsageError:
    return UsageError(f"{path}: {happened}. Nothing was imported. {advice}")


def _unreadable(path: Path, happened: str, advice: str) -> UsageError:
    return UsageError(f"{path}: {happened}. {advice}")
