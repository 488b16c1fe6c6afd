"""What a worker process prints: its end is kept, whatever the amount, and read for how the process ended."""

from __future__ import annotations

import errno
import os
import re
import sysconfig
import threading
from contextlib import ExitStack, suppress
from pathlib import Path

OUTPUT_BYTES = 1 << 16
"""how much of the output's end is kept"""
LOG_KEPT = 4000
"""characters of it that an outcome keeps"""
LAST_WORDS_S = 1.0
"""how long the end of a dead process's output may take to arrive"""
FAULT = re.compile(r"^(Fatal Python error|Current thread|Stack \(most recent)", re.MULTILINE)
FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)
REASON = re.compile(r"[\w.]+(Error|Exception|Exit)\b|libgomp: |OMP: Error")
TOO_FEW_THREADS = "; the machine, or its container, probably allows too few: look at ulimit -u and pids.max"
"""a library starts a thread for each core in each process"""
STANDARD_LIBRARY = sysconfig.get_path("stdlib")


class Output:
    """A pipe for stdout and stderr of one process, which a thread empties: nothing reaches a disk."""

    def __init__(self, undo: ExitStack) -> None:
        """Open the pipe.

        Args:
            undo: closes the writing end, if the process cannot be started.

        Raises:
            OSError: the machine has no room for another pipe or thread.
        """
        self.kept = bytearray()
        self.lock = threading.Lock()
        self.closed = False
        self.reading, self.writing = os.pipe()
        undo.callback(self.started)
        self.thread = threading.Thread(target=self._collect, name="qualify-output", daemon=True)
        try:
            self.thread.start()
        except RuntimeError as error:
            os.close(self.reading)
            raise OSError(errno.EAGAIN, str(error)) from error

    def started(self) -> None:
        """The process holds the writing end now."""
        os.close(self.writing)

    def _collect(self) -> None:
        """Keep the end of what comes, until nobody can write any more."""
        with suppress(OSError):
            while not self.closed and (data := os.read(self.reading, OUTPUT_BYTES)):
                with self.lock:
                    self.kept += data
                    del self.kept[:-OUTPUT_BYTES]
        os.close(self.reading)

    def finish(self) -> None:
        """Wait for the last words of a process that was ended, with everything that it started."""
        self.thread.join(LAST_WORDS_S)

    def close(self) -> None:
        """Keep nothing more, should anything still write."""
        self.closed = True

    def text(self) -> str:
        """The end of what was printed."""
        with self.lock:
            return self.kept.decode("utf-8", errors="replace")

    def tail(self) -> str:
        """The end that an outcome keeps; where the process ended in a fault, from there on."""
        text = self.text()
        marks = [mark.start() for mark in FAULT.finditer(text) if mark[1].startswith("Fatal")]
        return text[marks[-1] :][:LOG_KEPT] if marks else text[-LOG_KEPT:]

    def place(self) -> str:
        """Where the Python code was, if the fault handler could write it."""
        text = self.text()
        marks = list(FAULT.finditer(text))
        frames = list(FRAME.finditer(text, marks[-1].start())) if marks else []
        if not frames:
            return ""
        frame = next((frame for frame in frames if not _in_library(frame[1])), frames[0])
        return f", in {Path(frame[1]).name}:{frame[2]} ({frame[3]})"

    def reason(self) -> str:
        """Why the process ended, if its last words say so: an exception, or what OpenMP says; else empty."""
        lines = self.text().strip().splitlines()
        if not lines or not REASON.match(lines[-1]):
            return ""
        scarce = "Thread creation failed" in lines[-1] or "can't start new thread" in lines[-1]
        return lines[-1][:200] + (TOO_FEW_THREADS if scarce else "")


def _in_library(path: str) -> bool:
    """Whether a file belongs to Python itself: ctypes is where a fault shows, not whose it is."""
    return path.startswith(STANDARD_LIBRARY) and "-packages" not in path
