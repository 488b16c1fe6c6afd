"""A Python that has imported qualify, and read the shipped cards, forks a process for each command.

Importing it again would cost half a second, reading the cards a tenth, and importing torch more than one.

Run by cli_process.py with the path of a socket. Who connects sends the command and its three standard streams, and is
told the process id and then the exit code.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from qualify.cards.load import load_kernels
from qualify.cli.entry import main
from qualify.run.process.parent import die_with

LATER = (
    "alembic.command",
    "qualify.canary.child",
    "qualify.fleet.local",
    "qualify.judge.against",
    "qualify.judge.gathered",
    "qualify.report.page",
    "qualify.store.schema",
)
"""what commands import when they need it"""
WITH_TORCH = ("qualify.fleet.doctor", "qualify.run.machine.device", "qualify.run.machine.stack", "torch")
"""the same of those few that look at the stack of this machine: ``doctor``, and ``gate --stack here``"""
UNFLUSHED = 120
"""Python's exit code where nobody takes the output"""
LONGEST = 1 << 20
"""bytes of a command with its environment"""


def run(asked: dict[str, Any], streams: list[int]) -> NoReturn:
    """The command in this process, with its own folder, environment and streams."""
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.argv = ["qualify", *asked["arguments"]]
    os._exit(ended(main))


def ended(command: Callable[[], None]) -> int:
    """The exit code of a command, after whatever Python does at its end.

    But for one thing: it would take apart what the server has imported, object by object, which takes longer than most
    commands.
    """
    code: object = 0
    try:
        command()
    except SystemExit as left:
        code = left.code or 0
    except BaseException:  # noqa: BLE001 - as Python does
        sys.excepthook(*sys.exc_info())
        code = 1
    try:
        if not isinstance(code, int):
            print(code, file=sys.stderr)
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        return UNFLUSHED
    return code if isinstance(code, int) else 1


def serve(listening: socket.socket) -> None:
    """One command after another."""
    while True:
        asking, _ = listening.accept()
        with asking:
            text, streams, _, _ = socket.recv_fds(asking, LONGEST, 3)
            while text and not text.endswith(b"\n"):
                text += asking.recv(LONGEST)
            child = os.fork()
            if child == 0:
                listening.close()
                asking.close()
                run(json.loads(text), streams)
            for stream in streams:
                os.close(stream)
            asking.sendall(f"{child}\n".encode())
            asking.sendall(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n".encode())


if __name__ == "__main__":
    die_with(os.getppid())
    gc.disable()
    for name in LATER:
        importlib.import_module(name)
    assert "torch" not in sys.modules, "what every command imports does without it"
    for name in WITH_TORCH:
        importlib.import_module(name)
    load_kernels()
    gc.freeze()
    gc.enable()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(sys.argv[1])
        listening.listen()
        print("ready", flush=True)
        serve(listening)
