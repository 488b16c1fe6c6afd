"""One command on one input, in a process forked for it: what it answered, and what it took.

The limits are the process's own: 1 GB of memory, 10 s of a processor. Beyond the first an allocation fails, beyond the
second the kernel ends it, and what waits for ever is killed. Each of these is a fault of qualify, as a traceback is.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import io
import os
import resource
import select
import signal
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, NoReturn

import pytest
from cli_server import LATER, collapse
from typer.main import get_command

from qualify.cards import load
from qualify.cli import entry
from qualify.errors import QualifyError

MEMORY_BYTES = 1 << 30
CPU_S = 10
WALL_S = 120
"""of a machine that does other things too; only a command that waits for ever takes so long"""
CODES = (0, 1, 2, 3, 4, 5)
"""that the reference documents, but for an interrupt"""
NEVER = ("Traceback (most recent call last)", "internal error")
SHOWN = 4000
"""characters of an answer that a failure shows"""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """How a command ended."""

    code: int
    """exit code, or minus the signal"""
    text: str
    """stdout and stderr"""
    cpu_s: float
    most_bytes: int


@dataclass(kw_only=True)
class Totals:
    """What all commands took together."""

    inputs: Counter[str] = field(default_factory=Counter)
    codes: Counter[int] = field(default_factory=Counter)
    cpu_s: float = 0.0
    longest_s: float = 0.0
    most_bytes: int = 0

    def add(self, answer: Answer) -> None:
        """Counts one answer."""
        self.codes[answer.code] += 1
        self.cpu_s += answer.cpu_s
        self.longest_s = max(self.longest_s, answer.cpu_s)
        self.most_bytes = max(self.most_bytes, answer.most_bytes)

    def merge(self, other: Totals) -> None:
        """Adds what another process counted."""
        self.inputs += other.inputs
        self.codes += other.codes
        self.cpu_s += other.cpu_s
        self.longest_s = max(self.longest_s, other.longest_s)
        self.most_bytes = max(self.most_bytes, other.most_bytes)

    def lines(self) -> list[str]:
        """The figures that the documentation quotes."""
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.inputs.items()))
        codes = ", ".join(f"{count} exit {code}" for code, count in sorted(self.codes.items()))
        return [
            f"{sum(self.inputs.values())} inputs: {kinds}",
            f"{sum(self.codes.values())} commands: {codes}",
            (
                f"longest {self.longest_s:.1f} s of a processor, most {self.most_bytes / 1e6:.0f} MB, "
                f"{self.cpu_s:.0f} s in all"
            ),
        ]


TOTALS = Totals()


def get_ready(patch: pytest.MonkeyPatch, warming: list[list[str]], folder: Path) -> None:
    """Imports what commands import, and runs some here, so that no forked process has to build what they build once."""
    for name in (*LATER, "qualify.cards.config.reading", "qualify.report.formats.junit", "qualify.verdict.duelled"):
        importlib.import_module(name)
    command = get_command(entry._parser())  # takes as long as most commands
    patch.setattr(entry, "_parser", lambda _="": command)
    for name in (
        "_kernel",
        "_model",
    ):  # of shipped cards, which no input changes: an input is read in a process of its own
        patch.setattr(load, name, cache(getattr(load, name)))
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for arguments in warming:
            with contextlib.suppress(SystemExit, QualifyError):
                command(arguments, standalone_mode=False)
    gc.enable()  # a gate has ended it
    _shrink()
    gc.freeze()


def _shrink() -> None:
    """Gives up what other tests have left: a fork takes as long as this process has memory, used or freed."""
    if "subjects" in sys.modules:
        sys.modules["subjects"].goldens().kept.clear()
        sys.modules["qualify.run.inputs.kept"].forget()
    gc.collect()
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
    collapse()


def ask(arguments: list[str], folder: Path) -> Answer:
    """Runs the command in the folder, with the limits."""
    with tempfile.TemporaryFile() as printed:
        before = _pages(1)  # a process that ran other tests may hold more than a command may take
        child = os.fork()
        if child == 0:
            _run(arguments, folder, printed)
        handle = os.pidfd_open(child)
        late = not select.select([handle], [], [], WALL_S)[0]
        os.close(handle)
        if late:
            os.kill(child, signal.SIGKILL)
        _, status, used = os.wait4(child, 0)
        printed.seek(0)
        text = printed.read(1 << 24).decode(errors="replace")
    return Answer(
        code=os.waitstatus_to_exitcode(status),
        text=f"it waited for more than {WALL_S} s\n{text}" if late else text,
        cpu_s=used.ru_utime + used.ru_stime,
        most_bytes=used.ru_maxrss * 1024 - before,
    )


def _run(arguments: list[str], folder: Path, printed: IO[bytes]) -> NoReturn:
    """The command, in the forked process."""
    code = 99
    try:
        for number in (1, 2):
            os.dup2(printed.fileno(), number)
        sys.stdin = open(os.devnull)  # noqa: PTH123, SIM115
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES + _pages(0), resource.RLIM_INFINITY))
        os.chdir(folder)
        sys.argv = ["qualify", *arguments]
        entry.main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _pages(which: int) -> int:
    """Bytes that the process has already, mostly the libraries of the tests: of address space (0), resident (1)."""
    return int(Path("/proc/self/statm").read_text().split()[which]) * resource.getpagesize()


def attack(arguments: list[str], folder: Path) -> Answer:
    """Runs the command, counts it, and fails where it did what no command may do."""
    answer = ask(arguments, folder)
    TOTALS.add(answer)
    shown = f"qualify {' '.join(arguments)}\nexit {answer.code}, {answer.cpu_s:.1f} s\n{answer.text[:SHOWN]}"
    assert answer.code in CODES, shown
    assert [] == [word for word in NEVER if word in answer.text], shown
    assert answer.cpu_s < CPU_S, shown
    assert answer.most_bytes < MEMORY_BYTES, shown
    return answer
