"""What a machine offers, as far as a plan needs to know, and what that refuses."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata

from packaging.requirements import Requirement

from qualify.cards.kernel import KernelCard
from qualify.cards.load import LoadedKernel
from qualify.cards.matrix import MatrixCard
from qualify.facts.devices import HOST, DeviceKind
from qualify.plan.interpreter import Interpreter


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """The device that a plan is made for."""

    kind: DeviceKind
    name: str
    compute_capability: str
    """for example ``9.0``; empty on a CPU"""

    def __str__(self) -> str:
        return f"{self.name} ({self.compute_capability})" if self.compute_capability else f"{self.kind} ({self.name})"


def device_refusals(card: KernelCard, host: Host) -> list[str]:
    """Why the device cannot run the kernel."""
    needs = card.requires
    if needs.device not in {"any", host.kind}:
        return [f"device={host.kind} ({card.kernel} requires {needs.device})"]
    if host.kind != HOST and needs.compute_capability and host.compute_capability not in needs.compute_capability:
        wanted = " or ".join(needs.compute_capability)
        return [f"compute_capability={host.compute_capability} ({card.kernel} requires {wanted})"]
    return []


def lacks_gpu(reasons: Iterable[str]) -> bool:
    """Whether a plan refused a case because the run was on a CPU."""
    return any(reason.startswith(f"device={HOST} (") for reason in reasons)


def gpu_kernels(matrix: MatrixCard, kernels: Mapping[str, LoadedKernel]) -> list[str]:
    """The kernels of a matrix that need a GPU, in the matrix's order."""
    own = [name for name, kernel in kernels.items() if not kernel.card.environment]
    chosen = dict.fromkeys(name for glob in matrix.kernels for name in sorted(fnmatch.filter(own, glob)))
    return [name for name in chosen if kernels[name].card.requires.device not in {"any", HOST}]


def install_refusals(card: KernelCard, interpreter: Interpreter | None = None) -> list[str]:
    """Why none of the distributions that carry the kernel is installed as the card asks.

    Args:
        interpreter: of the kernel's environment; None = this one.
    """
    if not card.shipped_by:
        return []
    reasons = []
    where = f" in environment {interpreter.name}" if interpreter else ""
    for text in card.shipped_by:
        requirement = Requirement(text)
        version = installed_version(requirement.name, interpreter)
        if version and requirement.specifier.contains(version, prereleases=True):
            return []
        if version:
            needs = f"{card.kernel} needs {requirement.specifier}"
            reasons.append(f"{requirement.name} {version} is installed{where}, {needs}")
    if reasons:
        return reasons
    pip = f"{interpreter.python} -m pip install" if interpreter else "pip install"
    alternatives = " or ".join(f"{pip} '{text}'" for text in card.shipped_by)
    return [f"not installed{where} ({alternatives})"]


def machine_refusals(card: KernelCard, host: Host, interpreters: Mapping[str, Interpreter]) -> list[str]:
    """Why the kernel cannot run on this machine, in its environment.

    Args:
        interpreters: of every environment, by name.
    """
    reasons = device_refusals(card, host)
    if reasons or not card.environment:
        return reasons or install_refusals(card)
    interpreter = interpreters[card.environment]
    reasons = interpreter.refusals() or install_refusals(card, interpreter)
    if not reasons and host.kind != HOST and not interpreter.cuda:
        cpu_only = f"torch {interpreter.torch} of environment {card.environment} was built without CUDA"
        return [f"{cpu_only}, and the device is {host}"]
    return reasons


def installed_version(distribution: str, interpreter: Interpreter | None = None) -> str:
    """Version of an installed distribution; empty where it is not installed. Nothing is imported.

    Args:
        interpreter: of another environment; None = this one.
    """
    return interpreter.installed(distribution) if interpreter else _version_here(distribution)


@cache
def _version_here(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def shipped_version(card: KernelCard, interpreter: Interpreter | None = None) -> str:
    """Name and version of the first installed distribution that carries the kernel; empty where none is."""
    for text in card.shipped_by:
        name = Requirement(text).name
        version = installed_version(name, interpreter)
        if version:
            return f"{name} {version}"
    return ""
