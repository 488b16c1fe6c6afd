"""A run on this machine: plan in, committed evidence out, interruptible at any moment."""

from __future__ import annotations

import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from qualify import __version__
from qualify.assets import digest_cache
from qualify.cards.terms import terms_by_kernel
from qualify.errors import LeaseLost, QualifyError, UsageError
from qualify.facts.case import Case
from qualify.facts.checks import CHECK_VERSION
from qualify.facts.code import Code, code_change
from qualify.facts.differing import stack_words
from qualify.facts.environment import Environment
from qualify.facts.outcome import Measured, NotRun, Refused, Substituted
from qualify.facts.run import Record, Run
from qualify.fleet.probe import available_memory
from qualify.fleet.request import Request
from qualify.fleet.reuse import settled_before
from qualify.fleet.sealing import Ledger, worse
from qualify.fleet.sharing import calls_of, first_of_each, shared
from qualify.fleet.spread import Spread
from qualify.fleet.writers import Beat, claimed
from qualify.fleet.xid_notes import XidNotes
from qualify.plan.code import CodeHere
from qualify.run.machine.xids import XidWatch
from qualify.run.process.compile_ahead import Compiling, compile_ahead
from qualify.run.process.repeats import Task, tasks_to_resume
from qualify.run.process.setup import Settings
from qualify.run.process.supervisor import At, Done, Event, Started, Supervisor, Tick
from qualify.store.store import Store

COMMIT_SECONDS = 0.5
"""longest that a finished result waits for its commit"""
COMMIT_RECORDS = 200
MEMORY_SHARE = 0.85
"""share of the machine's free memory that a worker may take"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Where a run stands, for whoever shows it."""

    done: int
    """calls with a final outcome; equal calls of several cases are one"""
    total: int
    case_id: str
    """empty while a worker starts"""
    stage: str
    record: Record | None
    """the case that just got an outcome"""
    final: bool = True
    """False where that case will be repeated"""
    compiling: bool = False
    """kernels are being compiled ahead; no case has begun"""


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
        traffic_source=request.matrix.traffic_source,
        level=request.level,
        device=request.device,
        select=request.selection.select,
        kernel=request.selection.kernel,
        qualify_version=__version__,
        check_version=CHECK_VERSION,
        started_at=now,
        finished_at=None,
        state="running",
        stack=None,
        ceilings=None,
        code=code_of(request),
        terms=terms_by_kernel(request.kernels, request.plan.kernels),
        environments={name: Environment(python=python) for name, python in request.environments.items()},
        placement=request.placement,
    )


def code_of(request: Request) -> dict[str, Code]:
    """What the kernels of the plan are on this machine, by name."""
    names = dict.fromkeys(case.kernel for case in request.plan.cases)
    known = None if request.anew else digest_cache()
    here = CodeHere(folders=request.import_paths, cache=known, environments=request.environments)
    found = here.of(request.kernels[name].card for name in names)
    return {name: code or {} for name, code in found.items()}


def execute(request: Request, store: Store, run: Run, show: Show, *, resume: bool = False, reuse: bool = False) -> None:
    """Run the plan, commit every outcome at most half a second after it is known, and only then show it as done.

    Whatever ends it early, Ctrl-C and errors alike, first ends the worker, commits what was measured and marks the
    run as interrupted. A completed run stays as it is. No other process writes the run meanwhile; where this one was
    stopped for so long that another has taken the run over, it only ends.

    Args:
        resume: go on with ``run``: cases that have a settled outcome are not run again.
        reuse: take over what earlier runs settled on the same card and stack (:mod:`qualify.fleet.reuse`).

    Raises:
        KeyboardInterrupt: as it came.
        DeviceError: the device cannot be used.
        RunBusy: another process has the run.
        StoreError: the evidence cannot be written; what was committed before stays.
        UsageError: the run to resume has another plan or another stack.
    """
    if resume and run.state == "completed":
        return
    with claimed(store, run.id) as beat:
        if resume:
            run = store.run(run.id)  # as the process that had it before has left it
        if run.state != "completed":
            _execute(request, store, run, show, beat, resume=resume, reuse=reuse)


def _execute(request: Request, store: Store, run: Run, show: Show, beat: Beat, *, resume: bool, reuse: bool) -> None:
    """Run what the claimed run owes."""
    run = replace(run, clock_skew_s=worse(run.clock_skew_s, store.clock_skew_s()))
    ledger = Ledger(store, run.id, request.signing_key)
    tasks = _go_on(request, store, run, ledger) if resume else _begin(request, store, run, ledger)
    if resume:
        store.resume(run.id, run.clock_skew_s)
    xids = XidNotes(XidWatch()) if len(request.uuids) < 2 else None  # of several cards nobody knows who is at a case
    filing = _Filing(store, run, show, request.plan.cases, ledger, owed=len(tasks), xids=xids)
    settings = _settings(request, run)
    compiling = compile_ahead(settings, (task.case for task in tasks))
    supervisor: Supervisor | Spread = Supervisor(settings, tasks)
    if len(request.uuids) > 1:
        supervisor = Spread(settings, tasks, request.uuids)
        reuse = False  # what one card measured would be taken over for all
    events = supervisor.events()
    try:
        for call in compiling:
            beat.check()
            filing.note_compiled(call)
        for event in events:
            beat.check()
            filing.take(event)
            if reuse and isinstance(event, Started):
                supervisor.settled = filing.take_over(
                    settled_before(request, store, run, {"": event.stack, **event.environments})
                )
                reuse = False
        filing.close()
        filing.file()
        ended = ledger.finish(filing.run, "completed")
    except BaseException as error:
        with _undisturbed():
            compiling.close()
            events.close()
            filing.close()
            if not isinstance(error, LeaseLost):
                filing.commit()
                ended = ledger.finish(filing.run, "interrupted")
                with suppress(QualifyError):  # whoever goes on with it, or judges it, is told that it has no seal
                    ledger.seal(ended)
        raise
    with _undisturbed():
        ledger.seal(ended)


def _begin(request: Request, store: Store, run: Run, ledger: Ledger) -> list[Task]:
    store.begin(run)
    return _write_plan(request, ledger)


def _write_plan(request: Request, ledger: Ledger) -> list[Task]:
    plan = request.plan
    ledger.add_cases([*plan.cases, *(case for case, _ in plan.refused)])
    ledger.add(_refusals(request))
    return [Task(case=case) for case in first_of_each(plan.cases)]


def _refusals(request: Request) -> list[Record]:
    return [Record(case=case, outcome=Refused(by="plan", reasons=why)) for case, why in request.plan.refused]


def _go_on(request: Request, store: Store, run: Run, ledger: Ledger) -> list[Task]:
    """What the run still owes; the plan that it began with must be the one of today."""
    _refuse_other_code(request, run)
    records = ledger.go_on() or store.records(run.id)
    if not records:  # killed before its plan was stored
        return _write_plan(request, ledger)
    refusals = {record.case.id: record for record in _refusals(request)}
    cases = [*request.plan.cases, *(record.case for record in refusals.values())]
    differing = {(case.id, case.content_hash) for case in cases}
    differing ^= {(record.case.id, record.case.content_hash) for record in records}
    differing |= {(record.case.id, "") for record in records if _refused_otherwise(record, refusals)}
    if differing:
        names = sorted({name for name, _ in differing})
        raise UsageError(
            f"--resume {run.id}: today's plan is another one ({names[0]} differs, {len(names)} do). A kernel card or "
            "an installed library has probably changed since. Start a new run: leave out --resume."
        )
    unwritten = [record for record in records if record.case.id in refusals and isinstance(record.outcome, NotRun)]
    ledger.add([refusals[record.case.id] for record in unwritten])
    executed = {case.id for case in first_of_each(request.plan.cases)}
    return tasks_to_resume(record for record in records if record.case.id in executed)


def _refuse_other_code(request: Request, run: Run) -> None:
    """One run is evidence about one version of each kernel."""
    before, now = run.code, code_of(request)
    for case in first_of_each(request.plan.cases):
        changed = code_change(None if before is None else before.get(case.kernel, {}), now.get(case.kernel, {}))
        if changed:
            raise UsageError(
                f"--resume {run.id}: {case.kernel}: {changed}. Evidence of two versions is not mixed in one run. "
                "Start a new run: leave out --resume."
            )


def _refused_otherwise(record: Record, refusals: Mapping[str, Record]) -> bool:
    """It was refused and would run today, or it ran and would be refused."""
    if isinstance(record.outcome, NotRun):
        return False
    before = isinstance(record.outcome, Refused) and record.outcome.by == "plan"
    return before != (record.case.id in refusals)


def _settings(request: Request, run: Run) -> Settings:
    policy = request.matrix.card.policy
    names = dict.fromkeys(case.kernel for case in request.plan.cases)
    return Settings(
        device=request.device,
        device_name=request.host.name,
        level=request.level,
        reference=policy.reference,
        timeout_s=policy.timeout_s,
        compile_timeout_s=policy.compile_timeout_s,
        hash_cache=digest_cache(),
        anew=request.anew,
        cards={name: request.kernels[name].card for name in names},
        import_paths=request.import_paths,
        memory_bytes=int(available_memory() * MEMORY_SHARE),
        ceilings=run.ceilings,
        environments=request.environments,
        card=next(iter(request.uuids), ""),
    )


@contextmanager
def _undisturbed() -> Iterator[None]:
    """A second Ctrl-C does not stop the tidying up, which takes a moment."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _described(run: Run, started: Started) -> Run:
    """The run with what a judge reports; what was reported first stays, as in the store."""
    found = started.environments
    environments = {name: replace(one, stack=one.stack or found.get(name)) for name, one in run.environments.items()}
    stack, ceilings = run.stack or started.stack, run.ceilings or started.ceilings
    return replace(run, stack=stack, ceilings=ceilings, environments=environments)


class _Filing:
    """Takes events, commits records in groups, keeps count of what is committed."""

    def __init__(
        self,
        store: Store,
        run: Run,
        show: Show,
        cases: Sequence[Case],
        ledger: Ledger,
        *,
        owed: int,
        xids: XidNotes | None,
    ) -> None:
        self.store = store
        self.xids = xids
        """what the driver reported; None where several cards share the run"""
        self.ledger = ledger
        self.run = run
        """with what the store has of its stacks and ceilings"""
        self.show = show
        self.calls = calls_of(cases)
        self.total = len(self.calls)
        self.before = self.total - owed
        self.final: set[str] = set()
        """cases that got their final outcome here; the loss of a CUDA context may take one back"""
        self.waiting: list[Done] = []
        self.ahead_us: dict[str, float] = {}
        """what the first call of a case cost when it was compiled ahead"""
        self.since = time.monotonic()

    def note_compiled(self, call: Compiling | None) -> None:
        """Remember what it cost to compile a call ahead: it is the case's first call."""
        if call is None:
            return
        if call.first_call_us is not None:
            self.ahead_us[call.case_id] = call.first_call_us
        stage = f"compiled ahead: {call.done} of {call.total}"
        self.show(
            Progress(done=self.before, total=self.total, case_id=call.case_id, stage=stage, record=None, compiling=True)
        )

    def take(self, event: Event) -> None:
        """File one event of the supervisor."""
        match event:
            case Started():
                self._check_stack(event)
                self.run = _described(self.run, event)
                self.store.set_stack(self.run.id, event.stack, event.ceilings)
                if event.environments:
                    self.store.set_environments(self.run.id, event.environments)
            case At():
                if self.xids:
                    self.xids.at(event.case_id)
                self._report(event.case_id, event.stage)
            case Done():
                self.waiting.append(replace(event, record=self._with_compilation(event.record)))
            case Tick():
                pass
        overdue = time.monotonic() - self.since > COMMIT_SECONDS
        if overdue or len(self.waiting) >= COMMIT_RECORDS:
            self.file()

    def take_over(self, records: Sequence[Record]) -> set[str]:
        """Store what earlier runs settled; the ids of the cases that need not run."""
        self.ledger.add(records)
        executed = {cases[0].id for cases in self.calls.values()}
        taken = {record.case.id for record in records}
        self.before += len(taken & executed)
        return taken

    def file(self) -> None:
        """Write what is waiting, then show it: whatever was shown as done survives the end of this process."""
        for event in self.commit():
            case_id = event.record.case.id
            if event.final:
                self.final.add(case_id)
            else:
                self.final.discard(case_id)
            self._report(case_id, "done", event.record, final=event.final)

    def _with_compilation(self, record: Record) -> Record:
        """The record with what its first call cost on this machine, where another process made it."""
        outcome, ahead_us = record.outcome, self.ahead_us.get(record.case.id)
        if ahead_us is None or not isinstance(outcome, Measured | Substituted):
            return record
        evidence = replace(outcome.evidence, first_call_us=max(ahead_us, outcome.evidence.first_call_us))
        return replace(record, outcome=replace(outcome, evidence=evidence))

    def _with_xids(self, record: Record) -> Record:
        """The record with what the driver reported during the case."""
        return self.xids.noted(record, self.run.stack.device.uuid) if self.xids and self.run.stack else record

    def close(self) -> None:
        """Nothing more happens on the card."""
        if self.xids:
            self.xids.close()

    def commit(self) -> list[Done]:
        """Write what is waiting, in one transaction; returns it."""
        if self.waiting:
            self.waiting = [replace(event, record=self._with_xids(event.record)) for event in self.waiting]
            records = [record for event in self.waiting for record in shared(event.record, self.calls)]
            self.ledger.add(records)
        written, self.waiting = self.waiting, []
        self.since = time.monotonic()
        return written

    def _check_stack(self, started: Started) -> None:
        """All workers of a run, and of its continuation, run on one stack."""
        known = self.run.stack
        if known is None or known.fingerprint == started.stack.fingerprint:
            return
        raise UsageError(
            f"run {self.run.id} began on another stack ({stack_words(known, started.stack)}). Evidence of two stacks "
            "is not mixed in one run: start a new one."
        )

    def _report(self, case_id: str, stage: str, record: Record | None = None, *, final: bool = True) -> None:
        done = self.before + len(self.final)
        self.show(Progress(done=done, total=self.total, case_id=case_id, stage=stage, record=record, final=final))
