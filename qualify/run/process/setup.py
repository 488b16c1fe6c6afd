"""What all worker processes of a run have in common, and the first message that each gets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from qualify.cards.kernel import KernelCard
from qualify.facts import codec
from qualify.facts.case import Level
from qualify.facts.devices import DeviceKind
from qualify.facts.stack import Ceilings

Mode = Literal["run", "compile"]
LAUNCHES_OF = "launches"
"""what a trial is asked instead of a check to say what a call launches"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What all workers of a run have in common."""

    device: DeviceKind
    device_name: str
    level: Level
    reference: str
    timeout_s: float
    compile_timeout_s: float
    hash_cache: Path
    cards: Mapping[str, KernelCard]
    """every kernel of the run by name, also those whose cases are done: their libraries belong to the fingerprint"""
    import_paths: tuple[str, ...] = ()
    """folders in which the entries of third parties stand"""
    memory_bytes: int
    """host memory that a worker may touch"""
    ceilings: Ceilings | None = None
    """what an earlier worker of the same run measured; None to measure"""

    def message(
        self, *, mode: Mode = "run", preload: Iterable[str] = (), ceilings: Ceilings | None = None
    ) -> dict[str, Any]:
        """The first message to a worker.

        Args:
            mode: ``compile`` for a process that only prepares calls, so that their kernels get compiled.
            preload: kernels whose libraries the worker loads before it takes its fingerprint.
        """
        cards = {name: card.model_dump(mode="json", exclude_unset=True) for name, card in self.cards.items()}
        return {
            "mode": mode,
            "device": self.device,
            "level": self.level,
            "reference": self.reference,
            "hash_cache": str(self.hash_cache),
            "import_paths": self.import_paths,
            "cards": cards,
            "preload": list(preload),
            "ceilings": codec.to_data(ceilings, Ceilings | None),
        }
