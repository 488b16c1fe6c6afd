"""What a person sees: results on stdout, the log on stderr; a reader who has gone disturbs nothing."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from qualify.errors import InfrastructureError
from qualify.text import visible


def open_streams() -> None:
    """See that descriptors 0, 1 and 2 are open: a pipe or database that took the number of one would be written to."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number


def emit(text: str) -> None:
    """A result on stdout, at once. A closed pipe is silent, so the exit code stays that of the command.

    Raises:
        InfrastructureError: stdout is a file that cannot be written, for example on a full disk.
    """
    try:
        _write(sys.stdout, text)
    except BrokenPipeError:
        _to_nowhere(sys.stdout)
    except OSError as error:
        _to_nowhere(sys.stdout)
        raise InfrastructureError(
            f"the result cannot be written to stdout: {error.strerror or error}. Nothing that was measured is lost: "
            "write it to another place, with `qualify gate` or `qualify report`."
        ) from None


def say(text: str) -> None:
    """A line of the log on stderr. It never fails: a run goes on without its log."""
    try:
        _write(sys.stderr, text)
    except OSError:
        _to_nowhere(sys.stderr)


def _write(stream: TextIO | None, text: str) -> None:
    """In the stream's own encoding; what that cannot express is escaped. None is a stream that was closed."""
    if stream is None:
        return
    encoding = stream.encoding or "utf-8"
    stream.write(visible(text).encode(encoding, "backslashreplace").decode(encoding) + "\n")
    stream.flush()


def _to_nowhere(stream: TextIO) -> None:
    """Point a broken stream at /dev/null, so that what is left in its buffer is not complained about at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
