"""A run on this machine: plan in, committed evidence out, interruptible at any moment."""

from __future__ import annotations

import secrets
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from qualify import __version__
from qualify.assets import digest_cache
from qualify.cards.terms import terms_by_kernel
from qualify.errors import DeviceError, LeaseLost, QualifyError, StoreError, UsageError
from qualify.facts.checks import CHECK_VERSION
from qualify.facts.clock import worse
from qualify.facts.code import Code, code_change
from qualify.facts.environment import Environment
from qualify.facts.outcome import NotRun, Refused
from qualify.facts.run import Record, Run
from qualify.fleet.entries import with_entry
from qualify.fleet.filing import Filing, Progress, Show
from qualify.fleet.judges import Judges, begin_judges
from qualify.fleet.request import Request
from qualify.fleet.reuse import settled_before
from qualify.fleet.sealing import Ledger
from qualify.fleet.sharing import first_of_each
from qualify.fleet.spread import Spread
from qualify.fleet.writers import Beat, claimed
from qualify.fleet.xid_notes import XidNotes
from qualify.plan.code import CodeHere
from qualify.run.process.compile_ahead import compile_ahead
from qualify.run.process.repeats import Task, tasks_to_resume
from qualify.run.process.supervisor import Done, Event, Started, Supervisor
from qualify.store.store import Store
from qualify.verdict.faults import failed_cards, own_card

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""the signals that end a command"""


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
    return here.noted(request.kernels[name].card for name in names)


def execute(
    request: Request,
    store: Store,
    run: Run,
    show: Show,
    *,
    resume: bool = False,
    reuse: bool = False,
    judges: Judges | None = None,
) -> None:
    """Run the plan, commit every outcome at most half a second after it is known, and only then show it as done.

    Whatever ends it early, Ctrl-C and errors alike, first ends the worker, commits what was measured and marks the
    run as interrupted. A completed run stays as it is. No other process writes the run meanwhile; where this one was
    stopped for so long that another has taken the run over, it only ends. Where the store refuses outcomes for a reason
    that may pass, they wait in memory for some minutes (:mod:`qualify.fleet.patience`).

    Args:
        resume: go on with ``run``: cases that have a settled outcome are not run again.
        reuse: take over what earlier runs settled on the same card and stack (:mod:`qualify.fleet.reuse`).
        judges: that have begun for this request; None = they begin now.

    Raises:
        KeyboardInterrupt: as it came; with a sentence where outcomes could not be stored.
        DeviceError: the device cannot be used.
        RunBusy: another process has the run.
        StoreError: the evidence cannot be written; what was committed before stays.
        UsageError: the run to resume has another plan or another stack.
    """
    if resume and run.state == "completed":
        return
    with claimed(store, run.id, partial(_tell, show)) as beat:
        if resume:
            run = store.run(run.id)  # as the process that had it before has left it
        if run.state != "completed":
            with judges or begin_judges(request, run.ceilings) as begun:
                _execute(request, store, run, show, beat, begun, resume=resume, reuse=reuse)


def _tell(show: Show, sentence: str) -> None:
    """Show a sentence before anything has begun."""
    show(Progress(done=0, total=0, case_id="", stage="start", record=None, told=sentence))


def _execute(
    request: Request, store: Store, run: Run, show: Show, beat: Beat, judges: Judges, *, resume: bool, reuse: bool
) -> None:
    """Run what the claimed run owes."""
    run = replace(run, clock_skew_s=worse(run.clock_skew_s, store.clock_skew_s()))
    ledger = Ledger(store, run.id, request.signing_key)
    tasks = _go_on(request, store, run, ledger) if resume else _begin(request, store, run, ledger)
    if resume:
        store.resume(run.id, run.clock_skew_s)
    filing = Filing(store, run, show, request.plan.cases, ledger, owed=len(tasks), xids=XidNotes(judges.xids))
    compiling = compile_ahead(judges.settings, (task.case for task in tasks))
    supervisor: Supervisor | Spread = Supervisor(
        judges.settings, tasks, begun=partial(judges.take, judges.settings.card)
    )
    if len(request.uuids) > 1:
        supervisor = Spread(judges.settings, tasks, request.uuids, judges.take)
        reuse = False  # what one card measured would be taken over for all
    events = supervisor.events()

    def take(event: Event) -> None:
        nonlocal reuse
        if isinstance(event, Done):
            event = replace(event, record=with_entry(event.record, request.kernels))
        filing.take(event)
        supervisor.failed |= _failed(request, filing)
        if reuse and isinstance(event, Started):
            stacks = {"": event.stack, **event.environments}
            earlier = ledger.patience.keep(partial(settled_before, request, store, run, stacks))
            supervisor.settled = filing.take_over(earlier)
            reuse = False

    try:
        for call in compiling:
            beat.check()
            filing.note_compiled(call)
        stopped = _listen(events, beat, take, supervisor.failed)
        filing.file_all()
        filing.end()
        if stopped:
            filing.leave(stopped)
        ended = ledger.finish(filing.run, "completed")
    except BaseException as error:
        with undisturbed():
            compiling.close()
            events.close()
            if isinstance(error, LeaseLost):
                filing.xids.close()
            else:
                _leave(store, filing, ledger, error)
        raise
    with undisturbed():
        ledger.seal(ended)


def _leave(store: Store, filing: Filing, ledger: Ledger, error: BaseException) -> None:
    """Store what was measured, and mark the run as interrupted. The command ends now, so nothing is tried again.

    Where the store refuses, what is raised in place of the error tells how many outcomes are lost.
    """
    if isinstance(error, KeyboardInterrupt | StoreError):
        store.hurry()
    ledger.patience.end()
    try:
        filing.end()
        ended = ledger.finish(filing.run, "interrupted")
    except LeaseLost:
        raise
    except StoreError as refused:
        count = filing.unstored
        lost = f"{count} outcome{'s' if count > 1 else ''} could not be stored and will run again" if count else ""
        if isinstance(error, KeyboardInterrupt):
            what = lost or "The run could not be marked as interrupted"
            raise KeyboardInterrupt(f"{what}: {refused.happened}.") from refused
        told = error if isinstance(error, StoreError) else refused
        raise StoreError(f"{told} {lost}." if lost else str(told), told.happened) from refused
    with suppress(QualifyError):  # whoever goes on with it, or judges it, is told that it has no seal
        ledger.seal(ended)


def _listen(events: Iterable[Event], beat: Beat, take: Callable[[Event], None], failed: Mapping[str, str]) -> str:
    """Take all events. Returns why they ended early, where the hardware of a card failed; else an empty text."""
    try:
        for event in events:
            beat.check()
            take(event)
    except DeviceError:
        if not failed:
            raise
        return "; ".join(failed.values())
    return ""


def _failed(request: Request, filing: Filing) -> dict[str, str]:
    """Why nothing more shall run on cards of the run, by their UUIDs in the settings."""
    cards = {card: card for card in request.uuids}
    if len(cards) < 2:
        cards = {next(iter(cards), ""): own_card(filing.run)}
    failed = filing.xids.failed
    return {place: failed[card] for place, card in cards.items() if card in failed}


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
    _refuse_failed_cards(run, records)
    refusals = {record.case.id: record for record in _refusals(request)}
    cases = [*request.plan.cases, *(record.case for record in refusals.values())]
    differing = {(case.id, case.content_hash) for case in cases}
    differing ^= {(record.case.id, record.case.content_hash) for record in records}
    differing |= {(record.case.id, "") for record in records if _refused_otherwise(record, refusals)}
    if differing:
        names = sorted({name for name, _ in differing})
        raise UsageError(
            f"--resume {run.id}: today's plan is different (cases that differ: {len(names)}, for example {names[0]}). "
            "A kernel card or an installed library has probably changed since. Start a new run: leave out --resume."
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


def _refuse_failed_cards(run: Run, records: Sequence[Record]) -> None:
    """Evidence of a failed card never counts, so no outcome that is added makes the run a proof."""
    for card, why in failed_cards(records, own_card(run)).items():
        raise UsageError(
            f"--resume {run.id}: card {card} failed: {why}. Look at the card before anything runs on it. Start a new "
            "run: leave out --resume."
        )


def _refused_otherwise(record: Record, refusals: Mapping[str, Record]) -> bool:
    """Whether the case was refused and would run today, or ran and would be refused today."""
    if isinstance(record.outcome, NotRun):
        return False
    before = isinstance(record.outcome, Refused) and record.outcome.by == "plan"
    return before != (record.case.id in refusals)


@contextmanager
def undisturbed() -> Iterator[None]:
    """A second signal that ends a command does not stop the tidying up, which takes a moment."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
