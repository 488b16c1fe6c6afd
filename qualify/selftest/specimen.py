"""What the battery sends through the pipeline: a planted fault, or a correct kernel that computes in another way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from qualify.facts.selftest import FaultClass
from qualify.run.adapters.interface import AttentionCall


class Simulated(Protocol):
    """A simulated kernel, with the state that a real kernel keeps in its process."""

    def launch(self, call: AttentionCall) -> Any:
        """``out`` or ``(out, lse)``, as the call contract says."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """A wrong kernel, and the public defects that it stands for."""

    name: str
    kind: FaultClass
    """class of incident, A to O"""
    mirrors: str
    """public threads that describe the defect, or the check that this fault is there to test"""
    does: str
    """what it does wrong, in one line"""
    make: Callable[[], Simulated]
    equivalent: str = ""
    """proof that its results cannot be told from correct ones; such a fault is not counted. Empty = it is counted"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """A correct kernel that computes in another way than the simulator."""

    name: str
    does: str
    """how it differs, in one line"""
    make: Callable[[], Simulated]
    lse_rel: float | None = 1e-5
    """accuracy of the LSE that its card claims; None where it claims none"""
