"""What a canary service writes, in the smallest form."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from stored_runs import make_stack

from qualify.facts.canary import Due, FireResult, Lease, Letter, Node, Rollout, Watched, own_lease
from qualify.facts.comparison import StackChange
from qualify.store import Store
from qualify.store.canaries import Letters

THREE = datetime(2026, 11, 21, 3, 0, tzinfo=UTC)
CHANGE = StackChange(component="torch", kind="distribution", before="2.11.0", after="2.13.0")


BASELINE: dict[str, Any] = {
    "matrix": "smoke",
    "variant": "Test CPU",
    "accepted_by": "jane",
    "reason": "first",
    "accepted_at": THREE,
}


def due(canary: str = "nightly", at: datetime = THREE, **changes: Any) -> Due:
    """A fire of cron."""
    usual: dict[str, Any] = {"trigger": "cron", "reason": "cron 0 3 * * *", "matrix": "smoke"}
    return Due(canary=canary, scheduled_for=at, **{**usual, **changes})


def result(**changes: Any) -> FireResult:
    """A pass."""
    usual: dict[str, Any] = {
        "state": "completed",
        "matrix": "smoke",
        "run_id": "20261121T030000Z-abcdef",
        "variant": "Test CPU",
        "verdict": "PASS",
        "advice": "promote",
        "reasons": ("everything passed",),
        "numerics_only": (),
    }
    return FireResult(**{**usual, **changes})


def letter(target: str = "oncall", **changes: Any) -> Letter:
    """An alert with a hostile kernel name."""
    return Letter(target=target, kind=changes.pop("kind", "promote"), body={"title": "<b>kernel</b>", **changes})


def says(*letters: Letter) -> Letters:
    """Those alerts, whatever is held."""
    return lambda _fire, _holds: letters


def lead(store: Store, holder: str = "a", ttl_s: float = 60) -> Lease:
    """The lease, taken by that holder."""
    lease = store.canaries.acquire("canary", holder, ttl_s)
    assert lease is not None
    return lease


def own(store: Store, node: str = "n", holder: str = "a", ttl_s: float = 60) -> Lease:
    """A machine's own lease."""
    lease = store.canaries.acquire(own_lease("canary", node), holder, ttl_s, node=node)
    assert lease is not None
    return lease


def fill(store: Store) -> None:
    """Two fires, one of them finished with a hold and an alert; times and a watched stack."""
    lease, mine = lead(store), own(store)
    store.canaries.know_schedules(lease, {"nightly": "0 3 * * *"})
    store.canaries.plan(lease, {"nightly": THREE + timedelta(days=2)})
    seen = Watched(
        lease=mine.name,
        canary="nightly",
        node="n",
        stack=make_stack(),
        seen_at=THREE,
        changing_to="f" * 64,
        changing_since=THREE,
    )
    first = due(trigger="stack", node="n", changes=(CHANGE,))
    store.canaries.watch(mine, [seen], [first])
    store.canaries.file(lease, [due(at=THREE + timedelta(days=1))])
    fire = store.canaries.take(mine, "n")
    assert fire is not None
    store.canaries.finish(mine, fire.id, result(advice="hold", reasons=("slower",)), says(letter(kind="hold")))
    fill_rollout(store, lease, mine)


def fill_rollout(store: Store, lease: Lease, mine: Lease) -> None:
    """A machine, a seat that it took, and a rollout whose first wave has ended."""
    node = Node(
        lease=mine.name, service="canary", node="n", canaries=("nightly",), stack_key="e" * 64, device="Test CPU",
        until=mine.expires_at,
    )  # fmt: skip
    store.canaries.tell(mine, node)
    (seen,) = store.canaries.watched(mine.name)
    later = due(at=THREE + timedelta(days=3), trigger="stack", node="n")
    store.canaries.watch_for_many(mine, seen, later, "canary", "e" * 64, 1)
    (fire,) = store.canaries.ask_nodes("nightly", "smoke", "by hand", [node], waves=True)
    rollout = Rollout(
        lease="canary", canary="nightly", key=fire.rollout, trigger="manual", reason="by hand", matrix="smoke",
        waves=(("m",), ("n",)), wave=0, state="open", opened_at=THREE,
    )  # fmt: skip
    store.canaries.open_rollout(lease, rollout)
    ended = result(run_id=None, variant="", verdict=None)
    store.canaries.end_wave(lease, rollout, ended, "open", says(letter()))
