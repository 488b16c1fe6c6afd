"""Files of an earlier command go before anything else: whatever ends this one, nobody takes the old ones for new ones.

It imports little, because the old files are there until it has done so. Importing the parser and the store takes half a
second longer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path

from qualify.files import is_file, open_regular
from qualify.report.formats import FORMATS
from qualify.report.replacing import remove_output
from qualify.report.written import COLUMNS, OTAVA, OTAVA_BEGINS, SELFTEST_DATA, SELFTEST_PAGE

CARDS = {".yaml", ".yml"}
"""how the names of matrices, waivers and cards end, which a gate reads"""
DATABASE = "SQLite format 3"
"""how each SQLite file begins, the store of another command among them"""
BESIDE_DATABASE = ("-wal", "-shm", "-journal")
"""how the names of the files end that SQLite keeps beside a database"""
HEAD_BYTES = 64
HELP = frozenset({"--help", "-h"})
UNREAD = "?"
"""the beginning of a file that cannot be read; no output begins so"""


def remove_outputs(words: Sequence[str]) -> None:
    """Remove the files that a command will write anew. The parser may refuse the command line afterwards.

    Args:
        words: the command line, without the program's name.
    """
    if HELP & {*words}:
        return
    if words[:1] == ["history"]:
        _remove_times(words)
    elif words[:1] == ["selftest"]:
        _remove_selftest(words)
    else:
        remove_verdicts(words)


def _remove_times(words: Sequence[str]) -> None:
    """Remove the times of an earlier history; a file of another kind stays, and the command refuses it."""
    for path in map(Path, _values(words, "--csv")):
        if head_of(path).startswith(COLUMNS[0]) and not _is_kept(path):
            remove_output(path)
    for folder in _values(words, "--otava"):
        if head_of(path := Path(folder) / OTAVA).startswith(OTAVA_BEGINS):
            remove_output(path)


def _remove_selftest(words: Sequence[str]) -> None:
    """Remove the result of an earlier selftest: a later one takes minutes, and may end without a result."""
    for folder in [*_values(words, "--out")][-1:] or ["out"]:
        for name in (SELFTEST_DATA, SELFTEST_PAGE):
            remove_output(Path(folder) / name)


def _values(words: Sequence[str], option: str) -> Iterator[str]:
    """What an option of the command line is given, each time that it stands there."""
    for word, after in zip_longest(words, words[1:], fillvalue=""):
        name, sign, value = word.partition("=")
        if name == option and (given := value if sign else after):
            yield given


def remove_verdicts(words: Sequence[str]) -> None:
    """Remove the file of each option of a gate that names one. The parser may refuse the command line afterwards.

    Args:
        words: the command line, without the program's name.
    """
    if words[:1] != ["gate"] or HELP & {*words}:
        return
    for option in filter(None, (form.option for form in FORMATS)):
        for value in _values(words, option):
            if not (option == "--json" and value.startswith("-")) and not _is_kept(Path(value)):
                remove_output(Path(value))


@contextmanager
def no_part_left(words: Sequence[str]) -> Iterator[None]:
    """Where an error or an interrupt ends a gate, none of its files is left: others may be missing."""
    try:
        yield
    except BaseException:
        remove_verdicts(words)
        raise


def _is_kept(path: Path) -> bool:
    """Whether it may be something else than a verdict: a card, or a file of a database. An empty one may become one."""
    place = os.path.realpath(path)
    if CARDS & {path.suffix, Path(place).suffix} or head_of(path) in ("", UNREAD):
        return True
    databases = (place, *(place.removesuffix(end) for end in BESIDE_DATABASE))
    return any(head_of(Path(each)).startswith(DATABASE) for each in databases)


def head_of(path: Path) -> str:
    """How a file begins that is there; where it cannot be read, it begins as no output does."""
    if not is_file(path):
        return ""
    try:
        with open_regular(path) as file:
            return file.read(HEAD_BYTES).decode("latin-1")
    except OSError:
        return UNREAD
