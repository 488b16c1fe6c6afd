"""Which duels of a list say what their times give: computed once each, a few at a time."""

from __future__ import annotations

import time
from collections import OrderedDict

from qualify.errors import UsageError
from qualify.facts.overview import DuelHead
from qualify.judge.duels import check_duel
from qualify.report.sitepages.duels import DuelRow
from qualify.store.store import Store

BUDGET_S = 0.3
"""seconds that a list spends on computing verdicts again"""
KEPT = 2_000
"""duels that are remembered"""
EDITED = "edited: its page says what differs"
LATER = "not computed again yet: reload the page"


class Duels:
    """The newest duels, as lists show them. It is safe for several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: OrderedDict[str, str] = OrderedDict()
        """why each duel does not count, by all that a list shows of it: an edit of that is noticed here, any other edit
        on the duel's page"""

    def rows(self, limit: int) -> list[DuelRow]:
        """The newest duels, newest first."""
        until = time.monotonic() + BUDGET_S
        return [DuelRow(head=head, why_not=self._why_not(head, until)) for head in self._store.overview.duels(limit)]

    def _why_not(self, head: DuelHead, until: float) -> str:
        key = repr(head)
        known = self._known.get(key)
        if known is None:
            if time.monotonic() > until:
                return LATER
            known = self._known[key] = self._computed(head.id)
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
        return known

    def _computed(self, name: str) -> str:
        try:
            found = check_duel(self._store.duel(name).duel)
        except UsageError:  # it was deleted meanwhile
            return LATER
        return EDITED if found.contradictions else found.unchecked
