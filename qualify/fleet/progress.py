"""Shows a run's progress on stderr: a bar on a terminal, plain lines otherwise."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from qualify.facts.outcome import evidence_of, findings_of
from qualify.facts.run import Record
from qualify.fleet.local import Progress as Step

PLAIN_SECONDS = 5.0
"""a plain line at least so often"""


class Show:
    """Call it with every step; use it as a context manager."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.bar: Progress | None = None
        if self.console.is_terminal:
            self.bar = Progress(
                BarColumn(bar_width=28),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.description}", markup=True),
                console=self.console,
                transient=True,
            )
        self.began = self.last = time.monotonic()
        self.compiling_us = 0.0

    def __enter__(self) -> Self:
        if self.bar:
            self.bar.start()
            self.bar.add_task("starting the worker", total=None)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.bar:
            self.bar.stop()
        took = time.monotonic() - self.began
        print(f"took {took:.1f} s, of which {self.compiling_us / 1e6:.1f} s were first calls", file=sys.stderr)

    def __call__(self, step: Step) -> None:
        """Show one step; problems get a line of their own at once."""
        if step.record is not None:
            evidence = evidence_of(step.record.outcome)
            self.compiling_us += evidence.first_call_us if evidence else 0.0
            trouble = _trouble(step.record)
            if trouble:
                again = "" if step.final else "; it will be repeated alone"
                self._line(f"{trouble[0]}  {step.record.case.id}  {trouble[1]}{again}")
        if self.bar:
            text = escape(f"{step.case_id} {step.stage}" if step.case_id else step.stage)
            self.bar.update(self.bar.task_ids[0], completed=step.done, total=step.total, description=text)
        elif time.monotonic() - self.last > PLAIN_SECONDS:
            self._line(f"{step.done}/{step.total}  {step.case_id}  {step.stage}")

    def _line(self, text: str) -> None:
        self.last = time.monotonic()
        if self.bar:
            self.console.print(escape(text), highlight=False, soft_wrap=True)
        else:
            print(text, file=sys.stderr, flush=True)


def _trouble(record: Record) -> tuple[str, str] | None:
    """Kind and first sentence of what went wrong; None where nothing did."""
    outcome = record.outcome
    if outcome.outcome not in {"measured", "refused"}:
        detail = getattr(outcome, "error", "") or getattr(outcome, "stage", "")
        evidence = evidence_of(outcome)
        return outcome.outcome, evidence.witness.reason if evidence else detail
    failed = [finding for finding in findings_of(outcome) if finding.verdict == "fail"]
    return ("failed", f"{failed[0].check}: {failed[0].detail}") if failed else None
