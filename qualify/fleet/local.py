"""A run on this machine: plan in, committed evidence out, interruptible at any moment."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from qualify import __version__
from qualify.cards.load import LoadedKernel, LoadedMatrix
from qualify.errors import UsageError
from qualify.facts.case import Case, DeviceKind, Level
from qualify.facts.outcome import Crashed, NotRun, Refused, TimedOut, evidence_of, findings_of
from qualify.facts.run import Record, Run
from qualify.plan.plan import Plan, Selection
from qualify.run.supervisor import At, Done, Settings, Started, Supervisor
from qualify.store.store import Store

COMMIT_SECONDS = 0.5
"""longest that a finished result waits for its commit"""
COMMIT_RECORDS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A run to start or to go on with."""

    matrix: LoadedMatrix
    kernels: dict[str, LoadedKernel]
    plan: Plan
    level: Level
    device: DeviceKind
    selection: Selection


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Where a run stands, for whoever shows it."""

    done: int
    total: int
    case_id: str
    stage: str
    record: Record | None
    """the case that just got an outcome"""
    final: bool = True


Show = Callable[[Progress], None]


def new_run(request: Request) -> Run:
    """The record of a run that begins now."""
    now = datetime.now(UTC)
    return Run(
        id=f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}",
        matrix=request.matrix.card.matrix,
        matrix_hash=request.matrix.content_hash,
        matrix_source=request.matrix.source,
        matrix_path=str(request.matrix.path),
        level=request.level,
        device=request.device,
        select=request.selection.select,
        kernel=request.selection.kernel,
        qualify_version=__version__,
        started_at=now,
        finished_at=None,
        state="running",
        stack=None,
        ceilings=None,
    )


def execute(request: Request, store: Store, run: Run, show: Show, *, resume: bool = False) -> None:
    """Run the plan and commit every outcome, at most half a second after it is known.

    A KeyboardInterrupt ends the worker, commits what was measured, marks the run as interrupted and is raised
    again.

    Args:
        resume: go on with ``run``: cases that have a settled outcome are not run again.

    Raises:
        DeviceError: the device cannot be used.
        StoreError: the evidence cannot be written; what was committed before stays.
        UsageError: the run to resume belongs to another matrix or another stack.
    """
    plan = request.plan
    if resume:
        check_resumable(request, run)
        settled = {record.case.id for record in store.records(run.id) if not _unsettled(record)}
        store.resume(run.id)
    else:
        settled = set()
        store.begin(run)
        store.add_cases(run.id, [*plan.cases, *(case for case, _ in plan.refused)])
        refusals = [Record(case=case, outcome=Refused(by="plan", reasons=why)) for case, why in plan.refused]
        store.add(run.id, refusals)
    waiting = [case for case in plan.cases if case.id not in settled]
    filing = _Filing(store, run, show, total=len(plan.cases), done=len(plan.cases) - len(waiting))
    supervisor = Supervisor(_settings(request, waiting), waiting)
    events = supervisor.events()
    try:
        for event in events:
            filing.take(event)
    except KeyboardInterrupt:
        events.close()
        filing.commit()
        store.finish(run.id, "interrupted", datetime.now(UTC))
        raise
    except BaseException:
        events.close()
        filing.commit()
        raise
    filing.commit()
    store.finish(run.id, "completed", datetime.now(UTC))


def check_resumable(request: Request, run: Run) -> None:
    """Refuse to mix evidence of two matrices in one run."""
    if run.matrix_hash != request.matrix.content_hash:
        raise UsageError(
            f"--resume {run.id}: that run used another version of matrix {run.matrix} (sha256 {run.matrix_hash[:12]}, "
            f"the file is now {request.matrix.content_hash[:12]}). Start a new run."
        )
    if (run.level, run.device) != (request.level, request.device):
        raise UsageError(
            f"--resume {run.id}: that run has level {run.level} on {run.device}, this command asks for {request.level} "
            f"on {request.device}. Give the same options."
        )


def _unsettled(record: Record) -> bool:
    """No outcome yet, or a first attempt that the run would have repeated."""
    outcome = record.outcome
    if isinstance(outcome, NotRun):
        return True
    if isinstance(outcome, Crashed | TimedOut):
        return outcome.attempt == 1
    evidence = evidence_of(outcome)
    if evidence is None or evidence.attempt > 1:
        return False
    failed = any(finding.verdict == "fail" for finding in findings_of(outcome))
    return failed or evidence.witness.state == "unproven"


def _settings(request: Request, cases: list[Case]) -> Settings:
    policy = request.matrix.card.policy
    names = dict.fromkeys(case.kernel for case in cases)
    return Settings(
        device=request.device,
        level=request.level,
        reference=policy.reference,
        timeout_s=policy.timeout_s,
        compile_timeout_s=policy.compile_timeout_s,
        hash_cache=cache_folder() / "sha256.json",
        cards={name: request.kernels[name].card for name in names},
    )


def cache_folder() -> Path:
    """Where things are kept that only save time."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "qualify"


class _Filing:
    """Takes events, commits records in groups, keeps count."""

    def __init__(self, store: Store, run: Run, show: Show, *, total: int, done: int) -> None:
        self.store = store
        self.run = run
        self.show = show
        self.total = total
        self.done = done
        self.waiting: list[Record] = []
        self.since = time.monotonic()

    def take(self, event: object) -> None:
        """File one event of the supervisor."""
        match event:
            case Started():
                self._check_stack(event)
                self.run = replace(self.run, stack=event.stack, ceilings=event.ceilings)
                self.store.set_stack(self.run.id, event.stack, event.ceilings)
            case At():
                self._report(event.case_id, event.stage, None)
            case Done():
                self.waiting.append(event.record)
                self.done += event.final
                self._report(event.record.case.id, "done", event.record, final=event.final)
        overdue = time.monotonic() - self.since > COMMIT_SECONDS
        if overdue or len(self.waiting) >= COMMIT_RECORDS:
            self.commit()

    def commit(self) -> None:
        """Write what is waiting, in one transaction."""
        if self.waiting:
            self.store.add(self.run.id, self.waiting)
        self.waiting = []
        self.since = time.monotonic()

    def _check_stack(self, started: Started) -> None:
        """All workers of a run, and of its continuation, run on one stack."""
        known = self.run.stack
        if known is None or known.fingerprint == started.stack.fingerprint:
            return
        before, after = set(known.components), set(started.stack.components)
        parts = sorted({part.name for part in before ^ after}) or ["device or environment"]
        raise UsageError(
            f"run {self.run.id} began on another stack (different: {', '.join(parts[:8])}). Evidence of two stacks "
            "is not mixed in one run: start a new one."
        )

    def _report(self, case_id: str, stage: str, record: Record | None, *, final: bool = True) -> None:
        progress = Progress(done=self.done, total=self.total, case_id=case_id, stage=stage, record=record, final=final)
        self.show(progress)
