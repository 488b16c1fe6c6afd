"""What all worker processes of a run have in common, the first message that each gets, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from qualify.cards.kernel import CALL, KernelCard
from qualify.errors import DeviceError
from qualify.facts.case import Level
from qualify.facts.devices import DeviceKind, chosen_by
from qualify.facts.stack import Ceilings
from qualify.facts.stages import doing
from qualify.run.process.child import START_TIMEOUT_S, Child
from qualify.run.process.messages import (
    CompileSetup,
    DuelSetup,
    HostLimits,
    Ready,
    Reference,
    RunSetup,
    StageBegun,
    TrialSetup,
    Unusable,
)
from qualify.text import unsaid


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What all workers of a run have in common."""

    device: DeviceKind
    device_name: str
    level: Level
    reference: Reference
    timeout_s: float
    compile_timeout_s: float
    hash_cache: Path
    """file that remembers the digests of libraries; beside it is what is known of compilations"""
    anew: bool = False
    """every library is read anew, whatever is remembered of it"""
    cards: Mapping[str, KernelCard]
    """every kernel of the run by name, also those whose cases are done: their libraries belong to the fingerprint"""
    import_paths: tuple[str, ...] = ()
    """folders in which the entries of third parties stand"""
    memory_bytes: int
    """host memory that a process may touch"""
    environments: Mapping[str, str] = field(default_factory=dict)
    """interpreters by the name of their environment"""
    ceilings: Ceilings | None = None
    """what an earlier worker of the same run measured; None to measure"""
    card: str = ""
    """UUID of the card that the workers see; empty = the first that this process sees"""

    @property
    def place(self) -> dict[str, str]:
        """Environment variables of workers that lead them to their card."""
        return {chosen_by(self.device): self.card} if self.card else {}

    def run_setup(self) -> RunSetup:
        """The first message to a worker that runs cases.

        Before it takes its fingerprint, it loads the libraries of kernels, and starts a host for every environment that
        has to be described.
        """
        return RunSetup(
            device=self.device,
            level=self.level,
            reference=self.reference,
            hash_cache="" if self.anew else str(self.hash_cache),
            import_paths=self.import_paths,
            cards=self.cards,
            preload=tuple(name for name, card in self.cards.items() if card.adapter != CALL or card.environment),
            hosts=self.host_limits,
            ceilings=self.ceilings,
            card=self.card,
        )

    def compile_setup(self) -> CompileSetup:
        """The first message to a worker that only makes calls, so that their kernels get compiled."""
        return CompileSetup(
            device=self.device, import_paths=self.import_paths, cards=self.cards, hosts=self.host_limits
        )

    @property
    def host_limits(self) -> HostLimits:
        """What each host may take."""
        return HostLimits(
            timeout_s=self.timeout_s,
            compile_timeout_s=self.compile_timeout_s,
            memory_bytes=self.memory_bytes,
            environments=self.environments,
        )


def make_ready(child: Child, setup: DuelSetup | TrialSetup, detail: Callable[[str], None] = unsaid) -> None:
    """Tell a new worker what it is for, and wait until it is ready for work.

    Args:
        detail: takes a line for every stage that the worker begins.

    Raises:
        DeviceError: it cannot use its device, or load its kernel.
        Gone: it ended, hung or sent a wrong message.
    """
    child.send(setup, START_TIMEOUT_S)
    while True:
        match message := child.receive(START_TIMEOUT_S):
            case None:
                pass
            case StageBegun():
                detail(doing(message.stage))
            case Unusable():
                raise DeviceError(message.message)
            case Ready():
                return
            case _:
                raise child.unexpected(message)
