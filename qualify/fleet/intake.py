"""Takes many files into a store by several processes, each with a connection of its own.

A process reads, checks and writes one file at a time, in one transaction. Whatever ends it, the run is in the store as
a whole or not at all, and the same files can be given again.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from qualify.errors import InfrastructureError, UsageError
from qualify.facts import codec
from qualify.facts.lines import WrongMessage, decode_line
from qualify.fleet.ingest import ingest
from qualify.fleet.patience import Patience
from qualify.fleet.taker import ANSWERS, FileRefused, FileTaken, StoreFailed, TakerOrder
from qualify.seal.keys import PublicKey
from qualify.store.archive import Moved
from qualify.store.store import Store

WORTH_A_PROCESS = 16
"""files for which another process is worth its start"""
MOST = 8
"""processes; a server has other work too"""
AHEAD = 2
"""files of which a process is told in advance, so that it never waits for the next one"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """What became of one file."""

    file: Path
    moved: Moved | None
    """None where it was refused"""
    refused: str = ""
    """why, in words"""


@dataclass(kw_only=True, slots=True)
class _Taker:
    """One process, and the files that it has been told of."""

    process: subprocess.Popen[bytes]
    files: deque[Path] = field(default_factory=deque)
    buffer: bytearray = field(default_factory=bytearray)


class Intake:
    """Takes files into one store. Use it as a context manager: its processes end with it."""

    def __init__(self, store: Store, keys: Sequence[PublicKey], patience: Patience) -> None:
        """Nothing is started before there are files that are worth it.

        Args:
            keys: one of these must have sealed each run; empty = a seal must fit, and a run without one is taken too.
            patience: where the store refuses for now.
        """
        self._store, self._keys, self._patience = store, keys, patience
        self._given = 0
        self._takers: list[_Taker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the processes; the database rolls back the file that each of them is writing."""
        while self._takers:
            self._end(self._takers[-1])

    def _end(self, taker: _Taker) -> None:
        self._takers.remove(taker)
        taker.process.kill()
        taker.process.wait()
        for pipe in filter(None, (taker.process.stdin, taker.process.stdout)):
            with suppress(BrokenPipeError):
                pipe.close()

    def take(self, files: Iterable[Path]) -> Iterator[Taken]:
        """What became of each file, in the order in which they are done.

        Raises:
            InfrastructureError: the store cannot be used, or a process ended. What was taken before stays.
        """
        waiting = deque(files)
        self._given += len(waiting)
        count = min(len(os.sched_getaffinity(0)), MOST, self._given // WORTH_A_PROCESS)
        if count < 2:
            yield from map(self._taken_here, waiting)
            return
        for taker in [it for it in self._takers if it.process.poll() is not None]:
            self._end(taker)
        self._takers += [self._start() for _ in range(count - len(self._takers))]
        with selectors.DefaultSelector() as selector:
            for taker in self._takers:
                assert taker.process.stdout is not None
                selector.register(taker.process.stdout, selectors.EVENT_READ, taker)
                _feed(taker, waiting)
            while any(taker.files for taker in self._takers):
                for key, _ in selector.select():
                    if _hear(key.data):
                        yield from _answers(key.data)
                        _feed(key.data, waiting)
                    else:
                        selector.unregister(key.fileobj)
                        self._end(key.data)

    def _taken_here(self, file: Path) -> Taken:
        try:
            return Taken(file=file, moved=self._patience.keep(lambda: ingest(self._store, file, self._keys)))
        except UsageError as error:
            return Taken(file=file, moved=None, refused=str(error))

    def _start(self) -> _Taker:
        order = TakerOrder(
            address=self._store.secret_address,
            keys=tuple((it.text, it.shown) for it in self._keys),
            longest_s=self._patience.longest_s,
        )
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "qualify.fleet.taker", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        taker = _Taker(process=process)
        _say(taker, codec.to_data(order))
        return taker


def _feed(taker: _Taker, waiting: deque[Path]) -> None:
    while waiting and len(taker.files) < AHEAD:
        taker.files.append(waiting.popleft())
        _say(taker, str(taker.files[-1]))


def _say(taker: _Taker, data: object) -> None:
    assert taker.process.stdin is not None
    with suppress(BrokenPipeError):  # it has ended, which its stdout tells
        taker.process.stdin.write(json.dumps(data).encode() + b"\n")
        taker.process.stdin.flush()


def _hear(taker: _Taker) -> bool:
    """Read what a process answers now; False where it ended while it had nothing to do, which costs nothing.

    Raises:
        InfrastructureError: it ended at a file.
    """
    assert taker.process.stdout is not None
    data = os.read(taker.process.stdout.fileno(), 1 << 16)
    if not data and taker.files:
        raise InfrastructureError(
            f"a process that took files in ended with exit code {taker.process.wait()} at {taker.files[0]}. The memory "
            "is probably full. What was taken in before is stored: give the same files again."
        )
    taker.buffer += data
    return bool(data)


def _answers(taker: _Taker) -> Iterator[Taken]:
    """What a process has answered."""
    while (end := taker.buffer.find(b"\n")) >= 0:
        text = bytes(taker.buffer[:end])
        del taker.buffer[: end + 1]
        yield _answered(taker, text)


def _answered(taker: _Taker, text: bytes) -> Taken:
    try:
        answer = decode_line(text, ANSWERS)
    except WrongMessage as error:
        raise InfrastructureError(f"a process that imports files sent an invalid answer ({error})") from error
    match answer:
        case FileTaken():
            return Taken(file=taker.files.popleft(), moved=answer.moved)
        case FileRefused():
            return Taken(file=taker.files.popleft(), moved=None, refused=answer.message)
        case StoreFailed():
            raise InfrastructureError(answer.message)
