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
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import qualify
from qualify.facts.typed import OPTIONS

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
READ_AT_START = ("PYTHON", "LD_", "OMP_", "NO_COLOR", "FORCE_COLOR", "TERM", "COLUMNS")
"""how the variables begin that steer how a program starts"""

PROGRAM = """\
#!{python} -SE
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as asking:
    asking.connect({socket!r})
    asked = dict(arguments=sys.argv[1:], cwd=os.getcwd(), env=dict(os.environ))
    socket.send_fds(asking, [json.dumps(asked).encode() + b"\\n"], [0, 1, 2])
    _, code = map(int, asking.makefile().read().split())
sys.exit(code if code >= 0 else 128 - code)
"""


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


def call(*arguments: object, cwd: Path, env: Mapping[str, str] | None = None, timeout_s: float = 240) -> Ended:
    """Runs one command to its end. No command may show a traceback.

    The server forks it; but with another environment for its start it starts as users start it.
    """
    if env is None or at_start(env) == at_start(environment()):
        ended = server().run(list(map(str, arguments)), cwd, timeout_s, env)
    else:
        done = subprocess.run(
            command(*arguments), cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        ended = Ended(code=done.returncode, out=done.stdout, err=done.stderr)
    assert "Traceback" not in ended.err + ended.out, ended.err + ended.out
    assert "internal error" not in ended.err, ended.err
    return ended


def at_start(env: Mapping[str, str]) -> dict[str, str]:
    """What Python, the loader and the libraries read once, while a program starts."""
    return {name: value for name, value in env.items() if name.startswith(READ_AT_START)}


class Server:
    """The Python of cli_server.py."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="qualify-cli-"))
        self.socket = str(self.folder / "socket")
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("cli_server.py")), self.socket],
            env=environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self.stop)
        assert self.process.stdout is not None
        assert "ready\n" == self.process.stdout.readline()

    def run(self, arguments: list[str], cwd: Path, timeout_s: float, env: Mapping[str, str] | None = None) -> Ended:
        """One command to its end, in this process's environment or another one.

        Raises:
            subprocess.TimeoutExpired: it took longer, and was killed.
        """
        with ExitStack() as stack:
            out, err = (stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2))
            nothing = stack.enter_context(Path(os.devnull).open())
            asking = stack.enter_context(socket.socket(socket.AF_UNIX))
            asking.connect(self.socket)
            asked = {"arguments": arguments, "cwd": str(cwd), "env": dict(env or environment())}
            streams = [stream.fileno() for stream in (nothing, out, err)]
            socket.send_fds(asking, [json.dumps(asked).encode() + b"\n"], streams)
            answer = stack.enter_context(asking.makefile())
            child, late = int(answer.readline()), threading.Event()
            limit = threading.Timer(timeout_s, lambda: (late.set(), os.kill(child, signal.SIGKILL)))
            limit.start()
            code = int(answer.readline())
            limit.cancel()
            for stream in (out, err):
                stream.seek(0)
            if late.is_set():
                raise subprocess.TimeoutExpired(arguments, timeout_s, out.read(), err.read())
            return Ended(code=code, out=out.read(), err=err.read())

    def stop(self) -> None:
        """It ends with the tests."""
        with self.process:
            self.process.terminate()
        shutil.rmtree(self.folder)


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
