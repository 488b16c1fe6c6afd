"""One replica of the canary service: it follows, or leads, fires and files.

Every turn of the loop begins with the leases. There are two: the leader's, for times and fires by hand, and the
machine's own, for changes of its stack. What a turn could not write, because the database is away, the next one
writes; what a leader did not finish, the next leader finds in the tables.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from logging import ERROR, INFO, Logger
from queue import Empty, SimpleQueue
from threading import Thread

from qualify.canary.alerts.postman import Postman
from qualify.canary.deck import Deck
from qualify.canary.keeper import Keeper
from qualify.canary.nodes import Registry, leader_lacks
from qualify.canary.options import Options
from qualify.canary.rollouts import Rollouts
from qualify.canary.runner import Runner
from qualify.canary.scope import Scopes
from qualify.canary.timetable import NAMED, Timetable
from qualify.canary.upgrades import Upgrades
from qualify.canary.watch import Watcher
from qualify.errors import InfrastructureError, LeaseLost, StoreError
from qualify.facts.canary import Lease, own_lease
from qualify.store.store import Store

BEAT_S = 2.0
"""longest time between two turns"""
WATCH_S = 0.5
"""the same while a fire runs"""
COMPARE_S = 30.0
"""seconds between two looks of a follower at what the leader serves"""
STOP_S = 20.0
"""seconds for which the end of the service waits for an attempt to deliver an alert"""


class Service:
    """The loop. Use :meth:`run` in the main thread; :meth:`stop` from a signal handler."""

    def __init__(self, store: Store, keeping: Store, deck: Deck, options: Options, log: Logger) -> None:
        """Nothing starts yet.

        Args:
            keeping: another connection to the same store, for the leases alone.
        """
        self._deck = deck
        self._options = options
        self._log = log
        self._wakes: SimpleQueue[None] = SimpleQueue()
        self._stopping = False
        holder = f"{options.node}/{os.getpid()}/{secrets.token_hex(4)}"
        scopes = Scopes(deck)
        self._watcher = Watcher(options.poll_s, scopes.look, self._wake, log)
        self._leader = Keeper(keeping, options.lease, holder, options.lease_s, self._wake, lambda: deck.trouble)
        self._own = Keeper(
            keeping,
            own_lease(options.lease, options.node),
            holder,
            options.lease_s,
            self._wake,
            lambda: self._watcher.trouble,
            node=options.node,
            looked_ago_s=self._watcher.looked_ago_s,
        )
        self._upgrades = Upgrades(store, deck, options.node, self._watcher, scopes, log)
        self._registry = Registry(store.canaries, deck, self._watcher)
        self._runner = Runner(store, deck, options, self._wake, log)
        self._rollouts = Rollouts(store.canaries, deck, self._runner.letters, log)
        self._postman = Postman(store.canaries, lambda: deck.cards, log, programs=options.programs)
        self._timetable = Timetable(store.canaries, deck, self._wake, log)
        self._store = store
        self._epoch = self._following = 0
        self._compare_at = 0.0
        """when to look again which canaries the leader does not serve (monotonic, s)"""
        self._lacks: tuple[str, tuple[str, ...]] | None = None
        self._complaint = ""
        self._threads: list[Thread] = []
        """those that were started"""

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Until it is stopped, or the condition holds after a turn.

        Raises:
            InfrastructureError: a thread broke. Otherwise nobody would notice that it no longer looks at stacks, renews
                leases or sends alerts.
        """
        options = self._options
        alone = options.only is not None
        self._threads = [*([] if alone else [self._watcher, self._own]), self._leader, self._postman]
        if not alone:
            self._timetable.start()
        for thread in self._threads:
            thread.start()
        try:
            while not self._stopping and not until():
                self._rest(WATCH_S if self._runner.busy or options.only is not None else BEAT_S)
                self._safe_turn()
                self._check_threads()
        finally:
            self._close()

    def stop(self) -> None:
        """Ends the loop after this turn."""
        self._stopping = True
        self._wake()

    def _wake(self) -> None:
        """Have the next turn begin now. A signal handler may: what it interrupts holds no lock of this queue."""
        self._wakes.put(None)

    def _rest(self, longest_s: float) -> None:
        """Wait until somebody wakes the loop, and forget everybody who did."""
        with suppress(Empty):
            self._wakes.get(timeout=longest_s)
            while True:
                self._wakes.get_nowait()

    def _safe_turn(self) -> None:
        """A turn; an error of the database is logged once, and the next turn tries again."""
        try:
            self._turn()
            self._complain(self._leader.error or self._own.error)
        except LeaseLost as error:
            self._complain(error)
            self._runner.drop()
        except StoreError as error:
            self._complain(error)

    def _check_threads(self) -> None:
        """Each of them lives until the service ends."""
        ended = [thread.name for thread in self._threads if not thread.is_alive()]
        if ended:
            raise InfrastructureError(
                f"a part of the service broke ({', '.join(ended)}), as the log says: start the service again. This is "
                "probably a mistake of qualify"
            )

    def _complain(self, error: StoreError | None) -> None:
        """Log an error once, however often it comes, and log when it is over."""
        happened = error.happened if error else ""
        if happened != self._complaint:
            self._log.log(ERROR if error else INFO, "%s", error or "the database answers again")
            self._complaint = happened

    def _turn(self) -> None:
        """First of all ends a fire whose lease is over: somebody else may have begun it again."""
        lease, own = self._leader.lease, self._own.lease
        self._runner.check((lease, own))
        self._timetable.notice_jump()
        if self._options.only is None:
            self._reload()
        if own is not None:
            self._registry.tell(own)
            self._upgrades.compare(own)
        if lease is not None:
            self._lead(lease)
        else:
            self._epoch = 0
            self._follow(self._leader.followed)
        self._runner.go_on([held for held in (own, lease) if held is not None])

    def _lead(self, lease: Lease) -> None:
        """File what is due; what earlier leaders knew is in the tables."""
        begins = lease.epoch != self._epoch
        if self._options.only is None:
            if begins or self._timetable.outdated:
                self._timetable.learn(lease)
            if begins:
                self._log.info("%s leads with epoch %d: %d canaries", lease.holder, lease.epoch, len(self._deck.cards))
            self._timetable.file_due(lease)
            self._rollouts.correct_clocks(lease)
            self._rollouts.turn(lease)
        elif begins:
            self._runner.end_left(lease)
        self._epoch = lease.epoch

    def _follow(self, leader: Lease | None) -> None:
        """Say once of every leader that this replica stands by, and what it does meanwhile."""
        if leader is None or self._options.only is not None:
            return
        if leader.epoch != self._following:
            told = "follows %s (epoch %d): it watches %s, and takes over when the leader is silent"
            self._log.info(told, leader.holder, leader.epoch, self._options.node)
            self._following = leader.epoch
        if time.monotonic() >= self._compare_at:
            self._compare_at = time.monotonic() + COMPARE_S
            self._compare()

    def _compare(self) -> None:
        """Say once which canaries of this replica the leader does not serve."""
        lacks = leader_lacks(self._store.canaries, self._options.lease, self._deck.cards)
        if lacks is not None and lacks != self._lacks:
            node, names = lacks
            more = ", …" if len(names) > NAMED else ""
            told = "%s, which leads, does not serve %s: it files no time of them and runs no fire of them by hand. %s"
            todo = "Give both services the same cards, or this one a lease of its own (--lease NAME)"
            self._log.warning(told, node, ", ".join(names[:NAMED]) + more, todo)
        self._lacks = lacks

    def _reload(self) -> None:
        """Read changed cards; say what is wrong, also in the lease, where `qualify canary list` finds it."""
        if self._deck.refresh():
            trouble = self._deck.trouble
            told = trouble or f"cards were read again: {len(self._deck.cards)} canaries"
            self._log.log(ERROR if trouble else INFO, "%s", told)
            self._timetable.plan_wakes()

    def _close(self) -> None:
        """Put the fire back for whoever is next, end every thread, give the leases back."""
        try:
            self._runner.put_back((self._leader.lease, self._own.lease))
        except StoreError as error:  # the next leader finds it unfinished
            self._complain(error)
        self._watcher.stop()
        self._postman.stop()
        for keeper in (self._leader, self._own):
            keeper.stop()
        self._timetable.stop()
        for keeper in (self._leader, self._own):
            if keeper.is_alive():
                keeper.join(self._options.lease_s)
        self._postman.join(STOP_S)
