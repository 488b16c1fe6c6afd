"""The fingerprint of this node's stack without loading torch, and when a change of it has settled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from importlib import metadata
from pathlib import Path
from threading import Event, Thread
from typing import Any

from qualify.facts.canary import Watched
from qualify.facts.comparison import StackChange
from qualify.facts.stack import Component, Device, Stack
from qualify.fleet.local import cache_folder
from qualify.run.machine.software import (
    BINARY,
    DISTRIBUTIONS,
    describe_cpu,
    dispatch_environment,
    distributions,
    firmware,
    hashed,
    started_with,
    system,
)
from qualify.verdict.compare import stack_changes

NAMED = 6
"""changes that a sentence names"""


def look() -> Stack:
    """The stack as a process started now would find it: GPUs, driver, firmware, installed files, environment.

    The files are those of the distributions, not what a process has mapped, so it compares only with its own like.
    """
    device, driver = _gpus()
    components = (*system(), *driver, *distributions(), *hashed(_libraries(), cache_folder() / "sha256.json"))
    return Stack(device=device, components=components, environment=dispatch_environment(started_with()))


def _libraries() -> list[Path]:
    """Shared objects that the installed attention and CUDA distributions brought."""
    found = set()
    for name in DISTRIBUTIONS:
        try:
            record = metadata.distribution(name).read_text("RECORD") or ""
            root = metadata.distribution(name).locate_file("")
        except metadata.PackageNotFoundError:
            continue
        for line in record.splitlines():
            path = line.rsplit(",", 2)[0].strip('"')
            if ".so" in path and BINARY.search(Path(path).name):
                found.add(Path(str(root)) / path)
    return sorted(path for path in found if path.is_file())


def _gpus() -> tuple[Device, list[Component]]:
    """All GPUs of the machine as one device, with driver and firmware; the CPU where there is none."""
    try:
        import pynvml
    except ImportError:
        return describe_cpu(), []
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        return describe_cpu(), []
    except pynvml.NVMLError as error:  # between two drivers, for example
        return describe_cpu(), [Component(kind="driver", name="driver", version=f"unusable ({error})", digest="")]
    try:
        return _described(pynvml)
    except pynvml.NVMLError as error:
        return describe_cpu(), [Component(kind="driver", name="driver", version=f"unusable ({error})", digest="")]
    finally:
        pynvml.nvmlShutdown()


def _described(nvml: Any) -> tuple[Device, list[Component]]:
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    if not handles:
        return describe_cpu(), []
    names = [str(nvml.nvmlDeviceGetName(handle)) for handle in handles]
    capabilities = {"{}.{}".format(*nvml.nvmlDeviceGetCudaComputeCapability(handle)) for handle in handles}
    device = Device(
        kind="cuda",
        name=", ".join(sorted(set(names))),
        uuid=",".join(sorted(str(nvml.nvmlDeviceGetUUID(handle)) for handle in handles)),
        compute_capability=", ".join(sorted(capabilities)),
        units=len(handles),
        memory_bytes=min(int(nvml.nvmlDeviceGetMemoryInfo(handle).total) for handle in handles),
        cache_bytes=0,
    )
    parts = [
        Component(kind="driver", name="driver", version=str(nvml.nvmlSystemGetDriverVersion()), digest=""),
        Component(kind="driver", name="cuda", version=str(nvml.nvmlSystemGetCudaDriverVersion()), digest=""),
    ]
    return device, [*parts, *dict.fromkeys(part for handle in handles for part in firmware(nvml, handle))]


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What follows from a look at the stack."""

    watched: Watched | None
    """to be stored; None where nothing is new"""
    noticed: tuple[StackChange, ...] = ()
    """a change that was not seen before"""
    fire: tuple[StackChange, ...] = ()
    """a change that has settled"""


def decide(canary: str, node: str, known: Watched | None, stack: Stack, now: datetime, settle: timedelta) -> Decision:
    """First sight is remembered and fires nothing; a change fires once it has stayed the same for long enough."""
    fingerprint = stack.fingerprint
    if known is None:
        first = Watched(canary=canary, node=node, stack=stack, seen_at=now, changing_to="", changing_since=None)
        return Decision(watched=first)
    if known.stack.fingerprint == fingerprint:
        back = replace(known, changing_to="", changing_since=None, seen_at=now)
        return Decision(watched=back if known.changing_to else None)
    changes = tuple(stack_changes(known.stack, stack))
    since = known.changing_since
    if known.changing_to != fingerprint or since is None or since > now:  # the clock may have been set back
        seen = replace(known, changing_to=fingerprint, changing_since=now, seen_at=now)
        return Decision(watched=seen, noticed=changes if known.changing_to != fingerprint else ())
    if now - since < settle:
        return Decision(watched=None)
    settled = replace(known, stack=stack, changing_to="", changing_since=None, seen_at=now)
    return Decision(watched=settled, fire=changes)


def told(changes: tuple[StackChange, ...]) -> str:
    """The components that changed, in one sentence."""
    texts = [f"{change.component} {change.before or 'absent'} -> {change.after or 'absent'}" for change in changes]
    more = f", and {len(texts) - NAMED} more" if len(texts) > NAMED else ""
    return f"{', '.join(texts[:NAMED])}{more}"


class Watcher(Thread):
    """Looks at the stack again and again, because hashing files takes longer than the loop may wait."""

    def __init__(self, every_s: float, wake: Callable[[], None]) -> None:
        super().__init__(name="stack-watch", daemon=True)
        self._every_s = every_s
        self._wake = wake
        self._stopped = Event()
        self.seen: Stack | None = None
        """the last look, until the loop takes it"""

    def run(self) -> None:
        """Until it is stopped."""
        while not self._stopped.is_set():
            self.seen = look()
            self._wake()
            self._stopped.wait(self._every_s)

    def take(self) -> Stack | None:
        """The last look, once."""
        seen, self.seen = self.seen, None
        return seen

    def stop(self) -> None:
        """No more looks."""
        self._stopped.set()
