"""How a GPU is set, as NVML tells it: what an administrator can change under the same driver and the same card.

A clock that was locked (``nvidia-smi --lock-gpu-clocks``) is not among them: NVML has no question for it.
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
    """The settings of a card; what the card or its driver does not tell is left out.

    Args:
        nvml: the module pynvml, initialised.
        handle: of the card.
    """
    found = []
    for name, ask in _questions(nvml, handle):
        try:
            found.append(Component(kind="setting", name=name, version=ask(), digest=""))
        except nvml.NVMLError:
            continue
    return found


def _questions(nvml: Any, handle: Any) -> Iterator[tuple[str, Callable[[], str]]]:
    """The questions to NVML, by the name of each setting."""
    yield "ecc", lambda: _now_and_next(nvml.nvmlDeviceGetEccMode(handle))
    yield "mig", lambda: _now_and_next(nvml.nvmlDeviceGetMigMode(handle))
    yield "power limit", lambda: f"{nvml.nvmlDeviceGetPowerManagementLimit(handle) / 1000:g} W"
    yield "graphics clock", lambda: f"{nvml.nvmlDeviceGetApplicationsClock(handle, nvml.NVML_CLOCK_GRAPHICS)} MHz"
    yield "memory clock", lambda: f"{nvml.nvmlDeviceGetApplicationsClock(handle, nvml.NVML_CLOCK_MEM)} MHz"
    yield "compute mode", lambda: _word(COMPUTE, nvml.nvmlDeviceGetComputeMode(handle))
    yield "fabric", lambda: _fabric(nvml, handle)


def _now_and_next(modes: list[int]) -> str:
    """``on`` or ``off``, and what it will be after the next reset where that is another."""
    now, pending = ("on" if mode else "off" for mode in modes)
    return now if now == pending else f"{now}, {pending} after a reset"


def _fabric(nvml: Any, handle: Any) -> str:
    info = nvml.c_nvmlGpuFabricInfo_t()
    nvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
    state = _word(FABRIC, info.state)
    return f"{state}, error {info.status}" if state == "completed" and info.status else state


def _word(words: tuple[str, ...], number: int) -> str:
    return words[number] if 0 <= number < len(words) else str(number)
