"""Tries altered versions of one case in worker processes; a kernel that dies or hangs takes only its worker along."""

from __future__ import annotations

from collections.abc import Callable

from qualify.errors import DeviceError
from qualify.facts.case import Case
from qualify.facts.stages import doing
from qualify.run.process.child import JUDGE_S, Child, Gone
from qualify.run.process.messages import StageBegun, TrialEnded, TrialRequest, TrialSetup
from qualify.run.process.setup import make_ready
from qualify.text import unsaid


class Bench:
    """One worker at a time, replaced whenever a trial has ended it or may have broken it."""

    def __init__(self, setup: TrialSetup, detail: Callable[[str], None] = unsaid) -> None:
        """Nothing is started yet.

        Args:
            setup: first message to each worker.
            detail: takes a line for every stage that a worker begins.
        """
        self.setup = setup
        self.detail = detail
        self.timeout_s = setup.hosts.timeout_s + setup.hosts.compile_timeout_s + JUDGE_S
        self.memory_bytes = setup.hosts.memory_bytes
        self.child: Child | None = None

    def close(self) -> None:
        """End the worker."""
        if self.child is not None:
            self.child.stop()
            self.child = None

    def attempt(self, case: Case, *, seed: int, check: str, finding: str, text: str = "") -> TrialEnded:
        """Run one check of one case; the script is wanted where there is a text for it.

        Raises:
            DeviceError: no worker can be started, or the kernel's library cannot be loaded.
        """
        child = self.child or self._start()
        asked = TrialRequest(case=case, seed=seed, check=check, finding=finding, script=bool(text), text=text)
        try:
            child.send(asked, self.timeout_s)
            while True:
                match message := child.receive(self.timeout_s):
                    case None:
                        pass
                    case StageBegun():
                        self.detail(doing(message.stage))
                    case TrialEnded():
                        return message
                    case _:
                        raise child.unexpected(message)
        except Gone as gone:
            self.close()
            how = "timed_out" if gone.limit_s is not None else f"crashed:{gone.error.partition(',')[0]}"
            return TrialEnded(ended=how, detail=gone.error, script="")

    def _start(self) -> Child:
        self.child = child = Child(self.memory_bytes)
        try:
            make_ready(child, self.setup, self.detail)
        except Gone as gone:
            raise DeviceError(
                f"the worker process could not start (at {child.stage or 'its start'}: {gone.error}). "
                "`qualify doctor` checks the machine."
            ) from None
        return child
