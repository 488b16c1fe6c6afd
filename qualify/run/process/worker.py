"""The child process of one device: reads cases from a pipe, runs them, writes what happened to another.

Messages are lines of JSON on two file descriptors of their own, because libraries print to stdout.

::

    parent -> child   setup {mode, device, level, reference, hash_cache, import_paths, cards, preload, ceilings}  once
                      chunk {requests: [{case, attempt}]}                      again and again
    child -> parent   ready {stack, ceilings, unloadable}  or  unusable {message}  once
                      at {case, stage}                                         before every step
                      outcome {case, outcome}
                      idle {}                                                  the chunk is done
                      sick {case, error}                                       the context is lost; the child exits

In mode ``compile`` the child only prepares the calls of a chunk, and says ``ready {}`` and
``compiled {case, first_call_us}``; first_call_us is null where the call failed. In mode ``trials`` it answers
``qualify repro`` (qualify.run.repro.trial).
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from qualify.cards.kernel import KernelCard
from qualify.errors import DeviceError
from qualify.facts import codec
from qualify.facts.case import Case
from qualify.facts.devices import HOST
from qualify.facts.outcome import Outcome
from qualify.facts.stack import Ceilings
from qualify.run.process.parent import die_with


class Pipe:
    """Lines of JSON to the parent."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream

    def send(self, event: str, **fields: Any) -> None:
        """Write one message. What no encoding can express (undecodable bytes in an exception's text) becomes ``?``."""
        line = json.dumps({"event": event, **fields}, separators=(",", ":"), ensure_ascii=False)
        self.stream.write(line.encode("utf-8", "replace") + b"\n")
        self.stream.flush()


def main() -> None:
    """Entry of the child; its arguments are the two descriptors and the parent's process id."""
    own_in, own_out, parent = (int(argument) for argument in sys.argv[1:])
    _follow_parent(parent)
    for descriptor in (own_in, own_out):
        # What a library starts must not hold the pipe open after this process has gone.
        os.set_inheritable(descriptor, False)
    pipe = Pipe(os.fdopen(own_out, "wb"))
    messages = (json.loads(line) for line in os.fdopen(own_in, "r", encoding="utf-8"))
    setup = next(messages, None)
    if setup is not None and setup["mode"] == "trials":
        _serve_trials(setup, messages, pipe)
    elif setup is not None:
        _serve(setup, messages, pipe)
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


def _serve(setup: dict[str, Any], messages: Iterator[dict[str, Any]], pipe: Pipe) -> None:
    """Describe the device, then run chunks until the pipe closes."""
    # Heavy imports come after the process follows its parent, and are part of what the parent times.
    from qualify.run import execute
    from qualify.run.machine import stack
    from qualify.run.machine.device import processor_of
    from qualify.run.measure.ceilings import measure_ceilings

    sys.path += setup["import_paths"]
    if setup["mode"] == "compile":
        _compile(setup, messages, pipe)
        return
    cards = _cards(setup)
    try:
        device = processor_of(setup["device"]).describe()
    except DeviceError as error:
        pipe.send("unusable", message=str(error))
        return
    if device.kind == HOST:
        _limit_memory(device.memory_bytes)
    adapters = _preload([cards[name] for name in setup["preload"]], pipe)
    pipe.send("at", case="", stage="ceilings")
    known: Ceilings | None = codec.from_data(Ceilings | None, setup["ceilings"])
    processor = processor_of(device.kind)
    ceilings = known or measure_ceilings(processor)
    control = execute.run_control(processor.device)
    pipe.send("at", case="", stage="fingerprint")
    described = stack.describe_stack(device, Path(setup["hash_cache"]))
    unloadable = [name for name in setup["preload"] if name not in adapters]
    pipe.send("ready", stack=codec.to_data(described), ceilings=codec.to_data(ceilings), unloadable=unloadable)
    session = execute.Session(
        device=device,
        ceilings=ceilings,
        cards=cards,
        level=setup["level"],
        reference=setup["reference"],
        control=control,
        announce=lambda case, stage: pipe.send("at", case=case, stage=stage),
    )
    session.adapters |= adapters
    for message in messages:
        if not _run_chunk(session, message["requests"], pipe):
            return


def _serve_trials(setup: dict[str, Any], messages: Iterator[dict[str, Any]], pipe: Pipe) -> None:
    """Answer the trials of ``qualify repro`` until the pipe closes (qualify.run.repro.trial has the messages)."""
    from qualify.run.adapters.registry import create_adapter
    from qualify.run.machine.device import processor_of
    from qualify.run.repro import trial

    sys.path += setup["import_paths"]
    try:
        processor = processor_of(setup["device"])
        processor.describe()
    except DeviceError as error:
        pipe.send("unusable", message=str(error))
        return
    card = codec.from_data(KernelCard, setup["card"])
    pipe.send("at", case="", stage="load")
    try:
        adapter = create_adapter(card)
    except Exception as error:  # noqa: BLE001 - whatever a library raises while it is imported
        pipe.send("unusable", message=f"{card.kernel} cannot be loaded: {type(error).__name__}: {error}")
        return
    pipe.send("ready")
    for message in messages:
        asked = codec.from_data(trial.Asked, message)
        pipe.send("at", case=asked.case.id, stage="call")
        attempt = trial.Trial(asked, trial.subject_of(asked, card, adapter, processor.device, setup), pipe)
        try:
            ended = attempt.run()
        except Exception as error:  # noqa: BLE001 - whatever a kernel raises is how its trial ends
            ended = attempt.crashed(error)
        pipe.send("trial", **ended)


def _cards(setup: dict[str, Any]) -> dict[str, KernelCard]:
    return {name: codec.from_data(KernelCard, card) for name, card in setup["cards"].items()}


def _compile(setup: dict[str, Any], messages: Iterator[dict[str, Any]], pipe: Pipe) -> None:
    """Make every call once, so that what its library compiles gets into the library's cache on disk."""
    from qualify.run import execute

    cards = _cards(setup)
    adapters: dict[str, Any] = {}
    pipe.send("ready")
    for message in messages:
        for item in message["requests"]:
            case = codec.from_data(Case, item["case"])
            pipe.send("at", case=case.id, stage="compile")
            try:
                took: float | None = execute.first_call(case, cards[case.kernel], adapters, setup["device"])
            except Exception:  # noqa: BLE001 - whatever a library raises; the run repeats and records it
                took = None
            execute.give_back_memory(setup["device"])
            pipe.send("compiled", case=case.id, first_call_us=took)


def _preload(cards: list[KernelCard], pipe: Pipe) -> dict[str, Any]:
    """The adapters whose libraries load; the others fail again, and are recorded, as the outcome of their cases."""
    from qualify.run.adapters.registry import create_adapter

    adapters = {}
    for card in cards:
        pipe.send("at", case="", stage=f"load:{card.kernel}")
        try:
            adapters[card.kernel] = create_adapter(card)
        except Exception:  # noqa: BLE001, S112 - whatever a library raises; its first case repeats and records it
            continue
    return adapters


def _run_chunk(session: Any, requests: list[dict[str, Any]], pipe: Pipe) -> bool:
    """Run the cases and send their outcomes; False where the context is lost."""
    from qualify.run import execute

    asked = [execute.Request(case=codec.from_data(Case, item["case"]), attempt=item["attempt"]) for item in requests]
    case = asked[0].case.id
    try:
        for case, outcome in session.run(asked):
            pipe.send("outcome", case=case, outcome=codec.to_data(outcome, Outcome))
    except execute.SickContext as error:
        pipe.send("sick", case=case, error=str(error))
        return False
    pipe.send("idle")
    return True


def _limit_memory(total: int) -> None:
    """A kernel that allocates everything gets a MemoryError of its own instead of taking the machine along.

    Libraries are mapped already and count too, so the limit is what is mapped now plus the machine's memory.
    """
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = mapped + total if hard == resource.RLIM_INFINITY else min(mapped + total, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
