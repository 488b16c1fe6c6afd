"""The state of the canary service, on both databases."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import canary_examples as examples
import pytest
import store_examples
from canary_examples import THREE, due, lead, letter, own, result, says

from qualify.errors import LeaseLost
from qualify.facts.canary import Fire, Hold, Lease, Letter, Served, Watched
from qualify.store import Store, canaries, fires, leases, outbox, rollouts
from qualify.store.clock import now_of


def test_only_one_leads(store: Store) -> None:
    """A second holder gets nothing until the lease ran out; then the epoch is one higher."""
    first = lead(store, "a")
    assert (1, None) == (first.epoch, store.canaries.acquire("canary", "b", 60))
    store.canaries.renew(first, 0.0)
    second = store.canaries.acquire("canary", "b", 60)
    assert second is not None
    assert ("b", 2) == (second.holder, second.epoch)
    assert "b" == store.canaries.lease("canary").holder


def test_only_one_of_two_takes_a_new_lease(store: Store) -> None:
    """Who comes while the first one is about to commit waits for it, and gets nothing."""
    with ThreadPoolExecutor() as pool:
        with store._database.writing() as connection:
            assert leases.acquire(connection, "canary", "a", timedelta(seconds=60), None)
            second = pool.submit(store.canaries.acquire, "canary", "b", 60)
            with pytest.raises(TimeoutError):
                second.result(timeout=0.1)
        assert second.result(timeout=20) is None
    assert ("a", 1) == (store.canaries.lease("canary").holder, store.canaries.lease("canary").epoch)


def test_only_one_of_two_takes_the_last_seat(store: Store) -> None:
    """Who comes while the first one is about to commit waits for it, and gets none."""

    def take(node: str) -> bool:
        with store._database.writing() as connection:
            return rollouts.take_seat(connection, "canary", "nightly", "stack", 1, node)

    with ThreadPoolExecutor() as pool:
        with store._database.writing() as connection:
            assert rollouts.take_seat(connection, "canary", "nightly", "stack", 1, "a")
            second = pool.submit(take, "b")
            with pytest.raises(TimeoutError):
                second.result(timeout=0.1)
        assert second.result(timeout=20) is False


def test_a_renewed_lease_does_not_run_out(store: Store) -> None:
    """Every renewal counts from the database's now, is a sign of life, and carries the leader's complaint."""
    lease = lead(store, "a", 0.0)
    until = store.canaries.renew(lease, 60, "cards/x.yaml:1:1: wrong")
    assert until > lease.expires_at
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
        lambda: store.canaries.finish(old, fire_id, result(), says(letter())),
        lambda: store.canaries.watch(old, [], [due("other")]),
    )
    for write in writes:
        with pytest.raises(LeaseLost, match="Nothing was written"):
            write()
    store.canaries.ask("other", "smoke", "by hand", "canary")
    with pytest.raises(LeaseLost, match="b took it over with epoch 2"):
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
    store.canaries.finish(lease, first.id, result(), says())
    second = store.canaries.take(lease, "node")
    assert THREE + timedelta(days=1) == second.scheduled_for
    with pytest.raises(LeaseLost):
        store.canaries.finish(lease, first.id, result(advice="hold"), says())
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
    """It belongs to the machine's own lease: a leader on another one leaves it alone; one by hand may run anywhere."""
    lease, mine = lead(store, "b"), own(store, "a")
    assert ("canary", "canary@a", "a") == (mine.service, mine.name, mine.node)
    store.canaries.file(mine, [due(trigger="stack", node="a", changes=(examples.CHANGE,))])
    asked = store.canaries.ask("nightly", "smoke", "by hand", "canary")
    assert "manual" == asked.trigger
    assert store.canaries.take(lease, "b", only=asked.id).id == asked.id
    store.canaries.finish(lease, asked.id, result(), says())
    assert store.canaries.take(lease, "b") is None
    assert (examples.CHANGE,) == store.canaries.take(mine, "a").changes


def test_two_leases_have_their_own_fires(store: Store) -> None:
    """Two services of one canary: each moment is a fire of both, and neither takes, or holds, for the other."""
    one, other = (store.canaries.acquire(name, name, 60) for name in ("h100", "h200"))
    store.canaries.file(one, [due()])
    assert store.canaries.take(other, "two") is None
    assert 1 == len(store.canaries.file(other, [due()]))
    first, second = store.canaries.take(one, "one"), store.canaries.take(other, "two")
    assert ("h100", "h200", first.scheduled_for) == (first.lease, second.lease, second.scheduled_for)
    store.canaries.finish(one, first.id, result(advice="hold"), says(letter()))
    assert ["one"] == [hold.node for hold in store.canaries.holds()]
    with pytest.raises(LeaseLost):
        store.canaries.finish(one, second.id, result(), says())
    asked = store.canaries.ask("nightly", "smoke", "by hand", "h200")
    assert store.canaries.take(one, "one", only=asked.id) is None


def test_a_service_takes_the_fires_of_its_canaries(store: Store) -> None:
    """What it does not know waits for a service that does; what nobody took for long it may end."""
    lease = lead(store)
    store.canaries.file(lease, [due("unknown"), due("known", at=THREE + timedelta(days=1))])
    served = Served(canaries=("known",), orphaned=timedelta(hours=1))
    assert "known" == store.canaries.take(lease, "n", served).canary
    assert "unknown" == store.canaries.take(lease, "n", replace(served, orphaned=timedelta(0))).canary


def test_times_are_those_of_a_lease(store: Store) -> None:
    """Two services may have another card of one name; a canary that one no longer serves is forgotten."""
    one, other = (store.canaries.acquire(name, name, 60) for name in ("h100", "h200"))
    first = store.canaries.know_schedules(one, {"nightly": "0 3 * * *", "weekly": ""})
    store.canaries.know_schedules(other, {"nightly": "0 4 * * *"})
    assert first == store.canaries.know_schedules(one, {"nightly": "0 3 * * *", "weekly": ""})
    later = store.canaries.know_schedules(one, {"nightly": "0 3 * * *"})
    assert {"nightly": first["nightly"]} == later
    assert store.canaries.know_schedules(one, {"weekly": ""})["weekly"].since > first["weekly"].since


def test_what_is_owed(store: Store) -> None:
    """The first moment of each canary whose fire has not ended: planned, pending or running; by lease."""
    lease, day = lead(store), timedelta(days=1)
    store.canaries.know_schedules(lease, {"nightly": "0 3 * * *", "stack": ""})
    assert {} == store.canaries.owed()
    store.canaries.plan(lease, {"nightly": THREE, "stack": None})
    assert {("canary", "nightly"): THREE} == store.canaries.owed()
    store.canaries.file(lease, [due()])
    store.canaries.plan(lease, {"nightly": THREE + day})
    assert {("canary", "nightly"): THREE} == store.canaries.owed()
    fire = store.canaries.take(lease, "n")
    assert {("canary", "nightly"): THREE} == store.canaries.owed()
    store.canaries.finish(lease, fire.id, result(), says())
    assert {("canary", "nightly"): THREE + day} == store.canaries.owed()
    assert THREE + day == store.canaries.know_schedules(lease, {"nightly": "0 3 * * *"})["nightly"].next_at


def test_looks_are_told_with_the_lease(store: Store) -> None:
    """A machine's own lease says when its stack was last seen; after a proper stop it does not."""
    mine = own(store, "a")
    assert mine.looked_at is not None
    store.canaries.renew(mine, 60, "no such file", looked_ago_s=100)
    found = store.canaries.lease(mine.name)
    assert "no such file" == found.trouble
    assert 100 <= (mine.looked_at - found.looked_at).total_seconds() + 1 <= 110
    again = store.canaries.acquire(mine.name, "b", 60, dead=found, node="a")
    assert found.looked_at == again.looked_at, "nobody looked in between"
    store.canaries.release(again)
    assert store.canaries.lease(mine.name).looked_at is None
    assert lead(store).looked_at is None


def test_a_fire_tells_what_it_ran_on(store: Store) -> None:
    """The result may correct the reason and the changes that were filed."""
    mine = own(store)
    store.canaries.file(mine, [due(trigger="stack", node="n", reason="old", changes=(examples.CHANGE,))])
    fire = store.canaries.take(mine, "n")
    newer = replace(examples.CHANGE, after="2.14.0")
    told: list[Fire] = []
    store.canaries.finish(mine, fire.id, result(reason="new", changes=(newer,)), lambda it, _: told.append(it) or ())
    found = store.canaries.fire(fire.id)
    assert ("new", (newer,)) == (found.reason, found.changes)
    assert [found] == told, "alerts say the same"


def test_holds_end_with_a_newer_pass(store: Store) -> None:
    """A hold stays until the same canary passes later on the same node and variant; a second one is the same hold."""
    lease = lead(store)
    days = [THREE + timedelta(days=number - 9) for number in range(6)]

    def ends(at: datetime, node: str = "n", **changes: object) -> int:
        (fire_id,) = store.canaries.file(lease, [due(at=at, canary=str(changes.pop("canary", "nightly")))])
        assert store.canaries.take(lease, node, only=fire_id) is not None
        store.canaries.finish(lease, fire_id, result(**changes), says())
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


def test_alerts_know_which_holds_a_fire_has_ended(store: Store) -> None:
    """A pass that was due before the fire that holds the node ends no hold, so nobody is told that it did."""
    lease = lead(store)
    seen: list[Hold] = []
    for minute, advice, ended in ((1, "hold", False), (0, "promote", False), (2, "promote", True)):
        (fire_id,) = store.canaries.file(lease, [due(at=THREE + timedelta(minutes=minute))])
        assert store.canaries.take(lease, "n", only=fire_id) is not None
        store.canaries.finish(lease, fire_id, result(advice=advice), lambda _, holds: seen.extend(holds) or ())
        assert ended == (seen.pop().released_at is not None)


def test_two_passes_of_one_node_do_not_cross(store: Store) -> None:
    """Who ends while the first one is about to commit waits for it, and finds what it released."""
    lease = lead(store)
    for number, advice in enumerate(("hold", "promote")):
        moments = [due(name, THREE + timedelta(days=number)) for name in ("one", "two")]
        first, second = store.canaries.file(lease, moments)
        for fire_id in (first, second):
            assert store.canaries.take(lease, "n", only=fire_id) is not None
            if advice == "hold":
                store.canaries.finish(lease, fire_id, result(advice=advice), says())
    left: dict[str, list[str]] = {}

    def tell(fire: Fire, holds: Sequence[Hold]) -> list[Letter]:
        left[fire.canary] = [it.canary for it in holds if it.released_at is None]
        return []

    with ThreadPoolExecutor() as pool:

        def tell_late(fire: Fire, holds: Sequence[Hold]) -> list[Letter]:
            late.append(pool.submit(store.canaries.finish, lease, second, result(), tell))
            with pytest.raises(TimeoutError):
                late[0].result(timeout=0.1)
            return tell(fire, holds)

        late: list[Future[None]] = []
        store.canaries.finish(lease, first, result(), tell_late)
        late[0].result(timeout=20)
    assert {"one": ["two"], "two": []} == left


def test_result_and_alerts_are_one_transaction(store: Store) -> None:
    """Alerts are there with the result; an alert that cannot be filed leaves the fire running."""
    lease = lead(store)
    store.canaries.file(lease, [due()])
    fire = store.canaries.take(lease, "node")
    with pytest.raises(Exception, match="contradicts"):
        store.canaries.finish(lease, fire.id, result(), says(letter(), letter()))
    assert "running" == store.canaries.fire(fire.id).state
    store.canaries.finish(lease, fire.id, result(), says(letter(), letter("chat", score=1.5)))
    found = {alert.target: alert for alert in store.canaries.alerts("pending")}
    assert {"title": "<b>kernel</b>", "score": 1.5} == found["chat"].body
    assert {"oncall", "chat"} == set(found)
    assert 2 == len({alert.id for alert in found.values()})


def test_alerts_are_claimed_settled_and_given_up(store: Store) -> None:
    """A claimed alert is nobody else's for a while, comes back when its sender died, and ends as sent or dead."""
    lease = lead(store)
    store.canaries.file(lease, [due()])
    fire = store.canaries.take(lease, "node")
    store.canaries.finish(lease, fire.id, result(), says(letter("one"), letter("two")))
    (first,) = store.canaries.claim_alerts(1, 60)
    (second,) = store.canaries.claim_alerts(5, 60)
    assert {"one", "two"} == {first.target, second.target}
    assert [] == store.canaries.claim_alerts(5, 60)
    store.canaries.settle_alert(first.id, "pending")
    (left,) = store.canaries.claim_alerts(5, 0.0)
    (again,) = store.canaries.claim_alerts(5, 60)
    assert (first.id, first.id, 3) == (left.id, again.id, again.attempts)
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
    lease = own(store, "n")
    seen = Watched(
        lease=lease.name,
        canary="c",
        node="n",
        stack=store_examples.stack(),
        seen_at=THREE,
        changing_to="",
        changing_since=None,
    )
    assert [] == store.canaries.watch(lease, [seen], [])
    changed = Watched(
        lease=lease.name,
        canary="c",
        node="n",
        stack=store_examples.stack("GPU-2", driver="590.1"),
        seen_at=THREE,
        changing_to="f" * 64,
        changing_since=THREE,
    )
    assert 1 == len(store.canaries.watch(lease, [changed], [due("c", trigger="stack", node="n")]))
    other = replace(seen, lease=own(store, "m").name, node="m")
    store.canaries.watch(own(store, "m"), [other], [])
    assert [changed] == store.canaries.watched(lease.name)
    assert {"m": other, "n": changed} == {item.node: item for item in store.canaries.watched()}


def test_what_a_wrong_clock_filed_does_not_wait_for_days(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fire and an alert of three days ahead are taken when the clock is right again; a wait of an hour is kept."""
    lease = lead(store)
    ahead(monkeypatch, timedelta(days=3))
    (fire_id,) = store.canaries.file(lease, [due(at=store.canaries.now())])
    assert store.canaries.take(lease, "node") is not None
    store.canaries.finish(lease, fire_id, result(advice="hold"), says(letter(kind="hold")))
    (second,) = store.canaries.file(lease, [due(at=store.canaries.now())])
    monkeypatch.undo()
    taken = store.canaries.take(lease, "node")
    assert taken is not None
    assert second == taken.id
    assert [fire_id] == [alert.fire_id for alert in store.canaries.claim_alerts(10, 60)]
    store.canaries.put_back(lease, second, "later", 3600)
    assert store.canaries.take(lease, "node") is None


def test_what_a_wrong_clock_filed_for_nobody_does_not_wait_for_days(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No service knows the canary any more: one takes its fire and its alert all the same, and ends them."""
    lease = lead(store)
    orphaned = Served(canaries=("other",), orphaned=timedelta(hours=1))
    ahead(monkeypatch, timedelta(days=3))
    (fire_id,) = store.canaries.file(lease, [due(at=store.canaries.now())])
    assert store.canaries.take(lease, "node") is not None
    store.canaries.finish(lease, fire_id, result(advice="hold"), says(letter(kind="hold")))
    (second,) = store.canaries.file(lease, [due(at=store.canaries.now())])
    assert store.canaries.take(lease, "node", orphaned) is None
    assert [] == store.canaries.claim_alerts(10, 60, orphaned)
    monkeypatch.undo()
    taken = store.canaries.take(lease, "node", orphaned)
    assert taken is not None
    assert second == taken.id
    assert [fire_id] == [alert.fire_id for alert in store.canaries.claim_alerts(10, 60, orphaned)]


def test_a_pass_from_the_future_hides_no_failure(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What passed under a wrong clock keeps no later hold away; a hold from the future is released by a pass."""
    lease = lead(store)
    for advice in ("promote", "hold"):
        ahead(monkeypatch, timedelta(days=3))
        fire(store, lease, advice)
        monkeypatch.undo()
        now = "hold" if advice == "promote" else "promote"
        fire(store, lease, now)
        assert (1 if now == "hold" else 0) == len(store.canaries.holds())


def ahead(monkeypatch: pytest.MonkeyPatch, by: timedelta) -> None:
    """The database's clock is wrong by so much."""
    for module in (canaries, fires, outbox):
        monkeypatch.setattr(module, "now_of", lambda connection: now_of(connection) + by)


def fire(store: Store, lease: Lease, advice: str) -> None:
    """A fire that ends with that advice."""
    (fire_id,) = store.canaries.file(lease, [due(at=store.canaries.now())])
    assert store.canaries.take(lease, "node", only=fire_id) is not None
    store.canaries.finish(lease, fire_id, result(advice=advice), says())
