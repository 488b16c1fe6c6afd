"""What differs from one kind of device to another while a case runs: everything that says so says it here."""

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
from qualify.run.machine.nvidia import driver_components, misplaced_by_nvml, no_cuda_reason
from qualify.run.machine.software import describe_cpu

SPIN_CYCLES_PER_US = 2_000
"""a little more than the clock of the cards that it runs on"""
ALLOCATION = 64 << 10
"""bytes of a tensor that the C library must notice"""
TRIES = 3
LITTLE = 0.3
"""share of a device's memory that is little to have free"""
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
    """What a kind of device has whose launches queue on streams."""

    @abstractmethod
    def new(self) -> torch.Stream:
        """A stream beside the current one."""

    @abstractmethod
    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Launches within go to that stream."""

    @abstractmethod
    def warm_up(self, launch: Callable[[], Any], times: int) -> None:
        """Launch so many times on a stream aside, as before a capture, and wait."""

    @abstractmethod
    def capture(self, launch: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """Capture one launch into a graph: (replay, what the captured launch returned).

        Raises:
            RuntimeError: it cannot be captured.
        """


class CudaStreams(Streams):
    """CUDA's streams and graphs."""

    def new(self) -> torch.cuda.Stream:
        """One of PyTorch's pool."""
        return torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def on(self, stream: torch.cuda.Stream) -> AbstractContextManager[Any]:
        """PyTorch's context."""
        return torch.cuda.stream(stream)

    def warm_up(self, launch: Callable[[], Any], times: int) -> None:
        """As PyTorch's manual asks for it."""
        side = self.new()
        side.wait_stream(torch.cuda.current_stream())
        with self.on(side):
            for _ in range(times):
                launch()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()

    def capture(self, launch: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """A CUDA graph; other threads may go on with what a capture forbids."""
        captured = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(captured, capture_error_mode="thread_local"):
                native = launch()
        except BaseException:
            # A capture that fails leaves PyTorch's generator as if it went on: no random number can be drawn any more.
            generator = torch.cuda.default_generators[torch.cuda.current_device()]
            generator.graphsafe_set_state(generator.clone_state())
            raise
        return captured.replay, native


class Processor(ABC):
    """The device of this process, one kind of it for each subclass."""

    kind: ClassVar[DeviceKind]
    records_launches: ClassVar[bool] = False
    """a profiler session has the device's own records; False: operators are all there is to record"""
    streams: ClassVar[Streams | None] = None
    """None: a launch returns when its work is done"""

    @property
    def scale(self) -> Scale:
        """How large its calls may be."""
        return KINDS[self.kind].scale

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """The torch device: one for each process, so always the first."""

    @abstractmethod
    def describe(self) -> Device:
        """The device as its driver describes it.

        Raises:
            DeviceError: it is not usable; the message says why and what to do.
        """

    def misplaced(self, described: Device, expected: str) -> str:
        """Why this process is not on the card that was meant for it; empty where it is.

        Args:
            expected: the card's UUID.
        """
        return "" if described.uuid == expected else f"it sees {described.uuid}"

    def runtimes(self, described: Device) -> list[Component]:
        """Its driver, runtime and firmware."""
        return []

    def synchronize(self) -> None:  # noqa: B027 - where launches wait for their work there is nothing to do
        """Wait for everything that was launched."""

    def give_back(self) -> None:  # noqa: B027 - where no allocator keeps memory there is nothing to do
        """Free what the allocator keeps."""

    def short_of_memory(self) -> bool:
        """Whether little of its memory is free, so that others on it may find no room."""
        return False

    def healthy(self) -> bool:
        """Whether it still computes; raises whatever a lost context raises."""
        return True

    @abstractmethod
    def block_us(self, launches: Sequence[Callable[[], Any]], ahead_us: float) -> float:
        """Microseconds of all launches, back to back.

        Args:
            ahead_us: how long the host needs to issue them.
        """

    def peak_bytes(self, launch: Callable[[], Any]) -> int | None:
        """Allocator high-water mark of a call, without what it returns; None where only a trace tells."""
        return None

    @abstractmethod
    def in_use(self) -> tuple[int, ...]:
        """Bytes in use, by each counter that there is."""

    @abstractmethod
    def counts_bytes(self) -> bool:
        """Whether :meth:`in_use` knows of tensors."""

    @abstractmethod
    def multiplies_fp8(self) -> bool:
        """Whether it multiplies matrices of e4m3 by itself."""

    @abstractmethod
    def exponentials(self, values: Tensor) -> tuple[Callable[[], Any], int]:
        """A call that takes exponentials of float32 values (n,), and how many of each."""


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
        """Microseconds by the host's clock."""
        start = time.perf_counter_ns()
        for launch in launches:
            launch()
        return (time.perf_counter_ns() - start) / 1e3

    def in_use(self) -> tuple[int, ...]:
        """By the C library's account; the size of the process would not do, because what was freed serves again."""
        return (malloc_bytes(),)

    def counts_bytes(self) -> bool:
        """Another allocator may be loaded; Python may collect garbage meanwhile, so it is looked at more than once."""

        def noticed() -> bool:
            before = malloc_bytes()
            tensor = torch.zeros(ALLOCATION, dtype=torch.uint8)
            return malloc_bytes() - before >= tensor.numel()

        return any(noticed() for _ in range(TRIES))

    def multiplies_fp8(self) -> bool:
        """False: no CPU does."""
        return False

    def exponentials(self, values: Tensor) -> tuple[Callable[[], Any], int]:
        """PyTorch's operator for exponentials."""
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
        """As the driver tells torch."""
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
        """By CUDA, and by NVML for the card at the place on the bus that CUDA names."""
        seen = super().misplaced(described, expected)
        return f"CUDA says that {seen}" if seen else misplaced_by_nvml(expected)

    def runtimes(self, described: Device) -> list[Component]:
        """CUDA and cuDNN as torch sees them, the driver and firmware where NVML tells."""
        cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        found = [
            Component(kind="runtime", name="cuda", version=str(torch.version.cuda), digest=""),
            Component(kind="runtime", name="cudnn", version="" if cudnn is None else str(cudnn), digest=""),
        ]
        return found + driver_components(described)

    def synchronize(self) -> None:
        """All streams."""
        torch.cuda.synchronize()

    def give_back(self) -> None:
        """To the driver, for other processes on the same card."""
        torch.cuda.empty_cache()

    def short_of_memory(self) -> bool:
        """As the driver tells: what the allocators of other processes keep counts too."""
        free, total = torch.cuda.mem_get_info(self.device)
        return free < LITTLE * total

    def healthy(self) -> bool:
        """One synchronize and a tiny computation."""
        torch.cuda.synchronize()
        return float(torch.arange(8, device=self.device, dtype=torch.float32).square().sum()) == 140.0

    def block_us(self, launches: Sequence[Callable[[], Any]], ahead_us: float) -> float:
        """By events, behind a kernel that spins while the host issues the block."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda._sleep(int(ahead_us * SPIN_CYCLES_PER_US))  # type: ignore[no-untyped-call]
        begin.record()
        for launch in launches:
            launch()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e3

    def peak_bytes(self, launch: Callable[[], Any]) -> int | None:
        """By PyTorch's allocator."""
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
        """By PyTorch's account, and on the card outside of its allocator."""
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info(self.device)
        return torch.cuda.memory_allocated(self.device), total - free - torch.cuda.memory_reserved(self.device)

    def counts_bytes(self) -> bool:
        """The allocator does."""
        return True

    def multiplies_fp8(self) -> bool:
        """The tensor cores of Ada, Hopper and later."""
        return torch.cuda.get_device_capability(self.device) >= (8, 9)

    def exponentials(self, values: Tensor) -> tuple[Callable[[], Any], int]:
        """A chain of them in registers."""
        chain = torch.cuda.jiterator._create_jit_fn(EXP_CHAIN)
        return lambda: chain(values), CHAIN_LENGTH


PROCESSORS: tuple[type[Processor], ...] = (Cpu, Cuda)


@cache
def processor_of(kind: str) -> Processor:
    """The processor of a kind: that of a tensor's ``device.type`` too."""
    return next(each for each in PROCESSORS if each.kind == kind)()


def device_of(kind: str) -> torch.device:
    """The torch device of a worker."""
    return processor_of(kind).device
