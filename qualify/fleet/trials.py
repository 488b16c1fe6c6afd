"""Tries altered versions of one case in worker processes; a kernel that dies or hangs takes only its worker along."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qualify.errors import DeviceError
from qualify.facts import codec
from qualify.facts.case import Case
from qualify.facts.devices import HOST
from qualify.run.process.child import Child, Gone

START_TIMEOUT_S = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """How one trial ended."""

    ended: str
    """``finding:NAME``, ``crashed:HOW``, ``timed_out``, ``refused`` or ``passed``"""
    detail: str
    script: str
    """empty where none was asked for, or none can show it"""

    @property
    def failed(self) -> bool:
        """Whether anything went wrong."""
        return self.ended != "passed"


class Bench:
    """One worker at a time, replaced whenever a trial has ended it or may have broken it."""

    def __init__(self, setup: Mapping[str, Any], *, timeout_s: float, memory_bytes: int) -> None:
        """Nothing is started yet.

        Args:
            setup: first message to each worker (qualify.run.repro.trial).
            timeout_s: silence after which a trial counts as hanging.
            memory_bytes: host memory that a worker may touch.
        """
        self.setup = dict(setup)
        self.timeout_s = timeout_s
        self.memory_bytes = memory_bytes
        self.child: Child | None = None

    def close(self) -> None:
        """End the worker."""
        if self.child is not None:
            self.child.stop()
            self.child = None

    def attempt(self, case: Case, *, seed: int, check: str, finding: str, text: str = "") -> Attempt:
        """Run one check of one case; the script is wanted where there is a text for it.

        Raises:
            DeviceError: no worker can be started, or the kernel's library cannot be loaded.
        """
        child = self.child or self._start()
        asked = {"case": codec.to_data(case), "seed": seed, "check": check, "finding": finding}
        script = ""
        try:
            child.send({**asked, "script": bool(text), "text": text}, self.timeout_s)
            while True:
                message = child.receive(self.timeout_s)
                if message is not None and message["event"] == "script":
                    script = str(message["text"])
                elif message is not None and message["event"] == "trial":
                    ended = Attempt(ended=message["ended"], detail=message["detail"], script=message["script"])
                    break
        except Gone as gone:
            self.close()
            how = "timed_out" if gone.limit_s is not None else f"crashed:{gone.error.partition(',')[0]}"
            return Attempt(ended=how, detail=gone.error, script=script)
        if ended.ended.startswith("crashed") and self.setup["device"] != HOST:
            self.close()  # the context may be lost, and would fail everything after
        return ended

    def _start(self) -> Child:
        self.child = child = Child(self.memory_bytes)
        try:
            child.send(self.setup, START_TIMEOUT_S)
            while True:
                message = child.receive(START_TIMEOUT_S)
                if message is not None and message["event"] == "unusable":
                    raise DeviceError(message["message"])
                if message is not None and message["event"] == "ready":
                    return child
        except Gone as gone:
            raise DeviceError(
                f"the worker process could not start (at {child.stage or 'its start'}: {gone.error}). "
                "`qualify doctor` checks the machine."
            ) from None
