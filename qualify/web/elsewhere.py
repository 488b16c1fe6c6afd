"""A process of its own that judges stored runs, so that no page waits for Python's lock while a large run is judged."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from qualify.cards.load import LoadedKernel
from qualify.errors import QualifyError
from qualify.facts import codec
from qualify.facts.fleet import Compared
from qualify.facts.overview import RunHead
from qualify.judge.summary import Details
from qualify.store.store import Store
from qualify.web.judging import Judging, Known

AGAIN_S = 1.0
"""seconds until another process is started, where one died"""
Told = tuple[Known, Details]
NICE = 10
"""the process yields to whoever answers requests"""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToJudge:
    """A run to judge, or the id of a fleet whose results to compare."""

    head: RunHead | None = None
    fleet: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedThere:
    """What was asked for; None where it cannot be judged."""

    run: Told | None = None
    fleet: Compared | None = None


class Elsewhere:
    """The process. It begins when it is first asked, and again where it died; it ends with its parent.

    One thread asks it.
    """

    def __init__(self, store: Store, kernels: Mapping[str, LoadedKernel]) -> None:
        self._address = store.secret_address
        self._kernels = dict(kernels)
        self._running: tuple[BaseProcess, Connection] | None = None

    def ask(self, head: RunHead) -> Told | None:
        """What pages show of a run; None where it cannot be judged, or the process died while it judged."""
        return self._ask(ToJudge(head=head)).run

    def compare(self, fleet_id: str) -> Compared | None:
        """What pages show of a fleet's votes; None where it cannot be judged, or the process died meanwhile."""
        return self._ask(ToJudge(fleet=fleet_id)).fleet

    def _ask(self, question: ToJudge) -> JudgedThere:
        try:
            there = self._there()
            there.send_bytes(_packed(question, ToJudge))
            found: JudgedThere = _unpacked(there.recv_bytes(), JudgedThere)
        except (EOFError, OSError):
            self.end()
            time.sleep(AGAIN_S)
            return JudgedThere()
        return found

    def end(self) -> None:
        """Ends the process."""
        if self._running:
            process, there = self._running
            self._running = None
            there.close()
            process.terminate()
            process.join()

    def _there(self) -> Connection:
        """The way to the process, which is started where it does not run."""
        if self._running is None:
            context = multiprocessing.get_context("spawn")
            mine, its = context.Pipe()
            process = context.Process(target=_work, args=(its, self._address, self._kernels), daemon=True)
            process.start()
            os.setpriority(os.PRIO_PROCESS, process.pid or 0, NICE)  # before it imports anything
            its.close()  # so that the end of the process is the end of the pipe
            self._running = process, mine
        return self._running[1]


def _packed(message: object, kind: Any) -> bytes:
    """The message as JSON; pickle would run what it holds."""
    return json.dumps(codec.to_data(message, kind)).encode()


def _unpacked(content: bytes, kind: Any) -> Any:
    return codec.from_data(kind, json.loads(content))


def _work(there: Connection, address: str, kernels: Mapping[str, LoadedKernel]) -> None:
    """What the process does until its parent ends, or the store cannot be opened."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches it too, and its parent ends it
    with suppress(EOFError, OSError, QualifyError), Store.open(address, create=False, migrate=False) as store:
        judging = Judging(store, kernels)
        while True:
            there.send_bytes(_packed(_answer(judging, _unpacked(there.recv_bytes(), ToJudge)), JudgedThere))


def _answer(judging: Judging, question: ToJudge) -> JudgedThere:
    try:
        if question.head is None:
            return JudgedThere(fleet=judging.fleet(question.fleet))
        return JudgedThere(run=judging.look(question.head))
    except QualifyError:  # the page of the run says why
        return JudgedThere()
