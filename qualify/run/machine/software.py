"""Describes a machine without loading torch: system, installed software, CPU."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from qualify.facts.adapters import ENTRY_POINTS
from qualify.facts.devices import CPU_DEVICE
from qualify.facts.stack import Component, Device
from qualify.plan.digests import digests_of
from qualify.plan.installed import digest_of, files_of, not_as_promised
from qualify.run.machine.image import image

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
"""Distributions whose version can change which kernel runs or what it computes; :func:`kernel_distributions` adds those
of third parties."""

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
        uuid=os.environ.get(CPU_DEVICE) or name,
        compute_capability="",
        units=len(os.sched_getaffinity(0)),
        memory_bytes=memory,
        cache_bytes=_last_level_cache(),
    )


def _last_level_cache() -> int:
    """Bytes of the largest cache that sysfs lists; 0 where it lists none."""
    sizes = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        match = re.fullmatch(r"(\d+)([KM]?)", path.read_text().strip())
        if match:
            sizes.append(int(match[1]) * {"": 1, "K": 1 << 10, "M": 1 << 20}[match[2]])
    return max(sizes)


def system() -> list[Component]:
    """Components of the system: interpreter, kernel, libc, and the container image where one is known."""
    running = image()
    return [
        Component(kind="system", name="python", version=platform.python_version(), digest=""),
        Component(kind="system", name="kernel", version=platform.release(), digest=""),
        Component(kind="system", name="libc", version=" ".join(platform.libc_ver()), digest=""),
        *([Component(kind="system", name="image", version=running, digest="")] if running else []),
    ]


def kernel_distributions() -> tuple[str, ...]:
    """Names of the distributions that a stack lists: DISTRIBUTIONS, and the installed ones that offer an adapter."""
    found = {entry.dist.name for entry in metadata.entry_points(group=ENTRY_POINTS) if entry.dist is not None}
    # While pip replaces a distribution, its metadata may have no name, and importlib returns None.
    return (*DISTRIBUTIONS, *sorted(name for name in found.difference(DISTRIBUTIONS) if name))


def promised_distributions() -> list[Component]:
    """The installed distributions that a stack lists, with digests of what their RECORD says, without reading files."""
    installed = _installed(kernel_distributions())
    return [_component(name, version, digest_of(record, {})) for name, version, record, _ in installed]


def distributions(hash_cache: Path | None, names: Iterable[str] | None = None) -> list[Component]:
    """The installed distributions that a stack lists, with files read: a file unlike its RECORD changes the digest.

    Args:
        hash_cache: file in which digests of files are kept; None = every file is read again.
        names: names of distributions, of which missing ones are left out; None = all that a stack lists.
    """
    return libraries((), hash_cache, names)


def libraries(binaries: Iterable[Path], hash_cache: Path | None, names: Iterable[str] | None = None) -> list[Component]:
    """Distributions, then mapped binaries. A file that belongs to both is read only once.

    Args:
        binaries: mapped files.
        hash_cache: as for :func:`distributions`.
        names: as for :func:`distributions`.
    """
    mapped = {str(path): path.name for path in binaries}
    installed = _installed(kernel_distributions() if names is None else names)
    found = [(name, version, record, files_of(record, root)) for name, version, record, root in installed]
    promised = {path for *_, files in found for path, _ in files.values()}
    digests = digests_of(sorted(promised | mapped.keys()), hash_cache)
    whole = [
        _component(name, version, digest_of(record, not_as_promised(files, digests)))
        for name, version, record, files in found
    ]
    return [*whole, *_binaries(mapped, digests)]


def _component(name: str, version: str, digest: str) -> Component:
    return Component(kind="distribution", name=name, version=version, digest=digest)


def _installed(names: Iterable[str]) -> Iterator[tuple[str, str, str, str]]:
    """(name, version, text of the RECORD, folder) of each distribution that is installed."""
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            one = metadata.distribution(name)
            # While pip replaces a distribution, its metadata may have no version, and importlib returns None.
            yield name, one.version or "", one.read_text("RECORD") or "", str(one.locate_file(""))


def hashed(paths: Iterable[Path], hash_cache: Path | None) -> list[Component]:
    """Files as components. A file that is missing, for example while pip replaces it, is left out."""
    names = {str(path): path.name for path in paths}
    return _binaries(names, digests_of(names, hash_cache))


def _binaries(names: Mapping[str, str], digests: Mapping[str, str]) -> list[Component]:
    """Files as components.

    Args:
        names: name of each file, by path.
        digests: digest of each file, by path; a file without one is left out.
    """
    return [
        Component(kind="binary", name=name, version="", digest=digests[path])
        for path, name in names.items()
        if path in digests
    ]


def firmware(nvml: Any, handle: Any) -> list[Component]:
    """Firmware versions of a card by NVML, without those that the card or driver does not report."""
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
