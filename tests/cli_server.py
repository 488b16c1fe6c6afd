"""A Python that has imported qualify, and read the shipped cards, forks a process for each command.

Importing it again would cost half a second, and reading the cards a tenth.

Run by cli_process.py with the path of a socket. Who connects sends the command and its three standard streams, and is
told the process id and then the exit code.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import socket
import sys
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
    main()
    sys.exit()


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
    for name in LATER:
        importlib.import_module(name)
    assert "torch" not in sys.modules, "no command imports it in its own process"
    load_kernels()
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(sys.argv[1])
        listening.listen()
        print("ready", flush=True)
        serve(listening)
