"""Waits at a socket until somebody asks for a command, and becomes cli_server.py then.

That costs seconds of a processor: the processes of one test run share it, and some runs never ask.
Run by cli_process.py with the path of a socket.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(sys.argv[1])
    listening.listen()
    print("ready", flush=True)
    select.select([listening], [], [])
    listening.set_inheritable(True)
    server = str(Path(__file__).with_name("cli_server.py"))
    os.execv(sys.executable, [sys.executable, "-P", server, str(listening.fileno())])
