"""What another interpreter has, as it says itself: asked once for each process, without importing its packages."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

from packaging.utils import canonicalize_name

from qualify.errors import UsageError
from qualify.facts.adapters import ENTRY_POINTS
from qualify.facts.stack import Stack
from qualify.facts.typed import Typed
from qualify.plan import probe
from qualify.text import one_line

OLDEST = (3, 11)
"""oldest Python that can run the modules of a host"""
TIMEOUT_S = 60.0
LARGEST_BYTES = 64 << 20
"""most bytes of an answer; the records of all CUDA libraries together have about 10 MB"""
_TAIL = 300
_ANSWER = ("python", "platform", "torch", "distributions", "records", "modules", "adapters")


@dataclass(frozen=True, kw_only=True, slots=True)
class Interpreter:
    """Another environment's interpreter, and what is installed there."""

    name: str
    """the environment"""
    python: str
    """absolute path of the interpreter"""
    version: str
    """of Python, for example ``3.12.3``"""
    platform: str
    torch: str
    """version of torch; empty where it is not installed"""
    cuda: str
    """CUDA that torch was built for; empty = none, ``?`` = it does not tell"""
    distributions: Mapping[str, str]
    """versions by normalised name"""
    adapters: Mapping[str, str]
    """distributions by the name of the adapter that they offer"""

    def installed(self, distribution: str) -> str:
        """Version of a distribution; empty where it is not installed."""
        return self.distributions.get(canonicalize_name(distribution), "")

    def refusals(self) -> list[str]:
        """Why no kernel can run there; none where one can."""
        if tuple(int(part) for part in self.version.split(".")[:2]) < OLDEST:
            needed = f"a host needs {'.'.join(map(str, OLDEST))} or newer"
            return [f"environment {self.name} has Python {self.version}, and {needed} ({self.python})"]
        if not self.torch:
            return [f"torch is not installed in environment {self.name} ({self.python} -m pip install torch)"]
        return []


def find_interpreters(environments: Mapping[str, str]) -> dict[str, Interpreter]:
    """What each environment has, by name. Raises UsageError where an interpreter is not a Python."""
    return {name: interpreter(name, python) for name, python in environments.items()}


def check_interpreter(name: str, python: str) -> None:
    """Raises UsageError where no kernel can run in an environment: it is probably the wrong interpreter."""
    if reasons := interpreter(name, python).refusals():
        check = Typed(environments=(f"{name}={python}",)).command("doctor")
        raise UsageError(f"--environment {name}={python}: {'; '.join(reasons)}. What it has: {check}")


@cache
def interpreter(name: str, python: str) -> Interpreter:
    """What an environment has. Raises UsageError where its interpreter is not a Python, or does not answer."""
    answer = ask(name, python)
    torch = answer["torch"] or {"version": "", "built_for": ""}
    return Interpreter(
        name=name,
        python=python,
        version=answer["python"],
        platform=answer["platform"],
        torch=torch["version"],
        cuda=torch["built_for"],
        distributions=answer["distributions"],
        adapters=answer["adapters"],
    )


def without_python(variables: Mapping[str, str]) -> dict[str, str]:
    """What another interpreter gets of this process's environment variables.

    ``PYTHONPATH`` and its like are meant for the interpreter that qualify runs in: with them the other one would import
    the wrong packages. Where a script starts the other interpreter and sets such variables itself, they count for its
    probe and for its hosts.
    """
    return {name: value for name, value in variables.items() if not name.startswith("PYTHON")}


def environment_change(before: Stack, name: str, python: str) -> str:
    """How an environment differs from what a stack says of it; empty where no difference is known.

    The versions of Python and of the installed distributions that the stack names are compared.
    """
    now = interpreter(name, python)
    versions = {part.name: part.version for part in before.components if part.kind == "distribution"}
    seen = [("python", before.version("python"), now.version)]
    seen += [(part, version, now.installed(part)) for part, version in versions.items()]
    changes = [f"{part} {old} → {new or 'none'}" for part, old, new in seen if old and old != new]
    return f"environment {name} changed since: {', '.join(changes)}" if changes else ""


def ask(name: str, python: str, distributions: Iterable[str] = (), modules: Iterable[str] = ()) -> dict[str, Any]:
    """The probe's answer (:mod:`qualify.plan.probe`).

    Args:
        name: the environment, for messages.
        distributions: whose files are asked for.
        modules: top-level modules whose places are asked for.

    Raises:
        UsageError: there is no such file, it is no Python, or it does not answer in time.
    """
    where = f"environment {name}, {python}"
    _check_file(where, Path(python))
    question = {"distributions": list(distributions), "modules": list(modules), "group": ENTRY_POINTS}
    command = [python, str(Path(probe.__file__)), json.dumps(question)]
    variables = {key: value for key, value in without_python(os.environ).items() if not key.startswith("QUALIFY_")}
    with tempfile.TemporaryFile() as errors:
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                env=variables,
            )
        except OSError as error:
            raise UsageError(f"{where}: it cannot be started ({error.strerror or error}). {_HINT}") from error
        with child:
            printed = _read(where, child)
        errors.seek(max(0, errors.seek(0, os.SEEK_END) - _TAIL))
        said = errors.read().decode(errors="replace")
    return _parsed(where, printed, child.returncode, said)


_HINT = "Give the path of a Python interpreter, for example DIR/bin/python of a virtual environment."


def _check_file(where: str, python: Path) -> None:
    if python.is_dir():
        inner = python / "bin" / "python"
        raise UsageError(f"{where}: it is a folder. {f'Perhaps you meant {inner}.' if inner.exists() else _HINT}")
    if not python.exists():
        broken = " (a link whose target is gone)" if python.is_symlink() else ""
        raise UsageError(f"{where}: no such file{broken}. {_HINT}")
    if not os.access(python, os.X_OK):
        raise UsageError(f"{where}: it is not executable. {_HINT}")


def _read(where: str, child: subprocess.Popen[bytes]) -> bytes:
    """All that the child prints; it and what it started are ended where it takes too long, or prints too much."""
    assert child.stdout is not None
    until, size = time.monotonic() + TIMEOUT_S, 0
    chunks: list[bytes] = []
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            while selector.select(max(0.0, until - time.monotonic())):
                chunk = _some(child.stdout)
                size += len(chunk)
                if size > LARGEST_BYTES:
                    raise UsageError(f"{where}: it printed more than {LARGEST_BYTES >> 20} MiB. {_HINT}")
                if not chunk:
                    child.wait(max(0.0, until - time.monotonic()))
                    return b"".join(chunks)
                chunks.append(chunk)
        raise subprocess.TimeoutExpired(child.args, TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        slow = "It may hang at its start (a sitecustomize, or a network file system)"
        raise UsageError(f"{where}: it did not answer within {TIMEOUT_S:g} s. {slow}: try it by hand.") from error
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)


def _some(stream: IO[bytes]) -> bytes:
    return os.read(stream.fileno(), 1 << 16)


def _parsed(where: str, printed: bytes, code: int, said: str) -> dict[str, Any]:
    """The answer in the last line."""
    last = printed.rstrip().rpartition(b"\n")[2]
    try:
        answer = json.loads(last)
        if code == 0 and all(key in answer for key in _ANSWER):
            return dict(answer)
    except (ValueError, TypeError, RecursionError):
        pass
    words = one_line(said.strip().rpartition("\n")[2]) or one_line(last[:_TAIL].decode(errors="replace")) or "nothing"
    raise UsageError(f"{where}: it does not answer as a Python does (exit {code}; it said: {words}). {_HINT}")
