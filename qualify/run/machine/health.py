"""Checks by NVML whether a card may be used, before anything runs on it."""

from __future__ import annotations

from typing import Any

RECOVERY = {
    1: "reset the GPU",
    2: "reboot the node",
    3: "drain peer-to-peer traffic",
    4: "drain and reset the GPU",
    5: "recover the IMEX domain",
    6: "reset the bus",
    7: "reboot the system",
}
"""recovery actions of NVML, by number; 0 = no action is needed"""


def refusals(nvml: Any, handle: Any) -> tuple[str, ...]:
    """Why nothing may run on a card: it needs a recovery action, could not remap faulty rows, or is sliced (MIG)."""
    return tuple(filter(None, (recovery(nvml, handle), remapping(nvml, handle), _sliced(nvml, handle))))


def recovery(nvml: Any, handle: Any) -> str:
    """The recovery action that the card needs; empty where it needs none."""
    field = getattr(nvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
    if field is None:
        return ""
    try:
        (value,) = nvml.nvmlDeviceGetFieldValues(handle, [field])
    except nvml.NVMLError as error:
        return "" if unsupported(nvml, error) else f"the GPU does not answer (NVML: {error})"
    action = int(value.value.uiVal) if value.nvmlReturn == nvml.NVML_SUCCESS else 0
    return f"the GPU asks for recovery: {RECOVERY.get(action, f'action {action}')}" if action else ""


def remapping(nvml: Any, handle: Any) -> str:
    """A sentence where the card could not remap a faulty row of its memory; else empty."""
    try:
        *_, failed = nvml.nvmlDeviceGetRemappedRows(handle)
    except nvml.NVMLError as error:
        return "" if unsupported(nvml, error) else f"the GPU does not answer (NVML: {error})"
    return "the GPU could not remap a faulty row of its memory: replace it" if failed else ""


def busy_with(nvml: Any, handle: Any) -> tuple[str, ...]:
    """A sentence that names other processes that compute on a card; empty where there are none."""
    try:
        running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError:
        return ()
    pids = sorted(int(item.pid) for item in running)
    return (f"other processes use the card (pid {', '.join(map(str, pids))})",) if pids else ()


def _sliced(nvml: Any, handle: Any) -> str:
    try:
        on = nvml.nvmlDeviceGetMigMode(handle)[0]
    except nvml.NVMLError:  # a card without slices
        return ""
    return "MIG is on: a slice is not the card" if on else ""


def unsupported(nvml: Any, error: Exception) -> bool:
    """Whether an NVML error only means that card or driver do not support a query, or that the user lacks the right."""
    return isinstance(error, nvml.NVMLError_NotSupported | nvml.NVMLError_NoPermission)
