"""What a command prints for ``--help``."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import cache
from typing import Any

import typer

from qualify.cli import entry

TERMINAL = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}


def command_help(command: Sequence[str]) -> str:
    """A block of what ``qualify COMMAND --help`` prints on a terminal of a fixed width, without colour.

    In this process: a new one for each command would take a third of a second.
    """
    printed = io.StringIO()
    with _terminal(), redirect_stdout(printed):
        _commands().main([*command, "--help"], prog_name="qualify", standalone_mode=False)
    lines = [line.rstrip() for line in printed.getvalue().strip().splitlines()]
    return "\n".join(["```text", *lines, "```", ""])


@cache
def _commands() -> Any:
    return typer.main.get_command(entry._parser())


@contextmanager
def _terminal() -> Iterator[None]:
    """The environment of a command on that terminal."""
    before = dict(os.environ)
    os.environ.update(TERMINAL)
    os.environ.pop("QUALIFY_DB", None)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
