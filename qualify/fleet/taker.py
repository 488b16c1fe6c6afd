"""The process that takes files into a store for another one, which says their names line by line.

The first line on stdin is the order, each line after it a file. Every file has one answer on stdout, in their order.
The address of the store may hold a password, so it comes on the pipe, where no list of processes shows it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from qualify.errors import QualifyError, UsageError
from qualify.facts import codec
from qualify.fleet.ingest import ingest
from qualify.fleet.patience import Patience
from qualify.run.process.parent import die_with
from qualify.seal.keys import public_key
from qualify.store.archive import Moved
from qualify.store.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class TakerOrder:
    """Where files go, and whose seals count."""

    address: str
    """URL of the store, with its password"""
    keys: tuple[tuple[str, str], ...]
    """text of each public key, and the name that messages give it"""
    longest_s: float
    """how long a store that refuses for now is asked again"""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileTaken:
    """The run of the file is in the store."""

    moved: Moved


@dataclass(frozen=True, kw_only=True, slots=True)
class FileRefused:
    """Nothing of the file was added; the message says why."""

    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreFailed:
    """The store cannot be used, so no further file is tried; the message says why."""

    message: str


Answer = FileTaken | FileRefused | StoreFailed
ANSWERS: Mapping[str, type[Answer]] = {"taken": FileTaken, "refused": FileRefused, "failed": StoreFailed}


def main() -> None:
    """Take files until stdin ends; the argument is the parent's process id."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    die_with(int(sys.argv[1]))
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # what a library prints is no answer
        for answer in _answers():
            event = next(name for name, kind in ANSWERS.items() if isinstance(answer, kind))
            answers.write(json.dumps({"event": event, **codec.to_data(answer)}).encode() + b"\n")
            answers.flush()


def _say(text: str) -> None:
    """A line for the log."""
    print(f"qualify: {text}", file=sys.stderr, flush=True)


def _answers() -> Iterator[Answer]:
    order: TakerOrder = codec.from_data(TakerOrder, json.loads(sys.stdin.buffer.readline()))
    try:
        keys = [public_key(text, shown) for text, shown in order.keys]
        patience = Patience(_say, order.longest_s)
        with Store.open(order.address, create="late", migrate=False) as store:
            for line in sys.stdin.buffer:
                path = Path(json.loads(line))
                try:
                    yield FileTaken(moved=patience.keep(partial(ingest, store, path, keys)))
                except UsageError as error:
                    yield FileRefused(message=codec.whole(str(error)))
    except QualifyError as error:
        yield StoreFailed(message=codec.whole(str(error)))


if __name__ == "__main__":
    main()
