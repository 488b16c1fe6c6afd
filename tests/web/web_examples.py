"""A store with runs, holds and alerts whose names are as hostile as a kernel's may be, and a server of it."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from cli_process import command, environment
from stored_runs import MATRIX, OPEN, PASSED, WRONG, make_stack, store_run

from qualify.facts.canary import Due, FireResult, Letter, own_lease
from qualify.facts.comparison import StackChange
from qualify.store import Store

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


@dataclass(frozen=True)
class Served:
    """A server, its store, and the ids of its runs, oldest first."""

    url: str
    address: str
    runs: tuple[str, ...]

    def get(self, path: str, method: str = "GET", **headers: str) -> Reply:
        """One request; redirects are followed."""
        request = urllib.request.Request(self.url.rstrip("/") + path, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
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
    lease = store.canaries.acquire("canary", "node-1/1", 60)
    own = store.canaries.acquire(own_lease("canary", HOSTILE), "node-1/1", 60, node=HOSTILE)
    store.canaries.renew(own, 60, looked_ago_s=90)
    store.canaries.know_schedules(lease, {"nightly": "0 3 * * *"})
    store.canaries.plan(lease, {"nightly": store.canaries.now() + timedelta(hours=1)})
    store.canaries.renew(lease, 60, f"bad.yaml:1:1: {HOSTILE}")
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
    store.canaries.finish(own, fire.id, result, [Letter(target="oncall", kind="roll back", body={})])
    (alert,) = store.canaries.claim_alerts(1, 60)
    store.canaries.settle_alert(alert.id, "dead", f"HTTP 500 {HOSTILE}")
    return passed.id, worse.id, undecided.id


def start(address: str, *options: object, folder: Path) -> subprocess.Popen[str]:
    """The real command."""
    # The background job of a shell ignores Ctrl-C, and so would its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return subprocess.Popen(
        command("web", "--db", address, *options),
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def serving(address: str, folder: Path, *options: object) -> Iterator[str]:
    """A server on a free port; yields its address. It must end well, and no request may have met a fault of ours."""
    process = start(address, "--port", 0, *options, folder=folder)
    try:
        yield process.stdout.readline().strip()
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            _, err = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert 0 == process.returncode, err
    assert "Traceback" not in err, err
