"""Verdicts of stored runs, as the gate gives them: beside the accepted baseline and under the budgets of time.

A run is judged once, and again where it changed, or its waivers, the day, its baseline, or what judges its times.

A list never waits for evidence: it judges runs for a moment, and leaves the rest to a process of its own.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from threading import Condition, Lock, Thread

from qualify.cards.load import LoadedKernel
from qualify.errors import CardError, QualifyError, StoreError
from qualify.facts.overview import Around, RunHead, RunQuery
from qualify.judge.judged import Judged
from qualify.judge.summary import Details, Summary, detail, summarize
from qualify.plan.code import CodeHere
from qualify.store.store import Store
from qualify.web.elsewhere import Elsewhere
from qualify.web.judging import Judging, Key, Known, key_of

KEPT = 20_000
"""summaries in memory, of about 1 kB"""
DETAILED = 200
"""runs whose details are kept: what went wrong, and where"""
AHEAD = 2_000
"""newest runs that are judged before anybody asks"""
SMALL = 300
"""a list itself judges runs of at most so many cases, in some 50 ms; the thread judges larger ones"""
BUDGET_S = 0.05
"""seconds that a list spends on judging runs"""
QUEUED = 5_000
"""runs that wait to be judged; others wait until somebody asks for them again"""


class NotJudged(CardError):
    """A stored run whose matrix or waivers are wrong for this qualify; carries every problem found in them."""

    def __init__(self, head: RunHead, why: CardError) -> None:
        super().__init__(why.problems)
        self.head = head


class Verdicts:
    """Judges, and remembers summaries. It is safe for several threads; one judges at a time."""

    def __init__(self, store: Store, kernels: Mapping[str, LoadedKernel]) -> None:
        self._store = store
        self._here = Judging(store, kernels)
        self._elsewhere = Elsewhere(store, kernels)
        self._known: OrderedDict[str, Known] = OrderedDict()
        self._detailed: OrderedDict[str, tuple[Key, Details] | None] = OrderedDict()
        self._judging = Lock()
        self._queue: OrderedDict[str, RunHead] = OrderedDict()
        self._asked = Condition()

    def judged(self, head: RunHead, code: CodeHere | None = None) -> Judged:
        """The run with its evidence and the verdict that the gate gives on it now. Raises NotJudged.

        Args:
            code: the code and checks that must have made the evidence; None = any may have made it, as in lists.
        """
        try:
            with self._judging:
                return self._here.judge(head, code)[0] if code else self._judge(head)
        except CardError as error:
            raise NotJudged(head, error) from None

    def around(self) -> Around:
        """What verdicts depend on besides their runs, as of now."""
        return self._here.around()

    def key(self, head: RunHead, around: Around | None = None) -> Key | None:
        """What the remembered verdict was made from; None where none is remembered, or it is out of date.

        Args:
            around: as :meth:`around` gave it, for whoever asks about many runs.
        """
        known = self._known.get(head.id)
        if known is None or head.state == "running":
            return None
        now = key_of(head, known.waivers_path, times=known.times, around=around or self.around())
        return known.key if known.key == now else None

    def known(self, head: RunHead, around: Around | None = None) -> Summary | None:
        """The summary, where it is at hand."""
        return self._known[head.id].summary if self.key(head, around) else None

    def summary(self, head: RunHead) -> Summary:
        """The summary, however long it takes."""
        if found := self.known(head):
            return found
        with self._judging:
            return self.known(head) or summarize(self._judge(head))

    def summaries(self, heads: Iterable[RunHead], budget_s: float = BUDGET_S) -> dict[str, Summary]:
        """By id, the summaries that are at hand or made in time; the thread makes the others."""
        until, found, late, around = time.monotonic() + budget_s, {}, [], self.around()
        for head in heads:
            summary = self.known(head, around)
            left_s = until - time.monotonic()
            if summary is None and head.cases <= SMALL and left_s > 0 and self._judging.acquire(timeout=left_s):
                try:
                    summary = self.known(head) or (self._in_time(head) if time.monotonic() < until else None)
                finally:
                    self._judging.release()
            if summary is None:
                late.append(head)
            else:
                found[head.id] = summary
        self.want(late)
        return found

    def details(self, head: RunHead, around: Around | None = None) -> Details | None:
        """What went wrong in a run, and where; None where the thread has yet to find out."""
        known, key = self._detailed.setdefault(head.id, None), self.key(head, around)
        self._detailed.move_to_end(head.id)
        while len(self._detailed) > DETAILED:
            self._detailed.popitem(last=False)
        if known and key and known[0] == key:
            return known[1]
        self.want([head])
        return None

    def want(self, heads: Sequence[RunHead]) -> None:
        """Asks the thread to judge these runs next."""
        if not heads:
            return
        with self._asked:
            for head in reversed(heads):
                self._queue[head.id] = head
                self._queue.move_to_end(head.id, last=False)
            while len(self._queue) > QUEUED:
                self._queue.popitem()
            self._asked.notify()

    def start(self) -> None:
        """Starts the thread, which judges wanted runs and the newest ones. It ends with the process."""
        Thread(target=self._work, name="verdicts", daemon=True).start()

    def _work(self) -> None:
        ahead = self._ahead()
        while True:
            with self._asked:
                while not self._queue and not ahead:
                    self._asked.wait()
                head = self._queue.popitem(last=False)[1] if self._queue else ahead.pop()
            self._try(head)

    def _ahead(self) -> list[RunHead]:
        """Runs to judge before anybody asks; the thread takes the last one first.

        The last ones are the newest of each matrix and device, of which details are kept, too. Before them stand the
        newest runs. The list is empty where the store does not answer now.
        """
        try:
            newest = [head for heads in self._store.overview.latest(1).values() for head in heads][:DETAILED]
            self._detailed.update((head.id, None) for head in newest)
            return [*self._store.overview.runs(RunQuery(limit=AHEAD)).heads[::-1], *newest[::-1]]
        except QualifyError:
            return []

    def _try(self, head: RunHead) -> None:
        """Lets the other process judge a run whose verdict is not known. Where that fails, the run's page says why."""
        try:
            if self.key(head) and self._detailed.get(head.id, "not asked for") is not None:
                return
        except StoreError:
            time.sleep(BUDGET_S)
            return
        found = self._elsewhere.ask(head)
        if found is None:
            time.sleep(BUDGET_S)
            return
        known, details = found
        with self._judging:
            self._remember(head, known, details)

    def _in_time(self, head: RunHead) -> Summary | None:
        """The summary; None where the run cannot be judged. The page of the run says why."""
        try:
            return summarize(self._judge(head))
        except CardError:
            return None

    def _judge(self, head: RunHead) -> Judged:
        judged, known = self._here.judge(head)
        self._remember(head, known, detail(judged) if head.id in self._detailed else None)
        return judged

    def _remember(self, head: RunHead, known: Known, details: Details | None) -> None:
        self._known[head.id] = known
        self._known.move_to_end(head.id)
        while len(self._known) > KEPT:
            self._known.popitem(last=False)
        if details and head.id in self._detailed:
            self._detailed[head.id] = known.key, details
