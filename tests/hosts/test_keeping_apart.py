"""Processes of one user that may not look into each other: judges, hosts, and whoever starts them.

Each test runs a script in a process of its own, because none of this can be undone. Where the tests run as root, the
script becomes another user first, once everything is imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_process import server

PRELUDE = """
import ctypes, os, signal, sys, time
from qualify.run.machine.variables import started_with
from qualify.run.process.child import Child, Gone
from qualify.run.process.parent import keep_to_itself, leave_others_alone
from qualify.processes import read_process

NOBODY = 65534
libc = ctypes.CDLL(None, use_errno=True)

def become_somebody():
    if os.getuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        libc.prctl(4, 1)

def victim(step):
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        step()
        os.write(tell, b"!")
        time.sleep(60)
        os._exit(0)
    os.read(told, 1)
    return pid

def ways_in(pid):
    found = []
    for name, flags in (("mem", os.O_RDWR), ("environ", os.O_RDONLY), ("pagemap", os.O_RDONLY)):
        try:
            descriptor = os.open(f"/proc/{pid}/{name}", flags)
            os.close(descriptor)
            found.append(name)
        except PermissionError:
            pass
    try:
        os.readlink(f"/proc/{pid}/fd/1")
        found.append("fd")
    except PermissionError:
        pass
    here = ctypes.create_string_buffer(8)
    vector = (ctypes.c_uint64 * 2)(ctypes.addressof(here), 8)
    if libc.process_vm_writev(pid, vector, 1, vector, 1, 0) == 8:
        found.append("process_vm_writev")
    if libc.ptrace(0x4206, pid, 0, 0) == 0:
        found.append("ptrace")
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return found
"""
EVERY_WAY = "mem environ pagemap fd process_vm_writev ptrace"
AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to give up what only root has")


Said = Callable[[str], str]
"""what a script prints"""


@pytest.fixture
def said(tmp_path: Path) -> Said:
    """Forks a process that is nobody else's, from a Python that has imported what the scripts import."""

    def run(script: str) -> str:
        file = tmp_path / "script.py"
        file.write_text(PRELUDE + script)
        ended = server().run([], tmp_path, 120, script=str(file), forks=False)
        assert 0 == ended.code, ended.err
        return ended.out.strip()

    return run


def test_a_process_of_the_same_user_gets_in_otherwise(said: Said) -> None:
    """What the other tests would see if nothing were done."""
    assert EVERY_WAY == said("become_somebody(); print(*ways_in(victim(lambda: None)))")


def test_who_keeps_to_itself_is_closed_to_its_user(said: Said) -> None:
    """Neither memory nor descriptors nor environment, by none of the ways that Linux has."""
    assert "" == said("become_somebody(); print(*ways_in(victim(keep_to_itself)))")


@AS_ROOT
def test_root_gets_in_all_the_same(said: Said) -> None:
    """As SECURITY.md says; a host gives that right up."""
    assert EVERY_WAY == said("print(*ways_in(victim(keep_to_itself)))")


@AS_ROOT
def test_a_host_of_root_stays_out(said: Said) -> None:
    """It has given up the right, for good: a program that it starts has it no more either.

    What root may see of every process's performance shows where memory is and how a process was started; not more.
    """
    found = said("pid = victim(keep_to_itself); leave_others_alone(); print(*ways_in(pid))")
    assert set(found.split()) <= {"environ", "pagemap"}
    again = "os.execv('/bin/sh', ['sh', '-c', 'grep -c Cap.*f /proc/self/status; grep CapEff /proc/self/status'])"
    capabilities = int(said(f"leave_others_alone(); {again}").split()[-1], 16)
    assert not capabilities >> 19 & 1


COMMAND = """\
import ctypes
from qualify.cli import main

before = ctypes.CDLL(None).prctl(3)
try:
    main()
finally:
    print(before, ctypes.CDLL(None).prctl(3))
"""
"""as Linux calls it, it is dumpable: 1, or 0 where it keeps to itself"""


def test_a_command_keeps_to_itself(tmp_path: Path) -> None:
    """Kernels run in processes of the same user; those of root do without its rights, so root sees no difference."""
    script = tmp_path / "command.py"
    script.write_text(COMMAND)
    ended = server().run(["--version"], tmp_path, 60, script=str(script))
    assert (0, "1 0") == (ended.code, ended.out.splitlines()[-1]), ended.err


def test_a_judge_still_sees_its_own_pages(said: Said) -> None:
    """It copies only touched pages of large inputs, and its own page table would be closed to it too."""
    script = """
import torch
from qualify.run.host.memory import touched
become_somebody(); keep_to_itself()
flat = torch.empty(64 << 20, dtype=torch.uint8)
flat[40 << 20] = 1
first, last = next(part for part in touched(flat) if part[0] <= 40 << 20 < part[1])
print(last - first <= 4 << 20)
"""
    assert "True" == said(script)


def test_a_judge_still_knows_how_it_was_started() -> None:
    """The recorded environment is that of the start, without what a library sets later."""
    script = """
become_somebody(); keep_to_itself()
os.environ["SET_LATER"] = "1"
print("SET_AT_THE_START" in started_with(), "SET_LATER" in started_with())
"""
    ended = subprocess.run(
        [sys.executable, "-c", PRELUDE + script],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "SET_AT_THE_START": "1", "OMP_NUM_THREADS": "1"},
    )
    assert (0, "True False") == (ended.returncode, ended.stdout.strip()), ended.stderr


DAEMON = """
import os, sys, time
os.set_blocking(int(sys.argv[2]), True)
import ctypes
ctypes.CDLL(None).prctl(4, 0)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open({notes!r}, "w").write(str(os.getpid()))
        time.sleep(60)
    os._exit(0)
os.wait()
os._exit(3)
"""


@AS_ROOT
def test_a_daemon_that_keeps_to_itself_is_found(said: Said, tmp_path: Path) -> None:
    """Its environment is closed to the judge, its arguments are not; its parents ended before anybody looked."""
    notes = str(tmp_path / "pid")
    script = f"""
from qualify.run.process import child as module
leave_others_alone()
module.BOOT = {DAEMON.format(notes=notes)!r}
child = Child(1 << 30)
while not os.path.exists({notes!r}) or not open({notes!r}).read():
    time.sleep(0.01)
try:
    while True:
        child.receive(30)
except Gone as gone:
    print(gone.error)
process = read_process(int(open({notes!r}).read()))
print(process is None or process.ended)
"""
    assert ["the process exited with status 3", "True"] == said(script).splitlines()
