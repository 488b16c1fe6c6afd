"""Other processes that use the device of a run."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from qualify.facts.stack import Device
from qualify.run.machine.device import Processor
from qualify.run.process.tree import family

SERVER = "nvidia-cuda-mps"
"""how the name of a process begins that only passes on the work of others, which are named themselves"""


class Neighbours:
    """Who uses a device beside the run of this process."""

    def __init__(self) -> None:
        """Nobody is known yet."""
        self._own: dict[int, bool] = {}
        """whether a process belongs to the run; to find that out takes a look at every process of the machine"""

    def now(self, processor: Processor, device: Device) -> frozenset[int]:
        """Ids of the processes that use the device and are not of this run, whose command started this process."""
        users = processor.users(device)
        unknown = [pid for pid in users if pid not in self._own]
        if unknown:
            own = family(os.getppid())
            self._own.update((pid, pid in own or _only_passes_on(pid)) for pid in unknown)
        return frozenset(pid for pid in users if not self._own[pid])


def _only_passes_on(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").startswith(SERVER)
    return False
