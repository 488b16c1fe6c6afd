"""The judge of one device: reads cases from a pipe, has their kernels run in hosts, and writes what it found.

No kernel and no library runs in this process. Messages are lines of JSON on two file descriptors of their own; what
they are stands in qualify.run.process.messages, and those to hosts in qualify.run.host.messages.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

from qualify.cards.kernel import KernelCard
from qualify.errors import DeviceError
from qualify.facts.lines import WrongMessage
from qualify.run.host.launch import HostSetup, start_early
from qualify.run.process.messages import (
    CallCompiled,
    CaseEnded,
    CaseRequest,
    Chunk,
    ChunkDone,
    CompileSetup,
    ContextLost,
    Described,
    DuelRound,
    DuelSetup,
    FromChild,
    FromParent,
    HostLimits,
    Ready,
    RunSetup,
    StageBegun,
    TrialRequest,
    TrialSetup,
    Unusable,
    decode_request,
    encode,
    event_of,
)
from qualify.run.process.parent import adopt_orphans, follow_parent, keep_to_itself
from qualify.run.process.repeats import failed

M = TypeVar("M")


class Pipe:
    """Messages to the parent."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream

    def send(self, message: FromChild) -> None:
        """Write one message."""
        self.stream.write(encode(message))
        self.stream.flush()

    def announce(self, case: str, stage: str) -> None:
        """Say which step of which case begins; an empty case means the worker's start."""
        self.send(StageBegun(case=case, stage=stage))


def main() -> None:
    """Entry of the child; its arguments are the two descriptors, the parent's process id, and two that hosts need."""
    own_in, own_out, parent = (int(argument) for argument in sys.argv[1:4])
    follow_parent(parent)
    adopt_orphans()
    keep_to_itself()
    gc.disable()  # torch makes a million objects while it is imported, and none of them is garbage
    for descriptor in (own_in, own_out):
        # A host must not hold the pipe open after this process has gone, nor write to it.
        os.set_inheritable(descriptor, False)
    pipe = Pipe(os.fdopen(own_out, "wb"))
    messages = map(decode_request, os.fdopen(own_in, "rb"))
    match next(messages, None):
        case RunSetup() as setup:
            _run(setup, _only(Chunk, messages), pipe)
        case CompileSetup() as setup:
            _compile(setup, _only(Chunk, messages), pipe)
        case TrialSetup() as setup:
            _serve_trials(setup, _only(TrialRequest, messages), pipe)
        case DuelSetup() as setup:
            _duel(setup, _only(DuelRound, messages), pipe)
    pipe.stream.flush()
    os._exit(0)


def _only(kind: type[M], messages: Iterable[FromParent]) -> Iterator[M]:
    """The messages, which after this setup must be of one kind."""
    for message in messages:
        if not isinstance(message, kind):
            raise WrongMessage(f"event {event_of(message)!r} in a worker that was not set up for it")
        yield message


def _pool(setup: RunSetup | CompileSetup | TrialSetup, preload: Sequence[KernelCard] = ()) -> Any:
    """Hosts of this judge; those of some cards import torch while this process does."""
    environments = dict(setup.hosts.environments)
    hosts = HostSetup(device=setup.device, import_paths=setup.import_paths, memory_bytes=setup.hosts.memory_bytes)
    early = start_early(hosts, preload, environments)

    from qualify.run.host.pool import Pool
    from qualify.run.host.remote import Watch

    gc.freeze()  # what this process imports is there, and stays
    gc.enable()
    return Pool(hosts, Watch(), environments, ends_strays=True, early=early)


def _run(setup: RunSetup, chunks: Iterator[Chunk], pipe: Pipe) -> None:
    """Describe the device, then run chunks until the pipe closes."""
    # Heavy imports come after the process follows its parent, and are part of what the parent times.
    preload = [setup.cards[name] for name in setup.preload]
    pool = _pool(setup, preload)
    from qualify.run import execute
    from qualify.run.machine import stack
    from qualify.run.machine.device import processor_of
    from qualify.run.measure.ceilings import measure_ceilings

    try:
        pool.begin_start(preload)
        processor = processor_of(setup.device)
        device = processor.describe()
        _check_place(processor, device, setup.card)
        processor.take(device)
    except DeviceError as error:
        pipe.send(Unusable(message=str(error)))
        return
    pool.finish_start(lambda kernel: pipe.announce("", f"load:{kernel}"))
    pipe.announce("", "ceilings")
    ceilings = setup.ceilings or measure_ceilings(processor)
    pipe.announce("", "fingerprint")
    known = Path(setup.hash_cache) if setup.hash_cache else None
    binaries, told = pool.binaries(), pool.described()
    pool.begin_controls()  # while this process reads files
    described = stack.describe_stack(device, known, binaries)
    environments = {name: stack.stack_of(device, software, known) for name, software in told.items()}
    pipe.send(Described(stack=described, environments=environments, ceilings=ceilings))
    session = execute.Session(
        device=device,
        ceilings=ceilings,
        cards=dict(setup.cards),
        level=setup.level,
        reference=setup.reference,
        hosts=pool,
        announce=pipe.announce,
        limits=_limits(setup.hosts),
    )
    for chunk in chunks:
        if not _run_chunk(session, pool, chunk.requests, pipe):
            break
    pool.close()


def _check_place(processor: Any, device: Any, card: str) -> None:
    """Raises DeviceError where this process is not on the card that was meant for it."""
    why = processor.misplaced(device, card) if card else ""
    if why:
        raise DeviceError(
            f"the judge of card {card} is not there: {why}. Something between this machine's driver and the judge "
            "chooses cards by itself, probably a container runtime or a variable like CUDA_VISIBLE_DEVICES. Nothing "
            "was run: `nvidia-smi -L` lists the cards."
        )


def _limits(hosts: HostLimits) -> Any:
    from qualify.run.execute import Limits

    return Limits(stage_s=hosts.timeout_s, compile_s=hosts.compile_timeout_s)


def _run_chunk(session: Any, pool: Any, requests: tuple[CaseRequest, ...], pipe: Pipe) -> bool:
    """Run the cases and send their outcomes; False where this process can run no more."""
    from qualify.run import execute

    case = requests[0].case.id
    alone = sum(request.alone for request in requests)
    claimed = {request.case.id for request in requests if not request.case.unclaimed}
    try:
        if alone:
            pool.prepare_spares(alone)
        for ended in session.run(requests):
            case = ended.case
            pipe.send(CaseEnded(case=case, outcome=ended.outcome, fresh=ended.fresh))
            if case in claimed and failed(ended.outcome) and not ended.fresh:
                pool.expect_repeat()
    except execute.SickContext as error:
        pipe.send(ContextLost(case=case, error=str(error)))
        return False
    except DeviceError as error:
        pipe.send(Unusable(message=str(error)))
        return False
    pipe.send(ChunkDone())
    return True


def _serve_trials(setup: TrialSetup, requests: Iterator[TrialRequest], pipe: Pipe) -> None:
    """Answer the trials of ``qualify repro`` until the pipe closes."""
    from qualify.run.host.interface import HostLost
    from qualify.run.machine.device import processor_of
    from qualify.run.repro import trial

    pool = _pool(setup)
    try:
        processor = processor_of(setup.device)
        processor.take(processor.describe())
    except DeviceError as error:
        pipe.send(Unusable(message=str(error)))
        return
    pipe.announce("", "load")
    pool.begin(setup.hosts.compile_timeout_s)
    try:
        pool.kernel(setup.card)
    except DeviceError as error:
        pipe.send(Unusable(message=str(error)))
        return
    except HostLost as lost:
        pipe.send(Unusable(message=f"{setup.card.kernel} cannot be loaded: {lost.error}"))
        return
    except Exception as error:  # noqa: BLE001 - whatever a library raises while it is imported
        pipe.send(Unusable(message=f"{setup.card.kernel} cannot be loaded: {trial.told(error)}"))
        return
    pipe.send(Ready())
    for request in requests:
        pipe.announce(request.case.id, "call")
        pool.begin(setup.hosts.compile_timeout_s)
        kernel = pool.kernel(setup.card)
        pool.begin(setup.hosts.timeout_s)
        attempt = trial.Trial(request, trial.subject_of(request, setup, kernel, processor.device), pool)
        try:
            ended = attempt.run()
        except Exception as error:  # noqa: BLE001 - whatever a kernel raises is how its trial ends
            ended = attempt.crashed(error)
            pool.lost(setup.card)  # its context may be lost, and would fail everything after
        pipe.send(ended)
    pool.close()


def _duel(setup: DuelSetup, rounds: Iterator[DuelRound], pipe: Pipe) -> None:
    """Let two sides take turns until the pipe closes."""
    from qualify.run.duel.service import DuelService

    gc.freeze()
    gc.enable()
    try:
        service = DuelService(setup)
    except DeviceError as error:
        pipe.send(Unusable(message=str(error)))
        return
    pipe.send(Ready())
    for asked in rounds:
        try:
            for answer in service.run(asked, pipe.announce):
                pipe.send(answer)
        except DeviceError as error:
            pipe.send(Unusable(message=str(error)))
            return
    service.close()


def _compile(setup: CompileSetup, chunks: Iterator[Chunk], pipe: Pipe) -> None:
    """Make every call once, so that what its library compiles gets into the library's cache on disk."""
    pool = _pool(setup)
    from qualify.run import execute
    from qualify.run.machine.device import processor_of

    try:
        processor = processor_of(setup.device)
        processor.take(processor.describe())
    except DeviceError as error:
        pipe.send(Unusable(message=str(error)))
        return
    pipe.send(Ready())
    for chunk in chunks:
        for case in (request.case for request in chunk.requests):
            pipe.announce(case.id, "compile")
            pool.begin(setup.hosts.compile_timeout_s)
            card = setup.cards[case.kernel]
            try:
                took: float | None = execute.first_call(case, card, pool, setup.device)
            except Exception:  # noqa: BLE001 - whatever a library raises; the run repeats and records it
                took = None
            execute.give_back_memory(setup.device)
            pipe.send(CallCompiled(case=case.id, first_call_us=took))
    pool.close()


if __name__ == "__main__":
    main()
