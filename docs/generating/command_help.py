"""The output of a command's ``--help``."""

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
    """A code block with the output of ``qualify COMMAND --help`` on a terminal of a fixed width, without colour.

    The command runs in this process, because a new process for each command would take a third of a second.
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
    """Within, the environment variables describe that terminal."""
    before = dict(os.environ)
    os.environ.update(TERMINAL)
    os.environ.pop("QUALIFY_DB", None)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
