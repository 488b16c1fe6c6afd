"""What a person sees: results on stdout, the log on stderr; a reader who has gone disturbs nothing."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from qualify.errors import StdoutLost
from qualify.text import Document, pieces_of, visible

RED, GREEN, YELLOW, BOLD = "31", "32", "33", "1"
COLOURS = (
    (r"(FAIL|DRIFT|NOT correct:|error|qualify:)(?=\s)", RED),
    (r"(PASS|correct:|usable here:|verdict: ready)(?=\s|$)", GREEN),
    (r"(INCONCLUSIVE|WAIVED|SLOWER|warning|weaker:|slower:|demonstration on a CPU)(?=\s|,)", YELLOW),
    (r"\S+: not qualified", RED),
    (r"\S+: (?:demonstration|no verdict)", YELLOW),
    (r"\S+: qualified", GREEN),
    (r"(do:|note:|on:|against:|report:|matrix:|model:|engine:|verdict:)(?=\s)", BOLD),
)
"""how a line begins that has a colour on a terminal, and the colour"""


SIGNS = str.maketrans(
    {"µ": "u", "×": "x", "…": "...", "–": "-", "−": "-", "±": "+-", "“": '"', "”": '"', "≤": "<=", "≥": ">=", "≠": "!="}
)
"""what replaces a character on a terminal whose encoding is not UTF-8"""


KEPT = (
    "What the command stored or wrote by then is kept. If it only reads, type it again with another place for its "
    "output"
)
"""what is true of every command whose output is lost"""


def open_streams() -> None:
    """Open descriptors 0, 1 and 2 where they are closed, so that no pipe or database gets the number of an output."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number


def emit(text: Document, *, plain: bool = False) -> None:
    """A result on stdout, at once. A closed pipe is silent, so the exit code stays that of the command.

    Args:
        plain: it is data for another program, which no terminal colours.

    Raises:
        StdoutLost: stdout is a file that cannot be written, for example on a full disk.
    """
    try:
        _write(sys.stdout, text, plain=plain)
    except BrokenPipeError:
        _to_nowhere(sys.stdout)
    except OSError as error:
        _to_nowhere(sys.stdout)
        happened = f"the result cannot be written to stdout: {error.strerror or error}"
        raise StdoutLost(happened, KEPT) from None


@contextmanager
def kept_elsewhere(told: str) -> Iterator[None]:
    """Where stdout does not take the result of a command that changed something, say where that is all the same."""
    try:
        yield
    except StdoutLost as lost:
        raise StdoutLost(lost.happened, told) from None


def say(text: str) -> None:
    """A line of the log on stderr. It never fails: a run goes on without its log.

    A line for which a full disk has no room is lost. Later ones are written where there is room again.
    """
    try:
        _write(sys.stderr, text)
    except BrokenPipeError:
        _to_nowhere(sys.stderr)
    except OSError:
        _forget(sys.stderr)


def columns() -> int | None:
    """How wide the terminal is that shows the result; None where it goes to a file or to another program."""
    return shutil.get_terminal_size().columns if sys.stdout and sys.stdout.isatty() else None


def _write(stream: TextIO | None, text: Document, *, plain: bool = False) -> None:
    """Write in the stream's own encoding, and escape what that cannot express. None is a stream that was closed."""
    if stream is None:
        return
    encoding = stream.encoding or "utf-8"
    painting = not plain and _coloured(stream)
    for piece in pieces_of(text):
        shown = _encodable(visible(piece), encoding, plain=plain)
        stream.write(painted(shown) if painting else shown)
    stream.write("\n")
    stream.flush()


def _encodable(text: str, encoding: str, *, plain: bool) -> str:
    """The text as the encoding can show it. For people other signs replace ours; whatever is left is escaped."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        shown = text if plain else text.translate(SIGNS)
        return shown.encode(encoding, "backslashreplace").decode(encoding)
    return text


def _coloured(stream: TextIO) -> bool:
    """Whether a person looks at a terminal with colours and has not said NO_COLOR (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def painted(text: str) -> str:
    """The text with the beginnings of its lines in colour."""
    return "\n".join(_painted_line(line) for line in text.split("\n"))


def _painted_line(line: str) -> str:
    for pattern, colour in COLOURS:
        if found := re.match(pattern, line):
            return f"\x1b[{colour}m{found[0]}\x1b[0m{line[found.end() :]}"
    return line


def _to_nowhere(stream: TextIO) -> None:
    """Point a broken stream at /dev/null, so that Python does not complain at exit about what is left in its buffer."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _forget(stream: TextIO) -> None:
    """Drop what is left in the buffer of a stream that cannot be written now, and keep the stream."""
    kept = os.dup(stream.fileno())
    _to_nowhere(stream)
    stream.flush()
    os.dup2(kept, stream.fileno())
    os.close(kept)
