"""A kernel as its judge sees it, wherever it lives: what can be asked of it, and how an answer fails to come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from qualify.run.adapters.interface import AttentionCall

Lengths = tuple[tuple[int, ...], tuple[int, ...]]
"""queries and keys of each sequence"""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallPlace:
    """From where in its process a kernel is called."""

    turned: bool = False
    """whether inference mode is switched: on where the process has it off, and off where it has it on"""
    thread: bool = False
    """whether a thread of its own makes the call"""
    threads: int = 0
    """threads of PyTorch's operators; 0 = as many as there are"""
    loaded: bool = False
    """whether matrix products run on another stream meanwhile"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    """How long to measure a call."""

    blocks: int
    block_us: float
    """device time that a block should take"""
    launches: int
    """most launches of a block"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """What a clock said of blocks of launches."""

    samples_us: tuple[float, ...]
    """time of each block in µs, divided by its launches"""
    launches_per_block: int
    host_us: float
    """median time of the host to issue one launch"""


def out_bytes(call: AttentionCall) -> int:
    """Bytes of ``out``."""
    return call.q.shape[0] * call.q.shape[1] * call.v.shape[-1] * call.out_dtype.itemsize


def lengths_of(call: AttentionCall) -> Lengths:
    """The lengths that a call is made with."""
    keys = call.cu_seqlens_k.diff() if call.cu_seqlens_k is not None else call.seqused_k
    assert keys is not None, "a call is packed or paged"
    return tuple(call.cu_seqlens_q.diff().tolist()), tuple(keys.tolist())


class KernelRaised(RuntimeError):
    """A kernel raised an exception in its host; the message is the exception's."""

    def __init__(self, name: str, text: str, log: str, place: str = "") -> None:
        self.raised = name
        """the exception's class"""
        self.log = log
        """its traceback"""
        self.place = place
        """``file.py:LINE`` in the kernel's own code; empty where that is not known"""
        self.lengths: Lengths | None = None
        """of the call in which it did so; None where that is not known"""
        super().__init__(text)


class HostLost(Exception):
    """The process of a kernel ended, or was ended; the message says how."""

    def __init__(self, error: str, *, log: str, limit_s: float | None) -> None:
        self.error = error
        self.log = log
        """end of what it printed"""
        self.limit_s = limit_s
        """how long it had made no progress when it was ended for that; None where it ended otherwise"""
        self.lengths: Lengths | None = None
        """of the call in which it did so; None where that is not known"""
        super().__init__(error)


class Launchable(Protocol):
    """A call in its library's own layout, ready to be launched again and again."""

    def launch(self) -> Any:
        """Launch on the current stream. Returns what :meth:`Bound.result` takes."""
        ...


class Bound(Launchable, Protocol):
    """A launchable call whose inputs the judge has."""

    def turned(self, rows: Iterable[int]) -> Sequence[Launchable]:
        """The same call on copies of its inputs, made where the kernel lives; queries have moved on by so many rows."""
        ...

    def result(self, native: Any) -> Any:
        """(out, lse) of a launch, or whatever else the kernel returned in their place."""
        ...

    def host_us(self) -> float:
        """Microseconds of the host to issue one launch, without waiting for it."""
        ...

    def peak_bytes(self) -> int | None:
        """Temporary memory that a launch takes at most, without its result; None where only a trace tells."""
        ...

    def traced_peak_bytes(self) -> int:
        """Peak of the memory that one launch allocates, in bytes, told by a trace; its result is included."""
        ...

    def capture(self, warm_up: int) -> tuple[Callable[[], None], Any]:
        """Capture a launch into a graph, after so many launches: (replay, what the captured launch returned).

        Raises:
            RuntimeError: it cannot be captured.
        """
        ...

    def behind(self, replaced: Sequence[tuple[Tensor, Tensor]]) -> Any:
        """(out, lse) of a launch on another stream, right behind work there that ends with copies into its inputs.

        Args:
            replaced: pairs of equal shapes: an input, or what it is a view of; and the values that are copied into it.
        """
        ...


class Kernel(Protocol):
    """One kernel; whatever it raises but a refusal is a :class:`KernelRaised` where it lives elsewhere."""

    def prepare(self, call: AttentionCall) -> Bound:
        """Convert layouts and plan.

        Raises:
            LibraryRefusal: the library will not take this call.
        """
        ...

    def run(self, call: AttentionCall) -> Any:
        """(out, lse) of one call, or what was returned in their place, made where free memory holds NaN.

        A row of out or lse that nobody writes then mostly comes back as NaN.
        """
        ...

    def at(self, place: CallPlace) -> AbstractContextManager[None]:
        """While this context lasts, calls are made from that place."""
        ...

    def read_back(self, call: AttentionCall) -> None:
        """Let the call's tensors, and what they are views of, hold what the kernel has written into them."""
        ...

    def in_use(self, *, collect: bool) -> tuple[int, ...]:
        """Bytes of memory in use where the kernel lives, by each counter that there is.

        Args:
            collect: collect garbage before.
        """
        ...

    def counts_bytes(self) -> bool:
        """Whether :meth:`in_use` knows of tensors."""
        ...


class KernelHost(Protocol):
    """Where kernels live together."""

    @property
    def alive(self) -> bool:
        """Whether what was prepared there is still there."""
        ...

    @property
    def killed(self) -> bool:
        """Whether somebody has killed it, and nobody has asked it anything since."""
        ...

    def settle(self) -> None:
        """Wait until everything that was launched is done."""
        ...

    def trace(
        self, calls: Sequence[Bound], announce: Callable[[int], None], *, times: int, memory: bool
    ) -> list[dict[str, Any]]:
        """The events of one profiler session in which each call is launched so many times.

        Args:
            announce: told the number of each call before it is launched.
            memory: on a CPU, whether to record allocations too.
        """
        ...

    def sample(self, calls: Sequence[Launchable], effort: Effort) -> tuple[Samples, Any]:
        """Time one call, prepared on several copies of its inputs; also what the last copy's last launch returned."""
        ...

    def healthy(self) -> bool:
        """Whether its device still computes."""
        ...
