"""The state of the canary service, on both databases."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import canary_examples as examples
import pytest
import store_examples
from canary_examples import THREE, due, lead, letter, result

from qualify.errors import LeaseLost
from qualify.facts.canary import Watched
from qualify.store import Store

SHORT_S = 0.2


def test_only_one_leads(store: Store) -> None:
    """A second holder gets nothing until the lease ran out; then the epoch is one higher."""
    first = lead(store, "a", SHORT_S)
    assert (1, None) == (first.epoch, store.canaries.acquire("canary", "b", 60))
    time.sleep(SHORT_S * 1.5)
    second = store.canaries.acquire("canary", "b", 60)
    assert second is not None
    assert ("b", 2) == (second.holder, second.epoch)
    assert "b" == store.canaries.lease("canary").holder


def test_a_renewed_lease_does_not_run_out(store: Store) -> None:
    """Every renewal counts from the database's now, is a sign of life, and carries the leader's complaint."""
    lease = lead(store, "a", SHORT_S)
    until = store.canaries.renew(lease, 60, "cards/x.yaml:1:1: wrong")
    assert until > lease.expires_at
    time.sleep(SHORT_S * 1.5)
    assert store.canaries.acquire("canary", "b", 60) is None
    found = store.canaries.lease("canary")
    assert (2, "cards/x.yaml:1:1: wrong") == (found.beats, found.trouble)


def test_a_released_lease_is_free(store: Store) -> None:
    """Whoever stops says so, and a follower does not wait."""
    first = lead(store, "a")
    store.canaries.release(first)
    assert 2 == lead(store, "b").epoch
    store.canaries.release(first)
    assert store.canaries.acquire("canary", "c", 60) is None


def test_a_holder_seen_dead_is_succeeded(store: Store) -> None:
    """Without any beat since it was looked at the lease may be taken before its time; after a beat it may not."""
    first = lead(store, "a")
    seen = store.canaries.lease("canary")
    store.canaries.renew(first, 60)
    assert store.canaries.acquire("canary", "b", 60, dead=seen) is None
    taken = store.canaries.acquire("canary", "b", 60, dead=store.canaries.lease("canary"))
    assert taken is not None
    assert 2 == taken.epoch


def test_the_old_leader_is_fenced(store: Store) -> None:
    """Every method of the leader refuses the old epoch, and nothing is written."""
    old = lead(store, "a", 0.0)
    (fire_id,) = store.canaries.file(old, [due()])
    taken = store.canaries.take(old, "node")
    assert taken is not None
    new = lead(store, "b")
    writes = (
        lambda: store.canaries.renew(old, 60),
        lambda: store.canaries.file(old, [due("other")]),
        lambda: store.canaries.know_schedules(old, {"x": "* * * * *"}),
        lambda: store.canaries.set_run(old, fire_id, "run"),
        lambda: store.canaries.put_back(old, fire_id, "why", 0),
        lambda: store.canaries.finish(old, fire_id, result(), [letter()]),
        lambda: store.canaries.watch(old, [], [due("other")]),
    )
    for write in writes:
        with pytest.raises(LeaseLost, match="Nothing was written"):
            write()
    store.canaries.ask("other", "smoke", "by hand")
    with pytest.raises(LeaseLost, match="b leads with epoch 2"):
        store.canaries.take(old, "node")
    assert taken in store.canaries.fires()
    assert [] == store.canaries.alerts()
    again = store.canaries.take(new, "node", only=fire_id)
    assert again is not None
    assert (fire_id, 2, 2) == (again.id, again.attempts, again.epoch)


def test_a_moment_fires_once(store: Store) -> None:
    """The same canary and moment is one fire, however often it is filed, in one transaction or in several."""
    lease = lead(store)
    assert 2 == len(store.canaries.file(lease, [due(), due("weekly")]))
    assert [] == store.canaries.file(lease, [due(), due("weekly")])
    assert 1 == len(store.canaries.file(lease, [due(), due(at=THREE + timedelta(days=1)), due()]))
    assert [] == store.canaries.file(lease, [])
    assert [("nightly", 22), ("nightly", 21), ("weekly", 21)] == sorted(
        ((fire.canary, fire.scheduled_for.day) for fire in store.canaries.fires()), key=lambda item: (item[0], -item[1])
    )
    assert {"nightly": 22, "weekly": 21} == {
        name: fire.scheduled_for.day for name, fire in store.canaries.latest().items()
    }


def test_what_is_owed_longest_goes_first(store: Store) -> None:
    """Fires run in the order of their moments; one that was lost sight of is taken again, a finished one is not."""
    lease = lead(store)
    store.canaries.file(lease, [due(at=THREE + timedelta(days=1)), due()])
    first = store.canaries.take(lease, "node")
    assert (THREE, "running", "node", 1) == (first.scheduled_for, first.state, first.node, first.attempts)
    again = store.canaries.take(lease, "node")
    assert (first.id, 2) == (again.id, again.attempts)
    store.canaries.finish(lease, first.id, result(), [])
    second = store.canaries.take(lease, "node")
    assert THREE + timedelta(days=1) == second.scheduled_for
    with pytest.raises(LeaseLost):
        store.canaries.finish(lease, first.id, result(advice="hold"), [])
    assert "promote" == store.canaries.fire(first.id).advice
    assert [second.id] == [fire.id for fire in store.canaries.open_fires()]


def test_another_attempt_waits(store: Store) -> None:
    """A fire that was put back is taken again after its time, and not before."""
    lease = lead(store)
    store.canaries.file(lease, [due()])
    fire = store.canaries.take(lease, "node")
    store.canaries.set_run(lease, fire.id, "some-run")
    store.canaries.put_back(lease, fire.id, "database away", 60)
    assert store.canaries.take(lease, "node") is None
    (put_back,) = store.canaries.fires()
    assert ("pending", ("database away",), "some-run") == (put_back.state, put_back.reasons, put_back.run_id)
    store.canaries.file(lease, [due("other")])
    other = store.canaries.take(lease, "node")
    store.canaries.put_back(lease, other.id, "killed", 0)
    assert (other.id, 2) == ((again := store.canaries.take(lease, "node")).id, again.attempts)


def test_a_changed_stack_fires_on_its_node(store: Store) -> None:
    """A leader on another machine leaves it alone; one by hand may run anywhere."""
    lease = lead(store)
    store.canaries.file(lease, [due(trigger="stack", node="a", changes=(examples.CHANGE,))])
    asked = store.canaries.ask("nightly", "smoke", "by hand")
    assert "manual" == asked.trigger
    assert store.canaries.take(lease, "b", only=asked.id).id == asked.id
    store.canaries.finish(lease, asked.id, result(), [])
    assert store.canaries.take(lease, "b") is None
    assert (examples.CHANGE,) == store.canaries.take(lease, "a").changes


def test_holds_end_with_a_newer_pass(store: Store) -> None:
    """A hold stays until the same canary passes later on the same node and variant; a second one is the same hold."""
    lease = lead(store)
    days = [THREE + timedelta(days=number) for number in range(6)]

    def ends(at: datetime, node: str = "n", **changes: object) -> int:
        (fire_id,) = store.canaries.file(lease, [due(at=at, canary=str(changes.pop("canary", "nightly")))])
        assert store.canaries.take(lease, node, only=fire_id) is not None
        store.canaries.finish(lease, fire_id, result(**changes), [])
        return fire_id

    first = ends(days[1], advice="hold", reasons=("slower", "twice"))
    (hold,) = store.canaries.holds()
    assert ("nightly", "n", "Test CPU", "slower; twice", first) == (
        hold.canary, hold.node, hold.variant, hold.reason, hold.fire_id
    )  # fmt: skip
    second = ends(days[2], advice="roll back", reasons=("wrong",))
    assert [("wrong", second, hold.since)] == [
        (item.reason, item.fire_id, item.since) for item in store.canaries.holds()
    ]
    ends(days[3], node="m")
    ends(days[3] + timedelta(hours=1), variant="Another")
    ends(days[3], canary="weekly")
    ends(days[0])
    assert 1 == len(store.canaries.holds("nightly"))
    passed = ends(days[4])
    assert [] == store.canaries.holds()
    (ended,) = store.canaries.holds(released=True)
    assert passed == ended.released_by
    ends(days[4] - timedelta(hours=1), advice="hold")
    assert [] == store.canaries.holds(), "a result that comes late says nothing against a later pass"
    ends(days[5], advice="hold", variant="", state="refused", verdict=None, run_id=None)
    assert 1 == len(store.canaries.holds())
    ends(days[5] + timedelta(hours=1))
    assert [] == store.canaries.holds(), "before the device was known any pass of the node counts"


def test_result_and_alerts_are_one_transaction(store: Store) -> None:
    """Alerts are there with the result; an alert that cannot be filed leaves the fire running."""
    lease = lead(store)
    store.canaries.file(lease, [due()])
    fire = store.canaries.take(lease, "node")
    with pytest.raises(Exception, match="contradicts"):
        store.canaries.finish(lease, fire.id, result(), [letter(), letter()])
    assert "running" == store.canaries.fire(fire.id).state
    store.canaries.finish(lease, fire.id, result(), [letter(), letter("chat", score=1.5)])
    found = {alert.target: alert for alert in store.canaries.alerts("pending")}
    assert {"title": "<b>kernel</b>", "score": 1.5} == found["chat"].body
    assert {"oncall", "chat"} == set(found)
    assert 2 == len({alert.id for alert in found.values()})


def test_alerts_are_claimed_settled_and_given_up(store: Store) -> None:
    """A claimed alert is nobody else's for a while, comes back when its sender died, and ends as sent or dead."""
    lease = lead(store)
    store.canaries.file(lease, [due()])
    fire = store.canaries.take(lease, "node")
    store.canaries.finish(lease, fire.id, result(), [letter("one"), letter("two")])
    (first,) = store.canaries.claim_alerts(1, SHORT_S)
    (second,) = store.canaries.claim_alerts(5, 60)
    assert {"one", "two"} == {first.target, second.target}
    assert [] == store.canaries.claim_alerts(5, 60)
    time.sleep(SHORT_S * 1.5)
    (again,) = store.canaries.claim_alerts(5, 60)
    assert (first.id, 2) == (again.id, again.attempts)
    store.canaries.settle_alert(again.id, "pending", "HTTP 503", 60)
    store.canaries.settle_alert(second.id, "sent")
    assert [] == store.canaries.claim_alerts(5, 60)
    assert {"pending": 1, "sent": 1, "dead": 0} == store.canaries.alert_counts()
    store.canaries.settle_alert(again.id, "dead", "HTTP 410")
    (dead,) = store.canaries.alerts("dead")
    assert (first.id, "HTTP 410") == (dead.id, dead.last_error)


def test_schedules_remember_since_when(store: Store) -> None:
    """Known times keep their beginning over restarts; a changed one begins again."""
    lease = lead(store)
    before = store.canaries.know_schedules(lease, {"a": "0 3 * * *", "b": ""})
    time.sleep(0.01)
    after = store.canaries.know_schedules(lease, {"a": "0 3 * * *", "b": "0 4 * * *"})
    assert before["a"] == after["a"]
    assert after["b"].since > before["b"].since
    assert abs((after["b"].since - datetime.now(UTC)).total_seconds()) < 60


def test_watched_stacks_come_back(store: Store) -> None:
    """What a canary saw on a node is replaced, together with the fire that follows from it."""
    lease = lead(store)
    seen = Watched(
        canary="c",
        node="n",
        stack=store_examples.stack(),
        seen_at=THREE,
        changing_to="",
        changing_since=None,
    )
    assert [] == store.canaries.watch(lease, [seen], [])
    changed = Watched(
        canary="c",
        node="n",
        stack=store_examples.stack("GPU-2", driver="590.1"),
        seen_at=THREE,
        changing_to="f" * 64,
        changing_since=THREE,
    )
    assert 1 == len(store.canaries.watch(lease, [changed], [due("c", trigger="stack", node="n")]))
    assert [changed] == store.canaries.watched("n")
    assert [] == store.canaries.watched("m")
