"""What the leader files when a canary is due by its cron, and what wakes the loop at that moment."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from logging import Logger

from apscheduler.schedulers.background import BackgroundScheduler

from qualify.canary.deck import Deck
from qualify.canary.nodes import chosen, serving
from qualify.canary.slots import Slots, trigger
from qualify.facts.canary import Due, Lease
from qualify.store.canaries import Canaries

NAMED = 6
"""canaries that a line of the log names"""
JUMP_S = 1.0
"""seconds by which the wall clock may drift from the monotonic one in a turn, before the scheduler is woken"""


class Timetable:
    """The times of all canaries. The tables say what has been filed; the scheduler only wakes the loop."""

    def __init__(self, canaries: Canaries, deck: Deck, wake: Callable[[], None], log: Logger) -> None:
        self._canaries = canaries
        self._deck = deck
        self._wake = wake
        self._log = log
        self._scheduler = BackgroundScheduler(
            timezone="UTC", job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1}
        )
        self._slots = Slots()
        self._planned: dict[str, datetime | None] = {}
        self._learnt: Mapping[str, str] = {}
        self._unserved: dict[str, datetime] = {}
        """by canary, the moment for which the log already says that no machine serves the canary"""
        self._clocks = time.time() - time.monotonic()
        logging.getLogger("apscheduler").setLevel(logging.CRITICAL)  # the loop looks by itself, also where it fails

    def start(self) -> None:
        """Wake the loop from now on."""
        self.plan_wakes()
        self._scheduler.start()

    def stop(self) -> None:
        """Wake the loop no more."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)

    def plan_wakes(self) -> None:
        """Have the loop woken at every moment of every canary."""
        self._scheduler.remove_all_jobs()
        for cron in dict.fromkeys(cron for cron in self._deck.crons.values() if cron):
            self._scheduler.add_job(self._wake, trigger(cron))

    def notice_jump(self) -> None:
        """The scheduler sleeps by the machine's clock; where that jumped, it must look again."""
        clocks = time.time() - time.monotonic()
        if abs(clocks - self._clocks) > JUMP_S and self._scheduler.running:
            self._scheduler.wakeup()
        self._clocks = clocks

    @property
    def outdated(self) -> bool:
        """Whether a card has other times than those that were learnt last, also where learning them failed."""
        return self._learnt != self._deck.crons

    def learn(self, lease: Lease) -> None:
        """Tell the tables the times of the cards, and take from them what earlier leaders knew."""
        crons = self._deck.crons
        known = self._canaries.know_schedules(lease, crons)
        self._planned = {name: item.next_at for name, item in known.items()}
        self._slots.set(known.values())
        self._learnt = crons

    def file_due(self, lease: Lease) -> None:
        """File the fires whose moment has come, and say when the next ones are due."""
        moments = self._slots.due(self._canaries.now())
        if moments:
            self._file(lease, moments)
        following = {name: at for name, at in self._slots.following.items() if at != self._planned.get(name)}
        if following:
            self._canaries.plan(lease, following)
            self._planned |= following

    def _file(self, lease: Lease, moments: Mapping[str, datetime]) -> None:
        """File the fires of these moments. Where no machine serves a canary yet, its moment stays due.

        Nothing is filed for a moment that was filed before, by an earlier leader or from an earlier version of the
        card: by now other nodes may serve the canary, and they must not fire for it again.
        """
        before = self._canaries.have_fired(lease.name, moments)
        found = {name: [] if name in before else self._due(lease, name, at) for name, at in moments.items()}
        done = {name: moments[name] for name, due in found.items() if due is not None}
        filed = self._canaries.file(lease, [each for due in found.values() for each in due or ()])
        self._slots.done(done)
        if filed:
            more = ", …" if len(done) > NAMED else ""
            self._log.info("%d due: %s%s", len(filed), ", ".join(list(done)[:NAMED]), more)

    def _due(self, lease: Lease, name: str, moment: datetime) -> list[Due] | None:
        """The fires of a canary at a moment: one for the leader, or one for each node that the card chooses.

        None where no node serves the canary yet.
        """
        card, now = self._deck.cards[name].card, self._canaries.now()
        due = Due(canary=name, scheduled_for=moment, trigger="cron", reason=f"cron {card.cron}", matrix=card.matrix)
        if card.on is None:
            return [due]
        nodes = chosen(card, serving(self._canaries.nodes(lease.name), name, now), moment)
        if not nodes:
            if self._unserved.get(name) != moment:
                self._unserved[name] = moment
                told = "%s is due, and no node serves it: it fires when one does"
                self._log.warning(told, name, extra={"canary": name})
            return None
        key = f"cron {moment:%Y-%m-%dT%H:%M:%SZ}" if card.rollout else ""
        return [replace(due, node=node.node, lease=node.lease, rollout=key) for node in nodes]
