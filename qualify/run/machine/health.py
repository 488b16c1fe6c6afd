"""What NVML says against a card before anything runs on it."""

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
"""what NVML asks for; 0 asks for nothing"""


def refusals(nvml: Any, handle: Any) -> tuple[str, ...]:
    """Why nothing may run on a card: it asks for a recovery action, could not remap faulty rows, or is sliced (MIG)."""
    return tuple(filter(None, (recovery(nvml, handle), remapping(nvml, handle), _sliced(nvml, handle))))


def recovery(nvml: Any, handle: Any) -> str:
    """The recovery action that the card asks for; empty where it asks for none."""
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
    """Whether the card could not remap a faulty row of its memory."""
    try:
        *_, failed = nvml.nvmlDeviceGetRemappedRows(handle)
    except nvml.NVMLError as error:
        return "" if unsupported(nvml, error) else f"the GPU does not answer (NVML: {error})"
    return "the GPU could not remap a faulty row of its memory: replace it" if failed else ""


def busy_with(nvml: Any, handle: Any) -> tuple[str, ...]:
    """The processes of others that compute on a card."""
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
    """Whether NVML says that the card or driver does not know the question, or that this user may not ask it."""
    return isinstance(error, nvml.NVMLError_NotSupported | nvml.NVMLError_NoPermission)
