"""What it ran on: device, driver, libraries, binaries, dispatch environment, and measured ceilings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Literal

from qualify.facts.devices import HOST, DeviceKind

ComponentKind = Literal["driver", "runtime", "distribution", "binary", "firmware", "system", "setting", "code"]
"""setting: what an administrator sets on a card; code: what a canary watches besides what every run describes"""
KNOWN_TO_BOTH: tuple[ComponentKind, ...] = ("setting", "code")
"""kinds that older programs and other canaries did not look at: a stack without components of such a kind says nothing
about that kind"""


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

    @property
    def variant(self) -> str:
        """The device model: what a baseline holds for. On a GPU with its units, which tell a slice from a card."""
        return f"{self.name} ({self.units} units)" if self.kind != HOST else self.name


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

    def agrees_with(self, other: Stack) -> bool:
        """Whether both are the same software on the same card model.

        This is weaker than equal fingerprints. A fingerprint also differs where one process had mapped more libraries
        than the other. A run of one kernel and a run of all are on one stack as long as no file that both had mapped
        differs.
        """
        # A fingerprint takes a hundred times as long as a comparison, and most stacks that are compared are equal.
        if self == other or self.fingerprint == other.fingerprint:
            return True
        if asdict(self.device) | {"uuid": ""} != asdict(other.device) | {"uuid": ""}:
            return False
        if dict(self.environment) != dict(other.environment):
            return False
        mine, theirs = self._partial(), other._partial()
        return self._versioned() == other._versioned() and all(
            mine[key] == theirs[key] for key in mine.keys() & theirs.keys()
        )

    def with_parts_of(self, other: Stack) -> Stack:
        """This stack with what only the other one knows, of kinds that one stack may know less about than the other.

        A third stack that agrees with the result agrees with both.
        """
        mine = self._partial().keys()
        more = tuple(part for part in other._parts_in_part() if (part.kind, part.name) not in mine)
        return replace(self, components=(*self.components, *more)) if more else self

    def _partial(self) -> dict[tuple[str, str], set[tuple[str, str]]]:
        """Version and digest by kind and name, only of kinds that one stack may know less about than the other."""
        found: dict[tuple[str, str], set[tuple[str, str]]] = {}
        for part in self._parts_in_part():
            found.setdefault((part.kind, part.name), set()).add((part.version, part.digest))
        return found

    def _parts_in_part(self) -> list[Component]:
        return [part for part in self.components if part.kind in ("binary", *KNOWN_TO_BOTH)]

    def _versioned(self) -> set[Component]:
        return {part for part in self.components if part.kind not in ("binary", *KNOWN_TO_BOTH)}

    def version(self, name: str) -> str:
        """Version of the named component; empty where it is absent."""
        return next((part.version for part in self.components if part.name == name and part.version), "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ceilings:
    """What this card reaches at best, measured in the same session."""

    matmul_flops_per_s: Mapping[str, float]
    """by dtype: rate of a large matrix product on random data"""
    copy_bytes_per_s: float
    """rate of a large copy: bytes read plus bytes written"""
    exps_per_s: float
    launch_us: float
    """time of an empty launch, where launches follow each other without a gap"""
