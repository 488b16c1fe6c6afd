"""The fingerprint of this node's stack without loading torch, and when a change of it has settled."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from importlib import metadata
from logging import Logger
from pathlib import Path
from threading import Event, Thread
from typing import Any

from qualify.assets import digest_cache
from qualify.errors import QualifyError
from qualify.facts.canary import Watched
from qualify.facts.comparison import StackChange
from qualify.facts.differing import stack_changes
from qualify.facts.stack import Component, Device, Stack
from qualify.run.machine.settings import settings
from qualify.run.machine.software import (
    BINARY,
    describe_cpu,
    distributions,
    firmware,
    hashed,
    kernel_distributions,
    system,
)
from qualify.run.machine.variables import dispatch_environment, started_with

INSTALLED = ("distribution", "system")
"""kinds of components that a look and a run list alike"""
CARDS = "VISIBLE_DEVICES"
"""how the names end of variables that tell a process which cards it sees"""
AGAIN_S = 0.5
"""seconds between a look that failed, or found something new, and the look that shall confirm it"""
FAULTS = (
    *(OSError, ValueError, LookupError, TypeError, AttributeError, ImportError, SyntaxError, RuntimeError),
    QualifyError,
)
"""errors of a look while pip works: a file vanishes or cannot be read, half a package cannot be parsed, another
environment does not answer"""


def look(more: Iterable[Component] = ()) -> Stack:
    """The stack as a process started now would find it: GPUs, driver, firmware, settings, installed files, environment.

    It lists the files of distributions, not those that a process has mapped: compare it with other looks only.

    Args:
        more: what canaries watch besides (:mod:`qualify.canary.scope`).
    """
    device, driver = _gpus()
    libraries = (*distributions(digest_cache()), *hashed(_libraries(), digest_cache()))
    components = (*system(), *driver, *libraries, *more)
    return Stack(device=device, components=components, environment=dispatch_environment(started_with()))


def stack_key(stack: Stack) -> str:
    """A key that is equal on machines with equal stacks, whichever of its cards a process may see."""
    steered = {name: value for name, value in stack.environment.items() if not name.endswith(CARDS)}
    return replace(stack, environment=steered).fingerprint


def _libraries() -> list[Path]:
    """Shared objects that the installed attention and CUDA distributions brought."""
    found = set()
    for name in kernel_distributions():
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
        with suppress(pynvml.NVMLError):  # the driver may have gone meanwhile
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
    told = (part for handle in handles for part in (*firmware(nvml, handle), *settings(nvml, handle)))
    return device, [*parts, *dict.fromkeys(told)]


@dataclass(frozen=True, kw_only=True, slots=True)
class LookResult:
    """What follows from a look at the stack."""

    watched: Watched | None
    """to be stored; None where nothing is new"""
    noticed: tuple[StackChange, ...] = ()
    """a change that was not seen before"""
    fire: tuple[StackChange, ...] = ()
    """a change that has settled"""


def as_seen(ran: Stack, seen: Stack) -> Stack:
    """The stack of a run in the form of a look, so that both can be compared.

    A run and a look do not know the same. The look knows the machine's other cards, and which cards the process may
    see. It also knows libraries that the run had not mapped, or that belong to no distribution. These come from the
    look.
    """
    theirs, mine = _parts(ran), _parts(seen)
    components: list[Component] = []
    for key, parts in mine.items():
        before = theirs.get(key, [])
        if key[0] in INSTALLED or not (set(before) <= set(parts)):
            components += before
        else:
            components += parts
    removed = [part for key, parts in theirs.items() if key not in mine and key[0] in INSTALLED for part in parts]
    given = {name: value for name, value in seen.environment.items() if name.endswith(CARDS)}
    steered = {name: value for name, value in ran.environment.items() if not name.endswith(CARDS)}
    made = replace(seen, components=(*components, *removed), environment=dict(sorted((steered | given).items())))
    return made if any(stack_changes(made, seen)) else seen


def _parts(stack: Stack) -> dict[tuple[str, str], list[Component]]:
    """Components by kind and name."""
    found: dict[tuple[str, str], list[Component]] = {}
    for part in stack.components:
        found.setdefault((part.kind, part.name), []).append(part)
    return found


def decide(known: Watched, stack: Stack, now: datetime, settle: timedelta) -> LookResult:
    """A change fires once it has stayed the same for long enough."""
    fingerprint = stack.fingerprint
    if known.stack.fingerprint == fingerprint:
        back = replace(known, changing_to="", changing_since=None, changes=(), seen_at=now)
        return LookResult(watched=back if known.changing_to else None)
    changes = tuple(stack_changes(known.stack, stack))
    if not changes:  # only what was not looked at before: the card asks for more, or this program knows more
        return LookResult(watched=replace(known, stack=stack, changing_to="", changing_since=None, changes=()))
    since = known.changing_since
    if known.changing_to != fingerprint or since is None or since > now:  # the clock may have been set back
        seen = replace(known, changing_to=fingerprint, changing_since=now, seen_at=now, changes=changes)
        return LookResult(watched=seen, noticed=changes if known.changing_to != fingerprint else ())
    if now - since < settle:
        return LookResult(watched=None)
    settled = replace(known, stack=stack, changing_to="", changing_since=None, changes=(), seen_at=now)
    return LookResult(watched=settled, fire=changes)


class Watcher(Thread):
    """Looks at the stack again and again, because hashing files takes longer than the loop may wait.

    While pip works, files vanish and metadata is half there: a look may fail, or mix two stacks. So a stack counts only
    when two looks found the same, and a look that fails is made again at once. If none works any more, the age of the
    last good one shows it.
    """

    def __init__(
        self, every_s: float, more: Callable[[], list[Component]], wake: Callable[[], None], log: Logger
    ) -> None:
        """``more`` finds what canaries watch besides."""
        super().__init__(name="stack-watch", daemon=True)
        self._every_s = every_s
        self._more = more
        self._wake = wake
        self._log = log
        self._stopped = Event()
        self._before = ""
        self._looked = time.monotonic()
        self.trouble = ""
        """why the last look failed; empty = it did not"""
        self.seen: Stack | None = None
        """the last stack that two looks found, until the loop takes it"""
        self.looked: Stack | None = None
        """the same stack, which stays when the loop has taken it"""

    def run(self) -> None:
        """Until it is stopped."""
        while not self._stopped.is_set():
            steady = self._look()
            self._stopped.wait(self._every_s if steady else min(AGAIN_S, self._every_s))

    def _look(self) -> bool:
        """Look once. Returns whether that worked and found the same stack as the look before."""
        try:
            found = look(self._more())
        except FAULTS as error:
            self._complain(f"{type(error).__name__}: {error}")
            return False
        self._complain("")
        before, self._before = self._before, found.fingerprint
        if before != self._before:
            return False
        self._looked = time.monotonic()
        self.seen = self.looked = found
        self._wake()
        return True

    def _complain(self, trouble: str) -> None:
        """Say what is wrong once, and when it is over."""
        trouble = " ".join(trouble.split())
        if trouble and not self.trouble:
            told = "the stack cannot be read (%s); it is looked at again at once, as pip may be at work"
            self._log.warning(told, trouble)
        if self.trouble and not trouble:
            self._log.info("the stack can be read again")
        self.trouble = trouble

    def looked_ago_s(self) -> float:
        """Seconds since two looks last found the same stack; before the first time, since the watcher was made."""
        return time.monotonic() - self._looked

    def take(self) -> Stack | None:
        """The last stack, once."""
        seen, self.seen = self.seen, None
        return seen

    def stop(self) -> None:
        """No more looks."""
        self._stopped.set()
