"""A Python that has imported qualify forks a process for each command: importing it again costs half a second.

Run by cli_process.py. Each line on stdin is a command; the answer is a line with its process id, and one with its exit
code.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from typing import Any, NoReturn

from qualify.cli.entry import main

LATER = (
    "qualify.canary.child",
    "qualify.fleet.local",
    "qualify.judge.against",
    "qualify.judge.gathered",
    "qualify.report.page",
    "qualify.store.schema",
    "alembic.command",
)
"""what commands import when they need it"""


def run(asked: dict[str, Any]) -> NoReturn:
    """The command in this process, with its own folder, environment and streams."""
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])
    for path, descriptor in ((asked["out"], 1), (asked["err"], 2)):
        os.dup2(os.open(path, os.O_WRONLY), descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = ["qualify", *asked["arguments"]]
    main()
    sys.exit()


if __name__ == "__main__":
    for name in LATER:
        importlib.import_module(name)
    assert "torch" not in sys.modules, "no command imports it in its own process"
    gc.freeze()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            run(json.loads(line))
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
