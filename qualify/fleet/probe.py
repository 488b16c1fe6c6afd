"""What this machine has, found without importing torch: fast enough for every command."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qualify.cards.load import in_environments, load_kernels
from qualify.errors import DeviceError
from qualify.facts.devices import HOST, KINDS, DeviceKind, ListedDevice, Listing
from qualify.fleet.entries import entry_refusals
from qualify.fleet.inventory import cpu_name
from qualify.plan.host import Host, device_refusals, install_refusals, machine_refusals, shipped_version
from qualify.plan.interpreter import find_interpreters
from qualify.plan.offered import adapter_refusals

CGROUP_FILES = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
"""limit and use of a container's memory, for both versions of control groups"""


def find_host(asked: str) -> Host:
    """The device to plan for.

    Args:
        asked: ``auto`` (the first visible GPU, else the CPU), ``cpu`` or ``cuda``.

    Raises:
        DeviceError: cuda was asked for and there is no GPU.
    """
    for kind, facts in KINDS.items():
        if facts.listing is None or asked not in {"auto", kind}:
            continue
        found = _first(kind, facts.listing)
        if found is not None:
            return found
        if asked == kind:
            listing = facts.listing
            raise DeviceError(
                f"--device {kind}: no {listing.maker} GPU is visible here ({listing.tool} lists none, or "
                f"{listing.chosen_by} hides it). `qualify doctor` checks the machine; --device cpu runs what runs on "
                "a CPU."
            )
    return Host(kind=HOST, name=cpu_name(), compute_capability="")


def _listed(listing: Listing) -> list[ListedDevice]:
    """Devices that the tool lists, in its order; empty where it is absent, fails, or prints something else."""
    tool = shutil.which(listing.tool)
    if tool is None:
        return []
    try:
        answer = subprocess.run([tool, *listing.arguments], capture_output=True, text=True, timeout=30, check=True)
        return listing.read(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError, KeyError):
        return []


def _first(kind: DeviceKind, listing: Listing) -> Host | None:
    """The GPU of a kind that a process will see as its first one."""
    gpus = _listed(listing)
    chosen = os.environ.get(listing.chosen_by)
    if chosen is not None:
        first = chosen.split(",")[0].strip()
        gpus = [gpu for gpu in gpus if first and (gpu.index == first or gpu.uuid.startswith(first))]
    if not gpus:
        return None
    return Host(kind=kind, name=gpus[0].name, compute_capability=gpus[0].compute_capability)


def available_memory() -> int:
    """Bytes of host memory that are free for this process: the machine's, or what its control group leaves."""
    info = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(info["MemAvailable"].split()[0]) * 1024
    for limit, used in CGROUP_FILES:
        try:
            free = min(free, int(Path(limit).read_text()) - int(Path(used).read_text()))
        except (OSError, ValueError):  # no such control group, or `max`: no limit
            continue
    return free


def list_kernels(extra: tuple[Path, ...], environments: Mapping[str, str]) -> list[dict[str, Any]]:
    """Every kernel card with its availability on this machine, and in each environment, for ``qualify kernels``.

    Args:
        environments: interpreters by name.

    Raises:
        UsageError: the interpreter of an environment does not answer.
    """
    host = find_host("auto")
    interpreters = find_interpreters(environments)
    found = []
    for name, loaded in in_environments(load_kernels(extra), environments).items():
        card = loaded.card
        here = Host(kind=HOST, name=host.name, compute_capability="") if card.requires.device == HOST else host
        reasons = device_refusals(card, here) + (install_refusals(card) or entry_refusals(loaded, extra))
        if card.environment:
            reasons = machine_refusals(card, here, interpreters)
        reasons = reasons or adapter_refusals(loaded, interpreters.get(card.environment))
        found.append(
            {
                "kernel": name,
                "environment": card.environment,
                "available": not reasons,
                "reasons": reasons,
                "version": shipped_version(card, interpreters.get(card.environment)) or (card.entry or ""),
                "claims": card.claims.model_dump(mode="json"),
            }
        )
    return found
