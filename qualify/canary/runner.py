"""One fire at a time: takes what a lease owes, looks after its child, files how it ended. It dies with its lease."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from logging import INFO, WARNING, Logger

from qualify.canary.conditions import examine
from qualify.canary.deck import Deck
from qualify.canary.firing import Ended, Firing, environment_for
from qualify.canary.messages import FleetSeen
from qualify.canary.options import Options
from qualify.canary.orders import order_of
from qualify.canary.results import letters_for, typed_words, with_fleet, with_run, without_run
from qualify.cards.canary import seconds
from qualify.cards.load import LoadedCanary
from qualify.errors import INFRASTRUCTURE, InfrastructureError
from qualify.facts.canary import Fire, FireResult, Lease, Served
from qualify.facts.devices import HOST
from qualify.store.canaries import Letters
from qualify.store.store import Store

ATTEMPTS = 5
"""attempts of one fire, before it is filed as failed"""
ORPHANED = timedelta(hours=1)
"""time after which a fire is filed as failed if this service does not know its canary: it must not wait for ever"""
LEFT = "its process ended before it did, and no service went on with it"
AGAIN_S = 10.0
"""seconds to the next attempt, times the failed attempts before this one: the second attempt follows at once"""


class Runner:
    """The fire that this replica runs, if any."""

    def __init__(self, store: Store, deck: Deck, options: Options, wake: Callable[[], None], log: Logger) -> None:
        """``wake`` wakes the loop, which calls :meth:`go_on`."""
        self._store = store
        self._canaries = store.canaries
        self._deck = deck
        self._options = options
        self._wake = wake
        self._log = log
        self._under: Lease | None = None
        self._firing: Firing | None = None
        self._ended: Ended | None = None
        self._filed_run: str | None = None

    @property
    def busy(self) -> bool:
        """Whether a fire runs."""
        return self._firing is not None

    def check(self, held: Iterable[Lease | None]) -> None:
        """End the fire if its lease is no longer held: somebody else may have begun it again."""
        if self._under is not None and not any(same(self._under, lease) for lease in held):
            self.drop()

    def go_on(self, held: Iterable[Lease]) -> None:
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
            self._wake()

    def end_left(self, lease: Lease) -> None:
        """File as failed what killed or stopped processes left of these canaries: no service goes on with it.

        That is for a process that runs only the fire that it was asked for.
        """
        for left in self._canaries.open_fires():
            mine = left.lease == lease.name and left.canary in self._deck.cards and left.id != self._options.only
            stopped = left.state == "running" or (left.attempts > 0 and left.trigger == "manual")
            fire = self._canaries.take(lease, left.node, only=left.id) if mine and stopped else None
            if fire is not None:
                self._finish(lease, fire, without_run(fire, "failed", LEFT))

    def letters(self, result: FireResult) -> Letters:
        """What makes the alerts of a fire that ends with the result, also without a run of this replica."""
        return partial(letters_for, self._deck.known, result)

    def drop(self) -> None:
        """Another replica may have taken over, or will: stop what this one runs, and forget it."""
        if self._firing is not None:
            self._firing.kill()
        self._forget()

    def put_back(self, held: Iterable[Lease | None]) -> None:
        """Stop the fire that runs, store what it measured, and put it back for the next leader.

        Raises:
            StoreError: the fire cannot be put back; the next leader finds it unfinished.
        """
        firing, lease = self._firing, self._under
        if firing is None or lease is None:
            return
        firing.stop()
        if any(same(lease, other) for other in held):
            if firing.run_id:
                self._canaries.set_run(lease, firing.fire.id, firing.run_id)
            self._canaries.put_back(lease, firing.fire.id, "the service was stopped", 0.0)

    def _forget(self) -> None:
        self._under = self._firing = self._ended = self._filed_run = None

    def _start(self, lease: Lease) -> bool:
        """Start a fire that the lease owes. Returns whether there was one: it runs now, or has ended without a run.

        While a folder with cards is away, the fires of a service wait for it. Somebody who waits for one fire hears
        after the last attempt.

        Raises:
            InfrastructureError: another program migrated the store meanwhile, so no process of this one can use it.
        """
        if self._options.only is None and self._deck.away is not None:
            return False
        served = Served(canaries=tuple(self._deck.cards), orphaned=ORPHANED)
        if not self._canaries.owes(lease, served, self._options.only):
            return False
        if wrong := self._store.wrong_schema():  # a fire that failed for that would hold its machine
            raise InfrastructureError(f"{wrong} This service ends, and fires wait for the next one.")
        fire = self._canaries.take(lease, self._options.node, served, self._options.only)
        if fire is None:
            return False
        loaded = self._deck.cards.get(fire.canary)
        if loaded is None:
            reason = f"no canary is called {fire.canary} any more"
            self._finish(lease, fire, without_run(fire, "failed", reason))
            return True
        if fire.attempts > ATTEMPTS:
            last = "the last time, the service or the machine stopped first"
            reason = f"it was started {ATTEMPTS} times and never finished; {last}"
            self._finish(lease, fire, without_run(fire, "failed", reason))
            return True
        found = examine(HOST if loaded.card.fleet else loaded.card.device)  # a fleet runs on other machines
        if found.refuse:
            self._finish(lease, fire, without_run(fire, "refused", *found.refuse))
            return True
        again = f", attempt {fire.attempts}" if fire.attempts > 1 else ""
        self._log.info("%s fires (%s%s)", fire.canary, fire.reason, again, extra=about(fire))
        try:
            firing = self._fired(loaded, fire, lease, found.numerics_only)
        except OSError as error:  # no file, process or memory is left, or the interpreter is gone
            self._try_again(lease, fire, f"no process can be started for it: {error}", AGAIN_S)
            return True
        self._under, self._firing = lease, firing
        return True

    def _fired(self, loaded: LoadedCanary, fire: Fire, lease: Lease, doubts: tuple[str, ...]) -> Firing:
        """The child of a fire, started."""
        options = self._options
        order = order_of(
            loaded,
            fire,
            lease,
            node=options.node,
            cards=self._deck.extra,
            out=options.out,
            lease_s=options.lease_s,
        )
        environment = environment_for(self._deck.cards.values(), options.db)
        return Firing(fire, order, environment, seconds(loaded.card.timeout), doubts, self._wake, self._log)

    def _file_end(self, lease: Lease, firing: Firing, ended: Ended) -> None:
        """File how a fire's child ended: a result, another attempt, or a failure."""
        fire = firing.fire
        if isinstance(ended.seen, FleetSeen):
            self._finish(lease, fire, with_fleet(ended.seen))
        elif ended.seen is not None:
            typed = typed_words(self._deck.extra, self._options.db)
            self._finish(lease, fire, with_run(fire, ended.seen, firing.observed, self._store, typed))
        else:
            pause_s = AGAIN_S if ended.exit_code == INFRASTRUCTURE else 0.0
            known = replace(fire, run_id=firing.run_id or fire.run_id)
            self._try_again(lease, known, ended.why, pause_s, final=ended.final)

    def _try_again(self, lease: Lease, fire: Fire, why: str, pause_s: float, *, final: bool = False) -> None:
        """Put a fire back for another attempt, or file it as failed after the last one.

        Args:
            pause_s: seconds to the next attempt, times the failed attempts before this one.
            final: another attempt would end in the same way.
        """
        if final or fire.attempts >= ATTEMPTS:
            times = f" (attempt {fire.attempts})" if fire.attempts > 1 else ""
            self._finish(lease, fire, without_run(fire, "failed", f"{why}{times}"))
        else:
            self._canaries.put_back(lease, fire.id, why, pause_s * (fire.attempts - 1))
            self._log.warning("%s: %s; it will be tried again", fire.canary, why, extra=about(fire))

    def _finish(self, lease: Lease, fire: Fire, result: FireResult) -> None:
        loaded = self._deck.cards.get(fire.canary)
        if loaded and loaded.card.fleet and result.nodes is None:
            result = replace(result, nodes=())  # it ended before any node: the whole fleet is held
        self._canaries.finish(lease, fire.id, result, self.letters(result))
        level = INFO if result.kind == "promote" else WARNING
        told = "; ".join(result.reasons)
        self._log.log(level, "%s: %s: %s", fire.canary, result.kind, told, extra=about(fire, result.run_id))


def same(one: Lease, other: Lease | None) -> bool:
    """The same lease in the same epoch."""
    return other is not None and (one.name, one.epoch) == (other.name, other.epoch)


def about(fire: Fire, run_id: str | None = None) -> dict[str, object]:
    """What a line of the log is about."""
    return {"canary": fire.canary, "fire": fire.id, **({"run": run_id} if run_id else {})}
