"""Shows a run's progress on stderr: a bar on a terminal, plain lines otherwise."""

from __future__ import annotations

import sys
import time
from collections import Counter
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from qualify.cli.terminal import say
from qualify.facts.outcome import evidence_of, findings_of
from qualify.facts.run import Record
from qualify.fleet.local import Progress as Step
from qualify.text import visible

PLAIN_SECONDS = 5.0
"""a plain line at least so often"""
ALIKE = 3
"""troubles of one kernel that get a line of their own; more of them are counted at the end"""


class Show:
    """Call it with every step; use it as a context manager."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.bar: Progress | None = None
        # Not console.is_terminal: FORCE_COLOR, which CI sets, would draw the bar into a log file.
        if sys.stderr.isatty() and not self.console.is_dumb_terminal:
            self.bar = Progress(
                BarColumn(bar_width=28),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.description}", markup=True),
                console=self.console,
                transient=True,
            )
        self.began = self.last = time.monotonic()
        self.first_calls_us = 0.0
        """of cases that were not compiled ahead"""
        self.compiled: set[str] = set()
        """cases that were"""
        self.compiled_s = 0.0
        """until the last kernel was compiled ahead"""
        self.troubles: Counter[str] = Counter()

    def __enter__(self) -> Self:
        if self.bar:
            self.bar.start()
            self.bar.add_task("starting the worker", total=None)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.bar:
            self.bar.stop()
        for kernel, count in self.troubles.items():
            if count > ALIKE:
                say(f"{kernel}: {count - ALIKE} more like these")
        took = time.monotonic() - self.began - self.compiled_s
        ahead = f", after {self.compiled_s:.1f} s of compiling ahead" if self.compiled_s else ""
        say(f"took {took:.1f} s, {self.first_calls_us / 1e6:.1f} s of it in first calls, which may compile{ahead}")

    def __call__(self, step: Step) -> None:
        """Show one step; problems get a line of their own at once."""
        if step.record is not None:
            evidence = evidence_of(step.record.outcome)
            if evidence and step.record.case.id not in self.compiled:
                self.first_calls_us += evidence.first_call_us
            self._tell(step.record, final=step.final)
        if step.compiling:
            self.compiled.add(step.case_id)
            self.compiled_s = time.monotonic() - self.began
        at = f"{step.case_id}  {step.stage}" if step.case_id else f"starting a worker: {step.stage}"
        if self.bar:
            self.bar.update(
                self.bar.task_ids[0], completed=step.done, total=step.total, description=escape(visible(at))
            )
        elif time.monotonic() - self.last > PLAIN_SECONDS:
            self._line(f"{step.done}/{step.total}  {at}")

    def _tell(self, record: Record, *, final: bool) -> None:
        """A line about a case that went wrong; a kernel that always does gets a few."""
        text = trouble(record)
        if not text:
            return
        kernel = record.case.kernel
        self.troubles[kernel] += 1
        if self.troubles[kernel] <= ALIKE:
            self._line(f"{record.case.id}: {text}" + ("" if final else "; running it again, alone"))

    def _line(self, text: str) -> None:
        self.last = time.monotonic()
        if self.bar:
            self.console.print(escape(visible(text)), highlight=False, soft_wrap=True)
        else:
            say(text)


def trouble(record: Record) -> str:
    """What went wrong with a case, in one line; empty where nothing did."""
    outcome = record.outcome
    match outcome.outcome:
        case "crashed":
            return f"crashed in {outcome.stage}: {outcome.error}"
        case "timed_out":
            return f"timed out in {outcome.stage} after {outcome.limit_s:g} s"
        case "substituted":
            return f"substituted: {outcome.evidence.witness.reason}"
    failed = [finding for finding in findings_of(outcome) if finding.verdict == "fail"]
    return f"failed {failed[0].check}: {failed[0].detail}" if failed else ""
