"""Kinds of devices: everything that a run does differently on a CPU and on a GPU is in this module."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from qualify.errors import DeviceError
from qualify.facts.devices import KINDS, DeviceKind, Scale
from qualify.facts.stack import Component, Device
from qualify.run.machine.allocated import malloc_bytes
from qualify.run.machine.nvidia import driver_components, kept_out, misplaced_by_nvml, no_cuda_reason, processes_on
from qualify.run.machine.software import describe_cpu
from qualify.text import first_line

SPIN_CYCLES_PER_US = 2_000
"""clock cycles of a spinning kernel for each microsecond: a little more than the clock of supported cards"""
ALLOCATION = 64 << 10
"""bytes of a test tensor, which the C library's count must show"""
TRIES = 3
LITTLE = 0.3
"""share of a device's memory: where less is free, the device is short of memory"""
CHAIN_LENGTH = 256
EXP_CHAIN = """
template <typename T> T chain(T x) {
  float y = x;
  #pragma unroll 16
  for (int i = 0; i < 256; i++) asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(y));
  return y;
}
"""


class Streams(ABC):
    """Streams and graphs, for a kind of device whose launches queue on streams."""

    @abstractmethod
    def new(self) -> torch.Stream:
        """A stream other than the current one."""

    @abstractmethod
    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """A context: launches within it go to that stream."""

    @abstractmethod
    def warm_up(self, launch: Callable[[], Any], times: int) -> None:
        """Launch ``times`` times on another stream, as must be done before a capture, and wait."""

    @abstractmethod
    def capture(self, launch: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """Capture one launch into a graph: (replay, what the captured launch returned).

        Raises:
            RuntimeError: the launch cannot be captured.
        """


class CudaStreams(Streams):
    """CUDA's streams and graphs."""

    def new(self) -> torch.cuda.Stream:
        """A stream of PyTorch's pool."""
        return torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def on(self, stream: torch.cuda.Stream) -> AbstractContextManager[Any]:
        """PyTorch's context manager for streams."""
        return torch.cuda.stream(stream)

    def warm_up(self, launch: Callable[[], Any], times: int) -> None:
        """Launch on a side stream, as PyTorch's manual requires before a capture."""
        side = self.new()
        side.wait_stream(torch.cuda.current_stream())
        with self.on(side):
            for _ in range(times):
                launch()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()

    def capture(self, launch: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """Capture a CUDA graph. Other threads may still make calls that a capture forbids."""
        captured = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(captured, capture_error_mode="thread_local"):
                native = launch()
        except BaseException:
            # After a failed capture PyTorch's generator believes that the capture goes on, and refuses every draw.
            generator = torch.cuda.default_generators[torch.cuda.current_device()]
            generator.graphsafe_set_state(generator.clone_state())
            raise
        return captured.replay, native


class Processor(ABC):
    """The device of this process. Each kind of device has a subclass."""

    kind: ClassVar[DeviceKind]
    records_launches: ClassVar[bool] = False
    """whether a profiler session records the device's launches; False = it records operators only"""
    streams: ClassVar[Streams | None] = None
    """streams of the device; None = it has none, and a launch returns when its work is done"""

    @property
    def scale(self) -> Scale:
        """How large calls on this device may be."""
        return KINDS[self.kind].scale

    @property
    def session_cases(self) -> int:
        """Most cases that share a profiler session."""
        return KINDS[self.kind].session_cases

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """The torch device. A process has one device, so it is always the first."""

    @abstractmethod
    def describe(self) -> Device:
        """The device as its driver describes it.

        Raises:
            DeviceError: the device is not usable; the message says why and what to do.
        """

    def misplaced(self, described: Device, expected: str) -> str:
        """Why this process is not on the intended card; empty where it is.

        Args:
            described: the device that this process sees.
            expected: UUID of the intended card.
        """
        return "" if described.uuid == expected else f"it sees {described.uuid}"

    def take(self, described: Device) -> None:  # noqa: B027 - not every device has to be taken
        """Begin to use the device, beside which each kernel gets a process of its own.

        Raises:
            DeviceError: it cannot be used, or admits no other process.
        """

    def users(self, described: Device) -> tuple[int, ...]:
        """Ids of the processes that use the device, this one among them; empty where nobody tells."""
        return ()

    def runtimes(self, described: Device) -> list[Component]:
        """Driver, runtime and firmware of the device."""
        return []

    def synchronize(self) -> None:  # noqa: B027 - where launches wait for their work there is nothing to do
        """Wait until all launched work is done."""

    def give_back(self) -> None:  # noqa: B027 - where no allocator keeps memory there is nothing to do
        """Return the allocator's unused memory to the device."""

    def short_of_memory(self) -> bool:
        """Whether so little memory is free that other processes on the device may find no room."""
        return False

    def healthy(self) -> bool:
        """Whether the device still computes in this process.

        Raises:
            Exception: whatever a call raises on a lost context.
        """
        return True

    @abstractmethod
    def block_us(self, launches: Sequence[Callable[[], Any]], ahead_us: float) -> float:
        """Microseconds that the launches take together, back to back.

        Args:
            ahead_us: microseconds that the host needs to issue all launches.
        """

    def peak_bytes(self, launch: Callable[[], Any]) -> int | None:
        """Peak of temporary bytes of a call, without its result; None where only a trace can tell."""
        return None

    @abstractmethod
    def in_use(self) -> tuple[int, ...]:
        """Bytes in use, one number for each counter that the device has."""

    @abstractmethod
    def counts_bytes(self) -> bool:
        """Whether :meth:`in_use` counts the memory of tensors."""

    @abstractmethod
    def multiplies_fp8(self) -> bool:
        """Whether the hardware multiplies matrices in e4m3."""

    @abstractmethod
    def exponentials(self, values: Tensor) -> tuple[Callable[[], Any], int]:
        """(call, count): the call computes ``count`` exponentials of each of the float32 values (n,)."""


class Cpu(Processor):
    """The cores of the machine: a launch returns when its work is done."""

    kind = "cpu"

    @property
    def device(self) -> torch.device:
        """The torch device ``cpu``."""
        return torch.device("cpu")

    def describe(self) -> Device:
        """The CPU of this machine."""
        return describe_cpu()

    def block_us(self, launches: Sequence[Callable[[], Any]], ahead_us: float) -> float:
        """Measure by the host's clock."""
        start = time.perf_counter_ns()
        for launch in launches:
            launch()
        return (time.perf_counter_ns() - start) / 1e3

    def in_use(self) -> tuple[int, ...]:
        """Bytes that the C library counts. The size of the process would hide leaks, because freed memory is reused."""
        return (malloc_bytes(),)

    def counts_bytes(self) -> bool:
        """Whether the C library's count shows a new tensor; it does not where another allocator is loaded.

        The test is repeated, because Python may collect garbage at the same time.
        """

        def noticed() -> bool:
            before = malloc_bytes()
            tensor = torch.zeros(ALLOCATION, dtype=torch.uint8)
            return malloc_bytes() - before >= tensor.numel()

        return any(noticed() for _ in range(TRIES))

    def multiplies_fp8(self) -> bool:
        """False: no CPU does."""
        return False

    def exponentials(self, values: Tensor) -> tuple[Callable[[], Any], int]:
        """One exponential of each value, by PyTorch's operator."""
        return lambda: torch.exp(values, out=values), 1


class Cuda(Processor):
    """An NVIDIA GPU."""

    kind = "cuda"
    records_launches = True
    streams = CudaStreams()

    @property
    def device(self) -> torch.device:
        """``cuda:0``."""
        return torch.device("cuda", 0)

    def describe(self) -> Device:
        """The card's properties, as the driver tells torch."""
        if not torch.cuda.is_available():
            raise DeviceError(no_cuda_reason())
        properties = torch.cuda.get_device_properties(0)
        return Device(
            kind="cuda",
            name=properties.name,
            uuid=f"GPU-{properties.uuid}",
            compute_capability=f"{properties.major}.{properties.minor}",
            units=properties.multi_processor_count,
            memory_bytes=properties.total_memory,
            cache_bytes=int(getattr(properties, "L2_cache_size", 0)),
        )

    def misplaced(self, described: Device, expected: str) -> str:
        """Compare the UUID that CUDA reports, and the UUID that NVML reports for CUDA's place on the bus."""
        seen = super().misplaced(described, expected)
        return f"CUDA says that {seen}" if seen else misplaced_by_nvml(expected)

    def take(self, described: Device) -> None:
        """Create the context, and ask NVML whether the card's compute mode admits another one."""
        refusal = ""
        try:
            torch.zeros(1, device=self.device)
        except RuntimeError as error:
            refusal = first_line(error).rstrip(".")
        if mode := kept_out(described.uuid):
            raise DeviceError(
                f"{described.name} is in compute mode {mode!r}, which admits one process at most. A run needs several, "
                f"because each kernel has one of its own. Nothing was run. As root: nvidia-smi -i {described.uuid} -c "
                "DEFAULT. Where you have no such right, start NVIDIA's MPS (nvidia-cuda-mps-control -d)."
            )
        if refusal:
            raise DeviceError(f"{described.name} cannot be used: {refusal}. `nvidia-smi` shows who else uses the card.")

    def users(self, described: Device) -> tuple[int, ...]:
        """As NVML lists them."""
        return processes_on(described.uuid)

    def runtimes(self, described: Device) -> list[Component]:
        """CUDA and cuDNN as torch reports them; driver and firmware where NVML reports them."""
        cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        found = [
            Component(kind="runtime", name="cuda", version=str(torch.version.cuda), digest=""),
            Component(kind="runtime", name="cudnn", version="" if cudnn is None else str(cudnn), digest=""),
        ]
        return found + driver_components(described)

    def synchronize(self) -> None:
        """Wait for all streams."""
        torch.cuda.synchronize()

    def give_back(self) -> None:
        """Return unused memory to the driver, for other processes on the same card."""
        torch.cuda.empty_cache()

    def short_of_memory(self) -> bool:
        """Whether little memory is free by the driver's count, in which memory of other processes is not free."""
        free, total = torch.cuda.mem_get_info(self.device)
        return free < LITTLE * total

    def healthy(self) -> bool:
        """Synchronize, and check the result of a tiny computation."""
        torch.cuda.synchronize()
        return float(torch.arange(8, device=self.device, dtype=torch.float32).square().sum()) == 140.0

    def block_us(self, launches: Sequence[Callable[[], Any]], ahead_us: float) -> float:
        """Measure by events, after a kernel that spins while the host issues the launches."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda._sleep(int(ahead_us * SPIN_CYCLES_PER_US))  # type: ignore[no-untyped-call]
        begin.record()
        for launch in launches:
            launch()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e3

    def peak_bytes(self, launch: Callable[[], Any]) -> int | None:
        """Peak by the count of PyTorch's allocator."""
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        native = launch()
        torch.cuda.synchronize()
        kept = torch.cuda.memory_allocated() - before
        highest = torch.cuda.max_memory_allocated() - before
        del native
        return max(0, highest - kept)

    def in_use(self) -> tuple[int, ...]:
        """(bytes in PyTorch's allocator, bytes in use on the card outside of that allocator)."""
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info(self.device)
        return torch.cuda.memory_allocated(self.device), total - free - torch.cuda.memory_reserved(self.device)

    def counts_bytes(self) -> bool:
        """True: PyTorch's allocator counts tensors."""
        return True

    def multiplies_fp8(self) -> bool:
        """True for Ada, Hopper and later."""
        return torch.cuda.get_device_capability(self.device) >= (8, 9)

    def exponentials(self, values: Tensor) -> tuple[Callable[[], Any], int]:
        """A chain of exponentials of each value, in registers."""
        chain = torch.cuda.jiterator._create_jit_fn(EXP_CHAIN)
        return lambda: chain(values), CHAIN_LENGTH


PROCESSORS: tuple[type[Processor], ...] = (Cpu, Cuda)


@cache
def processor_of(kind: str) -> Processor:
    """The processor of a kind. A kind is also a tensor's ``device.type``."""
    return next(each for each in PROCESSORS if each.kind == kind)()


def device_of(kind: str) -> torch.device:
    """The torch device of a process on that kind of device."""
    return processor_of(kind).device
