"""The verdict on a stored run, as the gate gives it, and all that it was made from, so that a change is noticed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

from qualify.cards.load import LoadedKernel
from qualify.facts.clock import is_future
from qualify.facts.fleet import Compared
from qualify.facts.overview import Around, RunHead
from qualify.judge.fleet import compared
from qualify.judge.judged import Judged
from qualify.judge.newer import judged_now
from qualify.judge.summary import Details, Summary, detail, summarize
from qualify.plan.code import CodeHere
from qualify.store.store import Store

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
    """whether the run is dated in the future"""
    baseline: int
    """the newest acceptance of its matrix; 0 = none"""
    times: tuple[str, ...]
    """duels and runs of its matrix, where these may judge its times; else empty"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """What the verdict on a run is, and what it was made from."""

    key: Key
    waivers_path: str
    times: str
    """what may judge its times (AcceptedEvidence); empty where nothing does"""
    summary: Summary


class Judging:
    """Judges runs of a store, and remembers nothing of them."""

    def __init__(self, store: Store, kernels: Mapping[str, LoadedKernel]) -> None:
        self._store = store
        self._kernels = kernels
        self._seen: tuple[str | None, Around] = (None, NOTHING)

    def around(self) -> Around:
        """What verdicts depend on besides their runs, as of now; read once for each state of the store."""
        now, (mark, found) = self._store.mark(), self._seen
        if now is None or now != mark:
            found = self._store.overview.around()
            self._seen = now, found
        return found

    def look(self, head: RunHead) -> tuple[Known, Details]:
        """What is told of a run without its evidence."""
        judged, known = self.judge(head)
        return known, detail(judged)

    def fleet(self, fleet_id: str) -> Compared:
        """What is told of a fleet whose cards' results are compared with one another."""
        return compared(self._store, fleet_id, self._kernels)

    def judge(self, head: RunHead, code: CodeHere | None = None) -> tuple[Judged, Known]:
        """The run with its evidence and its verdict, and what is remembered of it.

        Args:
            code: as :func:`qualify.judge.judged.judge` takes it.
        """
        # Read before the evidence: what is stored meanwhile then makes the remembered verdict out of date.
        around, now = self.around(), datetime.now(UTC)
        judged = judged_now(self._store, head.id, self._kernels, now=now, code=code)
        times = judged.performance.accepted if judged.performance else ""
        return judged, Known(
            key=key_of(head, judged.waivers_path, times=times, around=around),
            waivers_path=judged.waivers_path,
            times=times,
            summary=summarize(judged),
        )


def key_of(head: RunHead, waivers_path: str, *, times: str, around: Around) -> Key:
    """What the verdict on a run is made from now.

    Args:
        times: what may judge its times (AcceptedEvidence); empty where nothing does.
    """
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
        times=tuple(map(repr, (*_duels(head, times, around), *_runs(head, times, around)))),
    )


def _duels(head: RunHead, times: str, around: Around) -> tuple[object, ...]:
    return (around.duels.get(head.matrix),) if times in ("duel", "either") else ()


def _runs(head: RunHead, times: str, around: Around) -> tuple[object, ...]:
    return (around.runs.get(head.matrix), around.running.get(head.matrix)) if times in ("history", "either") else ()
