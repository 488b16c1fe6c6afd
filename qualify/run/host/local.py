"""Kernels in this process: what a host process serves, and what the selftest's simulated kernels need."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor

from qualify.run.adapters.interface import Adapter, AttentionCall, Prepared
from qualify.run.host.interface import Bound, CallPlace, Effort, Launchable, Samples
from qualify.run.machine.device import Processor, processor_of
from qualify.run.measure import recording

LOAD_SIZE, LOAD_PRODUCTS = 4096, 8
"""rows and columns of the load's matrices, and how many products are under way: 1.5 ms of an H100"""
MOST_ISSUED, ISSUED_US = 5, 20_000.0
"""most launches over which the host's time is measured, and µs after which no more follow: on a CPU a launch is the
whole call"""
MOST_AHEAD_US = 20_000.0
"""longest that the device spins while the host issues a block"""


class LocalKernel:
    """A kernel in this process."""

    def __init__(self, adapter: Adapter, processor: Processor) -> None:
        self.adapter = adapter
        self.processor = processor
        self.place = CallPlace()

    def prepare(self, call: AttentionCall) -> LocalBound:
        """As the adapter does it."""
        prepared = self.do(lambda: self.adapter.prepare(call))
        return LocalBound(self, call, replace(prepared, tried=()))  # a result that nobody asks for takes memory

    def run(self, call: AttentionCall) -> Any:
        """One call; dirty memory first."""
        dirty_memory(call)

        def called() -> Any:
            prepared = self.adapter.prepare(call)
            return prepared.result(*(prepared.tried or (prepared.launch(),)))

        return self.do(called)

    @contextmanager
    def at(self, place: CallPlace) -> Iterator[None]:
        """While this context lasts, calls are made from that place."""
        before, self.place = self.place, place
        try:
            yield
        finally:
            self.place = before

    def do(self, step: Callable[[], Any]) -> Any:
        """A step of a call, made from the place that :meth:`at` has set."""
        place = self.place
        if place.loaded:
            start_load(self.processor)
        inference = torch.is_inference_mode_enabled()

        def stepped() -> Any:
            with torch.inference_mode(inference != place.turned), _threads(place.threads):
                return step()

        if not place.thread:
            return stepped() if place.turned or place.threads else step()
        with ThreadPoolExecutor(1) as pool:  # a thread begins outside of inference mode
            return pool.submit(stepped).result()

    def read_back(self, call: AttentionCall) -> None:
        """Nothing to copy: the kernel wrote into the very tensors."""

    def in_use(self, *, collect: bool) -> tuple[int, ...]:
        """Bytes in use in this process."""
        return in_use(self.processor, collect=collect)

    def counts_bytes(self) -> bool:
        """Whether the processor counts bytes."""
        return self.processor.counts_bytes()


class LocalBound:
    """A prepared call of a kernel in this process."""

    def __init__(self, kernel: LocalKernel, call: AttentionCall, prepared: Prepared) -> None:
        self.kernel = kernel
        self.call = call
        self.prepared = prepared

    def launch(self) -> Any:
        """What the library returned; the device may still compute it."""
        return self.kernel.do(self.prepared.launch)

    def turned(self, rows: Iterable[int]) -> list[LocalBound]:
        """Copies that the allocator made in this process."""
        return [self.kernel.prepare(turned(self.call, count)) for count in rows]

    def result(self, native: Any) -> Any:
        """The result in the contract's form, once it is computed."""
        return self.kernel.do(lambda: self.prepared.result(native))

    def host_us(self) -> float:
        """Microseconds by this process's clock."""
        return host_us(self.kernel.processor, self.launch)

    def peak_bytes(self) -> int | None:
        """Bytes by the allocator."""
        return self.kernel.processor.peak_bytes(self.launch)

    def traced_peak_bytes(self) -> int:
        """Bytes by the profiler."""
        return recording.cpu_peak(self.launch)

    def capture(self, warm_up: int) -> tuple[Callable[[], None], Any]:
        """Capture on the device's streams."""
        streams = self.kernel.processor.streams
        assert streams is not None, "a device without streams has no graphs"
        streams.warm_up(self.prepared.launch, warm_up)
        try:
            return streams.capture(self.prepared.launch)
        except RuntimeError:
            self.kernel.processor.synchronize()
            raise

    def behind(self, replaced: Sequence[tuple[Tensor, Tensor]]) -> Any:
        """Launch behind copies that follow matrix products: a kernel that does not wait reads the old values."""
        processor = self.kernel.processor
        streams = processor.streams
        assert streams is not None, "a device without streams waits for its launches"
        side = streams.new()
        matrix = torch.zeros(LOAD_SIZE, LOAD_SIZE, dtype=torch.bfloat16, device=processor.device)
        product = torch.empty_like(matrix)
        processor.synchronize()
        with streams.on(side):
            for _ in range(LOAD_PRODUCTS):
                torch.mm(matrix, matrix, out=product)
            for into, values in replaced:
                into.copy_(values)
            returned = self.prepared.result(self.prepared.launch())
            kept = _copied(returned)
        processor.synchronize()
        return kept


class LocalHost:
    """Kernels of this process."""

    def __init__(self, processor: Processor) -> None:
        self.processor = processor

    @property
    def alive(self) -> bool:
        """True: this process is alive."""
        return True

    @property
    def killed(self) -> bool:
        """False: nobody killed this process."""
        return False

    def settle(self) -> None:
        """Wait until everything that this process launched is done."""
        self.processor.synchronize()

    def trace(
        self, calls: Sequence[Bound], announce: Callable[[int], None], *, times: int, memory: bool
    ) -> list[dict[str, Any]]:
        """By this process's profiler."""
        return recording.record([call.launch for call in calls], self.processor, announce, times, memory=memory)

    def sample(self, calls: Sequence[Launchable], effort: Effort) -> tuple[Samples, Any]:
        """By this process's clock, or the device's."""
        return sample([call.launch for call in calls], effort, self.processor)

    def healthy(self) -> bool:
        """Whether the device still computes."""
        return self.processor.healthy()


def in_use(processor: Processor, *, collect: bool) -> tuple[int, ...]:
    """Bytes of this process's memory in use, by each counter that there is; collects garbage before if asked."""
    if collect:
        gc.collect()
    return processor.in_use()


def dirty_memory(call: AttentionCall) -> None:
    """Leave NaN in the allocator's cache: a row of out or lse that nobody writes then mostly comes back as NaN."""
    shape, device = (*call.q.shape[:2], call.v.shape[-1]), call.q.device
    dirt = [torch.full(shape, math.nan, dtype=call.out_dtype, device=device) for _ in range(2)]
    dirt += [torch.full(shape[1::-1], math.nan, device=device) for _ in range(2)]
    del dirt


class _Load:
    """Matrix products on a stream of their own, which take the multiprocessors and caches that a kernel would have."""

    def __init__(self, processor: Processor) -> None:
        assert processor.streams is not None, "a device without streams computes one thing at a time"
        self.streams = processor.streams
        self.stream = self.streams.new()
        self.matrix = torch.zeros(LOAD_SIZE, LOAD_SIZE, dtype=torch.bfloat16, device=processor.device)
        self.product = torch.empty_like(self.matrix)

    def start(self) -> None:
        """Start some more products, without waiting for them."""
        with self.streams.on(self.stream):
            for _ in range(LOAD_PRODUCTS):
                torch.mm(self.matrix, self.matrix, out=self.product)


LOADS: dict[str, _Load] = {}
"""by kind of device, once one was wanted"""


def start_load(processor: Processor) -> None:
    """Matrix products beside what comes next; nothing where a device has no streams."""
    if processor.streams is None:
        return
    if processor.kind not in LOADS:
        LOADS[processor.kind] = _Load(processor)
    LOADS[processor.kind].start()


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """So many threads for PyTorch's operators; 0 leaves them."""
    before = torch.get_num_threads()
    if count:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def turned(call: AttentionCall, rows: int) -> AttentionCall:
    """A deep copy whose queries have moved on by so many rows; what are views of the same memory stay so."""
    storages: dict[int, torch.UntypedStorage] = {}

    def own(tensor: Tensor) -> Tensor:
        whole = tensor.untyped_storage()
        if whole._cdata not in storages:
            storages[whole._cdata] = whole.clone()  # type: ignore[no-untyped-call]
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return empty.set_(storages[whole._cdata], tensor.storage_offset(), tensor.shape, tensor.stride())

    found = {item.name: getattr(call, item.name) for item in fields(call)}
    copies: dict[str, Any] = {name: own(value) for name, value in found.items() if isinstance(value, Tensor)}
    copy = replace(call, **copies)
    raw = copy.q.view(torch.uint8) if copy.q.element_size() == 1 else copy.q
    raw.copy_(raw.roll(rows, 0))
    return copy


def _copied(returned: Any) -> Any:
    """The result with tensors of its own."""
    if isinstance(returned, Tensor):
        return returned.clone()
    if isinstance(returned, tuple | list):
        return tuple(_copied(part) for part in returned)
    return returned


def host_us(processor: Processor, launch: Callable[[], Any]) -> float:
    """Microseconds of the host to issue one call, without waiting for it."""
    start = time.perf_counter_ns()
    launch()
    issued = (time.perf_counter_ns() - start) / 1e3
    processor.synchronize()
    return issued


def sample(launches: Sequence[Callable[[], Any]], effort: Effort, processor: Processor) -> tuple[Samples, Any]:
    """Time launches that rotate over copies of their inputs; also what the last copy's last launch returned."""
    kept: list[Any] = [None]

    def last() -> None:
        kept[0] = launches[-1]()

    rotated = [*launches[:-1], last]
    for launch in rotated:
        launch()
    host: list[float] = []
    while len(host) < MOST_ISSUED and sum(host) < ISSUED_US:
        host.append(host_us(processor, rotated[len(host) % len(rotated)]))
    estimate = processor.block_us(rotated, ahead_us=sum(host)) / len(rotated)
    count = max(1, min(effort.launches, int(effort.block_us / max(estimate, 0.5, median(host) / 4))))
    samples = []
    turn = 0
    for _ in range(effort.blocks):
        block = [rotated[(turn + number) % len(rotated)] for number in range(count)]
        turn += count
        ahead = min(MOST_AHEAD_US, 1.3 * median(host) * count)
        samples.append(processor.block_us(block, ahead_us=ahead) / count)
    return Samples(samples_us=tuple(samples), launches_per_block=count, host_us=median(host)), kept[0]


def local(adapter: Adapter, kind: str = "cpu") -> LocalKernel:
    """The kernel of an adapter in this process."""
    return LocalKernel(adapter, processor_of(kind))
