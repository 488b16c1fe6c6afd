"""A store with runs, holds and alerts whose names are as hostile as a kernel's may be, and a server of it."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from canary_examples import says
from cli_process import Begun
from duels import make_cell, make_duel
from stored_runs import CELL, MATRIX, OPEN, PASSED, WRONG, make_stack, store_run

from qualify.facts.canary import Due, FireResult, Letter, own_lease
from qualify.facts.comparison import StackChange
from qualify.facts.duel import DuelVerdict
from qualify.facts.fleet import Fleet, FleetCard, Slow
from qualify.facts.run import Run
from qualify.store import Store

DUEL = "duel-20261121T025000Z-000001"
DUELLED: tuple[DuelVerdict, ...] = ("SLOWER", "SAME", "FASTER", "AMBIGUOUS")
HOSTILE = "<script>alert(1)</script>'\"&<img src=x onerror=alert(2)>"


@dataclass(frozen=True)
class Reply:
    """An answer of the server."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def data(self) -> Any:
        """As JSON."""
        return json.loads(self.text)

    @property
    def unbroken(self) -> str:
        """The text of a page, without the places at which a long name may be broken into lines."""
        return self.text.replace("<wbr>", "")


@dataclass(frozen=True)
class Served:
    """A server, its store, and the ids of its runs, oldest first."""

    url: str
    address: str
    runs: tuple[str, ...]

    def get(self, path: str, method: str = "GET", **headers: str) -> Reply:
        """One request; redirects are followed."""
        return self.ask(path, method, None, headers)

    def post(self, path: str, data: Any, **headers: str) -> Reply:
        """One request of a program, whose body is JSON; ``_`` in a header's name stands for ``-``."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.ask(path, "POST", json.dumps(data).encode(), {"Content-Type": "application/json", **named})

    def ask(self, path: str, method: str, body: bytes | None, headers: Mapping[str, str]) -> Reply:
        """One request; redirects are followed."""
        request = urllib.request.Request(self.url.rstrip("/") + path, body, dict(headers), method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return Reply(answer.status, dict(answer.headers), answer.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, dict(error.headers), error.read().decode())


def fill(store: Store, folder: Path) -> tuple[str, ...]:
    """Three runs (passed; one case fails on another stack; undecided), a hold, and an alert that was given up."""
    matrix = folder / "serving.yaml"
    matrix.write_text(MATRIX)
    passed = store_run(store, matrix, PASSED, age=timedelta(hours=3))
    worse = store_run(
        store,
        matrix,
        lambda case: WRONG if case.id.endswith("q8.k8/fp32/causal/tiled-torch") else PASSED,
        age=timedelta(hours=2),
        stack=make_stack(torch=f"2.13.0:{'b' * 64}", **{HOSTILE: "1"}),
    )
    undecided = store_run(store, matrix, OPEN, state="interrupted")
    lease = store.canaries.acquire("canary", "node-1/1", 3600)
    own = store.canaries.acquire(own_lease("canary", HOSTILE), "node-1/1", 3600, node=HOSTILE)
    store.canaries.renew(own, 3600, looked_ago_s=90)
    store.canaries.know_schedules(lease, {"nightly": "0 3 * * *"})
    store.canaries.plan(lease, {"nightly": store.canaries.now() + timedelta(hours=1)})
    store.canaries.renew(lease, 3600, f"bad.yaml:1:1: {HOSTILE}")
    change = StackChange(component=HOSTILE, kind="distribution", before="1", after=None)
    due = Due(
        canary="nightly",
        scheduled_for=store.canaries.now(),
        trigger="stack",
        reason=f"stack changed: {HOSTILE}",
        matrix="serving",
        changes=(change,),
        node=HOSTILE,
    )
    store.canaries.file(own, [due])
    fire = store.canaries.take(own, HOSTILE)
    result = FireResult(
        state="completed",
        matrix="serving",
        run_id=worse.id,
        variant="Test CPU",
        verdict="FAIL",
        advice="roll back",
        reasons=(f"the run failed: {HOSTILE}",),
        numerics_only=(),
    )
    store.canaries.finish(own, fire.id, result, says(Letter(target="oncall", kind="roll back", body={})))
    (alert,) = store.canaries.claim_alerts(1, 60)
    store.canaries.settle_alert(alert.id, "dead", f"HTTP 500 {HOSTILE}")
    fill_fleet(store, passed.id)
    fill_duel(store, worse)
    return passed.id, worse.id, undecided.id


def fill_duel(store: Store, run: Run) -> None:
    """A duel with a cell of every verdict, between a hostile environment and the stack of a run."""
    names = [f"{CELL.format(size)}/{kernel}" for size in (8, 9) for kernel in ("tiled-torch", "torch-cpu-math")]
    slower, same, faster, open_ = (
        make_cell(name, change, verdict=verdict)
        for name, change, verdict in zip(names, (0.08, 0.0, -0.1, 0.01), DUELLED, strict=True)
    )
    slower = replace(slower, notes=(f"the card was at its power cap {HOSTILE}",), thrown_away=2)
    untimed = replace(open_, name="not timed", verdict="INCONCLUSIVE", ratios={}, way=None, reason=f"B: {HOSTILE}")
    cells = (slower, same, faster, open_, untimed)
    only = (f"no cell of B {HOSTILE}", "another one")
    store.add_duel(make_duel(run, *cells, id=DUEL, a=HOSTILE, complete=False, only_a=only))


def fill_fleet(store: Store, run_id: str) -> None:
    """A fleet of two cards, one of which is lost."""
    lease = store.fleets.lead("f-1", "me", 60)
    usual = Fleet(
        id="f-1",
        matrix="serving",
        matrix_hash="ab" * 32,
        engine="ray",
        device="cuda",
        spread="repeat",
        least_coverage=0.9,
        state="running",
        epoch=0,
        created_at=store.canaries.now(),
        finished_at=None,
        notes=(HOSTILE,),
    )
    cards = [
        FleetCard(node=node, uuid=uuid, name="NVIDIA H100", attempt=1, state="PLANNED")
        for node, uuid in (("n1", "GPU-1"), (HOSTILE, "GPU-2"))
    ]
    store.fleets.plan(lease, usual, cards)
    covered = replace(cards[0], state="COVERED", run_id=run_id, verdict="PASS")
    store.fleets.settle(lease, "f-1", [covered, replace(cards[1], state="LOST", reason=HOSTILE)])
    store.fleets.end(lease, "f-1", [str(Slow(uuid="GPU-1", node="n1", factor=1.31, cases=4))])


def fill_large_fleet(store: Store, nodes: int, cards: int) -> None:
    """A fleet with two lost cards on one node, and a card of another node whose run failed."""
    lease = store.fleets.lead("large", "me", 60)
    fleet = Fleet(
        id="large",
        matrix="serving",
        matrix_hash="ab" * 32,
        engine="ray",
        device="cuda",
        spread="repeat",
        least_coverage=0.9,
        state="running",
        epoch=0,
        created_at=store.canaries.now(),
        finished_at=None,
        notes=(),
    )
    planned = [
        FleetCard(node=f"node-{node:03}", uuid=f"GPU-{node:03}-{card}", name="NVIDIA H100", attempt=1, state="PLANNED")
        for node in range(nodes)
        for card in range(cards)
    ]
    store.fleets.plan(lease, fleet, planned)
    store.fleets.settle(lease, "large", [_settled(card) for card in planned])
    store.fleets.end(lease, "large", [])


def _settled(card: FleetCard) -> FleetCard:
    if card.uuid in ("GPU-003-1", "GPU-003-2"):
        return replace(card, state="LOST", reason="nothing was heard of it")
    return replace(card, state="COVERED", verdict="FAIL" if card.uuid == "GPU-007-0" else "PASS")


def start(address: str, *options: object, folder: Path, forks: bool = True) -> subprocess.Popen[str]:
    """The real command; ``forks`` as for :class:`Begun`."""
    pipe = subprocess.PIPE
    return Begun("web", "--db", address, *options, cwd=folder, forks=forks, stdout=pipe, stderr=pipe, text=True)


@contextmanager
def serving(address: str, folder: Path, *options: object) -> Iterator[str]:
    """A server on a free port; yields its address. It must end well, and no request may have met a fault of ours."""
    process = start(address, "--port", 0, *options, folder=folder)
    try:
        yield process.stdout.readline().strip()
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            _, err = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert 0 == process.returncode, err
    assert "Traceback" not in err, err
