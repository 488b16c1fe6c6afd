"""A Python that has imported Ray forks the agents of a cluster's nodes.

Each node starts two, its head one more process, and to import Ray costs each of them half a second of a processor.
Workers start as Ray starts them: it knows them by the process ids that it has given.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from qualify.run.process.parent import die_with

AGENTS = ("ray/dashboard/agent.py", "ray/dashboard/dashboard.py", "ray/_private/runtime_env/agent/main.py")
OTHERS = "_private/runtime_env/agent/thirdparty_files"
"""folder of what Ray brings along for an agent"""
LONGEST = 1 << 20
"""bytes of a command with its environment"""
AT_START = """
import os, sys
if any(word.endswith({agents!r}) for word in sys.orig_argv[1:3]):
    import json, socket
    script = next(number for number, word in enumerate(sys.orig_argv) if word.endswith({agents!r}))
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect({socket!r})
        asked = dict(arguments=sys.orig_argv[script:], cwd=os.getcwd(), env=dict(os.environ))
        socket.send_fds(asking, [json.dumps(asked).encode() + b"\\n"], [0, 1, 2])
        os._exit(int(asking.makefile().read() or 1))
"""
"""run by a Python that starts: where it is to be an agent, another process is, and it ends with that"""


@contextmanager
def forked_agents(start: Path) -> Iterator[None]:
    """Has agents forked from here on, where the folder ``start`` is on the PYTHONPATH of their nodes."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/socket"
        with (start / "sitecustomize.py").open("a") as file:
            file.write(AT_START.format(agents=AGENTS, socket=path))
        command = [sys.executable, "-P", __file__, path]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                assert "ready\n" == server.stdout.readline()
                yield
            finally:
                server.kill()


def serve(listening: socket.socket) -> NoReturn:
    """Has a process of its own look after each agent."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        asking, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            tend(asking)
        asking.close()


def tend(asking: socket.socket) -> NoReturn:
    """Forks an agent, says how it ended, and ends it where who asked has gone."""
    text, streams, _, _ = socket.recv_fds(asking, LONGEST, 3)
    while not text.endswith(b"\n"):
        text += asking.recv(LONGEST)
    agent = os.fork()
    if agent == 0:
        asking.close()
        be(json.loads(text), streams)
    for stream in streams:
        os.close(stream)
    ended, _, _ = select.select([asking, os.pidfd_open(agent)], [], [])
    if asking in ended:
        os.kill(agent, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(agent, 0)[1])
    with suppress(OSError):
        asking.sendall(str(code % 256).encode())
    os._exit(0)


def be(asked: dict[str, Any], streams: list[int]) -> NoReturn:
    """The agent, with its own arguments, folder, environment and streams."""
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.argv = asked["arguments"]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    code: object = 0
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as left:
        code = left.code or 0
    except BaseException:  # noqa: BLE001 - as Python does
        sys.excepthook(*sys.exc_info())
        code = 1
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    die_with(os.getppid())
    gc.disable()
    ray = importlib.import_module("ray")
    sys.path.insert(0, str(Path(ray.__file__).parent / OTHERS))
    importlib.import_module("aiohttp.web")
    del sys.path[0]
    gc.freeze()
    gc.enable()
    with socket.socket(socket.AF_UNIX) as own:
        own.bind(sys.argv[1])
        own.listen()
        print("ready", flush=True)
        serve(own)
