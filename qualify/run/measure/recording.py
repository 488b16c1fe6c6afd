"""What a host records of its calls: the events of a profiler session, on CUDA the kernels and on the CPU the operators.

Many calls share one session (the first one of a process costs seconds). Each call sits in a range of its own, and a
sentinel opens and closes the session. The judge reads the events (:mod:`qualify.run.measure.tracing`), and believes
them only where they are complete. A recorded call is never timed.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler import profile, record_function

from qualify.run.machine.device import Processor
from qualify.run.measure.kernel_names import identify

CALLS = 3
"""recorded calls of a case, which must all launch the same"""
COPIES = {"gpu_memcpy", "gpu_memset"}
RECORDS = {"kernel", *COPIES}
"""categories of what the device did"""
RUNTIME = {"cuda_runtime", "cuda_driver"}
RANGE = "user_annotation"
OPERATOR = "cpu_op"
READ = {RANGE, *RUNTIME, *RECORDS}
"""categories that are read on CUDA"""
MEMORY = "[memory]"
"""name of an allocation on a CPU"""
ELEMENTS = "Input elements"
"""of the tensors that an operator took"""
PRODUCTS = {"gemm", "softmax"}
"""roles of the operators that are kept of those within an attention operator"""
ARGS = ("correlation", "grid", "block", "registers per thread", "shared memory", "stream")
"""what is read of an event on CUDA beside its name and times"""


def record(
    launches: Sequence[Callable[[], Any]],
    processor: Processor,
    announce: Callable[[int], None] | None = None,
    times: int = CALLS,
    *,
    memory: bool = True,
) -> list[dict[str, Any]]:
    """The events of one profiler session in which each callable runs ``times`` times; ``read_trace`` reads them.

    Args:
        announce: called with a callable's index before it runs, so that a crash or hang is blamed on it.
        memory: on a CPU, whether to record allocations too, nearly half of all events: no peak without them.
    """
    sentinel = torch.ones(8, device=processor.device)
    with _profiler(processor, memory=memory) as session:
        _mark("open", sentinel)
        for index, launch in enumerate(launches):
            if announce:
                announce(index)
            for number in range(times):
                with record_function(f"qualify#{index}#{number}"):
                    launch()
            processor.synchronize()
        _mark("close", sentinel)
        processor.synchronize()
    return _exported(session) if processor.records_launches else _recorded(session)


def _exported(session: Any) -> list[dict[str, Any]]:
    """The events of a session on CUDA; only the exported file has grids, registers and shared memory."""
    with tempfile.TemporaryDirectory(prefix="qualify-trace-") as folder:
        path = Path(folder) / "trace.json"
        session.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8", errors="replace"))["traceEvents"]
    return [_kept(event) for event in events if "ts" in event and event.get("cat") in READ]


def _kept(event: dict[str, Any]) -> dict[str, Any]:
    """What is read of an event on CUDA."""
    kept = {key: event[key] for key in ("name", "cat", "ts", "dur") if key in event}
    args = event.get("args", {})
    return kept | {"args": {key: args[key] for key in ARGS if key in args}}


def _recorded(session: Any) -> list[dict[str, Any]]:
    """The events of a session on a CPU, in the form of the exported file.

    To write and read the file would take longer than the calls. Nearly all operators lie within an attention operator.
    Of those, only products and softmaxes are kept.
    """
    events: list[dict[str, Any]] = []
    began = session.kineto_results.trace_start_ns()
    first_ns = last_ns = 0
    for event in session.kineto_results.events():
        start_ns, name = event.start_ns(), event.name()
        start_us = (start_ns - began) / 1e3
        if name == MEMORY:
            events.append({"name": name, "ts": start_us, "args": {"Bytes": event.nbytes()}})
            continue
        role = identify(name).role
        within = first_ns < start_ns < last_ns
        if within and role not in PRODUCTS:
            continue
        cat = RANGE if event.is_user_annotation() else OPERATOR  # torch 2.11 does not name the activity
        duration_ns = event.duration_ns()
        args = {} if within else _taken(event)
        events.append({"name": name, "ts": start_us, "dur": duration_ns / 1e3, "cat": cat, "args": args})
        if role == "attention" and cat == OPERATOR:
            first_ns, last_ns = start_ns, start_ns + duration_ns
    return events


def _taken(event: Any) -> dict[str, int | None]:
    """Elements of the tensors that an operator took; nothing where it took none."""
    if "TensorList" in event.dtypes():
        return {ELEMENTS: None}
    shapes = [shape for shape in event.shapes() if shape]
    return {ELEMENTS: sum(prod(shape) for shape in shapes)} if shapes else {}


def _profiler(processor: Processor, *, memory: bool) -> Any:
    """A profiler session, to be entered; memory and shapes (of what operators take) on a CPU only.

    It is the class that torch.profiler.profile wraps, because the wrapper imports torch's compiler: seconds for each
    host. Beyond that the wrapper only keeps CUPTI from being torn down where the compiler makes CUDA graphs.
    """
    if processor.records_launches:
        return profile(use_kineto=True, use_device=processor.device.type)
    return profile(use_kineto=True, profile_memory=memory, record_shapes=True)


def _mark(name: str, tensor: torch.Tensor) -> None:
    with record_function(f"qualify#{name}"):
        torch.sin(tensor)


def cpu_peak(launch: Callable[[], Any]) -> int:
    """High-water mark, in bytes, of the allocations within a call on a CPU, what it returns among them."""
    with profile(use_kineto=True, profile_memory=True) as session:
        launch()
    memory = [event for event in session.kineto_results.events() if event.name() == MEMORY]
    return high_water(event.nbytes() for event in sorted(memory, key=lambda event: event.start_ns()))


def high_water(steps: Iterable[int]) -> int:
    """The largest sum of the first so many steps, in bytes; at least 0."""
    return max(accumulate(steps, initial=0))
