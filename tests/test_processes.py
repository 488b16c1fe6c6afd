"""What Linux says of a process: a name cannot hide it, and one that ended is known as such."""

from __future__ import annotations

import os
import subprocess
import sys

from qualify.processes import processes, read_process


def test_a_name_cannot_hide_a_process() -> None:
    """The name of a process may hold brackets and spaces."""
    script = "open('/proc/self/comm', 'w').write('a) Z 1 (b'); print(flush=True); import time; time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        process = read_process(other.pid)
        assert process is not None
        assert (os.getpid(), False) == (process.parent, process.ended)
        other.kill()


def test_an_ended_process_is_known_until_its_parent_asks() -> None:
    """Then its id is nobody's."""
    with subprocess.Popen([sys.executable, "-c", ""]) as other:
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
        process = read_process(other.pid)
        assert process is not None
        assert (True, False) == (process.ended, process.stopped)
        assert process == processes()[other.pid]
    assert read_process(other.pid) is None
