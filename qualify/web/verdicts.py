"""Verdicts of stored runs, as the gate gives them: beside the accepted baseline and under the budgets of time.

A run is judged once, and again where it changed, or its waivers, the day, its baseline, or what judges its times.

A list never waits for evidence: it judges runs for a moment, and leaves the rest to a thread.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from threading import Condition, Lock, Thread

from qualify.cards.load import LoadedKernel
from qualify.errors import CardError, QualifyError
from qualify.facts.clock import is_future
from qualify.facts.overview import Around, RunHead, RunQuery
from qualify.judge.beside import beside_baseline
from qualify.judge.judged import Judged, judge
from qualify.judge.summary import Details, Summary, detail, summarize
from qualify.judge.timed import with_performance
from qualify.store.store import Store

KEPT = 20_000
"""summaries in memory, of about 1 kB"""
DETAILED = 200
"""runs whose details are kept: what went wrong, and where"""
AHEAD = 2_000
"""newest runs that are judged before anybody asks"""
SMALL = 300
"""cases of the largest run that a list judges itself, in some 50 ms; the thread judges larger ones"""
BUDGET_S = 0.05
"""seconds that a list spends on judging runs"""
QUEUED = 5_000
"""runs that wait to be judged; others wait until somebody asks for them again"""
NOTHING = Around(baselines={}, duels={}, runs={}, running={})


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """What a verdict was made from."""

    head: RunHead
    day: date | None
    """None where the run has no file of waivers"""
    waivers: tuple[int, int]
    """time of the last change in ns, and size, of the file of waivers; zeros = it is not here"""
    future: bool
    """whether it is dated in the future"""
    baseline: int
    """the newest acceptance of its matrix; 0 = none"""
    times: tuple[object, ...]
    """duels and runs of its matrix, where these may judge its times; else empty"""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Known:
    """What is remembered of a run."""

    key: Key
    waivers_path: str
    times: str
    """what may judge its times (AcceptedEvidence); empty where nothing does"""
    summary: Summary


class Verdicts:
    """Judges, and remembers summaries. It is safe for several threads; one judges at a time."""

    def __init__(self, store: Store, kernels: Mapping[str, LoadedKernel]) -> None:
        self._store = store
        self._kernels = kernels
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._detailed: OrderedDict[str, tuple[Key, Details] | None] = OrderedDict()
        self.changes = 0
        """counts what became known, so that a page can tell whether it would say something else now"""
        self._judging = Lock()
        self._seen: tuple[str | None, Around] = (None, NOTHING)
        self._queue: OrderedDict[str, RunHead] = OrderedDict()
        self._asked = Condition()

    def judged(self, head: RunHead) -> Judged:
        """The run with its evidence and the verdict that the gate gives on it now."""
        with self._judging:
            return self._judge(head)

    def around(self) -> Around:
        """What verdicts may come from beside their runs, as of now; read once for each state of the store."""
        now, (mark, found) = self._store.mark(), self._seen
        if now is None or now != mark:
            found = self._store.overview.around()
            self._seen = now, found
        return found

    def key(self, head: RunHead, around: Around | None = None) -> Key | None:
        """What the remembered verdict was made from; None where it is not known, or no longer that.

        Args:
            around: as :meth:`around` gave it, for whoever asks about many runs.
        """
        known = self._known.get(head.id)
        if known is None or head.state == "running":
            return None
        now = _key(head, known.waivers_path, times=known.times, around=around or self.around())
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
        """Starts the thread, which judges what is asked for and the newest runs. It ends with the process."""
        Thread(target=self._work, name="verdicts", daemon=True).start()

    def _work(self) -> None:
        ahead = self._ahead()
        while True:
            with self._asked:
                while not self._queue and not ahead:
                    self._asked.wait()
                head = self._queue.popitem(last=False)[1] if self._queue else ahead.pop()
            if self.key(head) is None or self._detailed.get(head.id, "not asked for") is None:
                self._try(head)

    def _ahead(self) -> list[RunHead]:
        """The newest runs, the newest last, and behind them the newest of each matrix and device with what went wrong.

        None where the store does not answer now.
        """
        try:
            newest = [heads[0] for heads in self._store.overview.latest(1).values()][:DETAILED]
            self._detailed.update((head.id, None) for head in newest)
            return [*self._store.overview.runs(RunQuery(limit=AHEAD)).heads[::-1], *newest[::-1]]
        except QualifyError:
            return []

    def _try(self, head: RunHead) -> None:
        """Judges a run that nobody waits for. Where that fails, the page of the run says why."""
        try:
            self.judged(head)
        except QualifyError:
            time.sleep(BUDGET_S)

    def _in_time(self, head: RunHead) -> Summary | None:
        """The summary; None where the run cannot be judged. The page of the run says why."""
        try:
            return summarize(self._judge(head))
        except CardError:
            return None

    def _judge(self, head: RunHead) -> Judged:
        # Before the evidence is read: what is stored meanwhile makes the verdict one that is not known.
        around, now = self.around(), datetime.now(UTC)
        judged = judge(self._store, head.id, self._kernels, now=now)
        judged = with_performance(self._store, beside_baseline(self._store, judged), now=now, max_age=None)
        times = judged.performance.accepted if judged.performance else ""
        key = _key(head, judged.waivers_path, times=times, around=around)
        known = _Known(key=key, waivers_path=judged.waivers_path, times=times, summary=summarize(judged))
        news = self._known.get(head.id) != known
        self._known[head.id] = known
        self._known.move_to_end(head.id)
        while len(self._known) > KEPT:
            self._known.popitem(last=False)
        if head.id in self._detailed:
            details = key, detail(judged)
            news = news or self._detailed[head.id] != details
            self._detailed[head.id] = details
        self.changes += news  # last: whoever counts it must find what is new
        return judged


def _key(head: RunHead, waivers_path: str, *, times: str, around: Around) -> Key:
    now, changed = datetime.now(UTC), (0, 0)
    if waivers_path:
        try:
            found = Path(waivers_path).stat()
            changed = found.st_mtime_ns, found.st_size
        except OSError:  # it is not here, and no waiver applies
            pass
    future = is_future(head.finished_at or head.started_at, now) or is_future(head.started_at, now)
    return Key(
        head=head,
        day=now.date() if waivers_path else None,
        waivers=changed,
        future=future,
        baseline=around.baselines.get(head.matrix, 0),
        times=(*_duels(head, times, around), *_runs(head, times, around)),
    )


def _duels(head: RunHead, times: str, around: Around) -> tuple[object, ...]:
    return (around.duels.get(head.matrix),) if times in ("duel", "either") else ()


def _runs(head: RunHead, times: str, around: Around) -> tuple[object, ...]:
    return (around.runs.get(head.matrix), around.running.get(head.matrix)) if times in ("history", "either") else ()
