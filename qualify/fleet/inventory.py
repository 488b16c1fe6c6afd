"""The cards of this machine before anything runs on them: by NVML, or logical CPU devices where somebody asks for them.

Every card is known by its UUID. NVML lists them without a CUDA context, so that nothing is taken from whoever uses
them.
"""

from __future__ import annotations

import platform
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qualify.errors import DeviceError, UsageError
from qualify.facts.devices import ALL, HOST, DeviceKind, logical_devices
from qualify.facts.fleet import ListedCard
from qualify.run.machine.health import busy_with, refusals

MOST_LOGICAL = 64


class NoDriver(DeviceError):
    """NVIDIA's driver is not installed here."""


def node_name() -> str:
    """What this machine is called where no engine says so."""
    return socket.gethostname()


def cpu_name() -> str:
    """The model of this machine's CPU."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def kind_of(device: str) -> DeviceKind:
    """The kind of device of ``cuda:all`` or ``cpu:N``.

    Raises:
        UsageError: it is neither.
    """
    if device == ALL:
        return "cuda"
    if 1 <= logical_devices(device) <= MOST_LOGICAL:
        return HOST
    raise UsageError(
        f"--device {device}: cards are named by {ALL} (every GPU of the machine), or by cpu:N for N logical CPU "
        f"devices, at most {MOST_LOGICAL}, which prove nothing about a GPU"
    )


def list_cards(device: str, node: str = "") -> tuple[ListedCard, ...]:
    """Every card of this machine, in NVML's order, with what speaks against it.

    Args:
        device: ``cuda:all`` or ``cpu:N``.
        node: what the engine calls this machine; names of logical devices begin with it.

    Raises:
        UsageError: another device.
        NoDriver: the machine has no driver for NVIDIA's GPUs.
        DeviceError: NVML does not answer, or lists no GPU.
    """
    if kind_of(device) == HOST:
        name = cpu_name()
        return tuple(
            ListedCard(uuid=f"CPU-{node or node_name()}-{number}", name=name)
            for number in range(logical_devices(device))
        )
    found = tuple(_gpus())
    if not found:
        raise DeviceError(f"--device {device}: NVML lists no GPU here. `qualify doctor` checks the machine.")
    return found


def _gpus() -> Iterator[ListedCard]:
    try:
        import pynvml
    except ImportError:
        raise DeviceError(
            f"--device {ALL}: nvidia-ml-py is not installed, and NVML is what lists the cards "
            "(pip install 'attn-qualify[run]')"
        ) from None
    try:
        pynvml.nvmlInit()
        try:
            for index in range(pynvml.nvmlDeviceGetCount()):
                yield _gpu(pynvml, pynvml.nvmlDeviceGetHandleByIndex(index))
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError_LibraryNotFound as error:
        raise NoDriver(f"--device {ALL}: NVIDIA's driver is not installed here ({error})") from error
    except pynvml.NVMLError as error:
        raise DeviceError(
            f"--device {ALL}: NVML does not answer ({error}). The driver is probably not loaded, or its upgrade is not "
            "finished: see `nvidia-smi`."
        ) from error


def _gpu(nvml: Any, handle: Any) -> ListedCard:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return ListedCard(
        uuid=str(nvml.nvmlDeviceGetUUID(handle)),
        name=str(nvml.nvmlDeviceGetName(handle)),
        compute_capability=f"{major}.{minor}",
        refusals=refusals(nvml, handle),
        busy=busy_with(nvml, handle),
    )
