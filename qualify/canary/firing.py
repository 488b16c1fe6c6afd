"""A fire as a child process: killable, with a limit of time, and with every way to end told apart."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from typing import IO

from qualify.canary.conditions import Monitor
from qualify.canary.messages import Failed, FromChild, Order, RunBegun, Seen, decode
from qualify.errors import INFRASTRUCTURE
from qualify.facts import codec
from qualify.facts.canary import Fire
from qualify.facts.lines import WrongMessage

GRACE_S = 10.0
"""for storing what was measured, after it was asked to stop"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How a child ended: what it saw, or why it saw nothing."""

    seen: Seen | None = None
    why: str = ""
    exit_code: int | None = None
    """of the error that it reported; None where it died or was killed without a word"""
    final: bool = False
    """another attempt would end in the same way"""


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
    ) -> None:
        self.fire = fire
        self._doubts = doubts
        self.run_id: str | None = None
        """known as soon as the child has begun its run"""
        self.monitor = Monitor(order.device)
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._wake = wake
        self._messages: list[FromChild] = []
        command = [sys.executable, "-m", "qualify.canary.child", str(os.getpid())]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=dict(environment),
        )
        assert self._process.stdin is not None, "it was asked for"
        assert self._process.stdout is not None, "it was asked for"
        with suppress(BrokenPipeError), self._process.stdin as stream:  # its end is noticed anyway
            stream.write(json.dumps(codec.to_data(order)).encode())
        self._reader = Thread(target=self._read, args=(self._process.stdout,), name="fire", daemon=True)
        self._reader.start()

    @property
    def observed(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Why times say nothing, from before and during the run, and every Xid of the run."""
        doubts, xids = self.monitor.seen
        return tuple(dict.fromkeys((*self._doubts, *doubts))), xids

    def poll(self) -> Ended | None:
        """How it ended; None while it runs."""
        self.monitor.sample()
        if time.monotonic() > self._deadline:
            self.stop()
            return Ended(why=f"killed: it took longer than {self._timeout_s:g} s", final=True)
        if self._process.poll() is None or self._reader.is_alive():
            return None
        return self._ended()

    def stop(self, grace_s: float = GRACE_S) -> None:
        """Ends it: first with a word, so that what was measured is stored, then by force, with its workers."""
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_s)
        self.kill()

    def kill(self) -> None:
        """Ends it at once, with its workers."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # a process that hangs in the driver ends when the driver lets it
            self._process.wait(GRACE_S)
        self._reader.join(GRACE_S)
        self.monitor.sample()
        self.monitor.close()

    def _read(self, stream: IO[bytes]) -> None:
        """Takes the child's messages; the loop is woken by each, and by the end.

        What is no message was printed while Python started, before the child had its stdout for itself.
        """
        for line in stream:
            with suppress(WrongMessage):
                message = decode(line)
                self._messages.append(message)
                if isinstance(message, RunBegun):
                    self.run_id = message.run
                self._wake()
        stream.close()
        self._wake()

    def _ended(self) -> Ended:
        self.kill()  # workers that outlived the child
        code = self._process.returncode
        for message in self._messages:
            match message:
                case Seen():
                    return Ended(seen=message)
                case Failed(message=why, exit_code=exit_code):
                    return Ended(why=why, exit_code=exit_code, final=exit_code != INFRASTRUCTURE)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        return Ended(why=f"the child process {how}, without a result")
