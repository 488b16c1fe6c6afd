"""Commands of tests fork what the product starts: the evidence is the same."""

from __future__ import annotations

import os
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cli_process import Asked, Begun, Server, call, environment, gone, server, write_cards, write_matrix
from environments import make_environment, share_torch

SLEEPS = """\
import os, pathlib, time
print(pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text(), flush=True)
time.sleep(600)
"""
"""says who forks for it, and stays"""
SERVES = f"""\
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import cli_server
cli_server.serve_at(sys.argv[1])
"""
"""another server, with what the one that forks it has imported"""
SPAWNS = """\
import multiprocessing, os, sys

def tell(there, name):
    there.send(("torch" in sys.modules, name, os.getppid(), os.getpgrp(), os.environ.get("TOLD")))
    sys.exit(7)

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    own, other = context.Pipe()
    os.environ["TOLD"] = "late"
    process = context.Process(target=tell, args=(other, "given"))
    process.start()
    other.close()
    told = own.recv()
    process.join()
    assert (True, "given", os.getpid(), os.getpgrp(), "late") == told, told
    assert 7 == process.exitcode
    print(own.poll(5))
    try:
        own.recv()
    except EOFError:
        print("nobody else holds its end")
"""
"""asks a process of multiprocessing what it is"""


def essence(data: Any) -> Any:
    """A run without its id, numbers and times."""
    cases = [
        (
            item["id"],
            item["outcome"],
            item["verdict"],
            item["reasons"][0].partition(":")[0] if item["reasons"] else "",
            item["kernel_launched"],
            [(finding["check"], finding["verdict"]) for finding in item["findings"]],
        )
        for item in data["cases"]
    ]
    kept = ("verdict", "exit_code", "stack", "device", "counts", "cells", "environments")
    return {name: data[name] for name in kept} | {"cases": cases}


@pytest.mark.slow
def test_a_forked_run_gives_what_a_started_one_gives(tmp_path: Path) -> None:
    """The same stacks, outcomes, kernels, findings and reasons, of a right, a wrong and a crashing kernel.

    The wrong one is in another environment, too.
    """
    write_cards(tmp_path / "cards", "wrong_numbers", "segfaults")
    kernels = ("tiled-torch", "wrong-numbers", "segfaults")
    write_matrix(tmp_path / "both.yaml", *kernels, exclude=("*/tiled-torch@next", "*/segfaults@next"))
    next_ = f"next={make_environment(tmp_path / 'next')}"
    share_torch(tmp_path / "next")
    words = ("run", "both.yaml", "--cards", "cards", "--environment", next_, "--json")
    forked, started = (call(*words, "--db", f"{real}.db", cwd=tmp_path, started=real).data for real in (False, True))
    assert essence(started) == essence(forked)
    assert (3, 1) == tuple(forked["counts"]["outcomes"][name] for name in ("measured", "crashed"))


def test_a_killed_server_leaves_nothing_behind(tmp_path: Path) -> None:
    """A command ends with it, and so do its nursery and one of a test; the server is forked from the usual one."""
    script, serves = tmp_path / "sleeps.py", tmp_path / "serves.py"
    script.write_text(SLEEPS)
    serves.write_text(SERVES)
    server = Server(partial(Begun, cwd=tmp_path, script=serves, forks=False, stdout=subprocess.PIPE, text=True))
    reading, writing = os.pipe()
    asked = Asked(arguments=[], cwd=tmp_path, env=environment(), script=str(script))
    with Path(os.devnull).open() as nothing:
        command, asking = server.begin(asked, [nothing.fileno(), writing, nothing.fileno()])
    os.close(writing)
    forks, alive = server.nursery()
    with asking, forks, alive, os.fdopen(reading) as said:
        below = [int(word) for word in said.readline().split()]
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
        assert (1, 2) == (len(below), len(children))
        server.process.kill()
        assert 0 > server.process.wait()
        assert gone([command, *below, *map(int, children)])


def test_what_multiprocessing_spawns_is_forked(tmp_path: Path) -> None:
    """With torch; otherwise it is what a spawned one is: a child in the same group, with its pipe and its exit code."""
    script = tmp_path / "spawns.py"
    script.write_text(SPAWNS)
    ended = server().run([], tmp_path, 60, script=str(script))
    assert (0, "True\nnobody else holds its end\n", "") == (ended.code, ended.out, ended.err)
