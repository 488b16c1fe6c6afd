"""Shows on stderr how many of so many things are done: a bar on a terminal, plain lines otherwise."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from qualify.cli.shared import Talk
from qualify.cli.terminal import say

PLAIN_SECONDS = 10.0
"""least time between two plain lines"""


@contextmanager
def counter(what: str, talk: Talk) -> Iterator[Callable[[int, int, str], None]]:
    """A function to call with how many are done, how many there are, and what ended last."""
    if talk != "usual":
        yield verbose_line(what) if talk == "verbose" else lambda *_: None
        return
    console = Console(stderr=True)
    if sys.stderr.isatty() and not console.is_dumb_terminal:
        times = (TimeElapsedColumn(), TimeRemainingColumn())
        columns = (TextColumn(what), BarColumn(bar_width=28), MofNCompleteColumn(), *times)
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total, _: bar.update(task, completed=done, total=total)
        return
    last = time.monotonic()

    def tell(done: int, total: int, _: str) -> None:
        nonlocal last
        if time.monotonic() - last > PLAIN_SECONDS:
            last = time.monotonic()
            say(f"{what}: {done} of {total}")

    yield tell


def verbose_line(what: str) -> Callable[[int, int, str], None]:
    """A function that prints a line for everything that ends."""
    return lambda done, total, ended: say(f"{what}: {done} of {total}: {ended}")
