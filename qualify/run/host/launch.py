"""Starts the processes of hosts. Needs no torch: a judge starts its hosts first, and all import torch side by side."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from qualify.cards.kernel import CALL, KernelCard
from qualify.facts.devices import HOST, DeviceKind
from qualify.facts.lines import decode_line
from qualify.run.host import messages as says
from qualify.run.process.child import Child, Program

BOOT = Path(__file__).with_name("boot.py")
ARENA_SHARE = 4
"""an arena has so many times the machine's memory as address space: most of a large tensor is never touched"""
MOST = 12
"""hosts of a judge at a time"""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostSetup:
    """What all hosts of a judge have in common."""

    device: DeviceKind
    import_paths: tuple[str, ...]
    memory_bytes: int
    """host memory that a host may touch; one that takes more is killed"""


class HostProcess:
    """The process of a host, and on a CPU the file that judge and host share."""

    def __init__(self, setup: HostSetup, interpreter: str = "") -> None:
        """Start it.

        Args:
            setup: of all hosts.
            interpreter: of its environment; empty = this one.

        Raises:
            OSError: the machine has no room for another process.
        """
        self.shared, self.size = -1, 0
        if setup.device == HOST:
            self.size = ARENA_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            self.shared = new_file(self.size)
        program = Program(
            interpreter=interpreter or sys.executable,
            foreign=bool(interpreter),
            folder=True,
            arguments=("-P", str(BOOT)),
            shared=self.shared,
            shared_bytes=self.size,
            spin_s=0.0 if setup.device == HOST else says.SPIN_S,
            encode=says.encode,
            decode=heard,
            step_of=lambda message: str(message.index) if isinstance(message, says.Began) else None,
        )
        try:
            self.child = Child(setup.memory_bytes, program)
        except OSError:
            self.close_file()
            raise

    def close(self) -> None:
        """End it."""
        self.child.stop()
        self.close_file()

    def close_file(self) -> None:
        """The host has ended, or never began."""
        if self.shared >= 0:
            os.close(self.shared)
            self.shared = -1


def heard(line: bytes) -> says.Answer:
    """What a host says. Raises WrongMessage."""
    return says.bounded(decode_line(line, says.ANSWERS, says.MOST_ITEMS))


def new_file(size: int) -> int:
    """Descriptor of a new anonymous file of so many bytes; those that nobody touches take no memory.

    Its size is sealed: were a host to cut it, the kernel would kill the judge that reads there.
    """
    descriptor = os.memfd_create("qualify-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return descriptor


def library_of(card: KernelCard) -> str:
    """What shares a process: the kernels of one distribution, or one card of a third party; each in its environment."""
    own = card.kernel if card.adapter == CALL or not card.shipped_by else Requirement(card.shipped_by[0]).name
    return f"{card.environment}/{card.adapter == CALL}/{own}"


def start_early(
    setup: HostSetup, cards: Iterable[KernelCard], environments: Mapping[str, str]
) -> dict[str, HostProcess]:
    """Processes for the libraries of some cards, by library; fewer where the machine has no room for more."""
    started: dict[str, HostProcess] = {}
    with contextlib.suppress(OSError):
        for card in cards:
            library = library_of(card)
            if card.adapter != CALL and library not in started and len(started) < MOST:
                started[library] = HostProcess(setup, environments.get(card.environment, ""))
    return started
