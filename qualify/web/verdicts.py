"""Verdicts of stored runs. What an ended run measured stays: it is judged once a day, and when its waivers change."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from threading import Lock

from qualify.cards.load import LoadedKernel
from qualify.facts.clock import is_future
from qualify.facts.run import Run, Verdict
from qualify.judge.judged import Judged, judge
from qualify.store.store import Store
from qualify.verdict.origin import newest

KEPT = 2000
"""summaries in memory"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """What is told of a run without its evidence."""

    verdict: Verdict
    exit_code: int
    demonstration: bool
    """a CPU stood in for the GPU that kernels of the matrix need"""
    cases: Mapping[str, int]
    """by verdict"""
    outcomes: Mapping[str, int]
    shapes: int
    """production shapes that need a path"""
    proven: int
    """those with a proven path"""

    @property
    def qualified(self) -> bool:
        """Whether the run qualified what production serves; a demonstration on a CPU does not."""
        return self.exit_code == 0 and not self.demonstration


@dataclass(frozen=True, kw_only=True, slots=True)
class _Key:
    """What a summary was made from."""

    run: Run
    day: date
    waivers_changed: float
    future: bool
    """it is dated in the future, which passes"""


class Verdicts:
    """Judges, and remembers summaries; safe for several threads, of which one judges at a time."""

    def __init__(self, store: Store, kernels: Mapping[str, LoadedKernel]) -> None:
        self._store = store
        self._kernels = kernels
        self._known: OrderedDict[str, tuple[_Key, str, Summary]] = OrderedDict()
        self._lock = Lock()

    def judged(self, run_id: str) -> Judged:
        """The run with its evidence and verdict, as of now."""
        with self._lock:
            judged = judge(self._store, run_id, self._kernels, now=datetime.now(UTC))
            self._remember(judged)
            return judged

    def summary(self, run: Run) -> Summary:
        """What is told of the run."""
        with self._lock:
            known = self._known.get(run.id)
            if known and run.state != "running" and known[0] == _key(run, known[1]):
                self._known.move_to_end(run.id)
                return known[2]
            return self._remember(judge(self._store, run.id, self._kernels, now=datetime.now(UTC)))

    def _remember(self, judged: Judged) -> Summary:
        conclusion = judged.conclusion
        summary = Summary(
            verdict=conclusion.verdict,
            exit_code=conclusion.exit_code,
            demonstration=conclusion.demonstration,
            cases=conclusion.counts["verdicts"],
            outcomes=conclusion.counts["outcomes"],
            shapes=len(conclusion.required),
            proven=conclusion.proven,
        )
        run = judged.run
        self._known[run.id] = _key(run, judged.waivers_path), judged.waivers_path, summary
        self._known.move_to_end(run.id)
        while len(self._known) > KEPT:
            self._known.popitem(last=False)
        return summary


def _key(run: Run, waivers_path: str) -> _Key:
    try:
        changed = Path(waivers_path).stat().st_mtime if waivers_path else 0.0
    except OSError:  # it is not here, and no waiver applies
        changed = 0.0
    now = datetime.now(UTC)
    future = is_future(newest(run, ()), now)
    return _Key(run=run, day=now.date(), waivers_changed=changed, future=future)
