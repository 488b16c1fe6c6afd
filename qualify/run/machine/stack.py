"""The fingerprint of what a run ran on: device, driver, libraries, mapped binaries, dispatch environment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from qualify.facts.stack import Component, Device, Stack
from qualify.run.host.messages import HostSoftware
from qualify.run.machine.device import processor_of
from qualify.run.machine.software import BINARY, hashed, libraries, system
from qualify.run.machine.variables import dispatch_environment, started_with

MAPPED_BYTES = 64 << 30
"""most that the libraries of all hosts take: those of a GPU take about 10 GB"""


def describe_stack(device: Device, hash_cache: Path | None, binaries: Iterable[str] = ()) -> Stack:
    """The full fingerprint of this process and its hosts; call it once the attention libraries are loaded.

    Args:
        hash_cache: file in which digests of files are kept; None = every file is read again.
        binaries: further files that hosts have mapped and that can matter to attention.
    """
    mapped = {*mapped_binaries(), *named_binaries(binaries)}
    components = [
        *system(),
        *processor_of(device.kind).runtimes(device),
        *libraries(sorted(mapped), hash_cache),
    ]
    return Stack(device=device, components=tuple(components), environment=dispatch_environment(started_with()))


def stack_of(device: Device, told: Sequence[HostSoftware], hash_cache: Path | None) -> Stack:
    """The fingerprint of another environment, from the descriptions of its hosts. This process hashes the files."""
    components = {
        (kind, name, version, digest): Component(kind=kind, name=name, version=version, digest=digest)
        for described in told
        for kind, name, version, digest in described.components
    }
    binaries = named_binaries(path for described in told for path in described.binaries)
    variables = {name: value for described in told for name, value in described.environment.items()}
    return Stack(device=device, components=(*components.values(), *hashed(binaries, hash_cache)), environment=variables)


def named_binaries(paths: Iterable[str]) -> list[Path]:
    """Files that hosts say they have mapped, which this process will read.

    A host may say anything. Left out is what is no file, has no library's name, or is more than a process can have
    mapped of such files: to read a pipe, or a file of a terabyte without content, would take this process's time.
    """
    room, found = MAPPED_BYTES, []
    for path in sorted({Path(path) for path in paths if "\0" not in path}):
        with suppress(OSError):
            size = path.stat().st_size
            if BINARY.search(path.name) and path.is_file() and size <= room:
                room -= size
                found.append(path)
    return found


def mapped_binaries() -> list[Path]:
    """Shared objects that this process has mapped and that can matter to attention."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return []
    paths = {line.split(maxsplit=5)[5] for line in maps.read_text().splitlines() if len(line.split(maxsplit=5)) == 6}
    libraries = (Path(path) for path in paths if ".so" in path)
    return sorted(path for path in libraries if BINARY.search(path.name) and path.is_file())
