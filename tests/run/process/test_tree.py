"""Processes that fall to a judge, and who counts as a member of a tree."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from qualify.processes import read_process
from qualify.run.process.memory import oom_kills, resident_bytes
from qualify.run.process.tree import Tree

JUDGE = """
import os, subprocess, sys, time
from pathlib import Path
from qualify.run.process import child
from qualify.run.process.parent import adopt_orphans
from qualify.processes import read_process
from qualify.run.process.tree import end_strays

child.BOOT = '''
import os, subprocess, sys, time
own = os.path.dirname(sys.executable)
daemon = "import os, sys, time; os.fork() and os._exit(0); print(os.getpid(), flush=True); time.sleep(60)"
with subprocess.Popen(["env", "-i", sys.executable, "-c", daemon], stdout=-1, start_new_session=True) as process:
    line = process.stdout.readline()
with open(os.environ["NOTES"], "wb") as notes:
    notes.write(line)
os.write(int(sys.argv[3]), b'{"event":"ready"}\\\\n')
time.sleep(60)
'''

def lives(pid):
    process = read_process(pid)
    return process is not None and not process.ended

adopt_orphans()
helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
host, other = child.Child(1 << 30), child.Child(1 << 30)
while host.receive(30) is None:
    pass
while other.receive(30) is None:
    pass
daemon = int(Path(os.environ["NOTES"]).read_text())
host.kill()
print("after the kill:", lives(daemon))
end_strays({other.process.pid})
print("after the strays:", lives(daemon), read_process(daemon))
print("others:", lives(helper.pid), lives(other.process.pid))
helper.kill()
helper.wait()
host.stop()
other.stop()
end_strays(())
"""


def test_a_judge_inherits_what_left_every_trace_behind(tmp_path: Path) -> None:
    """A daemon without the session, the parents and the environment of its host falls to the judge, which ends it.

    It is waited for too, and the judge's own helper and its other host live on.
    """
    environment = {**os.environ, "NOTES": str(tmp_path / "daemon")}
    command = [sys.executable, "-c", JUDGE]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    expected = ["after the kill: True", "after the strays: False None", "others: True True"]
    assert (expected, "") == (ended.stdout.splitlines(), ended.stderr)


def test_an_id_with_another_start_is_no_member() -> None:
    """A process that got the id of a member that ended is somebody else's."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], process_group=0) as other:
        tree = Tree(other.pid, mark="")
        tree.members[other.pid] -= 1
        assert [] == tree.look()
        tree.end()
        assert other.poll() is None
        other.kill()


def test_a_process_whose_main_thread_ended_lives(tmp_path: Path) -> None:
    """It looks like a dead one, but its other threads run; the end of its tree is theirs too."""
    script = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "print(flush=True)\n"
        "ctypes.CDLL(None).syscall(60, 0)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True) as other:
        assert other.stdout is not None
        other.stdout.readline()
        while (process := read_process(other.pid)) and process.state != "Z":
            pass
        assert process is not None
        assert not process.ended
        Tree(other.pid, mark="").end()
        assert -9 == other.wait(timeout=5)


@pytest.mark.parametrize(
    ("line", "counter", "text"),
    [
        ("0::/pod/worker", "pod/worker/memory.events", "oom 5\noom_kill 3\noom_group_kill 0\n"),
        ("5:cpu,memory:/pod", "memory/pod/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"),
        ("0::/hidden", "none", ""),
    ],
    ids=["version-2", "version-1", "only-the-machine"],
)
def test_where_the_kernel_counts(
    line: str, counter: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process's cgroup where that is readable; else for the whole machine, also for others."""
    for name, content in {"proc/self/cgroup": line + "\n", "proc/vmstat": "oom_kill 9\n", counter: text}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    monkeypatch.setattr("qualify.run.process.memory.PROC", tmp_path / "proc")
    monkeypatch.setattr("qualify.run.process.memory.CGROUPS", tmp_path)
    assert (3 if text else 9) == oom_kills()


def test_this_machine_counts() -> None:
    """Of processes that are not there nothing is known."""
    assert oom_kills() >= 0
    assert resident_bytes([os.getpid()], 0) > 1 << 20
    assert 0 == resident_bytes([], 0)
