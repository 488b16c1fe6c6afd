"""What it ran on: device, driver, libraries, binaries, dispatch environment, and measured ceilings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from qualify.facts.case import DeviceKind

ComponentKind = Literal["driver", "runtime", "distribution", "binary", "firmware", "system"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """One device as its driver describes it."""

    kind: DeviceKind
    name: str
    uuid: str
    """GPU UUID; on a CPU the model name"""
    compute_capability: str
    """for example ``9.0``; empty on a CPU"""
    units: int
    """streaming multiprocessors, or CPU cores that the process may use"""
    memory_bytes: int
    cache_bytes: int
    """last-level cache; 0 = unknown"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    """One versioned thing under the kernels."""

    kind: ComponentKind
    name: str
    version: str
    digest: str
    """sha256 of the file or of the distribution's RECORD; empty where there is none"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    """The full fingerprint. Two runs with equal fingerprints ran on the same software and card model."""

    device: Device
    components: tuple[Component, ...]
    environment: Mapping[str, str]
    """environment variables that steer dispatch, as set"""

    @property
    def fingerprint(self) -> str:
        """sha256 over everything but the card's UUID, so equal stacks on two cards compare equal."""
        content = asdict(self)
        content["device"].pop("uuid")
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def version(self, name: str) -> str:
        """Version of the named component; empty where it is absent."""
        return next((part.version for part in self.components if part.name == name and part.version), "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ceilings:
    """What this card reaches at best, measured in the same session."""

    matmul_flops_per_s: Mapping[str, float]
    """by dtype: a large matrix product on random data"""
    copy_bytes_per_s: float
    """a large copy, bytes read plus bytes written"""
    exps_per_s: float
    launch_us: float
    """an empty launch, back to back"""
