"""What can be said about a machine without loading torch: system, installed software, dispatch environment, CPU."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from qualify.facts.stack import Component, Device
from qualify.plan.digests import digests_of

DISTRIBUTIONS = (
    "torch",
    "triton",
    "flash-attn",
    "flash-attn-3",
    "flash-attn-4",
    "flashinfer-python",
    "flashinfer-cubin",
    "flashinfer-jit-cache",
    "vllm",
    "xformers",
    "kernels",
    "transformers",
    "nvidia-cudnn-cu12",
    "nvidia-cudnn-cu13",
    "nvidia-cudnn-frontend",
    "nvidia-cublas",
    "nvidia-cublas-cu12",
    "nvidia-cuda-runtime",
    "nvidia-cuda-runtime-cu12",
    "nvidia-cuda-nvrtc",
    "nvidia-cutlass-dsl",
    "quack-kernels",
    "numpy",
)
"""Distributions whose version can change which kernel runs or what it computes."""

DISPATCH = re.compile(
    r"^(CUDA_|CUDNN_|CUBLAS_|NVIDIA_|TORCH|PYTORCH_|TRITON_|FLASH|FLASHINFER_|VLLM_|FA[234]_|ATEN_|MKL_|OMP_NUM|ONEDNN_|DNNL_)"
)
"""Environment variables that steer dispatch, or the numbers."""
SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|CREDENTIAL|_KEY$")

BINARY = re.compile(
    r"torch|cudnn|cublas|cudart|nvrtc|flash|_C\.|cuda|vllm|cutlass|triton|mkl|gomp|xformers", re.IGNORECASE
)
"""Shared objects worth a hash, by file name."""


def describe_cpu() -> Device:
    """The CPU of this machine."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE) if info.exists() else []
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    name = names[0].strip() if names else platform.processor() or platform.machine()
    return Device(
        kind="cpu",
        name=name,
        uuid=name,
        compute_capability="",
        units=len(os.sched_getaffinity(0)),
        memory_bytes=memory,
        cache_bytes=_last_level_cache(),
    )


def _last_level_cache() -> int:
    """Bytes of the largest cache that sysfs names; 0 where it names none."""
    sizes = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        match = re.fullmatch(r"(\d+)([KM]?)", path.read_text().strip())
        if match:
            sizes.append(int(match[1]) * {"": 1, "K": 1 << 10, "M": 1 << 20}[match[2]])
    return max(sizes)


@cache
def started_with() -> Mapping[str, str]:
    """The environment that this process was started with; one that keeps to itself must have asked before.

    What libraries set in it later follows from them, and would differ between a worker that loaded them and a process
    that did not.
    """
    try:
        content = Path("/proc/self/environ").read_bytes()
    except OSError:
        return dict(os.environ)
    pairs = (os.fsdecode(entry).partition("=") for entry in content.split(b"\0") if entry)
    return {name: value for name, _, value in pairs}


def dispatch_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables that steer dispatch; never one that may hold a secret."""
    return {
        name: value for name, value in sorted(variables.items()) if DISPATCH.match(name) and not SECRET.search(name)
    }


def system() -> list[Component]:
    """Interpreter, kernel, libc, and the image where the deployment names it."""
    image = os.environ.get("QUALIFY_IMAGE", "")
    return [
        Component(kind="system", name="python", version=platform.python_version(), digest=""),
        Component(kind="system", name="kernel", version=platform.release(), digest=""),
        Component(kind="system", name="libc", version=" ".join(platform.libc_ver()), digest=""),
        *([Component(kind="system", name="image", version=image, digest="")] if image else []),
    ]


def distributions() -> list[Component]:
    """Installed attention and CUDA distributions; the digest is that of RECORD, which hashes every file."""
    found = []
    for name in DISTRIBUTIONS:
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        record = distribution.read_text("RECORD")
        digest = hashlib.sha256(record.encode()).hexdigest() if record else ""
        # While pip replaces a distribution its metadata may have no version, for which importlib has None.
        version = distribution.version or ""
        found.append(Component(kind="distribution", name=name, version=version, digest=digest))
    return found


def hashed(paths: Iterable[Path], hash_cache: Path) -> list[Component]:
    """The files as components; one that has gone meanwhile, as while pip replaces it, is none."""
    names = {str(path): path.name for path in paths}
    digests = digests_of(names, hash_cache)
    return [
        Component(kind="binary", name=name, version="", digest=digests[path])
        for path, name in names.items()
        if path in digests
    ]


def firmware(nvml: Any, handle: Any) -> list[Component]:
    """Firmware of a card as NVML names it; what a card or driver does not tell is left out."""
    found = []
    for name, ask in (
        ("vbios", nvml.nvmlDeviceGetVbiosVersion),
        ("gsp", nvml.nvmlDeviceGetGspFirmwareVersion),
        ("inforom", nvml.nvmlDeviceGetInforomImageVersion),
    ):
        try:
            found.append(Component(kind="firmware", name=name, version=str(ask(handle)), digest=""))
        except nvml.NVMLError:
            continue
    return found
