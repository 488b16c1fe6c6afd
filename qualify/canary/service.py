"""One replica of the canary service: it follows, or leads, fires and files.

Every turn of the loop begins with the leases. There are two: the leader's, for times and fires by hand, and the
machine's own, for changes of its stack. What a turn could not write, because the database is away, the next one
writes; what a leader did not finish, the next leader finds in the tables.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event

from apscheduler.schedulers.background import BackgroundScheduler

from qualify.canary.advice import advise
from qualify.canary.alerts.formats import body_of
from qualify.canary.alerts.postman import Postman
from qualify.canary.blame import blamed
from qualify.canary.conditions import examine
from qualify.canary.deck import Deck
from qualify.canary.firing import Ended, Firing
from qualify.canary.keeper import Keeper
from qualify.canary.messages import Order
from qualify.canary.slots import Slots, trigger
from qualify.canary.upgrades import Upgrades
from qualify.canary.watch import Watcher
from qualify.cards.canary import seconds
from qualify.cards.load import LoadedCanary
from qualify.errors import INFRASTRUCTURE, LeaseLost, StoreError
from qualify.facts.canary import Due, Fire, FireResult, Lease, Letter, Served, own_lease
from qualify.facts.typed import Typed
from qualify.store.database import passwordless
from qualify.store.store import Store

BEAT_S = 2.0
"""longest time between two turns"""
WATCH_S = 0.5
"""the same while a fire runs"""
ATTEMPTS = 5
"""of one fire, before it is filed as failed"""
ORPHANED = timedelta(hours=1)
"""after which a fire of a canary that this service does not know is filed as failed: it shall not wait for ever"""
AGAIN_S = 10.0
"""before the next attempt, times the attempts before this one: the first is at once"""
STOP_S = 20.0
"""for which an attempt to deliver an alert is waited for at the end"""
JUMP_S = 1.0
"""by which the machine's clock may drift against its monotonic one in a turn, before the scheduler is told"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How a replica works."""

    db: str
    """address of the store, for the children"""
    node: str
    """name of this machine in holds and history"""
    lease: str = "canary"
    """replicas of one lease share its canaries"""
    lease_s: float = 15.0
    """how long a leader may be silent"""
    poll_s: float = 60.0
    """between two looks at the stack"""
    out: Path = Path("out")
    """folder of reports"""
    only: int | None = None
    """run this fire and nothing else"""


class Service:
    """The loop. Use :meth:`run` in the main thread; :meth:`stop` from a signal handler."""

    def __init__(self, store: Store, keeping: Store, deck: Deck, options: Options, say: Callable[[str], None]) -> None:
        self._store = store
        self._canaries = store.canaries
        self._deck = deck
        self._options = options
        self._say = say
        self._woken = Event()
        self._stopping = Event()
        holder = f"{options.node}/{os.getpid()}/{secrets.token_hex(4)}"
        self._watcher = Watcher(options.poll_s, self._woken.set, say)
        self._leader = Keeper(keeping, options.lease, holder, options.lease_s, self._woken.set)
        self._own = Keeper(
            keeping,
            own_lease(options.lease, options.node),
            holder,
            options.lease_s,
            self._woken.set,
            node=options.node,
            looked_ago_s=self._watcher.looked_ago_s,
        )
        self._upgrades = Upgrades(store, deck, options.node, self._watcher, say)
        self._postman = Postman(store.canaries, lambda: deck.cards, say)
        self._scheduler = BackgroundScheduler(
            timezone="UTC", job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1}
        )
        self._slots = Slots()
        self._epoch = 0
        self._planned: dict[str, datetime | None] = {}
        self._under: Lease | None = None
        self._firing: Firing | None = None
        self._ended: Ended | None = None
        self._filed_run: str | None = None
        self._complaint = ""
        self._clocks = time.time() - time.monotonic()
        logging.getLogger("apscheduler").setLevel(logging.CRITICAL)  # it only wakes the loop, which looks by itself

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Until it is stopped, or the condition holds after a turn."""
        options = self._options
        if options.only is None:
            self._plan_wakes()
            self._scheduler.start()
            self._watcher.start()
            self._own.start()
        self._leader.start()
        self._postman.start()
        try:
            while not self._stopping.is_set() and not until():
                self._woken.wait(WATCH_S if self._firing or options.only is not None else BEAT_S)
                self._woken.clear()
                self._safe_turn()
        finally:
            self._close()

    def stop(self) -> None:
        """Ends the loop after this turn."""
        self._stopping.set()
        self._woken.set()

    def _safe_turn(self) -> None:
        """A turn; what the database refuses is said once, and tried again in the next turn."""
        try:
            self._turn()
            self._complain(self._leader.error or self._own.error)
        except LeaseLost as error:
            self._complain(error)
            self._drop()
        except StoreError as error:
            self._complain(error)

    def _complain(self, error: StoreError | None) -> None:
        """Say what happened once, however often it is met, and when it is over."""
        happened = error.happened if error else ""
        if happened != self._complaint:
            self._say(str(error) if error else "the database answers again")
            self._complaint = happened

    def _turn(self) -> None:
        """First of all ends a fire whose lease is over: somebody else may have begun it again."""
        lease, own = self._leader.lease, self._own.lease
        if self._under is not None and not any(_same(self._under, held) for held in (lease, own)):
            self._drop()
        self._notice_jump()
        changed = self._options.only is None and self._reload()
        if own is not None:
            self._upgrades.compare(own)
        if lease is not None:
            self._lead(lease, changed=changed)
        else:
            self._epoch = 0
        self._go_on([held for held in (own, lease) if held is not None])

    def _lead(self, lease: Lease, *, changed: bool) -> None:
        """File what is due; what earlier leaders knew is in the tables."""
        begins = lease.epoch != self._epoch
        if self._options.only is None:
            if begins or changed:
                known = self._canaries.know_schedules(lease, self._deck.crons)
                self._planned = {name: item.next_at for name, item in known.items()}
                self._slots.set(known.values())
            if begins:
                self._say(f"{lease.holder} leads with epoch {lease.epoch}: {len(self._deck.cards)} canaries")
            self._file_due(lease)
        self._epoch = lease.epoch

    def _reload(self) -> bool:
        """Read changed cards; say what is wrong, also in the lease, where `qualify canary list` finds it."""
        changed = self._deck.refresh()
        if changed:
            self._say(self._deck.trouble or f"cards were read again: {len(self._deck.cards)} canaries")
            self._plan_wakes()
        self._leader.trouble = self._deck.trouble
        self._own.trouble = self._watcher.trouble
        return changed

    def _plan_wakes(self) -> None:
        """Have the loop woken at every moment of every canary."""
        self._scheduler.remove_all_jobs()
        for cron in dict.fromkeys(cron for cron in self._deck.crons.values() if cron):
            self._scheduler.add_job(self._woken.set, trigger(cron))

    def _notice_jump(self) -> None:
        """The scheduler sleeps by the machine's clock; where that jumped, it must look again."""
        clocks = time.time() - time.monotonic()
        if abs(clocks - self._clocks) > JUMP_S and self._scheduler.running:
            self._scheduler.wakeup()
        self._clocks = clocks

    def _file_due(self, lease: Lease) -> None:
        moments = self._slots.due(self._canaries.now())
        if moments:
            self._file(lease, moments)
        following = {name: at for name, at in self._slots.following.items() if at != self._planned.get(name)}
        if following:
            self._canaries.plan(lease, following)
            self._planned |= following

    def _file(self, lease: Lease, moments: Mapping[str, datetime]) -> None:
        due = [
            Due(
                canary=name,
                scheduled_for=moment,
                trigger="cron",
                reason=f"cron {self._deck.crons[name]}",
                matrix=self._deck.cards[name].card.matrix,
            )
            for name, moment in moments.items()
        ]
        filed = self._canaries.file(lease, due)
        self._slots.done(moments)
        if filed:
            self._say(f"{len(filed)} due: {', '.join(list(moments)[:6])}{', …' if len(moments) > 6 else ''}")

    def _go_on(self, held: Iterable[Lease]) -> None:
        """Start what is owed, look after what runs, file what ended."""
        lease = self._under
        if self._firing is None or lease is None:
            for owing in held:
                if self._start(owing):
                    return
            return
        if self._firing.run_id and self._filed_run != self._firing.run_id:
            self._canaries.set_run(lease, self._firing.fire.id, self._firing.run_id)
            self._filed_run = self._firing.run_id
        self._ended = self._ended or self._firing.poll()
        if self._ended is not None:
            self._file_end(lease, self._firing, self._ended)
            self._forget()
            self._woken.set()

    def _start(self, lease: Lease) -> bool:
        """Whether the lease owed a fire, which runs now or has ended without a run."""
        served = Served(canaries=tuple(self._deck.cards), orphaned=ORPHANED)
        fire = self._canaries.take(lease, self._options.node, served, self._options.only)
        if fire is None:
            return False
        loaded = self._deck.cards.get(fire.canary)
        if loaded is None:
            reason = f"no canary is called {fire.canary} any more"
            self._finish(lease, fire, None, _without_run(fire, "failed", reason))
            return True
        found = examine(loaded.card.device)
        if found.refuse:
            self._finish(lease, fire, loaded, _without_run(fire, "refused", *found.refuse))
            return True
        again = f", attempt {fire.attempts}" if fire.attempts > 1 else ""
        self._say(f"{fire.canary} fires ({fire.reason}{again})")
        order = self._order(loaded, fire, lease)
        timeout_s = seconds(loaded.card.timeout)
        self._under = lease
        self._firing = Firing(fire, order, self._environment(), timeout_s, found.numerics_only, self._woken.set)
        return True

    def _environment(self) -> dict[str, str]:
        """A fire's: without the secrets of alerts, because what a kernel prints is stored."""
        targets = [alert for loaded in self._deck.cards.values() for alert in loaded.card.alerts]
        withheld = {name for alert in targets for name in (alert.url_env, alert.secret_env)}
        kept = {name: value for name, value in os.environ.items() if name not in withheld}
        return {**kept, "QUALIFY_DB": self._options.db}

    def _order(self, loaded: LoadedCanary, fire: Fire, lease: Lease) -> Order:
        card = loaded.card
        return Order(
            matrix=loaded.matrix,
            cards=tuple(str(path) for path in self._deck.extra),
            select=card.select,
            kernel=card.kernel,
            level=card.level,
            device=card.device,
            resume=fire.run_id,
            out=str(self._options.out),
            slower=card.slower,
            lease=lease.name,
            epoch=lease.epoch,
            lease_s=self._options.lease_s,
        )

    def _file_end(self, lease: Lease, firing: Firing, ended: Ended) -> None:
        """A result, another attempt, or the end without one."""
        fire, loaded = firing.fire, self._deck.cards.get(firing.fire.canary)
        if ended.seen is not None:
            doubts, xids = firing.observed
            fire = blamed(fire, ended.seen, self._store)
            typed = Typed(cards=tuple(map(str, self._deck.extra)), db=passwordless(self._options.db))
            counsel = advise(ended.seen, numerics_only=doubts, xids=xids, typed=typed)
            result = FireResult(
                state="completed",
                matrix=ended.seen.matrix,
                run_id=ended.seen.run_id,
                variant=ended.seen.variant,
                verdict=counsel.verdict,
                advice=counsel.advice,
                reasons=counsel.reasons,
                numerics_only=doubts,
                reason=fire.reason,
                changes=fire.changes,
            )
            self._finish(lease, fire, loaded, result)
        elif ended.final or fire.attempts >= ATTEMPTS:
            times = f" (attempt {fire.attempts})" if fire.attempts > 1 else ""
            result = _without_run(fire, "failed", f"{ended.why}{times}", run_id=firing.run_id)
            self._finish(lease, fire, loaded, result)
        else:
            after_s = AGAIN_S * (fire.attempts - 1) if ended.exit_code == INFRASTRUCTURE else 0.0
            self._canaries.put_back(lease, fire.id, ended.why, after_s)
            self._say(f"{fire.canary}: {ended.why}; it will be tried again")

    def _finish(self, lease: Lease, fire: Fire, loaded: LoadedCanary | None, result: FireResult) -> None:
        alerts = loaded.card.alerts if loaded else ()
        letters = [
            Letter(target=alert.target, kind=result.kind, body=body_of(fire, result, self._options.node))
            for alert in alerts
            if result.kind in alert.events
        ]
        self._canaries.finish(lease, fire.id, result, letters)
        self._say(f"{fire.canary}: {result.kind}: {'; '.join(result.reasons)}")

    def _drop(self) -> None:
        """Another replica may have taken over, or will: stop what this one runs, and forget it."""
        if self._firing is not None:
            self._firing.kill()
        self._forget()

    def _forget(self) -> None:
        self._under = self._firing = self._ended = self._filed_run = None

    def _close(self) -> None:
        """Stop what runs with what was measured stored, put its fire back for whoever is next, give the leases back."""
        firing, lease = self._firing, self._under
        if firing is not None and lease is not None:
            firing.stop()
            try:
                if any(_same(lease, keeper.lease) for keeper in (self._leader, self._own)):
                    if firing.run_id:
                        self._canaries.set_run(lease, firing.fire.id, firing.run_id)
                    self._canaries.put_back(lease, firing.fire.id, "the service was stopped", 0.0)
            except StoreError as error:  # the next leader finds it unfinished
                self._complain(error)
        self._watcher.stop()
        self._postman.stop()
        for keeper in (self._leader, self._own):
            keeper.stop()
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)
        for keeper in (self._leader, self._own):
            if keeper.is_alive():
                keeper.join(self._options.lease_s)
        self._postman.join(STOP_S)


def _same(one: Lease, other: Lease | None) -> bool:
    """The same lease in the same epoch."""
    return other is not None and (one.name, one.epoch) == (other.name, other.epoch)


def _without_run(fire: Fire, state: str, *reasons: str, run_id: str | None = None) -> FireResult:
    """A fire that ended without evidence: nothing is known, so hold."""
    return FireResult(
        state="refused" if state == "refused" else "failed",
        matrix=fire.matrix,
        run_id=run_id or fire.run_id,
        variant="",
        verdict=None,
        advice="hold",
        reasons=reasons,
        numerics_only=(),
    )
