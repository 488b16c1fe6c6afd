"""The end of ``qualify doctor``: which kernels can run here, the others in groups, and whether a run is worth it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from qualify.errors import QualifyError
from qualify.facts.devices import HOST
from qualify.facts.typed import Typed
from qualify.fleet.doctor import Concern, Examination
from qualify.plan.host import lacks_gpu
from qualify.store.writable import check_takes_evidence

Group = Literal["usable here", "need a GPU", "need another GPU", "not installed"]
GROUPS: tuple[Group, ...] = ("usable here", "need a GPU", "need another GPU", "not installed")
"""in the order in which they are printed"""


def grouped(kernels: Sequence[Mapping[str, Any]]) -> dict[Group, list[str]]:
    """The kernels of ``qualify kernels`` by what they lack; every group is there, in order.

    Args:
        kernels: each with ``kernel``, ``available`` and ``reasons``.
    """
    found: dict[Group, list[str]] = {group: [] for group in GROUPS}
    for each in kernels:
        found[_group(each)].append(each["kernel"])
    return found


def _group(kernel: Mapping[str, Any]) -> Group:
    reasons = kernel["reasons"]
    if kernel["available"]:
        return "usable here"
    if lacks_gpu(reasons):
        return "need a GPU"
    elsewhere = any(reason.startswith(("compute_capability=", "device=")) for reason in reasons)
    return "need another GPU" if elsewhere else "not installed"


def with_idle(found: Examination, kernels: Sequence[Mapping[str, Any]]) -> Examination:
    """The examination, with an error for each environment in which no kernel can run: a run would refuse it.

    Args:
        kernels: as for :func:`grouped`, each with its ``environment``.
    """
    return replace(found, concerns=(*_idle(found, kernels), *found.concerns))


def _idle(found: Examination, kernels: Sequence[Mapping[str, Any]]) -> Iterator[Concern]:
    for one in found.environments:
        own = [kernel for kernel in kernels if kernel["environment"] == one.name]
        if one.refusals() or any(kernel["available"] for kernel in own):
            continue
        reasons = [reason for kernel in own for reason in kernel["reasons"] if not lacks_gpu([reason])]
        nearest = min(
            reasons, key=lambda reason: reason.startswith("not installed"), default="every kernel needs a GPU"
        )
        yield Concern(severity="error", detail=f"no kernel can run in environment {one.name}: {nearest}")


def with_store(found: Examination, address: str) -> Examination:
    """The examination, with an error where a run could store nothing at that address."""
    try:
        check_takes_evidence(address)
    except QualifyError as error:
        return replace(found, concerns=(Concern(severity="error", detail=str(error)), *found.concerns))
    return found


def verdict_on(found: Examination, groups: Mapping[Group, Sequence[str]], typed: Typed) -> str:
    """Whether a run here would be worth something, and what to type next.

    Args:
        typed: what every command in it repeats.
    """
    errors, warnings = (sum(item.severity == kind for item in found.concerns) for kind in ("error", "warning"))
    if errors:
        again = f"Correct that first, then: {typed.command('doctor')}"
        return f"nothing should run here: {_counted(errors, 'error')} above. {again}"
    if found.stack is None or not groups["usable here"]:
        return f"no kernel can run here. `{typed.command('kernels')}` says why for each"
    usable = _counted(len(groups["usable here"]), "kernel")
    if found.stack.device.kind == HOST:
        check = typed.command("check", "qwen3-0.6b")
        return f"ready for a demonstration only: {usable} on a CPU, and no GPU. Next: {check}"
    if warnings:
        return f"ready, but {_counted(warnings, 'warning')} above: look at it before you trust a run. {usable} can run"
    return f"ready: {usable} can run on {found.stack.device.name}. Next: {typed.command('check', 'MODEL')}"


def to_lines(groups: Mapping[Group, Sequence[str]], verdict: str) -> list[str]:
    """Each group that has a kernel, then the verdict."""
    lines = [f"{group}: {', '.join(names)}" for group, names in groups.items() if names]
    return [*lines, f"verdict: {verdict}"]


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
