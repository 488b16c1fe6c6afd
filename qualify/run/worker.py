"""The child process of one device: reads cases from a pipe, runs them, writes what happened to another.

Messages are lines of JSON on two file descriptors of their own, because libraries print to stdout.

::

    parent -> child   setup {device, level, reference, hash_cache, cards, preload}  once
                      chunk {requests: [{case, attempt}]}                      again and again
    child -> parent   ready {stack, ceilings}  or  unusable {message}          once
                      at {case, stage}                                         before every step
                      outcome {case, outcome}
                      idle {}                                                  the chunk is done
                      sick {case, error}                                       the context is lost; the child exits
"""

from __future__ import annotations

import ctypes
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
from qualify.facts.outcome import Outcome

PR_SET_PDEATHSIG = 1


class Pipe:
    """Lines of JSON to the parent."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream

    def send(self, event: str, **fields: Any) -> None:
        """Write one message and flush it."""
        self.stream.write(json.dumps({"event": event, **fields}, separators=(",", ":")) + "\n")
        self.stream.flush()


def main() -> None:
    """Entry of the child: ``python -m qualify.run.worker IN_FD OUT_FD``."""
    incoming = os.fdopen(int(sys.argv[1]), "r", encoding="utf-8")
    pipe = Pipe(os.fdopen(int(sys.argv[2]), "w", encoding="utf-8"))
    _follow_parent()
    messages = (json.loads(line) for line in incoming)
    setup = next(messages, None)
    if setup is not None:
        _serve(setup, messages, pipe)
    pipe.stream.flush()
    # A library's exit handlers may hang or crash on a context that a kernel has broken; nothing is left to do.
    os._exit(0)


def _follow_parent() -> None:
    """Die with the parent, leave Ctrl-C to it, and be the first that a machine out of memory kills."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        Path("/proc/self/oom_score_adj").write_text("1000")
    except OSError:
        return


def _serve(setup: dict[str, Any], messages: Iterator[dict[str, Any]], pipe: Pipe) -> None:
    """Describe the device, then run chunks until the pipe closes."""
    # Heavy imports come after the process follows its parent, and are part of what the parent times.
    from qualify.run import execute, stack
    from qualify.run.adapters.registry import create_adapter
    from qualify.run.ceilings import measure_ceilings
    from qualify.run.inputs import device_of

    cards = {name: codec.from_data(KernelCard, card) for name, card in setup["cards"].items()}
    try:
        device = stack.describe_device(setup["device"])
    except DeviceError as error:
        pipe.send("unusable", message=str(error))
        return
    if device.kind == "cpu":
        _limit_memory(device.memory_bytes)
    adapters = {}
    for name in setup["preload"]:
        pipe.send("at", case="", stage=f"load:{name}")
        try:
            adapters[name] = create_adapter(cards[name])
        except Exception:  # noqa: BLE001, S112 - repeated and recorded as the outcome of the adapter's first case
            continue
    pipe.send("at", case="", stage="ceilings")
    ceilings = measure_ceilings(device_of(device.kind))
    control = execute.run_control(device_of(device.kind))
    pipe.send("at", case="", stage="fingerprint")
    described = stack.describe_stack(device, Path(setup["hash_cache"]))
    pipe.send("ready", stack=codec.to_data(described), ceilings=codec.to_data(ceilings))
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
        requests = [
            execute.Request(case=codec.from_data(Case, item["case"]), attempt=item["attempt"])
            for item in message["requests"]
        ]
        case = requests[0].case.id
        try:
            for case, outcome in session.run(requests):
                pipe.send("outcome", case=case, outcome=codec.to_data(outcome, Outcome))
        except execute.SickContext as error:
            pipe.send("sick", case=case, error=str(error))
            return
        pipe.send("idle")


def _limit_memory(total: int) -> None:
    """A kernel that allocates everything gets a MemoryError of its own instead of taking the machine along."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = total if hard == resource.RLIM_INFINITY else min(total, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


if __name__ == "__main__":
    main()
