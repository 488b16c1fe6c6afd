"""`qualify web` on 10,000 runs with 1,000,000 outcomes: wall and CPU time of its pages, alone and at 50 requests/s.

It is measured on SQLite and on PostgreSQL; ``--sqlite`` or ``--postgresql`` measures only one. On a shared machine, the
CPU time of the server says more than the time of an answer.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from statistics import median, quantiles

from bench_gate import connected, copy_run
from common import addresses, command_line, evidence, machine, show, small
from sqlalchemy import func, insert, select, text

from qualify.facts.run import Record, Run
from qualify.store import tables
from qualify.store.store import Store

CASES, COPIES, RUNS = 5_000, 200, 10_000
MATRICES = 20
GROUP = 500
OLD_DAYS = 200
RATE, SECONDS = 50, 20
"""requests per second, and seconds for which they are sent"""
QUIET_S = 3
"""seconds with almost no CPU time after which a server has nothing left to judge"""
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Server:
    """A running server."""

    url: str
    pid: int
    case: str

    @property
    def pids(self) -> list[int]:
        """Ids of the process that answers and of the process that judges for it."""
        texts = [path.read_text() for path in Path(f"/proc/{self.pid}/task").glob("*/children")]
        return [self.pid, *(int(number) for text in texts for number in text.split())]

    @property
    def cpu_s(self) -> float:
        """CPU seconds of the server's processes so far."""
        fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in self.pids]
        return sum(int(one[11]) + int(one[12]) for one in fields) / TICKS

    @property
    def memory_bytes(self) -> int:
        """Resident memory of the server's processes."""
        lines = [line for pid in self.pids for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
        return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) * 1024

    def ask(self, path: str) -> float:
        """Seconds until the whole answer has arrived, compressed as for a browser."""
        request = urllib.request.Request(self.url + path, headers={"Accept-Encoding": "gzip"})
        began = time.perf_counter()
        with urllib.request.urlopen(request) as answer:
            answer.read()
        return time.perf_counter() - began

    def pages(self) -> dict[str, str]:
        """Addresses of the pages that people use, by a description."""
        return {
            "home": "",
            "list": "runs",
            "list, last page": f"runs?offset={RUNS - 50}",
            "list, searched": "runs?q=smoke-7",
            "list, one matrix with trend": "runs?matrix=smoke-3",
            "list as JSON": "runs.json",
            "models": "models",
            "a kernel": "kernels/tiled-torch",
            "findings": "findings",
            "a case with its history": f"cases/{self.case}",
            "stacks": "stacks",
            "canaries": "canaries",
            "holds": "holds",
            "a report": "runs/big-000001",
            "a comparison": "runs/big-000001/against/big-000002",
        }


def main() -> None:
    """Fill a store, serve it from another process, and request every kind of page."""
    asked = command_line(__doc__, evidence=True, databases=True).parse_args()
    cases, copies, runs = (50, 3, 100) if small() else (CASES, COPIES, RUNS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run, records = evidence(cases, folder, asked.evidence)
        machine()
        with addresses(folder, asked.database) as databases:
            for database, address in databases.items():
                print(f"# {database}; load of the machine {os.getloadavg()[0]:.1f}")
                fill(address, run, records, copies, runs)
                with serving(address, records[0].case.id) as server:
                    measure(server)


def fill(address: str, run: Run, records: Sequence[Record], copies: int, runs: int) -> None:
    """Store runs with many cases, and many more runs without cases, over 20 matrices and three months."""
    with Store.open(address) as store:
        first = replace(run, id="big-000000", matrix="smoke-0")
        store.begin(first)
        store.add_cases(first.id, [record.case for record in records])
        for begun in range(0, len(records), GROUP):
            store.add(first.id, records[begun : begun + GROUP])
        store.finish(first.id, "completed", run.started_at + timedelta(minutes=9))
    with connected(address) as connection:
        row = dict(connection.execute(select(tables.runs).where(tables.runs.c.id == first.id)).mappings().one())
        empty = [
            row
            | {
                "id": f"empty-{number:06}",
                "matrix": f"smoke-{number % MATRICES}",
                "started_at": run.started_at - timedelta(minutes=60 + 13 * number),
            }
            for number in range(runs - copies)
        ]
        connection.execute(insert(tables.runs), empty)
    for number in range(1, copies):
        with connected(address) as connection:
            if connection.dialect.name == "postgresql":  # skip checks of keys, because copied rows passed them before
                connection.execute(text("SET LOCAL session_replication_role = replica"))
            # One copy for each matrix is its newest run; all other copies are older than the runs without cases.
            at = run.started_at - timedelta(seconds=10 * number, days=0 if number < MATRICES else OLD_DAYS)
            copy_run(connection, first.id, f"big-{number:06}", matrix=f"smoke-{number % MATRICES}", started_at=at)
    with connected(address) as connection:
        connection.execute(text("ANALYZE"))
        show("runs in the store", connection.execute(select(func.count()).select_from(tables.runs)).scalar_one(), "")
        stored = connection.execute(select(func.count()).select_from(tables.outcomes)).scalar_one()
        show("outcomes in the store", stored, "")


@contextmanager
def serving(address: str, case: str) -> Iterator[Server]:
    """A server: the real command in a process of its own."""
    command = [sys.executable, "-m", "qualify", "web", "--port", "0", "--db", address]
    env = {key: value for key, value in os.environ.items() if key != "QUALIFY_DB"}
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None, "it was asked for"
        server = Server(url=process.stdout.readline().strip(), pid=process.pid, case=case)
        server.ask("healthz")
        show("start until it answers", time.perf_counter() - began, "s")
        try:
            yield server
        finally:
            process.send_signal(signal.SIGTERM)


def measure(server: Server) -> None:
    """Measure each page alone, before and after runs are judged; then all pages under load."""
    show("list of runs at once after the start", server.ask("runs") * 1000, "ms")
    show("first page at once after the start", server.ask("") * 1000, "ms")
    wait_for_verdicts(server)
    whole, slowest = health_while_reporting(server)
    show("the report of a run, rendered for the first time", whole, "s")
    show("/healthz meanwhile, the slowest", slowest * 1000, "ms")
    server.ask(server.pages()["a comparison"])
    for what, path in server.pages().items():
        before = server.cpu_s
        times = [server.ask(path) for _ in range(2 if small() else 10)]
        show(f"{what}: median of {len(times)}", median(times) * 1000, "ms")
        show(f"{what}: CPU of the server", (server.cpu_s - before) / len(times) * 1000, "ms")
    under_load(server, "while runs are judged in the background")
    wait_until_quiet(server)
    under_load(server, "while nothing else is done")
    show("memory at the end", server.memory_bytes / 1e6, "MB")


def wait_for_verdicts(server: Server) -> None:
    """Wait until the server has judged the runs that the pages show."""
    began, before = time.perf_counter(), server.cpu_s
    while True:
        with urllib.request.urlopen(f"{server.url}home.json") as answer:
            states = json.load(answer)["states"]
        with urllib.request.urlopen(f"{server.url}runs.json?limit=200") as answer:
            runs = json.load(answer)["runs"]
        if "· being judged" not in {it["verdict"] for it in states} and all(run["verdict"] for run in runs):
            break
        time.sleep(1)
    show("until all newest runs are judged, in the background", time.perf_counter() - began, "s")
    show("the same: CPU of the server", server.cpu_s - before, "s")


def health_while_reporting(server: Server) -> tuple[float, float]:
    """(seconds of the report, longest seconds of a health answer while the report is made)."""
    took: list[float] = []
    thread = threading.Thread(target=lambda: took.append(server.ask(server.pages()["a report"])))
    thread.start()
    slowest = 0.0
    while thread.is_alive():
        slowest = max(slowest, server.ask("healthz"))
        time.sleep(0.05)
    return took[0], slowest


def wait_until_quiet(server: Server) -> None:
    """Wait until the server has judged everything that the pages need."""
    while True:
        before = server.cpu_s
        time.sleep(QUIET_S)
        if server.cpu_s - before < QUIET_S / 30:
            break


def under_load(server: Server, when: str) -> None:
    """Request every kind of page in turn at a fixed rate, without waiting for answers."""
    print(f"# {RATE} requests/s over {len(server.pages())} kinds of page, {when}")
    paths = list(server.pages().values())
    count, took = RATE * (1 if small() else SECONDS), []
    before, began = server.cpu_s, time.perf_counter()

    def one(number: int) -> None:
        due = began + number / RATE
        time.sleep(max(0.0, due - time.perf_counter()))
        server.ask(paths[number % len(paths)])
        took.append(time.perf_counter() - due)

    with ThreadPoolExecutor(40) as pool:
        list(pool.map(one, range(count)))
    wall, used = time.perf_counter() - began, server.cpu_s - before
    cuts = quantiles(took, n=100)
    show("p50", cuts[49] * 1000, "ms")
    show("p95", cuts[94] * 1000, "ms")
    show("p99", cuts[98] * 1000, "ms")
    show("answered", count / wall, "requests/s")
    show("CPU of the server for a request", used / count * 1000, "ms")
    show("load of the machine", os.getloadavg()[0], "")


if __name__ == "__main__":
    main()
