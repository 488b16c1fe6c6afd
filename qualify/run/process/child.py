"""The parent's end of a worker: one child process, the two pipes to it, and the watch over its life."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import qualify
from qualify.facts.lines import WrongMessage
from qualify.plan.interpreter import without_python
from qualify.processes import read_process
from qualify.run.process.awake import AWAKE
from qualify.run.process.folder import Folder, remove_left
from qualify.run.process.memory import oom_kills
from qualify.run.process.messages import (
    LINE_BYTES,
    StageBegun,
    decode_answer,
    encode,
)
from qualify.run.process.output import Output
from qualify.run.process.tree import Tree

BOOT = "import sys; sys.path.append(sys.argv.pop(1)); from qualify.run.process.worker import main; main()"
"""started with -P, so that no module in the user's working directory shadows an installed library"""
WITHHELD = {
    "QUALIFY_DB",
    "QUALIFY_DB_PASSWORD_FILE",
    "PGPASSWORD",
    "QUALIFY_SIGNING_KEY",
    "QUALIFY_SIGNING_PUBLIC_KEY",
    "QUALIFY_TOKEN_FILE",
    "QUALIFY_SIGNING_PIN_FILE",
    "ACTIONS_ID_TOKEN_REQUEST_TOKEN",
    "ACTIONS_ID_TOKEN_REQUEST_URL",
    "SIGSTORE_ID_TOKEN",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AZURE_CLIENT_SECRET",
    "AZURE_CLIENT_CERTIFICATE_PATH",
    "AZURE_FEDERATED_TOKEN_FILE",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "VAULT_TOKEN",
}
"""environment variables that a child does not get: they may hold the store's password, lead to it, or let their holder
sign, and what a kernel prints is stored"""
POLL_S = 0.25
POLL_MS = 250
START_TIMEOUT_S = 300.0
"""seconds within which a process must answer its first message"""
JUDGE_S = 60.0
"""seconds that a judge may take beyond the limits of its hosts, before it is ended itself"""
ANNOUNCED = 4
"""how often one step may be announced between two results: a batch is traced anew where its trace proved nothing"""
STEPS = 2000
"""most different steps between two results: to announce more of them is no progress"""
LAST_BREATH_S = 5.0
"""how long a process that ends may take: Python closes the pipe before it unloads its libraries"""
MARK = "QUALIFY_STARTED"
"""environment variable that marks the processes which a child started. It holds the marks of all children around a
process, the outermost first. Its value is the child's last argument, too"""
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})
STOPPED = "its process was stopped (kill -STOP, or a debugger), by itself or by someone on this machine"
"""said of a process that was stopped when its limit was over: whether its kernel hangs, nobody knows"""
CLOSED = "something in the process closed qualify's own pipe"


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
    spin_s: float = 0.0
    """how long to look for an answer before sleeping until it comes"""
    variables: Mapping[str, str] = field(default_factory=dict)
    """environment variables that it has besides those of this process"""
    foreign: bool = False
    """whether the interpreter is another one than this process's"""
    folder: bool = False
    """whether it has a folder of its own for temporary files"""


def worker(variables: Mapping[str, str] = NO_VARIABLES) -> Program:
    """A judge."""
    return Program(
        variables=variables,
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
        self.progressed = AWAKE.now()
        """when it last announced a new step or a result, or was sent something, by the clock that pauses do not move"""
        self.steps: Counter[object] = Counter()
        """how often each step was announced since the last result"""
        self.step: object = None
        self.wrote = False
        """whether anything came since ``progressed``"""
        self.buffer = bytearray()
        self.searched = 0
        """received bytes that hold no end of a line"""
        with contextlib.ExitStack() as undo:
            self.output = Output(undo)
            self.folder = Folder(undo) if self.program.folder else None
            if self.folder:
                variables = {**self.folder.variables(), **self.program.variables}
                self.program = replace(self.program, variables=variables)
            child_in, self.outgoing = _pipe(undo)
            self.incoming, child_out = _pipe(undo)
            self.oom_kills = oom_kills()
            mark = f"{os.environ.get(MARK, '')}/{secrets.token_hex(8)}"
            self.process = _spawn(self.program, child_in, child_out, self.output.writing, mark)
            undo.pop_all()
        self.tree = Tree(self.process.pid, mark)
        self.output.started()
        os.close(child_in)
        os.close(child_out)
        os.set_blocking(self.outgoing, False)
        self.readable, self.writable = _poll(self.incoming, select.POLLIN), _poll(self.outgoing, select.POLLOUT)
        self.weighed = time.monotonic()
        """when its memory was last looked at"""
        self.used_bytes = 0
        """host memory that it used then, together with what it started"""
        self.beyond_bytes: Callable[[], int] = lambda: 0
        """memory that it has filled in what it shares with this process, beyond what it was given there"""
        self.lent_bytes: Callable[[], int | None] = lambda: None
        """memory that this process shares with it; None = shared memory of its tree does not count"""

    def send(self, message: Any, limit_s: float) -> None:
        """Write one message. Raises Gone if nobody reads it any more, or not within the limit."""
        rest = memoryview(self.program.encode(message))
        self._renew()
        while rest:
            try:
                rest = rest[os.write(self.outgoing, rest) :]
            except BlockingIOError:
                if not AWAKE.wait(self.writable, POLL_MS):
                    self.watch(limit_s)
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
            if self._soon() or AWAKE.wait(self.readable, POLL_MS):
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
        if time.monotonic() - self.weighed > POLL_S:
            self._watch_memory()
        return message

    def has_spoken(self) -> bool:
        """Whether something of it can be read, or it has ended."""
        return bool(self.buffer) or bool(self.readable.poll(0))

    def _soon(self) -> bool:
        """Look for an answer again and again for ``spin_s``, because most come sooner than a sleeper wakes up.

        Returns whether one came.
        """
        until = time.perf_counter() + self.program.spin_s
        while time.perf_counter() < until:
            if self.readable.poll(0):
                return True
        return False

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
        known = step in self.steps
        if step != self.step and (self.steps[step] < ANNOUNCED if known else len(self.steps) < STEPS):
            self.steps[step] += 1
            self.step = step
            self.progressed, self.wrote = AWAKE.now(), False

    def _renew(self) -> None:
        """A result came, or something was sent: every step that follows is new."""
        self.progressed, self.wrote = AWAKE.now(), False
        self.steps.clear()
        self.step = None

    def unexpected(self, message: Any) -> Gone:
        """Kill it because of a message that does not answer what it was sent; returns the Gone to raise."""
        return self.distrust(f"event {type(message).__name__!r}")

    def distrust(self, what: str) -> Gone:
        """Kill it because of what it sent; returns the Gone to raise."""
        self.kill()
        return Gone(f"something in the process wrote into qualify's own pipe ({what}), so it was killed")

    def disbelieve(self, what: str) -> Gone:
        """Kill it because of an answer that says nothing possible; returns the Gone to raise."""
        self.kill()
        return Gone(f"the process gave qualify an answer that it cannot accept ({what}), so it was killed")

    def unfit(self, why: str) -> Gone:
        """Kill it because it cannot do anything here; returns the Gone to raise."""
        self.kill()
        return Gone(f"the process cannot work here ({why}), so it was ended")

    def watch(self, limit_s: float) -> None:
        """End a process that makes no progress or takes too much memory; notice one whose children hold its pipe."""
        if self._has_ended() and not self.readable.poll(0):
            raise self._ended()
        self._watch_progress(limit_s)
        self._watch_memory()

    def _watch_memory(self) -> None:
        """End a process that takes too much memory, together with what it started."""
        beyond = self.beyond_bytes()
        self.used_bytes = used = beyond + self.tree.used_bytes(self.memory_bytes, self.lent_bytes())
        self.weighed = time.monotonic()
        if used > self.memory_bytes:
            others = len(self.tree.members) - 1
            who = f"it and {others} {'process' if others == 1 else 'processes'} that it started" if others else "it"
            self.kill()
            allowed = self.memory_bytes / 1e9
            where = f" ({beyond / 1e9:.1f} GB of it in memory that it shares with its judge)" if beyond else ""
            raise Gone(
                f"killed: {who} used {used / 1e9:.1f} GB of host memory{where}, "
                f"more than the {allowed:.1f} GB it may take"
            )

    def _watch_progress(self, limit_s: float) -> None:
        """End a process that has announced nothing new for too long."""
        if AWAKE.now() - self.progressed > limit_s:
            process = read_process(self.process.pid) if self.process.returncode is None else None
            stopped = f"; {STOPPED}" if process is not None and process.stopped else ""
            self._ask_where()
            self.kill()
            what = "no progress" if self.wrote else "no sign of life"
            raise Gone(f"{what} for {limit_s:g} s{stopped or self.output.place()}", limit_s=limit_s)

    def _ask_where(self) -> None:
        """Let it write its Python stack into the log; a process that is stuck in the kernel does not answer."""
        if self.process.returncode is None:
            os.kill(self.process.pid, signal.SIGUSR1)
        self._wait_for_end(POLL_S)

    def _has_ended(self) -> bool:
        """Whether nothing of it runs any more. It is not waited for (reaped), so that its id stays its own."""
        process = read_process(self.process.pid) if self.process.returncode is None else None
        return process is None or process.ended

    def was_killed(self) -> bool:
        """Whether SIGKILL has ended it; how it ended can still be asked for afterwards."""
        if self.process.returncode is not None:
            return self.process.returncode == -signal.SIGKILL
        ended = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return ended is not None and ended.si_code == os.CLD_KILLED and ended.si_status == signal.SIGKILL

    def _wait_for_end(self, limit_s: float) -> bool:
        """Give the process a moment to end by itself; whether it does."""
        until = time.monotonic() + limit_s
        while not (ended := self._has_ended()) and time.monotonic() < until:
            time.sleep(POLL_S / 25)
        return ended

    def _ended(self) -> Gone:
        """Nobody is at the other end of a pipe: end all that the process started, and tell how it ended."""
        ends = self._wait_for_end(LAST_BREATH_S)
        self.kill()
        if not ends:
            return Gone(f"{CLOSED}, so it was killed")
        status, words = self.process.returncode, self.output.reason()
        if status >= 0 and words.startswith("OSError: [Errno 9]"):
            return Gone(f"{CLOSED}, so it ended ({words})")
        if status >= 0:
            return Gone(f"the process exited with status {status}{f' ({words})' if words else ''}")
        name = signal.Signals(-status).name if -status in set(signal.Signals) else "unknown"
        return Gone(f"killed by signal {-status} ({name}){self._killer(-status)}{self.output.place()}")

    def _killer(self, number: int) -> str:
        """Who probably sent SIGKILL: it leaves no other trace."""
        if number != signal.SIGKILL:
            return ""
        if oom_kills() > self.oom_kills:
            return ", probably because the machine ran out of memory"
        return ", by itself or by someone on this machine"

    def log_tail(self) -> str:
        """End of what the process printed; where it ended in a fault, from there on."""
        return self.output.tail()

    def kill(self) -> None:
        """End the process at once, and whatever it started, also what left its session."""
        if self.process.returncode is None or self.tree.members:
            self.tree.end()
        self.process.wait()
        self.output.finish()

    def stop(self) -> None:
        """End the process and release its pipes, its log and its folder; of a judge, those of its hosts."""
        self.kill()
        if self.folder:
            self.folder.remove()
        else:
            remove_left()
        os.close(self.incoming)
        os.close(self.outgoing)
        self.output.close()


def not_started(error: OSError) -> str:
    """Why a child could not be started, with the likely cause, for the end of a message."""
    cause = "The machine has probably run out of processes, files or memory"
    if error.filename:
        cause = "That Python has probably been removed or replaced since the run began: install it again"
    elif error.errno == errno.EFBIG:
        cause = "Memory that processes share counts as a file. Raise the limit of file sizes: ulimit -f unlimited"
    return f"{error}. {cause}; what was measured is stored."


def _pipe(undo: contextlib.ExitStack) -> tuple[int, int]:
    """Reading and writing end; closed if the start fails."""
    ends = os.pipe()
    for end in ends:
        undo.callback(os.close, end)
    return ends


def _spawn(program: Program, child_in: int, child_out: int, printed: int, mark: str) -> subprocess.Popen[bytes]:
    """The child, in a session of its own: Ctrl-C is the parent's, and what it starts is known by that session."""
    shared = (program.shared,) if program.shared >= 0 else ()
    return subprocess.Popen(
        [program.interpreter, *program.arguments, *told(program, child_in, child_out, mark)],
        pass_fds=(child_in, child_out, *shared),
        stdin=subprocess.DEVNULL,
        stdout=printed,
        stderr=printed,
        env={**surroundings(mark, foreign=program.foreign), **program.variables},
        start_new_session=True,
    )


def told(program: Program, child_in: int, child_out: int, mark: str) -> list[str]:
    """The last arguments of a child: what it needs before the first message, and its mark."""
    numbers = (child_in, child_out, os.getpid(), program.shared, program.shared_bytes)
    return [*map(str, numbers), mark]


def surroundings(mark: str, *, foreign: bool = False) -> dict[str, str]:
    """The environment of a child, without what leads to the store or to a key.

    Args:
        mark: text that identifies the child and the processes that it starts.
        foreign: whether the child is another interpreter, which has its own packages.
    """
    # On a machine that others use too, OpenMP's spinning threads wait for each other's time slices: four times slower.
    defaults = {"KINETO_LOG_LEVEL": "6", "TOKENIZERS_PARALLELISM": "false", "OMP_WAIT_POLICY": "PASSIVE"}
    own = without_python(os.environ) if foreign else os.environ
    kept = {name: value for name, value in own.items() if name not in WITHHELD}
    return {**defaults, **kept, MARK: mark}


def _poll(end: int, event: int) -> select.poll:
    """An object that tells whether a pipe can be read or written; made once, because a run asks a million times."""
    poll = select.poll()
    poll.register(end, event)
    return poll
