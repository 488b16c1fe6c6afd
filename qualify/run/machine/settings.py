"""Settings of a GPU by NVML: what an administrator can change without changing the driver or the card.

A locked clock (``nvidia-smi --lock-gpu-clocks``) is missing, because NVML has no query for it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

from qualify.facts.stack import Component

FABRIC = ("not supported", "not started", "in progress", "completed")
"""states of the card's registration with the fabric manager of its NVLink switches"""
COMPUTE = ("shared", "exclusive thread", "prohibited", "exclusive process")


def settings(nvml: Any, handle: Any) -> list[Component]:
    """The settings of a card, without those that the card or its driver does not report.

    Args:
        nvml: the module pynvml, initialised.
        handle: NVML handle of the card.
    """
    found = []
    for name, ask in _questions(nvml, handle):
        try:
            found.append(Component(kind="setting", name=name, version=ask(), digest=""))
        except nvml.NVMLError:
            continue
    return found


def keeps_others_out(nvml: Any, handle: Any) -> str:
    """The card's compute mode where it admits no process beside this one, which uses the card; else empty.

    Where NVIDIA's MPS runs, its server is the only process on the card, and each of its clients may use it.
    """
    try:
        mode = nvml.nvmlDeviceGetComputeMode(handle)
        if mode == nvml.NVML_COMPUTEMODE_DEFAULT or nvml.nvmlDeviceGetMPSComputeRunningProcesses(handle):
            return ""
    except nvml.NVMLError:
        return ""
    return _word(COMPUTE, mode)


def _questions(nvml: Any, handle: Any) -> Iterator[tuple[str, Callable[[], str]]]:
    """(name of the setting, query of NVML that returns it in words)."""
    yield "ecc", lambda: _now_and_next(nvml.nvmlDeviceGetEccMode(handle))
    yield "mig", lambda: _now_and_next(nvml.nvmlDeviceGetMigMode(handle))
    yield "power limit", lambda: f"{nvml.nvmlDeviceGetPowerManagementLimit(handle) / 1000:g} W"
    yield "graphics clock", lambda: f"{nvml.nvmlDeviceGetApplicationsClock(handle, nvml.NVML_CLOCK_GRAPHICS)} MHz"
    yield "memory clock", lambda: f"{nvml.nvmlDeviceGetApplicationsClock(handle, nvml.NVML_CLOCK_MEM)} MHz"
    yield "compute mode", lambda: _word(COMPUTE, nvml.nvmlDeviceGetComputeMode(handle))
    yield "fabric", lambda: _fabric(nvml, handle)


def _now_and_next(modes: list[int]) -> str:
    """``on`` or ``off``, and the state after the next reset where it will change."""
    now, pending = ("on" if mode else "off" for mode in modes)
    return now if now == pending else f"{now}, {pending} after a reset"


def _fabric(nvml: Any, handle: Any) -> str:
    info = nvml.c_nvmlGpuFabricInfo_t()
    nvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
    state = _word(FABRIC, info.state)
    return f"{state}, error {info.status}" if state == "completed" and info.status else state


def _word(words: tuple[str, ...], number: int) -> str:
    return words[number] if 0 <= number < len(words) else str(number)
