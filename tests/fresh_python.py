"""Fresh Pythons for scripts of repros: one that has imported torch, and nothing else, forks one for each script."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARENT = """
import json, os, runpy, sys
import torch

def fresh(script):
    os.chdir(os.path.dirname(script))
    for name, descriptor in (("out", 1), ("err", 2)):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    sys.argv = [script]
    code = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:
        import traceback
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        fresh(json.loads(line))
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Nursery:
    """The Python that forks."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def run(self, script: str, folder: Path, limit_s: float = 60) -> subprocess.CompletedProcess[str]:
        """The script as a process of its own, in a folder that is its working folder.

        Raises:
            subprocess.TimeoutExpired: it took longer, and was killed.
        """
        path = folder / "repro.py"
        path.write_text(script)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(str(path)), file=self.process.stdin, flush=True)
        child, late = int(self.process.stdout.readline()), threading.Event()
        limit = threading.Timer(limit_s, lambda: (late.set(), os.kill(child, signal.SIGKILL)))
        limit.start()
        code = int(self.process.stdout.readline())
        limit.cancel()
        out, err = ((folder / name).read_text() for name in ("out", "err"))
        if late.is_set():
            raise subprocess.TimeoutExpired([str(path)], limit_s, out, err)
        return subprocess.CompletedProcess([str(path)], code, out, err)


@contextmanager
def nursery() -> Iterator[Nursery]:
    """It ends with the block; it has no environment, and does not look into the checkout."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={"PATH": ""}
    )
    with process:
        yield Nursery(process)
        process.stdin.close()
