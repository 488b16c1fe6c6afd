"""One process at a time works on a run: it claims the run, gives signs of life, and learns when it was succeeded."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread

from qualify.errors import LeaseLost, StoreError
from qualify.facts.run import Writer
from qualify.fleet.silence import silent
from qualify.processes import read_process
from qualify.store.store import Store

LEASE_S = 30.0
"""seconds for which a silent process of another machine keeps a run; a process of this machine is looked up directly"""
BEAT_S = 5.0
"""seconds between two signs of life"""


class Beat(Thread):
    """Renews the claim of a run, in a thread of its own with connections of its own."""

    def __init__(self, store: Store, run_id: str) -> None:
        super().__init__(name="writer", daemon=True)
        self._store = store
        self._run_id = run_id
        self._stopped = Event()
        self._lost: LeaseLost | None = None

    def check(self) -> None:
        """Raises LeaseLost once another process has taken the run over."""
        if self._lost is not None:
            raise self._lost

    def run(self) -> None:
        """Renew the claim until it is stopped, or another process has the run."""
        while not self._stopped.wait(BEAT_S):
            try:
                self._store.renew(self._run_id, LEASE_S)
            except LeaseLost as error:
                self._lost = error
                return
            except StoreError:
                continue  # the writer of the outcomes gets the same error, and reports it

    def stop(self) -> None:
        """Ends after the renewal that is under way."""
        self._stopped.set()
        self.join()


@contextmanager
def claimed(store: Store, run_id: str, say: Callable[[str], None] = lambda _: None) -> Iterator[Beat]:
    """The run is this process's alone until the end of the block.

    Args:
        say: takes a sentence where it must wait for another process that may be dead.

    Raises:
        RunBusy: another process has it, and the message says which.
    """
    found = store.writer(run_id)
    dead = None
    if found:
        ended = has_ended(found[1])
        dead = found[0] if ended else silent(lambda: store.dated_ahead(run_id, LEASE_S), LEASE_S, say, str(found[1]))
    store.claim(run_id, this_process(), LEASE_S, dead)
    beat = Beat(store, run_id)
    beat.start()
    try:
        yield beat
    finally:
        beat.stop()
        with suppress(StoreError):  # the next one sees that this process has ended
            store.release(run_id)


def this_process() -> Writer:
    """How this process signs what it claims now."""
    process = read_process(os.getpid())
    return Writer(
        host=socket.gethostname(),
        pid=os.getpid(),
        since=datetime.now(UTC),
        machine=_machine(),
        born=process.started if process else 0,
    )


def has_ended(writer: Writer) -> bool:
    """Whether the process is known to have ended; False where that cannot be known from here."""
    if not writer.machine or writer.machine != _machine():
        return False
    process = read_process(writer.pid)
    if process is None:
        return not _exists(writer.pid)
    return process.ended or process.started != writer.born


def _exists(pid: int) -> bool:
    """Whether there is such a process; /proc may hide those of other users."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _machine() -> str:
    """The boot of this machine and this process's space of process ids; empty where the system does not tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""
