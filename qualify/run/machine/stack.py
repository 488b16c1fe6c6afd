"""The fingerprint of what a run ran on: device, driver, libraries, mapped binaries, dispatch environment."""

from __future__ import annotations

from pathlib import Path

import torch

from qualify.errors import DeviceError
from qualify.facts.stack import Component, Device, Stack
from qualify.run.machine.software import (
    BINARY,
    describe_cpu,
    dispatch_environment,
    distributions,
    firmware,
    hashed,
    started_with,
    system,
)


def describe_device(kind: str) -> Device:
    """The device a worker runs on.

    Raises:
        DeviceError: cuda was asked for and is not usable; the message says why and what to do.
    """
    if kind == "cpu":
        return describe_cpu()
    if not torch.cuda.is_available():
        raise DeviceError(no_cuda_reason())
    properties = torch.cuda.get_device_properties(0)
    return Device(
        kind="cuda",
        name=properties.name,
        uuid=f"GPU-{properties.uuid}",
        compute_capability=f"{properties.major}.{properties.minor}",
        units=properties.multi_processor_count,
        memory_bytes=properties.total_memory,
        cache_bytes=int(getattr(properties, "L2_cache_size", 0)),
    )


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
        text = str(error).splitlines()[0].rstrip(".")
        hint = "Upgrade the NVIDIA driver" if "driver" in text.lower() and "old" in text.lower() else "See `nvidia-smi`"
        return f"no CUDA device: {text}. {hint}, or run with --device cpu."
    return "no CUDA device: torch sees none (CUDA_VISIBLE_DEVICES?). See `nvidia-smi`, or run with --device cpu."


def describe_stack(device: Device, hash_cache: Path) -> Stack:
    """The full fingerprint of this process; call it once the attention libraries are loaded."""
    components = [*system(), *_runtimes(device), *distributions(), *hashed(mapped_binaries(), hash_cache)]
    return Stack(device=device, components=tuple(components), environment=dispatch_environment(started_with()))


def _runtimes(device: Device) -> list[Component]:
    """Driver, CUDA and cuDNN as torch and NVML see them; firmware where NVML tells."""
    if device.kind != "cuda":
        return []
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    found = [
        Component(kind="runtime", name="cuda", version=str(torch.version.cuda), digest=""),
        Component(kind="runtime", name="cudnn", version="" if cudnn is None else str(cudnn), digest=""),
    ]
    return found + _nvml(device)


def _nvml(device: Device) -> list[Component]:
    """What only the driver's management library knows; a note of its absence where it cannot be asked."""
    try:
        import pynvml
    except ImportError:
        return [Component(kind="driver", name="driver", version="unknown (nvidia-ml-py is not installed)", digest="")]
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(device.uuid)
        driver = Component(kind="driver", name="driver", version=str(pynvml.nvmlSystemGetDriverVersion()), digest="")
        return [driver, *firmware(pynvml, handle)]
    except pynvml.NVMLError as error:
        return [Component(kind="driver", name="driver", version=f"unknown (NVML: {error})", digest="")]


def mapped_binaries() -> list[Path]:
    """Shared objects that this process has mapped and that can matter to attention."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return []
    paths = {line.split(maxsplit=5)[5] for line in maps.read_text().splitlines() if len(line.split(maxsplit=5)) == 6}
    libraries = (Path(path) for path in paths if ".so" in path)
    return sorted(path for path in libraries if BINARY.search(path.name) and path.is_file())
