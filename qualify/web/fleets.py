"""What the votes of a fleet's cards say, compared in a process of its own and kept while the fleet stays as it is."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import replace
from threading import Condition, Thread

from qualify.cards.load import LoadedKernel
from qualify.errors import QualifyError
from qualify.facts.fleet import Compared, Coverage, Fleet
from qualify.judge.fleet import state_of
from qualify.store.store import Store
from qualify.web.elsewhere import Elsewhere
from qualify.web.judging import Judging, key_of

KEPT = 200
"""fleets that are remembered"""
AGAIN_S = 1.0
"""seconds until the thread goes on, where the store or the process failed"""


class ComparedFleets:
    """Fleets with their votes: one without is shown until the thread has compared the results of its cards."""

    def __init__(self, store: Store, kernels: Mapping[str, LoadedKernel]) -> None:
        self._store = store
        self._here = Judging(store, kernels)
        self._elsewhere = Elsewhere(store, kernels)
        self._known: OrderedDict[str, tuple[Hashable, Compared]] = OrderedDict()
        self._queue: OrderedDict[str, None] = OrderedDict()
        self._asked = Condition()

    def coverage(self, fleet: Fleet) -> Coverage:
        """The fleet as stored now, with its votes where they are at hand."""
        found = state_of(self._store, fleet)
        if not (found.enough or fleet.state == "ended"):  # too little is covered, and more is to come
            return found
        known = self._known.get(fleet.id)
        if known and known[0] == self._made_from(found, known[1].waivers_path):
            return replace(found, compared=known[1], whole_verdict=known[1].whole_verdict)
        with self._asked:
            self._queue[fleet.id] = None
            self._asked.notify()
        return found

    def start(self) -> None:
        """Starts the thread, which ends with the process."""
        Thread(target=self._work, name="fleets", daemon=True).start()

    def end(self) -> None:
        """Ends the other process."""
        self._elsewhere.end()

    def compare(self, fleet_id: str) -> None:
        """Lets the other process compare the results of a fleet's cards, and remembers what it told."""
        try:
            # Read before the evidence: what is stored meanwhile then makes the answer out of date.
            found = state_of(self._store, self._store.fleets.fleet(fleet_id))
            told = self._elsewhere.compare(fleet_id)
            made_from = self._made_from(found, told.waivers_path) if told else None
        except QualifyError:  # its page, or the command, says why
            told = None
        if told is None:
            time.sleep(AGAIN_S)
            return
        self._known[fleet_id] = made_from, told
        self._known.move_to_end(fleet_id)
        while len(self._known) > KEPT:
            self._known.popitem(last=False)

    def _made_from(self, found: Coverage, waivers_path: str) -> Hashable:
        """All that the votes and the verdict on the whole run depend on, so that a change is noticed."""
        head = self._store.overview.head(found.whole) if found.whole else None
        whole = key_of(head, waivers_path, times="", around=self._here.around()) if head else None
        stacks = tuple(found.stacks.items())
        return found.fleet, found.cards, found.shares, stacks, whole

    def _work(self) -> None:
        while True:
            with self._asked:
                while not self._queue:
                    self._asked.wait()
                fleet_id = self._queue.popitem()[0]
            self.compare(fleet_id)
