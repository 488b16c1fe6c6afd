"""Facts about a card from NVIDIA's driver and its management library (NVML) that torch does not have."""

from __future__ import annotations

import os
from typing import Any

import torch

from qualify.facts.stack import Component, Device
from qualify.run.machine.settings import keeps_others_out, settings
from qualify.run.machine.software import firmware
from qualify.text import first_line


def no_cuda_reason() -> str:
    """Why CUDA cannot be used here, and what to do about it."""
    if torch.version.cuda is None:
        return (
            f"no CUDA device: this torch ({torch.__version__}) is built without CUDA. Install a CUDA build of torch, "
            "or run with --device cpu."
        )
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        text = first_line(error).rstrip(".")
        hint = "Upgrade the NVIDIA driver" if "driver" in text.lower() and "old" in text.lower() else "See `nvidia-smi`"
        return f"no CUDA device: {text}. {hint}, or run with --device cpu."
    return "no CUDA device: torch sees none (CUDA_VISIBLE_DEVICES?). See `nvidia-smi`, or run with --device cpu."


def misplaced_by_nvml(expected: str) -> str:
    """Why NVML does not confirm that the process is on the card with that UUID; empty where it confirms it.

    It looks the card up by its place on the bus; where torch names no place, by UUID.
    """
    try:
        import pynvml
    except ImportError:
        return "nvidia-ml-py is not installed, so NVML cannot confirm the card (pip install nvidia-ml-py)"
    place = _bus_place()
    try:
        pynvml.nvmlInit()
        by_place, by_uuid = pynvml.nvmlDeviceGetHandleByPciBusId, pynvml.nvmlDeviceGetHandleByUUID
        handle = by_place(place.encode()) if place else by_uuid(expected.encode())
        found = str(pynvml.nvmlDeviceGetUUID(handle))
    except pynvml.NVMLError as error:
        return f"NVML does not confirm the card at {place or expected}: {error}"
    return "" if found == expected else f"NVML says that {place} is {found}"


def _bus_place() -> str:
    """The card's place on the bus, as NVML writes it; empty where torch does not tell."""
    properties: Any = torch.cuda.get_device_properties(0)
    names = ("pci_domain_id", "pci_bus_id", "pci_device_id")
    numbers = [getattr(properties, name, None) for name in names]
    if None in numbers:
        return ""
    domain, bus, device = numbers
    return f"{domain:08X}:{bus:02X}:{device:02X}.0"


def kept_out(uuid: str) -> str:
    """The card's compute mode where it admits one process only; empty where it admits more, or NVML does not tell."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return keeps_others_out(pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid))
    except ImportError:
        return ""
    except pynvml.NVMLError:
        return ""


def processes_on(uuid: str) -> tuple[int, ...]:
    """Ids of the processes that use the card; empty where NVML does not tell, or counts processes in another way.

    In a container it may name processes by their ids outside. Then this one, which uses the card, is not among them.
    """
    try:
        import pynvml

        pynvml.nvmlInit()
        listed = pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByUUID(uuid))
    except ImportError:
        return ()
    except pynvml.NVMLError:
        return ()
    found = tuple(sorted(int(item.pid) for item in listed))
    return found if os.getpid() in found else ()


def driver_components(device: Device) -> list[Component]:
    """Components that only NVML knows; where NVML is missing, a component that says so."""
    try:
        import pynvml
    except ImportError:
        return [Component(kind="driver", name="driver", version="unknown (nvidia-ml-py is not installed)", digest="")]
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(device.uuid)
        driver = Component(kind="driver", name="driver", version=str(pynvml.nvmlSystemGetDriverVersion()), digest="")
        return [driver, *firmware(pynvml, handle), *settings(pynvml, handle)]
    except pynvml.NVMLError as error:
        return [Component(kind="driver", name="driver", version=f"unknown (NVML: {error})", digest="")]
