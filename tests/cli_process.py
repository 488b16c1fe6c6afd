"""Runs the real ``qualify`` in a process of its own, on tiny matrices and the kernels of third parties."""

from __future__ import annotations

import atexit
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import qualify
from qualify.facts.typed import OPTIONS
from qualify.processes import read_process

ROOT = Path(qualify.__file__).resolve().parents[1]
THIRD_PARTY = Path(__file__).parent / "fleet" / "third_party.py"

CARD = """\
kernel: {name}
generation: portable
adapter: call
entry: {module}:{function}
requires: {{device: cpu}}
claims:
  dtypes: [bf16, fp32]
  head_dim: {{max: 64}}
  layouts: [packed]
  masks: [full, causal]
  features: [ragged]
  deterministic: true
  empty_row: {{out: any, lse: any}}
accuracy: {{bf16: bf16, fp32: fp32}}
witness: {{must_match: [".+"]}}
"""

MATRIX = """\
matrix: {name}
models:
  - model: toy
    geometry: {{groups: [{{layers: [0], heads_q: 2, heads_kv: 2, head_dim: 32, mask: causal}}]}}
phases:
  prefill: {{seqlen: {seqlens}}}
dtypes: {dtypes}
kernels: {kernels}
exclude: {exclude}
policy: {{timeout_s: {timeout_s}, compile_timeout_s: {timeout_s}}}
"""


STEERING = {"QUALIFY_DB", "QUALIFY_TRACEBACK", "NO_COLOR", "FORCE_COLOR", "TERM", "COLUMNS"}
READ_AT_START = ("PYTHON", "LD_", "OMP_")
"""how the variables begin that steer how a program starts"""

PROGRAM = """\
#!{python} -SE
import ctypes, json, os, socket, sys
ctypes.CDLL(None).prctl(1, 9)  # the command ends with it, and it with who started it
with socket.socket(socket.AF_UNIX) as asking:
    asking.connect({socket!r})
    asked = dict(arguments=sys.argv[1:], cwd=os.getcwd(), env=dict(os.environ), session=False, script="", forks=True)
    socket.send_fds(asking, [json.dumps(asked).encode() + b"\\n"], [0, 1, 2])
    _, status = map(int, asking.makefile().read().split())
code = os.waitstatus_to_exitcode(status)
sys.exit(code if code >= 0 else 128 - code)
"""

AT_START = """\
import os, sys
words = sys.orig_argv
if words[1:3] == ["-P", "-c"] and words[5:6] == ["node"]:
    os.execv({program!r}, [{program!r}, *words[5:]])
"""
"""run by a Python that starts; after the boot code stand the process id of a task and the words of its command"""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """The one JSON object on stdout; strict, so NaN is an error."""
        return json.loads(self.out, parse_constant=refuse_constant)


def refuse_constant(name: str) -> None:
    """What json calls for NaN and the infinities."""
    raise AssertionError(f"{name} is not JSON")


def environment(**changes: str) -> dict[str, str]:
    """This process's environment with the checkout importable, one thread, and without what steers the output."""
    kept = {name: value for name, value in os.environ.items() if name not in STEERING}
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**kept, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **changes}


def command(*arguments: object) -> list[str]:
    """The command line that runs it with this interpreter."""
    return [sys.executable, "-m", "qualify", *map(str, arguments)]


def call(
    *arguments: object,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 240,
    started: bool | None = None,
    forks: bool = True,
) -> Ended:
    """Runs one command to its end. No command may show a traceback.

    The server forks it, and it forks its judges and hosts (forking.py).

    Args:
        started: all of them start as users start them. None = where the environment has other variables for their
            start.
        forks: False where judges and hosts start as users start them, and the command alone is forked. For tests of
            processes and of what keeps them apart.
    """
    if started is None:
        started = env is not None and at_start(env) != at_start(environment())
    if not started:
        ended = server().run(list(map(str, arguments)), cwd, timeout_s, env, forks=forks)
    else:
        done = subprocess.run(
            command(*arguments),
            cwd=cwd,
            env=env or environment(),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        ended = Ended(code=done.returncode, out=done.stdout, err=done.stderr)
    assert "Traceback" not in ended.err + ended.out, ended.err + ended.out
    assert "internal error" not in ended.err, ended.err
    return ended


def at_start(env: Mapping[str, str]) -> dict[str, str]:
    """What Python, the loader and the libraries read once, while a program starts."""
    return {name: value for name, value in env.items() if name.startswith(READ_AT_START)}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A command for the server."""

    arguments: list[str]
    cwd: Path
    env: Mapping[str, str]
    session: bool = False
    """whether it has one of its own"""
    script: str = ""
    """a Python file that is run in its place"""
    forks: bool = True
    """whether it forks what it starts"""


class Begun(subprocess.Popen[Any]):
    """A command that goes on beside the test, as a real process: it is signalled, stopped, killed and waited for.

    The server forks it, as with :func:`call`, and it forks its judges, hosts, lanes and fires. Give it a whole
    environment, and otherwise what Popen takes.
    """

    def __init__(
        self, *arguments: object, cwd: Path, script: Path | None = None, forks: bool = True, **options: Any
    ) -> None:
        """Begin it.

        Args:
            script: a Python file that is run in its place.
            forks: as for :func:`call`.
        """
        self.script, self.forks = str(script or ""), forks
        options.setdefault("env", environment())
        super().__init__([str(argument) for argument in arguments], cwd=cwd, **options)

    def _execute_child(self, args: Any, *options: Any) -> None:
        pipes, session = options[9:15], options[20]
        streams = [own if own >= 0 else usual for usual, own in enumerate((pipes[0], pipes[3], pipes[5]))]
        asked = Asked(
            arguments=args, cwd=options[4], env=options[5], session=session, script=self.script, forks=self.forks
        )
        self.pid, self._asking = server().begin(asked, streams)
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        """As waitpid says it; the process is the server's child."""
        self._asking.setblocking(not wait_flags)
        try:
            status = int(self._asking.recv(64))
        except BlockingIOError:
            return 0, 0
        self._asking.close()
        return self.pid, status

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None:
            with self._waitpid_lock:
                ended, status = self._try_wait(os.WNOHANG)
            if ended:
                self._handle_exitstatus(status)
        return self.returncode


class Server:
    """The Python of cli_server.py."""

    def __init__(self, start: Callable[[str], subprocess.Popen[str]] | None = None) -> None:
        """Start it.

        Args:
            start: what begins a server at the address of a socket. None = a Python of its own.
        """
        self.folder = Path(tempfile.mkdtemp(prefix="qualify-cli-"))
        self.socket = str(self.folder / "socket")
        self.process = (start or _start)(self.socket)
        atexit.register(self.stop)
        assert self.process.stdout is not None
        assert "ready\n" == self.process.stdout.readline()

    def run(
        self,
        arguments: list[str],
        cwd: Path,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        script: str = "",
        *,
        forks: bool = True,
    ) -> Ended:
        """One command to its end, or a Python file in its place, in this process's environment or another one.

        Raises:
            subprocess.TimeoutExpired: it took longer, and was killed.
        """
        with ExitStack() as stack:
            out, err = (stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2))
            nothing = stack.enter_context(Path(os.devnull).open())
            asked = Asked(arguments=arguments, cwd=cwd, env=env or environment(), script=script, forks=forks)
            child, asking = self.begin(asked, [stream.fileno() for stream in (nothing, out, err)])
            stack.enter_context(asking)
            late = threading.Event()
            limit = threading.Timer(timeout_s, lambda: (late.set(), os.kill(child, signal.SIGKILL)))
            limit.start()
            code = os.waitstatus_to_exitcode(int(asking.makefile().readline()))
            limit.cancel()
            for stream in (out, err):
                stream.seek(0)
            if late.is_set():
                raise subprocess.TimeoutExpired(arguments, timeout_s, out.read(), err.read())
            return Ended(code=code, out=out.read(), err=err.read())

    def begin(self, asked: Asked, streams: list[int]) -> tuple[int, socket.socket]:
        """The process id of a command that begins, and the socket that will say how it ended.

        Args:
            streams: descriptors of stdin, stdout and stderr.
        """
        asking = socket.socket(socket.AF_UNIX)
        asking.connect(self.socket)
        text = json.dumps(asdict(asked), default=str).encode()
        socket.send_fds(asking, [text + b"\n"], streams)
        told = b""
        while not told.endswith(b"\n"):
            told += asking.recv(1)
        return int(told), asking

    def nursery(self) -> tuple[socket.socket, socket.socket]:
        """What forks judges and hosts for this process (forking.spawn_from), as long as the second socket is open."""
        asking, answering = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        alive = socket.socket(socket.AF_UNIX)
        alive.connect(self.socket)
        with answering:
            asked = json.dumps({"owner": os.getpid()}).encode()
            socket.send_fds(alive, [asked + b"\n"], [answering.fileno()])
            while alive.recv(1) != b"\n":
                pass
        return asking, alive

    def stop(self) -> None:
        """It ends with the tests."""
        with self.process:
            self.process.terminate()
        shutil.rmtree(self.folder)


def _start(address: str) -> subprocess.Popen[str]:
    """A Python that is a server."""
    words = [sys.executable, "-P", str(Path(__file__).with_name("cli_server.py")), address]
    return subprocess.Popen(words, env=environment(), stdout=subprocess.PIPE, text=True)


@cache
def server() -> Server:
    """One for each process of tests, started when it is first asked."""
    return Server()


def write_program(folder: Path) -> Path:
    """A program ``qualify`` in a folder for the PATH of a shell; the server runs what it is asked."""
    folder.mkdir(exist_ok=True)
    program = folder / "qualify"
    program.write_text(PROGRAM.format(python=sys.executable, socket=server().socket))
    program.chmod(0o755)
    return program


def write_start(folder: Path) -> Path:
    """A folder for the PYTHONPATH of a cluster's nodes; the server runs the plans that their tasks are asked for."""
    program = write_program(folder)
    (folder / "sitecustomize.py").write_text(AT_START.format(program=str(program)))
    return folder


def write_cards(folder: Path, *functions: str) -> Path:
    """A --cards folder with one card for each function of third_party.py, and that module."""
    folder.mkdir(exist_ok=True)
    shutil.copy(THIRD_PARTY, folder / "third_party.py")
    for function in functions:
        write_card(folder, function.replace("_", "-"), "third_party", function)
    return folder


def write_card(folder: Path, name: str, module: str, function: str = "attend") -> None:
    """A card whose entry is that function."""
    (folder / f"{name}.yaml").write_text(CARD.format(name=name, module=module, function=function))


def write_matrix(
    path: Path,
    *kernels: str,
    seqlens: tuple[int, ...] = (8,),
    dtypes: tuple[str, ...] = ("fp32",),
    exclude: tuple[str, ...] = (),
    timeout_s: float = 60,
) -> Path:
    """A matrix of tiny prefills of one attention layer."""
    text = MATRIX.format(
        name=path.stem,
        seqlens=list(seqlens),
        dtypes=json.dumps(dtypes),
        kernels=json.dumps(kernels or ("tiled-torch",)),
        exclude=json.dumps(exclude),
        timeout_s=timeout_s,
    )
    path.write_text(text)
    return path


def gone(pids: list[int], within_s: float = 5) -> bool:
    """Whether all these processes end soon."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        if not any(alive(pid) for pid in pids):
            return True
        time.sleep(0.02)
    return False


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and that nobody has asked about does not."""
    process = read_process(pid)
    return process is not None and not process.ended


def descendants(pid: int) -> list[int]:
    """Process ids of children and theirs, without those that only fork others (forking.py)."""
    children = [int(child) for child in _of(pid, f"task/{pid}/children").split()]
    own = [child for child in children if _of(child, "comm") != "nursery\n"]
    return [*own, *(below for child in own for below in descendants(child))]


def _of(pid: int, file: str) -> str:
    """What the system says about a process; nothing once it has ended."""
    try:
        return Path(f"/proc/{pid}/{file}").read_text()
    except OSError:
        return ""


PRINTED = re.compile(rf"qualify (?:{'|'.join(OPTIONS)}) .*")


def paste(line: str, folder: Path, **variables: str) -> Ended:
    """A printed line in a real shell, in which ``qualify`` is this interpreter's."""
    bin_folder = write_program(folder / "bin").parent
    env = environment(**variables)
    env["PATH"] = f"{bin_folder}:{env['PATH']}"
    ended = subprocess.run(
        ["/bin/sh", "-c", line], cwd=folder, env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert "Traceback" not in ended.stderr, ended.stderr
    return Ended(code=ended.returncode, out=ended.stdout, err=ended.stderr)


def advice(text: str) -> list[str]:
    """The commands of the ``do:`` lines."""
    lines = [line for line in text.splitlines() if line.startswith("do: ")]
    return [found[0] for line in lines if (found := PRINTED.search(line))]
