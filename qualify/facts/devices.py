"""Kinds of device, as far as they need no torch; qualify.run.machine.device has the rest."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

DeviceKind = Literal["cpu", "cuda"]
"""As torch, ``--device`` and cards call them."""
Scale = Literal["small", "large"]
"""How large the calls may be that checks and measurements make: what is free on a GPU takes a CPU minutes."""

CPU_DEVICE = "QUALIFY_CPU_DEVICE"
"""environment variable with the name of the logical CPU device that a process stands for; it proves nothing of a GPU"""
ALL = "cuda:all"
"""what ``--device`` says for every card of the machine"""
HOST: DeviceKind = "cpu"
"""The kind that every machine has: it needs no driver, has no context to lose and shares its memory with us."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedDevice:
    """One device as its maker's tool lists it."""

    index: str
    uuid: str
    name: str
    compute_capability: str
    """empty where the maker has no such number"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """How a machine's devices of a kind are listed before anything heavy is imported."""

    maker: str
    tool: str
    """program that lists them"""
    arguments: tuple[str, ...]
    """arguments that the program gets"""
    read: Callable[[str], list[ListedDevice]]
    """reads what the program printed, in its order; where this raises ValueError or KeyError, there is no device"""
    chosen_by: str
    """environment variable that says which of them a process sees"""


@dataclass(frozen=True, kw_only=True, slots=True)
class KindFacts:
    """What distinguishes a kind of device."""

    scale: Scale
    units: str
    """what the page calls its units"""
    session_cases: int
    """most cases that share a profiler session"""
    listing: Listing | None = None
    """how to list such devices; None = every machine has one"""


def read_csv(printed: str) -> list[ListedDevice]:
    """Lines of index, UUID, name and compute capability; any other line lists nothing."""
    rows = csv.reader(printed.splitlines(), skipinitialspace=True)
    return [
        ListedDevice(index=row[0], uuid=row[1], name=row[2], compute_capability=row[3]) for row in rows if len(row) == 4
    ]


KINDS: dict[DeviceKind, KindFacts] = {
    "cpu": KindFacts(scale="small", units="Cores", session_cases=8),
    "cuda": KindFacts(
        scale="large",
        units="Multiprocessors",
        session_cases=16,
        listing=Listing(
            maker="NVIDIA",
            tool="nvidia-smi",
            arguments=("--query-gpu=index,uuid,name,compute_cap", "--format=csv,noheader"),
            read=read_csv,
            chosen_by="CUDA_VISIBLE_DEVICES",
        ),
    ),
}
"""``auto`` takes the first kind with a listing that the machine has."""


def chosen_by(kind: DeviceKind) -> str:
    """The environment variable that says which device of a kind a process sees."""
    listing = KINDS[kind].listing
    return listing.chosen_by if listing else CPU_DEVICE


def logical_devices(asked: str) -> int:
    """How many logical CPU devices ``cpu:N`` asks for; 0 where it asks for something else."""
    kind, _, count = asked.partition(":")
    return int(count) if kind == HOST and count.isdecimal() else 0
