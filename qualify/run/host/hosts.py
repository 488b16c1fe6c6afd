"""Where the kernels of a session live: what a session needs of it, and kernels in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from qualify.cards.kernel import KernelCard
from qualify.run.adapters.interface import Adapter
from qualify.run.adapters.registry import create_adapter
from qualify.run.host.interface import Kernel, KernelHost
from qualify.run.host.local import LocalHost, LocalKernel
from qualify.run.machine.device import Processor
from qualify.run.repro import script
from qualify.run.repro.script import Claim


class Hosts(Protocol):
    """Where the kernels of a session live."""

    def kernel(self, card: KernelCard, *, alone: bool = False) -> Kernel:
        """The kernel of a card, loaded.

        Args:
            alone: where nothing has run before.

        Raises:
            DeviceError: no process can be started.
            ImportError: its library or entry cannot be imported.
            HostLost: its process ended.
        """
        ...

    def host(self, card: KernelCard) -> KernelHost:
        """Where the kernel of a card lives."""
        ...

    def fresh(self, card: KernelCard) -> bool:
        """Whether no case has run yet in the place where the kernel of a card lives or will live.

        The next call says False: the caller runs a case there.
        """
        ...

    def busy(self, card: KernelCard) -> bool:
        """Whether a case of the card would have to wait, because the place where its kernel lives is still starting."""
        ...

    def wait(self) -> bool:
        """Wait until one of several busy places is ready; False where there are not several, or none gets ready."""
        ...

    def control(self, card: KernelCard) -> str:
        """Why the witness's negative control failed where the kernel lives; empty where it did not."""
        ...

    def begin(self, limit_s: float) -> None:
        """Begin a stage that may take so many seconds."""
        ...

    def lost(self, card: KernelCard) -> None:
        """End whatever is left of the place where the kernel of a card lived."""
        ...

    def make_room(self) -> None:
        """Give back the memory of the device that nobody uses."""
        ...

    def render(self, card: KernelCard, *, title: str, text: str, program: Sequence[str], claim: Claim) -> str:
        """A script of a failure (qualify.run.repro.script); empty where the adapter's function has no source."""
        ...


class LocalHosts:
    """Kernels in this process: simulated ones, and those of tests."""

    def __init__(self, processor: Processor, adapters: dict[str, Adapter] | None = None) -> None:
        self.adapters = {} if adapters is None else adapters
        """by kernel"""
        self.processor = processor
        self.here = LocalHost(processor)

    def kernel(self, card: KernelCard, *, alone: bool = False) -> Kernel:
        """The kernel of an adapter that is there, or is made now."""
        if card.kernel not in self.adapters:
            self.adapters[card.kernel] = create_adapter(card)
        return LocalKernel(self.adapters[card.kernel], self.processor)

    def host(self, card: KernelCard) -> KernelHost:
        """This process, for every card."""
        return self.here

    def fresh(self, card: KernelCard) -> bool:
        """False: nobody repeats cases in this process."""
        return False

    def busy(self, card: KernelCard) -> bool:
        """False: this process has started."""
        return False

    def wait(self) -> bool:
        """False: nobody is busy."""
        return False

    def control(self, card: KernelCard) -> str:
        """Empty: nobody doubts this process's profiler."""
        return ""

    def begin(self, limit_s: float) -> None:
        """No limit: nobody watches this process."""

    def lost(self, card: KernelCard) -> None:
        """Nothing to end: the kernel lives in this process."""

    def make_room(self) -> None:
        """Give back the memory of this process."""
        self.processor.give_back()

    def render(self, card: KernelCard, *, title: str, text: str, program: Sequence[str], claim: Claim) -> str:
        """A script by the adapter that is here."""
        return script.rendered(
            self.adapters[card.kernel],
            title=title,
            text=text,
            device=self.processor.device,
            program=program,
            claim=claim,
        )
