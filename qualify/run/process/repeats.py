"""Which case runs again, alone in a fresh process, and what that says about its first attempt.

A failed case is repeated alone: if it passes there, what failed was its history. A trace that proved nothing is
repeated too, because some profilers drop events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from threading import Lock

from qualify.facts.case import Case
from qualify.facts.outcome import (
    Crashed,
    Finding,
    Measured,
    NotRun,
    Outcome,
    Substituted,
    TimedOut,
    evidence_of,
    findings_of,
)
from qualify.facts.run import Record
from qualify.facts.stages import ending
from qualify.run.process.child import STOPPED

ATTEMPTS = 3
"""processes in which a trace may be incomplete before the case is UNPROVEN"""
PERHAPS_SLOW = (
    "a slow kernel on a busy machine does so too, and a larger time limit in the matrix's policy tells the two apart"
)
REPEATS_PER_KERNEL = 8
"""failed cases of one kernel that are repeated alone; further ones keep their first outcome"""
FRESH = "process"
"""what the note is called that a failed first attempt had its process for itself"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A case in the queue."""

    case: Case
    attempt: int = 1
    alone: bool = False
    """needs a process in which nothing ran before"""
    before: Outcome | None = None
    """the failure that this attempt repeats"""


class Repeats:
    """How often failed cases of each kernel run again in a run, on all of its cards together."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        """Tasks that run alone count already."""
        self._counts = Counter(task.case.kernel for task in tasks if task.alone)
        self._lock = Lock()

    def allow(self, kernel: str) -> bool:
        """Whether one more failed case of the kernel runs again; it counts from now on."""
        with self._lock:
            if self._counts[kernel] >= REPEATS_PER_KERNEL:
                return False
            self._counts[kernel] += 1
            return True


def again(task: Task, before: Outcome | None) -> Task:
    """The next attempt of a task."""
    return Task(case=task.case, attempt=task.attempt + 1, alone=True, before=before)


def failed(outcome: Outcome) -> bool:
    """It crashed, timed out, or a check says no."""
    if isinstance(outcome, Crashed | TimedOut):
        return True
    return any(finding.verdict == "fail" for finding in findings_of(outcome))


def failed_to_load(outcome: Outcome) -> bool:
    """The kernel's library or entry could not even be imported."""
    return isinstance(outcome, Crashed | TimedOut) and outcome.stage == "load"


def unproven(outcome: Outcome) -> bool:
    """The trace did not tell which kernel ran."""
    evidence = evidence_of(outcome)
    return evidence is not None and evidence.witness.state == "unproven"


def with_history(outcome: Outcome, before: Outcome | None) -> Outcome:
    """The outcome of a repeated case; where it fails no more, with the finding that its history made it fail."""
    if before is None or failed(outcome) or not isinstance(outcome, Measured):
        return outcome
    if isinstance(before, Crashed):
        cause = f"it crashed ({before.error})"
    elif isinstance(before, TimedOut):
        stopped = any(STOPPED in finding.detail for finding in before.findings)
        cause = f"it gave {ending(before)}; {f'{STOPPED}: run it again' if stopped else PERHAPS_SLOW}"
    else:
        cause = "; ".join(f"{item.check}: {item.detail}" for item in findings_of(before) if item.verdict == "fail")
    where = "in an earlier one, whose trace proved nothing," if unproven(before) else "after other cases"
    detail = f"history-dependent: it passes alone in a fresh process; {where} {cause}"
    finding = Finding(check="history", verdict="fail", detail=detail)
    evidence = replace(outcome.evidence, findings=(*outcome.evidence.findings, finding))
    return replace(outcome, evidence=evidence)


def of_a_fresh_process(outcome: Outcome) -> Outcome:
    """The failure of a first attempt before which no case ran in its process: no repeat would tell more."""
    note = Finding(check=FRESH, verdict="note", detail="it failed in a process in which no other case had run")
    match outcome:
        case Measured() | Substituted():
            return replace(outcome, evidence=replace(outcome.evidence, findings=(*outcome.evidence.findings, note)))
        case Crashed() | TimedOut():
            return replace(outcome, findings=(*outcome.findings, note))
    return outcome


def _final(record: Record) -> bool:
    """Whether nothing is to be learnt from a repeat of a failed first attempt."""
    return bool(record.case.unclaimed) or any(finding.check == FRESH for finding in findings_of(record.outcome))


def tasks_to_resume(records: Iterable[Record]) -> list[Task]:
    """What an interrupted run still owes: cases without an outcome, and repeats that it did not come to."""
    records = list(records)
    repeats = Counter(record.case.kernel for record in records if _attempt(record.outcome) > 1)
    tasks = []
    for record in records:
        first = Task(case=record.case, attempt=_attempt(record.outcome))
        if isinstance(record.outcome, NotRun):
            tasks.append(Task(case=record.case))
        elif unproven(record.outcome) and first.attempt < ATTEMPTS:
            tasks.append(again(first, record.outcome if failed(record.outcome) else None))
        elif failed(record.outcome) and _final(record):
            continue
        elif failed(record.outcome) and first.attempt == 1 and repeats[record.case.kernel] < REPEATS_PER_KERNEL:
            repeats[record.case.kernel] += 1
            tasks.append(again(first, record.outcome))
    return tasks


def _attempt(outcome: Outcome) -> int:
    """1, or more where the outcome is that of a repeat; 0 where nothing ran."""
    if isinstance(outcome, Crashed | TimedOut):
        return outcome.attempt
    evidence = evidence_of(outcome)
    return evidence.attempt if evidence else 0
