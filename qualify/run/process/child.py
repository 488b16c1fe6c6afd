"""The parent's end of a worker: one child process, the two pipes to it, and the watch over its life."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import qualify
from qualify.run.process.messages import (
    LINE_BYTES,
    StageBegun,
    WrongMessage,
    decode_answer,
    encode,
)

BOOT = "import sys; sys.path.append(sys.argv.pop(1)); from qualify.run.process.worker import main; main()"
"""started with -P, so that no module in the user's working directory shadows an installed library"""
WITHHELD = {"QUALIFY_DB", "QUALIFY_DB_PASSWORD_FILE", "PGPASSWORD"}
"""environment variables that may hold the store's password, or lead to it; what a kernel prints is stored"""
POLL_S = 0.25
LOG_BYTES = 64 << 20
"""a worker that printed more than this starts its log anew: a chatty kernel must not fill the disk"""
ANNOUNCED = 4
"""times that a step may be announced again in between others: a batch is traced anew where its trace proved nothing"""
LOG_KEPT = 4000
"""characters of the log that an outcome keeps"""
FAULT = re.compile(r"^(Fatal Python error|Current thread|Stack \(most recent)", re.MULTILINE)
STANDARD_LIBRARY = sysconfig.get_path("stdlib")
FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """What a child runs, and how one talks with it."""

    interpreter: str
    arguments: tuple[str, ...]
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    """raises WrongMessage"""
    step_of: Callable[[Any], Any]
    """what a message announces; None where it is an answer"""
    shared: int = -1
    """descriptor of memory that both map; -1 = none"""
    shared_bytes: int = 0


def worker() -> Program:
    """A judge."""
    return Program(
        interpreter=sys.executable,
        arguments=("-P", "-c", BOOT, str(Path(qualify.__file__).resolve().parents[1])),
        encode=encode,
        decode=decode_answer,
        step_of=lambda message: (message.case, message.stage) if isinstance(message, StageBegun) else None,
    )


class Gone(Exception):
    """The worker died, was killed, or can no longer be understood; the message says how."""

    def __init__(self, error: str, *, limit_s: float | None = None) -> None:
        self.error = error
        self.limit_s = limit_s
        """how long it had made no progress when it was killed for that; None where it ended otherwise"""
        super().__init__(error)


class Child:
    """One worker process: messages to it, messages from it, and how it ended."""

    def __init__(self, memory_bytes: int, program: Program | None = None) -> None:
        """Start the process.

        Args:
            memory_bytes: host memory that it may touch; one that takes more is killed.
            program: what it runs; None = a judge.

        Raises:
            OSError: the machine has no room for another process, pipe or temporary file.
        """
        self.memory_bytes = memory_bytes
        self.program = program or worker()
        self.case = self.stage = ""
        """what it announced last"""
        self.ran = 0
        """cases that it was given"""
        self.progressed = time.monotonic()
        """when it last announced a new step or a result, or was sent something"""
        self.steps: Counter[object] = Counter()
        """announced since the last result"""
        self.step: object = None
        self.wrote = False
        """whether anything came since then"""
        self.buffer = bytearray()
        self.searched = 0
        """bytes of it that hold no end of a line"""
        with contextlib.ExitStack() as undo:
            self.log: IO[bytes] = undo.enter_context(tempfile.TemporaryFile(prefix="qualify-worker-"))
            child_in, self.outgoing = _pipe(undo)
            self.incoming, child_out = _pipe(undo)
            self.process = _spawn(self.program, child_in, child_out, self.log)
            undo.pop_all()
        os.close(child_in)
        os.close(child_out)
        os.set_blocking(self.outgoing, False)

    def send(self, message: Any, limit_s: float) -> None:
        """Write one message. Raises Gone if nobody reads it any more, or not within the limit."""
        rest = memoryview(self.program.encode(message))
        self._renew()
        while rest:
            if not _ready(self.outgoing, selectors.EVENT_WRITE):
                self.watch(limit_s)
                continue
            try:
                rest = rest[os.write(self.outgoing, rest) :]
            except BrokenPipeError:
                raise self._ended() from None

    def receive(self, limit_s: float) -> Any:
        """The next message, or None after a moment without one.

        Args:
            limit_s: how long a step may take. Bytes without a message, and messages that announce nothing new, do not
                renew it.

        Raises:
            Gone: the process ended, made no progress within the limit, took too much memory, or sent nonsense.
        """
        line = self._line()
        if line is None:
            if _ready(self.incoming, selectors.EVENT_READ):
                self._read()
            line = self._line()
        if line is None:
            self.watch(limit_s)
            return None
        try:
            message = self.program.decode(line)
        except WrongMessage as error:
            raise self.distrust(str(error)) from error
        self._note(message)
        self._watch_progress(limit_s)
        return message

    def _read(self) -> None:
        data = os.read(self.incoming, 1 << 16)
        if not data:
            raise self._ended()
        self.wrote = True
        self.buffer += data
        if len(self.buffer) > LINE_BYTES and b"\n" not in self.buffer:
            raise self.distrust(f"a line of more than {LINE_BYTES} bytes")

    def _line(self) -> bytes | None:
        """The first whole line that has come, taken from the buffer."""
        end = self.buffer.find(b"\n", self.searched)
        if end < 0:
            self.searched = len(self.buffer)
            return None
        line = bytes(self.buffer[:end])
        del self.buffer[: end + 1]
        self.searched = 0
        return line

    def _note(self, message: Any) -> None:
        """Renew the limit where the message is progress: a result, or a step that is new."""
        step = self.program.step_of(message)
        if step is None:
            self._renew()
            return
        if isinstance(message, StageBegun):
            self.case, self.stage = message.case, message.stage
        if step != self.step and self.steps[step] < ANNOUNCED:
            self.steps[step] += 1
            self.step = step
            self.progressed, self.wrote = time.monotonic(), False

    def _renew(self) -> None:
        """A result came, or something was sent: every step that follows is new."""
        self.progressed, self.wrote = time.monotonic(), False
        self.steps.clear()
        self.step = None

    def unexpected(self, message: Any) -> Gone:
        """Kill it because of a message that does not answer what it was sent; returns the Gone to raise."""
        return self.distrust(f"event {type(message).__name__!r}")

    def distrust(self, what: str) -> Gone:
        """Kill it because of what it sent; returns the Gone to raise."""
        self.kill()
        return Gone(f"something in the process wrote into qualify's own pipe ({what}), so it was killed")

    def watch(self, limit_s: float) -> None:
        """End a process that makes no progress or takes too much memory; notice one whose children hold its pipe."""
        if self.process.poll() is not None and not _ready(self.incoming, selectors.EVENT_READ, wait_s=0):
            raise self._ended()
        self._watch_progress(limit_s)
        used = _resident_bytes(self.process.pid)
        if used > self.memory_bytes:
            self.kill()
            allowed = self.memory_bytes / 1e9
            raise Gone(
                f"killed: it used {used / 1e9:.1f} GB of host memory, more than the {allowed:.1f} GB it may take"
            )
        if os.fstat(self.log.fileno()).st_size > LOG_BYTES:
            self.log.truncate(0)
            self.log.seek(0)

    def _watch_progress(self, limit_s: float) -> None:
        """End a process that has announced nothing new for too long."""
        if time.monotonic() - self.progressed > limit_s:
            self._ask_where()
            self.kill()
            what = "no progress" if self.wrote else "no sign of life"
            raise Gone(f"{what} for {limit_s:g} s{self._place()}", limit_s=limit_s)

    def _ask_where(self) -> None:
        """Let it write its Python stack into the log; a process that is stuck in the kernel does not answer."""
        self.process.send_signal(signal.SIGUSR1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=POLL_S)

    def _ended(self) -> Gone:
        """How the process ended, in words."""
        try:
            status = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.kill()
            return Gone("closed its pipe and had to be killed")
        if status >= 0:
            return Gone(f"the process exited with status {status}{self._last_line()}")
        name = signal.Signals(-status).name if -status in set(signal.Signals) else "unknown"
        memory = ", probably because the machine ran out of memory" if -status == signal.SIGKILL else ""
        return Gone(f"killed by signal {-status} ({name}){memory}{self._place()}")

    def _place(self) -> str:
        """Where the Python code was, if the fault handler could write it."""
        text = self._read_log()
        marks = list(FAULT.finditer(text))
        frames = list(FRAME.finditer(text, marks[-1].start())) if marks else []
        if not frames:
            return ""
        frame = next((frame for frame in frames if not _in_library(frame[1])), frames[0])
        return f", in {Path(frame[1]).name}:{frame[2]} ({frame[3]})"

    def _last_line(self) -> str:
        """The exception that ended it, if its last words are one."""
        lines = self._read_log().strip().splitlines()
        return f" ({lines[-1][:200]})" if lines and re.match(r"[\w.]+(Error|Exception|Exit)\b", lines[-1]) else ""

    def log_tail(self) -> str:
        """End of what the process printed; where it ended in a fault, from there on."""
        text = self._read_log()
        marks = [mark.start() for mark in FAULT.finditer(text) if mark[1].startswith("Fatal")]
        return text[marks[-1] :][:LOG_KEPT] if marks else text[-LOG_KEPT:]

    def _read_log(self) -> str:
        # pread leaves the position alone, which the process shares.
        size = os.fstat(self.log.fileno()).st_size
        start = max(0, size - 16 * LOG_KEPT)
        return os.pread(self.log.fileno(), size - start, start).decode("utf-8", errors="replace")

    def kill(self) -> None:
        """End the process at once, and whatever it started: it leads a process group of its own."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """End the process and release its pipes and its log."""
        self.kill()
        os.close(self.incoming)
        os.close(self.outgoing)
        self.log.close()


def _pipe(undo: contextlib.ExitStack) -> tuple[int, int]:
    """Reading and writing end; closed if the start fails."""
    ends = os.pipe()
    for end in ends:
        undo.callback(os.close, end)
    return ends


def _spawn(program: Program, child_in: int, child_out: int, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """The worker, in a process group of its own: Ctrl-C is the parent's, and its children end with it."""
    # On a machine that others use too, OpenMP's spinning threads wait for each other's time slices: four times slower.
    defaults = {"KINETO_LOG_LEVEL": "6", "TOKENIZERS_PARALLELISM": "false", "OMP_WAIT_POLICY": "PASSIVE"}
    numbers = (child_in, child_out, os.getpid(), program.shared, program.shared_bytes)
    shared = (program.shared,) if program.shared >= 0 else ()
    return subprocess.Popen(
        [program.interpreter, *program.arguments, *map(str, numbers)],
        pass_fds=(child_in, child_out, *shared),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env={**defaults, **{name: value for name, value in os.environ.items() if name not in WITHHELD}},
        process_group=0,
    )


def _ready(end: int, event: int, wait_s: float = POLL_S) -> bool:
    """Whether a pipe can be read or written within a moment."""
    with selectors.DefaultSelector() as selector:
        selector.register(end, event)
        return bool(selector.select(timeout=wait_s))


def _in_library(path: str) -> bool:
    """Whether a file belongs to Python itself: ctypes is where a fault shows, not whose it is."""
    return path.startswith(STANDARD_LIBRARY) and "-packages" not in path


def _resident_bytes(pid: int) -> int:
    """Host memory that a process has touched, without files; 0 where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")
