"""What a command prints for ``--help``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from generating.places import ROOT

WIDTH = "100"


def command_help(command: Sequence[str]) -> str:
    """A block of what ``qualify COMMAND --help`` prints on a terminal of a fixed width, without colour."""
    environment = os.environ | {"COLUMNS": WIDTH, "TERMINAL_WIDTH": WIDTH, "NO_COLOR": "1", "TERM": "dumb"}
    environment.pop("QUALIFY_DB", None)
    line = [sys.executable, "-m", "qualify", *command, "--help"]
    printed = subprocess.run(line, capture_output=True, text=True, check=True, env=environment, cwd=ROOT).stdout
    lines = [line.rstrip() for line in printed.replace("python -m qualify", "qualify").strip().splitlines()]
    return "\n".join(["```text", *lines, "```", ""])
