"""A fire as a child process: killable, with a limit of time, and with every way to end told apart."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from logging import Logger
from threading import Thread
from typing import IO

from qualify.canary.conditions import Monitor
from qualify.canary.messages import Failed, FleetSeen, FromChild, Order, RunBegun, Seen, decode
from qualify.cards.load import LoadedCanary
from qualify.errors import INFRASTRUCTURE
from qualify.facts import codec
from qualify.facts.canary import Fire
from qualify.facts.lines import WrongMessage

LINE_BYTES = 8192
"""most bytes of a line that a library prints; a longer line becomes several"""
GRACE_S = 10.0
"""seconds for a child to store what was measured after it was asked to stop, or to end after it has said its result"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How a child ended: what it saw, or why it saw nothing."""

    seen: Seen | FleetSeen | None = None
    why: str = ""
    exit_code: int | None = None
    """of the error that it reported; None where it died or was killed without a word"""
    final: bool = False
    """another attempt would end in the same way"""


def environment_for(cards: Iterable[LoadedCanary], db: str) -> dict[str, str]:
    """The environment of a fire's child. It has no secrets of alerts, because what a kernel prints is stored."""
    targets = [alert for loaded in cards for alert in loaded.card.alerts]
    withheld = {name for alert in targets for name in (alert.url_env, alert.secret_env)}
    kept = {name: value for name, value in os.environ.items() if name not in withheld}
    return {**kept, "QUALIFY_DB": db}


class Firing:
    """A fire that runs. It is started and looked after by one thread: the child dies with it."""

    def __init__(
        self,
        fire: Fire,
        order: Order,
        environment: Mapping[str, str],
        timeout_s: float,
        doubts: tuple[str, ...],
        wake: Callable[[], None],
        log: Logger,
    ) -> None:
        """Start the child.

        Raises:
            OSError: the machine has no room for another process, or the interpreter is gone.
        """
        self.fire = fire
        self._doubts = doubts
        self.run_id: str | None = None
        """known as soon as the child has begun its run"""
        self.monitor = Monitor(order.device)
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._wake = wake
        self._messages: list[FromChild] = []
        self._told_at: float | None = None
        """when the child said how it ended (monotonic, s); its process may still hang in a library or the driver"""
        command = [sys.executable, "-m", "qualify.canary.child", str(os.getpid())]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env=dict(environment),
            )
        except OSError:
            self.monitor.close()
            raise
        assert self._process.stdin is not None, "it was asked for"
        assert self._process.stdout is not None, "it was asked for"
        assert self._process.stderr is not None, "it was asked for"
        with suppress(BrokenPipeError), self._process.stdin as stream:  # its end is noticed anyway
            stream.write(json.dumps(codec.to_data(order)).encode())
        self._reader = Thread(target=self._read, args=(self._process.stdout,), name="fire", daemon=True)
        self._reader.start()
        Thread(target=self._relay, args=(self._process.stderr, log), name="fire-log", daemon=True).start()

    @property
    def observed(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Why times say nothing, from before and during the run, and every Xid of the run."""
        doubts, xids = self.monitor.seen
        return tuple(dict.fromkeys((*self._doubts, *doubts))), xids

    def poll(self) -> Ended | None:
        """How it ended; None while it runs."""
        self.monitor.sample()
        if self._told_at is not None and time.monotonic() - self._told_at > GRACE_S:
            return self._ended()
        if time.monotonic() > self._deadline:
            self.stop()
            return Ended(why=f"killed: it took longer than {self._timeout_s:g} s", final=True)
        if self._process.poll() is None or self._reader.is_alive():
            return None
        return self._ended()

    def stop(self, grace_s: float = GRACE_S) -> None:
        """Ask the child to stop, so that it stores what was measured; then kill what is left of it and its workers."""
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_s)
        self.kill()

    def kill(self) -> None:
        """Kill the child and its workers at once."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # a process that hangs in the driver ends when the driver lets it
            self._process.wait(GRACE_S)
        self._reader.join(GRACE_S)
        self.monitor.sample()
        self.monitor.close()

    def _read(self, stream: IO[bytes]) -> None:
        """Takes the child's messages; the loop is woken by each, and by the end.

        A line that is no message was printed while Python started, before the child had its stdout for itself.
        """
        for line in stream:
            with suppress(WrongMessage):
                message = decode(line)
                self._messages.append(message)
                if isinstance(message, RunBegun):
                    self.run_id = message.run
                else:
                    self._told_at = time.monotonic()
                self._wake()
        stream.close()
        self._wake()

    def _relay(self, stream: IO[bytes], log: Logger) -> None:
        """Puts what libraries print into the log, a line at a time."""
        about = {"canary": self.fire.canary, "fire": self.fire.id, "source": "fire"}
        with suppress(ValueError):  # closed while it was read
            while line := stream.readline(LINE_BYTES):
                if text := line.decode(errors="replace").rstrip():
                    log.info("%s", text, extra=about)
        stream.close()

    def _ended(self) -> Ended:
        self.kill()  # workers that outlived the child
        code = self._process.returncode
        for message in self._messages:
            match message:
                case Seen() | FleetSeen():
                    return Ended(seen=message)
                case Failed(message=why, exit_code=exit_code):
                    return Ended(why=why, exit_code=exit_code, final=exit_code != INFRASTRUCTURE)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        return Ended(why=f"the child process {how}, without a result")
