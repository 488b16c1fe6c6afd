"""The newest runs of each matrix on each device model: what the matrix stands on, and what pages tell of it."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from qualify.facts.overview import RunHead
from qualify.judge.summary import Summary
from qualify.report.sitepages.home import State
from qualify.report.sitepages.runs import TREND
from qualify.report.sitepages.standing import Newest, by_kernel, down_to_whole, stands_on
from qualify.store.store import Store
from qualify.web.verdicts import DETAILED, Verdicts

MOST_PAIRS = 200
"""matrices on device models that the first page shows"""
FRESH_S = 1.0
"""seconds for which a page is kept while nobody writes into the store: new verdicts, waivers, the day and clocks may
change it, too"""
Runs = Mapping[tuple[str, str], tuple[RunHead, ...]]
"""by matrix and device model, newest first"""


class NewestRuns:
    """Reads them from the store, and remembers them while nobody writes."""

    def __init__(self, store: Store, verdicts: Verdicts) -> None:
        self._store = store
        self._verdicts = verdicts
        self._latest: tuple[str | None, float, Runs] = (None, 0.0, {})

    def runs(self) -> Runs:
        """The newest runs of each matrix on each device model, the newest pair first."""
        now, (mark, until, known) = self._store.mark(), self._latest
        if now is None or now != mark or time.monotonic() >= until:
            known = dict(list(self._store.overview.latest(TREND).items())[:MOST_PAIRS])
            until = time.monotonic() + FRESH_S if self._store.overview.has_future() else math.inf
            self._latest = now, until, known
        return known

    def states(self, signed: Callable[[Sequence[RunHead]], Counter[str]]) -> list[State]:
        """How each matrix stands on each device model.

        Args:
            signed: by id, how many people signed runs.
        """
        pairs = list(self.runs().values())
        summaries = self._verdicts.summaries([head for heads in pairs for head in heads])
        counts = signed([stands_on(heads) for heads in pairs])
        return [self._state(heads, told, summaries, counts) for heads, told in zip(pairs, _told(pairs), strict=True)]

    def details(self) -> list[Newest]:
        """What went wrong where: the runs that matrices stand on, and of each kernel the newest run that counts."""
        around = self._verdicts.around()
        known = [
            [
                Newest(
                    head=head, summary=self._verdicts.known(head, around), details=self._verdicts.details(head, around)
                )
                for head in heads
            ]
            for heads in _told(list(self.runs().values()))
        ]
        return [run for runs in known for run in by_kernel(runs)]

    def _state(
        self, heads: Sequence[RunHead], told: Sequence[RunHead], summaries: Mapping[str, Summary], signed: Counter[str]
    ) -> State:
        base = stands_on(heads)
        newest, *parts = [
            Newest(head=head, summary=summaries.get(head.id), details=self._verdicts.details(head))
            for head in dict.fromkeys((base, told[0]))
        ]
        return State(
            newest=newest,
            part=parts[0] if parts else None,
            before=tuple(summaries.get(head.id) for head in heads if head.narrowed == base.narrowed),
            signed=signed[base.id],
        )


def _told(pairs: Sequence[Sequence[RunHead]]) -> list[tuple[RunHead, ...]]:
    """By pair, the newest runs that pages show, newest first; one of each where details of all cannot be kept."""
    told = [down_to_whole(heads) for heads in pairs]
    return told if sum(map(len, told)) <= DETAILED else [(stands_on(heads),) for heads in pairs]
