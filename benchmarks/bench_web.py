"""`qualify web` on a run of 5,000 cases: its pages, its metrics, its memory, and its health while a report is made."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from common import evidence, machine, show, small

from qualify.store.store import Store


def main() -> None:
    """Serve the run from a process of its own and ask for every kind of page."""
    count = 100 if small() else 5_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run, records = evidence(count, folder)
        address = str(folder / "web.db")
        with Store.open(address) as store:
            store.begin(run)
            store.add_cases(run.id, [record.case for record in records])
            store.add(run.id, records)
        command = [sys.executable, "-m", "qualify", "web", "--port", "0", "--db", address]
        env = {key: value for key, value in os.environ.items() if key != "QUALIFY_DB"}
        began = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
            assert process.stdout is not None, "it was asked for"
            url = process.stdout.readline().strip()
            ask(f"{url}healthz")
            started = time.perf_counter() - began
            idle = memory_bytes(process.pid)
            first, again = ask(f"{url}metrics"), ask(f"{url}metrics")
            listed = ask(url)
            whole, slowest = health_while_reporting(url)
            used = memory_bytes(process.pid)
            process.send_signal(signal.SIGTERM)
    machine()
    show("start until it answers", started, "s")
    show(f"/metrics of a run of {count:,} cases, first time", first, "s")
    show("/metrics, after that", again * 1000, "ms")
    show("/, the list of runs, after that", listed * 1000, "ms")
    show("/runs/latest, the report", whole, "s")
    show("/healthz meanwhile, the slowest", slowest * 1000, "ms")
    show("memory when idle", idle / 1e6, "MB")
    show("memory after the report", used / 1e6, "MB")


def memory_bytes(pid: int) -> int:
    """Resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) * 1024


def ask(url: str) -> float:
    """Seconds until the whole answer is there."""
    began = time.perf_counter()
    with urllib.request.urlopen(url) as answer:
        answer.read()
    return time.perf_counter() - began


def health_while_reporting(url: str) -> tuple[float, float]:
    """Time of the report, and the longest time of an answer about health while it is made."""
    took: list[float] = []
    thread = threading.Thread(target=lambda: took.append(ask(f"{url}runs/latest")))
    thread.start()
    slowest = 0.0
    while thread.is_alive():
        slowest = max(slowest, ask(f"{url}healthz"))
        time.sleep(0.05)
    return took[0], slowest


if __name__ == "__main__":
    main()
