"""Takes alerts from the outbox and tells their targets, until each is sent or visibly given up.

An attempt that ends with the process is repeated when its claim runs out. So an alert is sent at least once. It keeps
its id, so that a receiver can drop repeats.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from logging import ERROR, WARNING, Logger
from pathlib import Path
from threading import Event, Thread
from traceback import extract_tb

from qualify.canary.alerts.delivery import DEADLINE_S, tell
from qualify.canary.alerts.program import run
from qualify.canary.alerts.undelivered import Undelivered
from qualify.cards.load import LoadedCanary
from qualify.errors import StoreError
from qualify.facts.canary import Alert, AlertState, Served
from qualify.store.canaries import Canaries

BATCH = 20
"""alerts that are told at the same time"""
THREADS = 2 * BATCH
"""threads for them: an attempt that ran out of time may leave one blocked in the resolver, and filing needs another"""
CLAIM_S = 60.0
"""seconds for which no other replica may deliver a claimed alert; longer than an attempt and its two transactions"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """How often the outbox is looked at, how long an attempt may take, and when the next one follows."""

    every_s: float = 2.0
    """seconds between two looks into the outbox"""
    deadline_s: float = DEADLINE_S
    first_s: float = 5.0
    """seconds before the second attempt; they double with each further attempt"""
    longest_s: float = 3600.0
    attempts: int = 20
    """attempts after which an alert is given up: about ten hours"""

    orphaned_s: float = 3600.0
    """seconds after which services that do not know an alert's canary take the alert, too, and at last give it up"""

    def pause_s(self, attempts: int, after_s: float = 0.0) -> float:
        """Time to the next attempt: exponential, with jitter so that many do not come back at once."""
        doubled = self.first_s * 2.0 ** min(attempts - 1, 30)
        pause = min(self.longest_s, doubled) * random.uniform(0.5, 1.0)
        return max(pause, min(after_s, self.longest_s))


class Threads(ThreadPoolExecutor):
    """Threads of one round, whose end waits for none of them: a name server may keep one for a minute."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Without the wait that asyncio asks for."""
        super().shutdown(wait=False, cancel_futures=cancel_futures)


class Postman(Thread):
    """Delivers in a thread of its own. Several replicas may: each alert is claimed by one at a time."""

    def __init__(
        self,
        canaries: Canaries,
        cards: Callable[[], Mapping[str, LoadedCanary]],
        log: Logger,
        pace: Pace | None = None,
        programs: Collection[str] = (),
    ) -> None:
        """``programs``: paths of the programs that cards may run."""
        super().__init__(name="postman", daemon=True)
        self._canaries = canaries
        self._cards = cards
        self._log = log
        self._pace = pace or Pace()
        self._programs = programs
        self._stopped = Event()
        self._complaint = ""

    def run(self) -> None:
        """Deliver until :meth:`stop`, then once more: a fire by hand files its alert just before its process ends."""
        while not self._stopped.is_set():
            if self._safe_round() < BATCH:
                self._stopped.wait(self._pace.every_s)
        self._safe_round()

    def stop(self) -> None:
        """A last round, and the end; what was not delivered by then waits for the next service."""
        self._stopped.set()

    def _safe_round(self) -> int:
        """A round; an error of the database, or of a machine without a free file, is logged once."""
        try:
            told = self.deliver()
            self._complaint = ""
        except (StoreError, OSError) as error:
            told = 0
            happened = error.happened if isinstance(error, StoreError) else str(error)
            if happened != self._complaint:
                self._complaint = happened
                self._log.error("alerts wait: %s", error)
        return told

    def deliver(self) -> int:
        """One round: tell what is due; returns how many were tried."""
        if not self._canaries.alert_counts()["pending"]:
            return 0
        cards = self._cards()
        served = Served(canaries=tuple(cards), orphaned=timedelta(seconds=self._pace.orphaned_s))
        alerts = self._canaries.claim_alerts(BATCH, CLAIM_S, served, turns_of(cards))
        if alerts:
            asyncio.run(self._tell_all(alerts))
        return len(alerts)

    async def _tell_all(self, alerts: list[Alert]) -> None:
        """Tell all targets at the same time, so that a slow one does not hold up the others; each is filed as it ends.

        Programs, resolvers and the database each block a thread. Python's own number of threads depends on the cores,
        and may be too small.
        """
        asyncio.get_running_loop().set_default_executor(Threads(THREADS, "alerts"))
        ended = await asyncio.gather(*(self._tell(alert) for alert in alerts), return_exceptions=True)
        for error in ended:
            if error is not None:  # the database went away: what was not filed is told again
                raise error

    async def _tell(self, alert: Alert) -> None:
        name = f"alert {alert.id} of {alert.canary} for {alert.target}"
        about = {"canary": alert.canary, "fire": alert.fire_id}
        try:
            await self._try_safely(alert)
        except Undelivered as error:
            dead = error.final or alert.attempts >= self._pace.attempts
            state: AlertState = "dead" if dead else "pending"
            after_s = 0.0 if dead else self._pace.pause_s(alert.attempts, error.after_s)
            end = f"given up after {alert.attempts} attempts" if dead else f"again in {after_s:.0f} s"
            self._log.log(ERROR if dead else WARNING, "%s: %s; %s", name, error, end, extra=about)
            await asyncio.to_thread(self._canaries.settle_alert, alert.id, state, str(error), after_s)
        else:
            self._log.info("%s: sent", name, extra=about)
            await asyncio.to_thread(self._canaries.settle_alert, alert.id, "sent")

    async def _try_safely(self, alert: Alert) -> None:
        """One attempt. An error that nobody expected costs this alert an attempt, and holds up no other one."""
        try:
            await self._try(alert)
        except Undelivered:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a library raises: one alert must not stop the others
            place = extract_tb(error.__traceback__)[-1]  # the error's own words may hold an address with its secret
            where = f"{type(error).__name__} in {Path(place.filename).name}, line {place.lineno}"
            raise Undelivered(f"{where}: this is probably a mistake of qualify") from None

    async def _try(self, alert: Alert) -> None:
        loaded = self._cards().get(alert.canary)
        if loaded is None:
            raise Undelivered(f"this service has no canary {alert.canary}")
        target = next((item for item in loaded.card.alerts if item.target == alert.target), None)
        if target is None:
            raise Undelivered(f"canary {alert.canary} has no target {alert.target} any more")
        if target.kind == "command":
            await run(alert, target, self._programs)
            return
        await tell(alert, target, loaded.path.parent, deadline_s=self._pace.deadline_s)


def turns_of(cards: Mapping[str, LoadedCanary]) -> dict[tuple[str, str], str]:
    """The targets that keep a state: by canary and target, the group whose alerts go out one after another.

    Otherwise a program that cordons a node might be tried again after another one has uncordoned it. A good node would
    stay cordoned.
    """
    words = {"command": "command", "alertmanager": ""}
    return {
        (name, alert.target): words[alert.kind] or alert.target
        for name, loaded in cards.items()
        for alert in loaded.card.alerts
        if alert.kind in words
    }
