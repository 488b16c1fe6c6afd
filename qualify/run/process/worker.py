"""The child process of one device: reads cases from a pipe, runs them, writes what happened to another.

Messages are lines of JSON on two file descriptors of their own, because libraries print to stdout; what they are
stands in qualify.run.process.messages.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

from qualify.cards.kernel import KernelCard
from qualify.errors import DeviceError
from qualify.facts.devices import HOST
from qualify.run.process.messages import (
    CallCompiled,
    CaseEnded,
    CaseRequest,
    Chunk,
    ChunkDone,
    CompileSetup,
    ContextLost,
    Described,
    FromChild,
    FromParent,
    Ready,
    RunSetup,
    ScriptSoFar,
    StageBegun,
    TrialRequest,
    TrialSetup,
    Unusable,
    WrongMessage,
    decode_request,
    encode,
    event_of,
)
from qualify.run.process.parent import die_with

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
    """Entry of the child; its arguments are the two descriptors and the parent's process id."""
    own_in, own_out, parent = (int(argument) for argument in sys.argv[1:])
    _follow_parent(parent)
    for descriptor in (own_in, own_out):
        # What a library starts must not hold the pipe open after this process has gone.
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
    pipe.stream.flush()
    # A library's exit handlers may hang or crash on a context that a kernel has broken; nothing is left to do.
    os._exit(0)


def _follow_parent(parent: int) -> None:
    """Die with the parent, leave Ctrl-C to it, say where a fault was, and be the first that a full machine kills."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with(parent)
    faulthandler.enable()
    # The parent asks with it where a silent process is, before it kills it.
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    try:
        Path("/proc/self/oom_score_adj").write_text("1000")
    except OSError:
        return


def _only(kind: type[M], messages: Iterable[FromParent]) -> Iterator[M]:
    """The messages, which after this setup must be of one kind."""
    for message in messages:
        if not isinstance(message, kind):
            raise WrongMessage(f"event {event_of(message)!r} in a worker that was not set up for it")
        yield message


def _run(setup: RunSetup, chunks: Iterator[Chunk], pipe: Pipe) -> None:
    """Describe the device, then run chunks until the pipe closes."""
    # Heavy imports come after the process follows its parent, and are part of what the parent times.
    from qualify.run import execute
    from qualify.run.machine import stack
    from qualify.run.machine.device import processor_of
    from qualify.run.measure.ceilings import measure_ceilings

    sys.path += setup.import_paths
    try:
        device = processor_of(setup.device).describe()
    except DeviceError as error:
        pipe.send(Unusable(message=str(error)))
        return
    if device.kind == HOST:
        _limit_memory(device.memory_bytes)
    adapters = _preload([setup.cards[name] for name in setup.preload], pipe)
    pipe.announce("", "ceilings")
    processor = processor_of(device.kind)
    ceilings = setup.ceilings or measure_ceilings(processor)
    control = execute.run_control(processor.device)
    pipe.announce("", "fingerprint")
    described = stack.describe_stack(device, Path(setup.hash_cache))
    unloadable = tuple(name for name in setup.preload if name not in adapters)
    pipe.send(Described(stack=described, ceilings=ceilings, unloadable=unloadable))
    session = execute.Session(
        device=device,
        ceilings=ceilings,
        cards=dict(setup.cards),
        level=setup.level,
        reference=setup.reference,
        control=control,
        announce=pipe.announce,
    )
    session.adapters |= adapters
    for chunk in chunks:
        if not _run_chunk(session, chunk.requests, pipe):
            return


def _serve_trials(setup: TrialSetup, requests: Iterator[TrialRequest], pipe: Pipe) -> None:
    """Answer the trials of ``qualify repro`` until the pipe closes."""
    from qualify.run.adapters.registry import create_adapter
    from qualify.run.machine.device import processor_of
    from qualify.run.repro import trial

    sys.path += setup.import_paths
    try:
        processor = processor_of(setup.device)
        processor.describe()
    except DeviceError as error:
        pipe.send(Unusable(message=str(error)))
        return
    pipe.announce("", "load")
    try:
        adapter = create_adapter(setup.card)
    except Exception as error:  # noqa: BLE001 - whatever a library raises while it is imported
        pipe.send(Unusable(message=f"{setup.card.kernel} cannot be loaded: {type(error).__name__}: {error}"))
        return

    def show(launch: int, script: str) -> None:
        pipe.send(ScriptSoFar(launch=launch, text=script))

    pipe.send(Ready())
    for request in requests:
        pipe.announce(request.case.id, "call")
        attempt = trial.Trial(request, trial.subject_of(request, setup, adapter, processor.device), show)
        try:
            ended = attempt.run()
        except Exception as error:  # noqa: BLE001 - whatever a kernel raises is how its trial ends
            ended = attempt.crashed(error)
        pipe.send(ended)


def _compile(setup: CompileSetup, chunks: Iterator[Chunk], pipe: Pipe) -> None:
    """Make every call once, so that what its library compiles gets into the library's cache on disk."""
    from qualify.run import execute

    sys.path += setup.import_paths
    adapters: dict[str, Any] = {}
    pipe.send(Ready())
    for chunk in chunks:
        for case in (request.case for request in chunk.requests):
            pipe.announce(case.id, "compile")
            try:
                took: float | None = execute.first_call(case, setup.cards[case.kernel], adapters, setup.device)
            except Exception:  # noqa: BLE001 - whatever a library raises; the run repeats and records it
                took = None
            execute.give_back_memory(setup.device)
            pipe.send(CallCompiled(case=case.id, first_call_us=took))


def _preload(cards: list[KernelCard], pipe: Pipe) -> dict[str, Any]:
    """The adapters whose libraries load; the others fail again, and are recorded, as the outcome of their cases."""
    from qualify.run.adapters.registry import create_adapter

    adapters = {}
    for card in cards:
        pipe.announce("", f"load:{card.kernel}")
        try:
            adapters[card.kernel] = create_adapter(card)
        except Exception:  # noqa: BLE001, S112 - whatever a library raises; its first case repeats and records it
            continue
    return adapters


def _run_chunk(session: Any, requests: tuple[CaseRequest, ...], pipe: Pipe) -> bool:
    """Run the cases and send their outcomes; False where the context is lost."""
    from qualify.run import execute

    case = requests[0].case.id
    try:
        for case, outcome in session.run(requests):
            pipe.send(CaseEnded(case=case, outcome=outcome))
    except execute.SickContext as error:
        pipe.send(ContextLost(case=case, error=str(error)))
        return False
    pipe.send(ChunkDone())
    return True


def _limit_memory(total: int) -> None:
    """A kernel that allocates everything gets a MemoryError of its own instead of taking the machine along.

    Libraries are mapped already and count too, so the limit is what is mapped now plus the machine's memory.
    """
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = mapped + total if hard == resource.RLIM_INFINITY else min(mapped + total, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
