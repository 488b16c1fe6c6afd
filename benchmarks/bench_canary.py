"""The canary service: the cost of 1,000 schedules, and the times of a takeover and until a changed stack is noticed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from common import command_line, machine, show, small

from qualify.store.store import Store

LEASE_S = 15
POLL_S = 5
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Serve from an SQLite store, and print the figures of the process from /proc."""
    command_line(__doc__).parse_args()
    count, seconds = (20, 2) if small() else (1_000, 60)
    machine()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        idle(folder, count, seconds)
    with tempfile.TemporaryDirectory() as name:
        takeover(Path(name), 2 if small() else LEASE_S)
    with tempfile.TemporaryDirectory() as name:
        noticed(Path(name), 1 if small() else POLL_S)


def serve(folder: Path, *options: str) -> subprocess.Popen[bytes]:
    """Start one replica with the cards of the folder; its log goes to NAME.log."""
    paths = os.pathsep.join(filter(None, [str(folder / "site"), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "QUALIFY_DB": str(folder / "e.db"), "PYTHONPATH": paths}
    with (folder / f"{options[-1]}.log").open("wb") as log:
        command = [sys.executable, "-m", "qualify", "canary", "serve", "b-*", "--cards", str(folder)]
        return subprocess.Popen([*command, *options], cwd=folder, env=environment, stdout=log, stderr=log)


def until(there: Callable[[], bool], limit_s: float = 120) -> float:
    """Wait until a condition holds; returns the seconds that it took."""
    began = time.monotonic()
    while not there():
        if time.monotonic() - began > limit_s:
            raise SystemExit("it did not happen")
        time.sleep(0.02)
    return time.monotonic() - began


def said(folder: Path, node: str, words: str) -> Callable[[], bool]:
    """A condition: whether a replica's log contains the words."""
    return lambda: words in (folder / f"{node}.log").read_text()


def cpu_s(process: subprocess.Popen[bytes]) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def peak_mb(process: subprocess.Popen[bytes]) -> float:
    """Peak memory of a process in MB."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6


def card(folder: Path, name: str, trigger: str) -> None:
    """Write a canary card for the shipped smoke matrix."""
    (folder / f"{name}.yaml").write_text(f"canary: {name}\nmatrix: smoke\n{trigger}\n")


def idle(folder: Path, count: int, seconds: float) -> None:
    """Measure a service without work: half of the canaries have times, half wait for a changed stack, none is due."""
    hour = (time.gmtime().tm_hour + 12) % 24
    for number in range(count):
        times = f'cron: "{number % 60} {hour} * * *"'
        card(folder, f"b-{number}", times if number % 2 else "stack_change: {settle: 10m}")
    process = serve(folder, "--node", "n")
    until(said(folder, "n", "leads"))
    time.sleep(10 if not small() else 3)  # until the first look at the stack is stored
    before = cpu_s(process)
    time.sleep(seconds)
    used = cpu_s(process) - before
    show(f"{count:,} canaries: processor, share of one core", 100 * used / seconds, "%")
    show(f"{count:,} canaries: peak memory", peak_mb(process), "MB")
    process.send_signal(signal.SIGTERM)
    process.wait()


def takeover(folder: Path, lease_s: int) -> None:
    """Measure the time from ``kill -9`` of the leader to the next epoch."""
    card(folder, "b-one", 'cron: "0 3 * * *"')
    lease = ("--lease-time", f"{lease_s}s")
    first = serve(folder, *lease, "--node", "n")
    until(said(folder, "n", "leads"))
    second = serve(folder, *lease, "--node", "m")
    with Store.open(str(folder / "e.db")) as store:
        time.sleep(3)
        first.kill()
        taken = until(lambda: store.canaries.lease("canary").epoch == 2)  # type: ignore[union-attr]
    show(f"takeover, lease {lease_s} s", taken, "s")
    for process in (first, second):
        process.kill()
        process.wait()


def noticed(folder: Path, poll_s: int) -> None:
    """Measure the time from a new version of an attention library on disk to the log line that names it."""
    card(folder, "b-one", "stack_change: {settle: 10m}")
    write(folder / "site", "2.8.0")
    process = serve(folder, "--poll", f"{poll_s}s", "--node", "n")
    with Store.open(str(folder / "e.db")) as store:
        until(lambda: len(store.canaries.watched()) == 1)
    (folder / "site" / "flash_attn-2.8.0.dist-info").rename(folder / "site" / "flash_attn-2.9.0.dist-info")
    write(folder / "site", "2.9.0")
    show(f"change noticed, looked for every {poll_s} s", until(said(folder, "n", "2.8.0 → 2.9.0")), "s")
    process.kill()
    process.wait()


def write(site: Path, version: str) -> None:
    """Write metadata of a distribution, so that flash-attn looks installed in this version."""
    info = site / f"flash_attn-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: flash-attn\nVersion: {version}\n")


if __name__ == "__main__":
    main()
