"""Ctrl-C, SIGTERM of a batch system and SIGHUP of a terminal that closes end a command at any moment.

They do so also while it imports torch. The C code of torch and numpy runs Python while they are imported, and drops or
replaces whatever that raises: a KeyboardInterrupt would be lost, leave half a numpy, or abort the process. So it is
raised when the import has ended.
"""

from __future__ import annotations

import inspect
import signal
import time
from collections.abc import Mapping
from types import FrameType
from typing import Any, Self

AGAIN_S = 0.002
"""after so long the handler looks again whether the import has ended: soon enough, before what follows the import"""
PATIENCE_S = 60.0
"""an import that takes longer than this hangs, and is interrupted"""
BURST_S = 1.0
"""signals within so long of the one that ended the command are part of it: ``timeout`` and shells that end send two"""
USUAL: Mapping[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
}
"""the signals that end a command, and what answers each where nobody else answers or ignores it"""


class Interrupts:
    """Answers these signals while a command runs; leaves one alone where somebody else answers or ignores it."""

    def __init__(self) -> None:
        self.came = 0
        """the number of the first signal that came and was this command's to answer; 0 where none did"""
        self._since = 0.0
        self._raised: float | None = None
        """when it last interrupted the command (monotonic, s)"""
        self._caller: FrameType | None = None
        self._alarm: Any = signal.SIG_DFL

    def __enter__(self) -> Self:
        """Begin to answer."""
        mine = [number for number, usual in USUAL.items() if signal.getsignal(number) is usual]
        if mine:
            frame = inspect.currentframe()
            self._caller = frame and frame.f_back
            self._alarm = signal.signal(signal.SIGALRM, self._answer)
        for number in mine:
            signal.signal(number, self._answer)
        return self

    def __exit__(self, *_: object) -> None:
        """As it was before; an interrupt that still waits is in :attr:`came`."""
        if self._caller is None:
            return
        self._caller = None
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._alarm)
        for number, usual in USUAL.items():
            if signal.getsignal(number) == self._answer:
                signal.signal(number, usual)

    def _answer(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._raised is not None and now - self._raised < BURST_S:
            return  # what the first one began is not disturbed
        if number in USUAL and not self.came:
            self.came, self._since = number, now
        if self._imports(frame) and now - self._since < PATIENCE_S:
            signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
            return
        self._raised = now
        raise KeyboardInterrupt

    def _imports(self, frame: FrameType | None) -> bool:
        """Whether a module is being imported now, by whatever the command called."""
        while frame is not None and frame is not self._caller:
            if frame.f_globals.get("__name__") == "importlib._bootstrap":
                return True
            frame = frame.f_back
        return False
