"""Shows on stderr how many of so many things are done: a bar on a terminal, plain lines otherwise."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from qualify.cli.terminal import say

PLAIN_SECONDS = 10.0
"""a plain line so often"""


@contextmanager
def counter(what: str) -> Iterator[Callable[[int, int], None]]:
    """A function to call with how many are done, and how many there are."""
    console = Console(stderr=True)
    if sys.stderr.isatty() and not console.is_dumb_terminal:
        columns = (TextColumn(what), BarColumn(bar_width=28), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
        return
    last = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > PLAIN_SECONDS:
            last = time.monotonic()
            say(f"{what}: {done} of {total}")

    yield tell
