"""What a command starts, forked instead of started: importing torch costs a process a second of a processor.

::

    server ── command ─┬─ nursery               forked before the command begins; it forks what the command starts
                       ├─ helper                what multiprocessing spawns: it judges for the site or tests qualify
                       ├─ judge ─┬─ nursery     the same for the hosts
                       │         └─ hosts       children of the judge: whoever forked them ended at once
                       └─ lanes and fires       they are commands again

Hosts of another environment that shares torch are forked, too: its own interpreter, started as a host is, says where it
finds its packages.

They are what started ones are in all that commands show: own sessions, pipes, streams, environments and arguments. They
are not in what others see of them in /proc, so tests of processes and of what keeps them apart start theirs.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from multiprocessing import util
from pathlib import Path
from typing import Any, NoReturn

from qualify.run.host import serve
from qualify.run.host.launch import BOOT
from qualify.run.process import child, memory, parent, worker
from qualify.run.process.child import Program

LONGEST = 1 << 20
"""bytes of a request"""
GPU = Path("/dev/nvidiactl")
OWN = ("path", "prefix", "exec_prefix", "executable")
"""what differs between the interpreters of two environments"""
ASK = f"import json, sys; print(json.dumps([getattr(sys, name) for name in {OWN}]))"
NURSERY = b"nursery"
"""the name of such a process"""
PR_SET_NAME, PR_GET_CHILD_SUBREAPER = 15, 37
ADOPTED_S = 30.0
"""until a process must have become a child of who asked for it"""
MODULES = ("qualify", "qualify.canary.child", "qualify.fleet.lane", "qualify.fleet.taker")
"""commands that commands start, or scripts"""
REPRO = "repro.py"
"""name of the script that `qualify repro` tries before it prints it"""
SPAWNED = "--multiprocessing-fork"
"""stands in the command line of what multiprocessing spawns"""
MOST, AWAY = 16, 1 << 8
"""descriptors that come with a request, and a number above those that a parent has"""
Popen, start, spawn_passing = subprocess.Popen, child._spawn, util.spawnv_passfds


class Forked:
    """A forked process, as far as qualify asks one that it started."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._ask(os.WNOHANG)

    def wait(self) -> int | None:
        """Its exit code, once it has ended."""
        return self._ask(0)

    def _ask(self, how: int) -> int | None:
        if self.returncode is None:
            try:
                ended, status = os.waitpid(self.pid, how)
            except ChildProcessError:  # somebody else was told
                ended, status = self.pid, 0
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def fork_from_here() -> None:
    """From now on this command forks its judges, lanes and fires, and judges their hosts; not beside a GPU.

    Torch may have touched CUDA's driver and profiler while it was imported, and neither survives a fork.
    """
    if GPU.exists():
        return
    nursery = _forked_nursery()
    child._spawn = spawn_from(nursery)
    subprocess.Popen = popen_from(nursery)  # type: ignore[misc]
    util.spawnv_passfds = helper_from(nursery)


def helper_from(nursery: Nursery) -> Callable[..., int]:
    """Starts what multiprocessing spawns from the nursery, in place of ``util.spawnv_passfds``."""
    return partial(_spawn_helper, nursery)


def popen_from(nursery: Nursery) -> type[Popen[Any]]:
    """In place of ``subprocess.Popen``: commands that commands start, and scripts of repros, are forked."""

    class Forking(Popen):  # type: ignore[type-arg]
        """What can be forked is."""

        def _execute_child(self, args: Any, *options: Any) -> None:
            what, arguments = _forkable(args)
            if not what:
                super()._execute_child(args, *options)
                return
            pipes = options[9:15]
            streams = [own if own >= 0 else usual for usual, own in enumerate((pipes[0], pipes[3], pipes[5]))]
            self.pid = nursery.ask(what, arguments, dict(options[5] or os.environ), streams, options[4])
            self._child_created = True
            self._close_pipe_fds(*pipes)

    return Forking


def _forkable(words: Any) -> tuple[str, list[str]]:
    """What a command line starts, as far as that can be forked, and its arguments."""
    if not isinstance(words, list) or words[0] != sys.executable:
        return "", []
    if "-m" in words and words[words.index("-m") + 1] in MODULES:
        return "module", words[words.index("-m") + 1 :]
    if words[1:2] == ["-P"] and [Path(word).name for word in words[2:]] == [REPRO]:
        return "script", words[2:]
    return "", []


def spawn_from(nursery: Nursery) -> Callable[..., Any]:
    """Starts a judge or a host from the nursery, in place of ``child._spawn``."""
    return partial(_spawn, nursery)


def _spawn(nursery: Nursery, program: Program, child_in: int, child_out: int, printed: int, mark: str) -> Any:
    """A judge, or a host in this interpreter or one that shares its torch; whatever else is started so is started."""
    what = {child.BOOT: "judge", str(BOOT): "host"}.get(program.arguments[min(2, len(program.arguments) - 1)])
    foreign = program.interpreter != sys.executable
    if what is None or (foreign and not shares_torch(program.interpreter)):
        return start(program, child_in, child_out, printed, mark)
    arguments = [what, *child.told(program, child_in, child_out, mark)]
    shared = [program.shared] if program.shared >= 0 else []
    environment = {**child.surroundings(mark, foreign=program.foreign), **program.variables}
    own = told_by(program.interpreter, environment) if foreign else {}
    return Forked(nursery.ask(what, arguments, environment, [child_in, child_out, printed, *shared], own=own))


def _spawn_helper(nursery: Nursery, path: bytes, words: Sequence[str], descriptors: Sequence[int]) -> int:
    """The process id of what multiprocessing spawns; its tracker of resources is started."""
    if SPAWNED not in words:
        return spawn_passing(path, words, descriptors)
    passed = sorted(descriptors)
    return nursery.ask("helper", [words[-2], *map(str, passed)], dict(os.environ), [0, 1, 2, *passed])


def _forked_nursery() -> Nursery:
    """One that is forked from this process."""
    asking, answering = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    owner = os.getpid()
    if os.fork() == 0:
        asking.close()
        be_nursery(answering, owner, owner)
    answering.close()
    return Nursery(asking)


def shares_torch(interpreter: str) -> bool:
    """Whether this is the python of an environment that sees the packages of this one (environments.py)."""
    return any(Path(interpreter).parent.parent.glob("lib/python3*/site-packages/shared.pth"))


def told_by(interpreter: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """What is its own of another interpreter, which starts with that environment, as it says itself."""
    said = subprocess.check_output([interpreter, "-P", "-c", ASK], env=environment, stdin=subprocess.DEVNULL)
    return dict(zip(OWN, json.loads(said), strict=True))


def be_nursery(answering: socket.socket, owner: int, above: int) -> NoReturn:
    """Fork what the owner asks for, until it has gone; ``above`` is the parent of this process."""
    _prctl(PR_SET_NAME, NURSERY)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    parent.die_with(above)
    _end_with(partial(_nurse, answering, owner))


class Nursery:
    """Forks what this process starts: it has seen nothing of what that is asked, and has one thread."""

    def __init__(self, asking: socket.socket) -> None:
        self.asking = asking
        self.one_at_a_time = threading.Lock()

    def ask(
        self,
        what: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        streams: Sequence[int],
        cwd: Path | str | None = None,
        own: Mapping[str, Any] | None = None,
    ) -> int:
        """The process id of a new child of this process.

        Args:
            own: what ``sys`` says there; None = the same as here.
        """
        asked = {"what": what, "arguments": arguments, "environment": environment, "own": own or {}}
        asked["cwd"] = str(cwd or Path.cwd())
        with self.one_at_a_time, _adopting():
            socket.send_fds(self.asking, [json.dumps(asked).encode()], streams)
            answer = int(self.asking.recv(64))
        if answer < 0:
            raise OSError(-answer, os.strerror(-answer))
        return answer


@contextmanager
def _adopting() -> Iterator[None]:
    """Orphans among this process's descendants are its children."""
    before = ctypes.c_int()
    _prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before))
    _prctl(parent.PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _prctl(parent.PR_SET_CHILD_SUBREAPER, before.value)


def _prctl(*arguments: Any) -> None:
    ctypes.CDLL(None).prctl(*arguments)


def _nurse(answering: socket.socket, owner: int) -> None:
    """Fork one process after another, until the owner has gone."""
    while True:
        text, descriptors, _, _ = socket.recv_fds(answering, LONGEST, MOST)
        if not text:
            return
        reading, writing = os.pipe()
        try:
            middle = os.fork()
        except OSError as error:
            answer = b"-%d" % (error.errno or 1)
        else:
            if middle == 0:
                _end_with(partial(_deliver, json.loads(text), descriptors, owner, writing))
            os.close(writing)
            os.waitpid(middle, 0)
            answer = os.read(reading, 64)
            writing = -1
        for descriptor in (reading, writing, *descriptors):
            if descriptor >= 0:
                os.close(descriptor)
        answering.send(answer)


def _deliver(asked: dict[str, Any], descriptors: list[int], owner: int, writing: int) -> None:
    """Fork the process and end: what is left of it falls to the owner, who hears of it then."""
    try:
        made = os.fork()
    except OSError as error:
        made = -(error.errno or 1)
    if made < 0:
        os.write(writing, str(made).encode())
    if made:
        return
    until = time.monotonic() + ADOPTED_S
    while os.getppid() != owner and time.monotonic() < until:
        time.sleep(0.0005)
    os.write(writing, str(os.getpid()).encode())
    os.chdir(asked["cwd"])
    if asked["what"] != "helper":  # which stays in the session of its parent
        os.setsid()
    be = {"judge": _be_judge, "host": _be_host, "module": _be_module, "script": _be_script, "helper": _be_helper}
    be[asked["what"]](asked, descriptors)


def _be_judge(asked: dict[str, Any], descriptors: list[int]) -> None:
    own_in, own_out, printed = descriptors
    arguments = asked["arguments"]
    arguments[1:3] = str(own_in), str(own_out)
    _become(arguments, asked["environment"], (-1, printed, printed), keep=(own_in, own_out))
    child._spawn = partial(_spawn, _forked_nursery())
    worker.main()


def _be_host(asked: dict[str, Any], descriptors: list[int]) -> None:
    own_in, own_out, printed, *shared = descriptors
    arguments = asked["arguments"]
    arguments[1:3] = str(own_in), str(own_out)
    arguments[4] = str(*(shared or [-1]))
    _become(arguments, asked["environment"], (-1, printed, printed), keep=(own_in, own_out, *shared))
    vars(sys).update(asked["own"])
    parent.follow_parent(int(arguments[3]))
    parent.leave_others_alone()
    parent.keep_to_itself()
    serve.main()


def _be_module(asked: dict[str, Any], descriptors: list[int]) -> None:
    _become(asked["arguments"], asked["environment"], descriptors, keep=())
    fork_from_here()
    name = asked["arguments"][0]
    sys.exit(importlib.import_module({"qualify": "qualify.cli"}.get(name, name)).main())


def _be_script(asked: dict[str, Any], descriptors: list[int]) -> None:
    _become(asked["arguments"], asked["environment"], descriptors, keep=())
    runpy.run_path(asked["arguments"][0], run_name="__main__")


def _be_helper(asked: dict[str, Any], descriptors: list[int]) -> None:
    """What the words after ``-c`` call; what it is told later names descriptors by the numbers that its parent has."""
    call, *names = asked["arguments"]
    away = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, AWAY) for descriptor in descriptors]
    for descriptor, name in zip(away[3:], map(int, names), strict=True):
        os.dup2(descriptor, name)
    _become(["-c", SPAWNED], asked["environment"], away[:3], keep=map(int, names))
    exec(call, {})


def _become(arguments: list[str], environment: dict[str, str], streams: Sequence[int], keep: Iterable[int]) -> None:
    """Be as if this process had been started so.

    Args:
        streams: descriptors of stdin, stdout and stderr; -1 = nothing.
    """
    gc.freeze()  # no object of the command may be taken apart: descriptors that it closes are others' here
    _prctl(PR_SET_NAME, b"python")
    _prctl(parent.PR_SET_DUMPABLE, 1)  # the command keeps to itself; this does later, or not
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.set_wakeup_fd(-1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor if descriptor >= 0 else nothing, number)
    kept = {0, 1, 2, *keep}
    for name in [path.name for path in Path("/proc/self/fd").iterdir()]:
        if int(name) not in kept:
            with suppress(OSError):  # it was that of this list
                os.close(int(name))
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), write_through=True)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), write_through=True)
    surround(environment)
    memory.own_pages.cache_clear()  # it is a descriptor
    tempfile.tempdir = None  # what the command found, by its own environment
    sys.argv = arguments


def surround(environment: Mapping[str, str]) -> None:
    """Have this process started with that environment, as far as qualify and imports see."""
    os.environ.clear()
    os.environ.update(environment)
    paths = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:0] = [path for path in paths if path not in sys.path]
    for module in telling():
        module.started_with = lambda: dict(environment)


@cache
def telling() -> list[Any]:
    """The modules that know ``started_with``, found once: to look through all modules touches memory that all share."""
    own = [module for name, module in sys.modules.items() if name.startswith("qualify.")]
    return [module for module in own if "started_with" in vars(module)]


def _end_with(entry: Callable[[], None]) -> NoReturn:
    """The end of this process, whatever its beginning was in the middle of."""
    code = 1
    try:
        entry()
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
    except BaseException:  # noqa: BLE001 - as Python does
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)
