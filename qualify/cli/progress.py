"""Shows a run's progress on stderr: a bar on a terminal, plain lines otherwise."""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

from qualify.cli.shared import Talk
from qualify.cli.terminal import say
from qualify.facts.outcome import Measured, causes_first, evidence_of, findings_of
from qualify.facts.run import Record
from qualify.facts.stages import doing, ending
from qualify.fleet.filing import Progress as Step
from qualify.report.figures import counted
from qualify.text import one_line, visible

PLAIN_SECONDS = 5.0
"""most time between two plain lines"""
SAME_SECONDS = 60.0
"""the same where the second one would repeat the first: whoever waits sees that the run goes on"""
ALIKE = 3
"""troubles of one kernel that get a line of their own; more of them are counted at the end"""
ENDS = ("passed", "failed", "to run again")
"""what may become of a case, in the order of a line"""
CALLS_BEFORE = 3
"""calls that must have ended before the time that is left is guessed"""


def short(case_id: str) -> str:
    """A case on a line of a terminal: its phase and its kernel."""
    parts = case_id.split("/")
    return f"{parts[1]} {parts[-1]}" if len(parts) > 1 else case_id


class Show:
    """Call it with every step; use it as a context manager."""

    def __init__(self, talk: Talk = "usual") -> None:
        self.talk = talk
        self.console = Console(stderr=True)
        self.bar: Progress | None = None
        # Not console.is_terminal: FORCE_COLOR, which CI sets, would draw the bar into a log file.
        if talk != "quiet" and sys.stderr.isatty() and not self.console.is_dumb_terminal:
            self.bar = Progress(
                BarColumn(bar_width=20),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.description}", markup=True, table_column=Column(ratio=1, no_wrap=True)),
                console=self.console,
                transient=True,
                expand=True,
            )
        self.began = self.last = time.monotonic()
        self.line = ""
        """where the run stood in the last plain line"""
        self.first_calls_us = 0.0
        """time of the first calls of cases that were not compiled ahead"""
        self.compiled: set[str] = set()
        """ids of the cases that were compiled ahead"""
        self.compiled_s = 0.0
        """seconds for which kernels were compiled ahead"""
        self.troubles: defaultdict[str, list[str]] = defaultdict(list)
        """by kernel, the case of each line that says what went wrong; the first of them are shown"""
        self.ended: dict[str, str] = {}
        """by id, what became of each case that ended, one of ENDS; a case that runs again replaces its earlier word"""
        self.before: int | None = None
        """calls that were done when the first case began"""
        self.since = self.began
        """when the first case began, by the monotonic clock"""

    def __enter__(self) -> Self:
        if self.bar:
            self.bar.start()
            self.bar.add_task(doing("start"), total=None)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.bar:
            self.bar.stop()
        if self.talk == "quiet":
            return
        for kernel, ids in self.troubles.items():
            others = len({*ids} - {*ids[:ALIKE]})
            if others and self.talk != "verbose":
                say(f"{kernel}: {counted(others, 'other case')} went wrong")
        if kind is not None and self.before is None and not self.compiled:
            return  # it was refused, or failed before a case began: nothing took any time
        took = time.monotonic() - self.began - self.compiled_s
        first_s = self.first_calls_us / 1e6
        ahead = f", after {self.compiled_s:.1f} s of compiling ahead" if self.compiled_s else ""
        say(f"took {took:.1f} s, {first_s:.1f} s of it in first calls, which may compile{ahead}")

    def __call__(self, step: Step) -> None:
        """Show one step; problems get a line of their own at once."""
        if step.case_id and not step.compiling and self.before is None:
            self.before, self.since = step.done, time.monotonic()
        if step.record is not None:
            evidence = evidence_of(step.record.outcome)
            if evidence and step.record.case.id not in self.compiled:
                self.first_calls_us += evidence.first_call_us
            self._tell(step.record, final=step.final)
        if step.compiling:
            self.compiled.add(step.case_id)
            self.compiled_s = time.monotonic() - self.began
        if step.told:
            self._line(step.told)
        so_far = [*self._counts(), self._left(step.done, step.total), step.unstored]
        if self.bar:
            told = "  ".join(filter(None, [*so_far, short(step.case_id), doing(step.stage)]))
            self.bar.update(
                self.bar.task_ids[0], completed=step.done, total=step.total, description=escape(visible(told))
            )
        elif (waited := time.monotonic() - self.last) > PLAIN_SECONDS:
            at = " ".join(filter(None, [step.case_id, doing(step.stage)]))
            line = "  ".join(filter(None, [f"{step.done}/{step.total}", *so_far, at]))
            if line != self.line or waited > SAME_SECONDS:
                self.line = line
                self._line(line)

    def _counts(self) -> list[str]:
        """How many cases were right so far, how many were not, and how many failed once."""
        counts = Counter(self.ended.values())
        return [f"{counts[word]} {word}" for word in ENDS if counts[word]]

    def _left(self, done: int, total: int) -> str:
        """About how long the rest takes, by what the calls so far took."""
        ran = done - (self.before or 0)
        if self.before is None or ran < CALLS_BEFORE or done >= total:
            return ""
        left = (total - done) * (time.monotonic() - self.since) / ran
        return f"about {left / 60:.0f} min left" if left >= 120 else f"about {left:.0f} s left"

    def _tell(self, record: Record, *, final: bool) -> None:
        """A line about a case that went wrong; a kernel that always does gets a few."""
        text = trouble(record)
        passed = isinstance(record.outcome, Measured) and not text
        self.ended[record.case.id] = "passed" if passed else "failed" if final else "to run again"
        if self.talk == "quiet":
            return
        if not text:
            evidence = evidence_of(record.outcome)
            if self.talk == "verbose" and evidence:
                self._line(f"{record.case.id}: no check failed, {evidence.wall_s:.1f} s")
            return
        troubles = self.troubles[record.case.kernel]
        troubles.append(record.case.id)
        if len(troubles) <= ALIKE or self.talk == "verbose":
            self._line(one_line(f"{record.case.id}: {text}") + ("" if final else "; running it again, alone"))

    def _line(self, text: str) -> None:
        if self.talk == "quiet":
            return
        self.last = time.monotonic()
        if self.bar:
            self.console.print(escape(visible(text)), highlight=False, soft_wrap=True)
        else:
            say(text)


def trouble(record: Record) -> str:
    """What went wrong with a case, in one line; empty where nothing did."""
    outcome = record.outcome
    match outcome.outcome:
        case "crashed" | "timed_out":
            return ending(outcome)
        case "substituted":
            return f"substituted: {outcome.evidence.witness.substitution}"
    failed = causes_first(finding for finding in findings_of(outcome) if finding.verdict == "fail")
    return f"failed {failed[0].check}: {failed[0].detail}" if failed else ""
