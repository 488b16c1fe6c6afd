"""What a look at this machine's stack means for each canary that waits for a change of it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from logging import Logger

from qualify.canary.deck import Deck
from qualify.canary.scope import Scopes
from qualify.canary.watch import Watcher, as_seen, decide, stack_key
from qualify.cards.canary import seconds
from qualify.cards.load import LoadedCanary, load_matrix
from qualify.errors import CardError, StoreError, UsageError
from qualify.facts.canary import Due, Lease, Watched
from qualify.facts.comparison import StackChange
from qualify.facts.devices import HOST
from qualify.facts.differing import changes_words
from qualify.facts.stack import Device, Stack
from qualify.run.machine.software import describe_cpu
from qualify.store.store import Store


class Upgrades:
    """Files the fires of one machine's stack, under the machine's own lease: whoever leads, this machine runs them."""

    def __init__(self, store: Store, deck: Deck, node: str, watcher: Watcher, scopes: Scopes, log: Logger) -> None:
        self._store = store
        self._scopes = scopes
        self._deck = deck
        self._node = node
        self._watcher = watcher
        self._log = log
        self._epoch = 0
        self._watched: dict[str, Watched] = {}

    def compare(self, own: Lease) -> None:
        """File what follows from the last look. Where the database refuses that, the same look is compared again.

        It is compared with what is stored by then: the database may have filed the look, and not come to say so.
        """
        if own.epoch != self._epoch:
            self._watched = {item.canary: item for item in self._store.canaries.watched(own.name)}
            self._epoch = own.epoch
        stack = self._watcher.take()
        if stack is None:
            return
        try:
            self._file(own, stack)
        except StoreError:
            self._watcher.seen = self._watcher.seen or stack
            self._epoch = 0
            raise

    def _file(self, own: Lease, looked: Stack) -> None:
        now = self._store.canaries.now()
        seen: dict[str, Watched] = {}
        due: list[Due] = []
        noticed: dict[tuple[StackChange, ...], list[str]] = {}
        for name, loaded in self._deck.cards.items():
            if loaded.card.stack_change is None:
                continue
            settle = timedelta(seconds=seconds(loaded.card.stack_change.settle))
            stack = self._scopes.of(name).view(looked)
            known = self._watched.get(name)
            before = known or self._first(own, loaded, stack, now)
            decision = decide(before, stack, now, settle)
            if decision.noticed:
                noticed.setdefault(decision.noticed, []).append(name)
            fire = _due(loaded, self._node, decision.fire, now, stack) if decision.fire else None
            if fire and loaded.card.seats and decision.watched:
                self._file_one(own, loaded.card.seats, decision.watched, fire)
                continue
            if decision.watched or known is None:
                seen[name] = decision.watched or before
            if fire:
                due.append(fire)
        if seen:
            self._store.canaries.watch(own, list(seen.values()), due)
            self._watched |= seen
        for changes, names in noticed.items():
            listed = ", ".join(names[:6])
            told = changes_words(changes)
            self._log.info("the stack of %s is changing: %s; %s will fire if it stays", self._node, told, listed)
        for item in due:
            self._log.info("%s: %s", item.canary, item.reason, extra={"canary": item.canary})

    def _file_one(self, own: Lease, seats: int, watched: Watched, fire: Due) -> None:
        """File the fire of a change that many machines see. Only the first ``seats`` machines that come get one."""
        key = stack_key(watched.stack)
        filed = self._store.canaries.watch_for_many(own, watched, fire, own.service, key, seats)
        self._watched[watched.canary] = watched
        told = "" if filed else "; enough other nodes fire for this stack"
        self._log.info("%s: %s%s", fire.canary, fire.reason, told, extra={"canary": fire.canary})

    def _first(self, own: Lease, loaded: LoadedCanary, stack: Stack, now: datetime) -> Watched:
        """The stack with which a canary compares a machine that it never saw: the one accepted or judged last, if any.

        An upgrade often comes with a new machine, or with a new name of one.
        """
        ran = next(self._judged(loaded, stack.device), None)
        known = as_seen(ran, stack) if ran else stack
        return Watched(
            lease=own.name,
            canary=loaded.card.canary,
            node=self._node,
            stack=known,
            seen_at=now,
            changing_to="",
            changing_since=None,
        )

    def _judged(self, loaded: LoadedCanary, device: Device) -> Iterator[Stack]:
        """Stacks on such a device: of the accepted baselines, newest first, then of the runs that the canary judged."""
        try:
            matrix = load_matrix(loaded.matrix, self._deck.extra).card.matrix
            runs = [baseline.run_id for baseline in self._store.baselines(matrix, name="")]
        except (CardError, UsageError):  # a broken matrix, which its fire will report
            runs = []
        runs += [fire.run_id for fire in self._store.canaries.fires(loaded.card.canary) if fire.run_id and fire.verdict]
        for run_id in dict.fromkeys(runs):
            stack = stack_of(self._store, run_id)
            if stack and _alike(stack.device, device):
                yield stack


def stack_of(store: Store, run_id: str | None) -> Stack | None:
    """The stack that a run ran on; None where it is not known, or retention removed the run."""
    if run_id is None:
        return None
    try:
        return store.run(run_id).stack
    except UsageError:
        return None


def _alike(ran: Device, seen: Device) -> bool:
    """Whether a run's device is one of the machine's, by its model."""
    if ran.kind == HOST:
        return ran.name == describe_cpu().name
    return seen.kind == ran.kind and ran.name in seen.name.split(", ")


def _due(loaded: LoadedCanary, node: str, changes: tuple[StackChange, ...], now: datetime, stack: Stack) -> Due:
    return Due(
        canary=loaded.card.canary,
        scheduled_for=now,
        trigger="stack",
        reason=f"stack changed: {changes_words(changes)}",
        matrix=loaded.card.matrix,
        changes=changes,
        node=node,
        rollout=f"stack {stack_key(stack)[:12]}" if loaded.card.rollout else "",
    )
