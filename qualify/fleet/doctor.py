"""What the stack is, and what would make a run on it untrustworthy."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from qualify.assets import digest_cache
from qualify.cards.load import NO_ENVIRONMENTS, load_kernels
from qualify.errors import DeviceError, UsageError
from qualify.facts.devices import HOST
from qualify.facts.stack import Stack
from qualify.fleet.probe import find_host
from qualify.plan.host import installed_version
from qualify.plan.interpreter import Interpreter, interpreter
from qualify.run.machine.image import IMAGE, image
from qualify.run.machine.settings import keeps_others_out
from qualify.run.machine.software import DISTRIBUTIONS
from qualify.text import shell_word

Severity = Literal["error", "warning", "note"]

ALTERING = {
    "CUDA_LAUNCH_BLOCKING": "serialises launches: times are not those of production",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "turns float32 products into TF32",
    "NVIDIA_TF32_OVERRIDE": "changes how float32 products are computed",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "allocates inside every call: times are not those of production",
    "CUDA_INJECTION64_PATH": "another profiler is attached; the witness needs the only CUPTI subscription",
    "FLASH_ATTENTION_ARCH": "steers FlashAttention-4 to another generation's kernels",
}
"""environment variables that make a run something else than production"""

THROTTLES = {
    0x08: ("error", "hardware slowdown"),
    0x40: ("error", "hardware thermal slowdown"),
    0x80: ("error", "hardware power brake"),
    0x04: ("note", "software power cap"),
    0x20: ("note", "software thermal slowdown"),
}
"""NVML clock-event reasons: bit, severity, meaning"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Concern:
    """One thing that a person should know before trusting a run."""

    severity: Severity
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Examination:
    """The stack (None without torch or a device) and the concerns, worst first."""

    stack: Stack | None
    concerns: tuple[Concern, ...]
    environments: tuple[Interpreter, ...] = ()
    """what the other environments have; one that does not answer is a concern only"""


def examine(environments: Mapping[str, str] = NO_ENVIRONMENTS, *, anew: bool = False) -> Examination:
    """Look at the machine; imports torch if it is installed.

    Args:
        environments: interpreters, by name, to look at too.
        anew: read every file, whatever is remembered of it.
    """
    concerns = [
        Concern(severity="warning", detail=f"{name}={os.environ[name]}: {meaning}")
        for name, meaning in ALTERING.items()
        if os.environ.get(name)
    ]
    concerns += _examine_image(image())
    stack = None
    if not installed_version("torch"):
        detail = "torch is not installed: nothing can run (pip install 'attn-qualify[run]'); plan, gate and report work"
        concerns.append(Concern(severity="error", detail=detail))
    else:
        stack, found = _examine_device(None if anew else digest_cache())
        concerns += found
    interpreters, found = _examine_environments(environments, gpu=stack is not None and stack.device.kind != HOST)
    concerns += found
    order = {"error": 0, "warning": 1, "note": 2}
    return Examination(
        stack=stack,
        concerns=tuple(sorted(concerns, key=lambda item: order[item.severity])),
        environments=tuple(interpreters),
    )


def to_lines(found: Examination) -> list[str]:
    """The examination for people: what there is, then what to worry about."""
    rows: list[tuple[str, str]] = []
    if found.stack:
        rows.append(("device", found.stack.device.name))
        rows += [(part.kind, f"{part.name} {part.version}") for part in found.stack.components if part.kind != "binary"]
        rows += [("environment", f"{name}={value}") for name, value in found.stack.environment.items()]
        rows.append(("fingerprint", found.stack.fingerprint))
    for one in found.environments:
        rows.append(("environment", f"{one.name}: {one.python}"))
        rows += [(one.name, text) for text in _parts_of(one)]
    rows += [(concern.severity, concern.detail) for concern in found.concerns]
    return [f"{what:12} {text}" for what, text in rows]


def _parts_of(one: Interpreter) -> list[str]:
    """Versions of Python, torch and its CUDA, and of every distribution that carries a kernel or can change one."""
    torch = f"torch {one.torch} ({f'CUDA {one.cuda}' if one.cuda else 'no CUDA'})" if one.torch else "no torch"
    names = sorted(
        {canonicalize_name(name) for name in (*DISTRIBUTIONS, *_carrying(), *one.adapters.values())} - {"torch"}
    )
    return [f"python {one.version}", torch, *(f"{name} {one.installed(name)}" for name in names if one.installed(name))]


def _carrying() -> set[str]:
    """The distributions that shipped kernels name."""
    return {Requirement(text).name for loaded in load_kernels().values() for text in loaded.card.shipped_by}


def _examine_environments(environments: Mapping[str, str], *, gpu: bool) -> tuple[list[Interpreter], list[Concern]]:
    """What each of them has, and what keeps kernels from running there."""
    found: list[Interpreter] = []
    concerns: list[Concern] = []
    for name, python in environments.items():
        try:
            one = interpreter(name, python)
        except UsageError as error:
            concerns.append(Concern(severity="error", detail=str(error)))
            continue
        found.append(one)
        concerns += [Concern(severity="error", detail=reason) for reason in one.refusals()]
        if gpu and one.torch and not one.cuda:
            detail = f"torch {one.torch} of environment {name} was built without CUDA: only CPU kernels can run there"
            concerns.append(Concern(severity="warning", detail=detail))
    return found, concerns


def _examine_image(named: str) -> list[Concern]:
    """Whether evidence names the container image that it is of, so that nobody can take another one for it."""
    if not named:
        told = f"container image: unknown. In a container set {IMAGE}=NAME@sha256:DIGEST, as its registry names it"
    elif "@sha256:" not in named:
        told = f"{IMAGE}={named} has no digest, and a tag can move: give NAME@sha256:DIGEST"
    else:
        return []
    return [Concern(severity="note", detail=told)]


def _examine_device(hash_cache: Path | None) -> tuple[Stack | None, list[Concern]]:
    from qualify.run.machine.device import processor_of
    from qualify.run.machine.stack import describe_stack

    host = find_host("auto")
    try:
        stack = describe_stack(processor_of(host.kind).describe(), hash_cache)
    except DeviceError as error:
        return None, [Concern(severity="error", detail=str(error))]
    found = _examine_bytecode()
    if host.kind == HOST:
        return stack, [*found, Concern(severity="note", detail="no GPU: only CPU kernels can run here")]
    cuda = _examine_cuda(stack) if stack.version("cuda") else []
    return stack, [*found, *cuda, *_examine_gpu(stack.device.uuid)]


def _examine_bytecode() -> list[Concern]:
    """Whether every process compiles torch's Python files anew. It is asked once this process has imported torch."""
    torch = find_spec("torch")
    kept = torch.cached if torch else None
    if torch is None or kept is None or Path(kept).exists():
        return []
    folder = shell_word(str(Path(torch.origin or "").parent))
    why = "PYTHONDONTWRITEBYTECODE is set" if sys.dont_write_bytecode else f"{Path(kept).parent} cannot be written"
    told = (
        f"Python keeps no bytecode of torch ({why}): every process of a run compiles torch again, which takes seconds. "
        f"Once, as a user who may write there: python -m compileall -q -j 0 {folder}"
    )
    return [Concern(severity="note", detail=told)]


def _examine_cuda(stack: Stack) -> list[Concern]:
    """Known weaknesses of the CUDA runtime under the witness."""
    version = tuple(int(part) for part in stack.version("cuda").split(".")[:2])
    if (12, 6) <= version < (13, 0):
        detail = (
            f"CUDA {stack.version('cuda')}: its profiler drops events at the start of a session (pytorch#192021); "
            "traces are repeated in fresh processes, and what stays incomplete is UNPROVEN"
        )
        return [Concern(severity="warning", detail=detail)]
    return []


def _examine_gpu(uuid: str) -> list[Concern]:
    """State of the card as NVML reports it: throttling, other processes, MIG."""
    try:
        import pynvml
    except ImportError:
        detail = "nvidia-ml-py is not installed: throttling and other processes on the card go unnoticed"
        return [Concern(severity="warning", detail=detail)]
    concerns: list[Concern] = []
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        reasons = pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
        for bit, (severity, meaning) in THROTTLES.items():
            if reasons & bit:
                concerns.append(Concern(severity=severity, detail=f"the card is slowed down: {meaning}"))  # type: ignore[arg-type]
        others = {item.pid for item in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)} - {os.getpid()}
        if others:
            listed = ", ".join(str(pid) for pid in sorted(others))
            detail = f"other processes use the card (pid {listed}): times are not to be trusted"
            concerns.append(Concern(severity="warning", detail=detail))
        if mode := keeps_others_out(pynvml, handle):
            detail = (
                f"compute mode {mode!r} admits one process at most, and a run needs several. As root: nvidia-smi -i "
                f"{uuid} -c DEFAULT. With NVIDIA's MPS a run is possible, where the mode is 'exclusive process'"
            )
            concerns.append(Concern(severity="warning", detail=detail))
        if pynvml.nvmlDeviceGetMigMode(handle)[0]:
            concerns.append(Concern(severity="warning", detail="MIG is on: times are those of a slice"))
    except pynvml.NVMLError as error:
        concerns.append(Concern(severity="note", detail=f"NVML does not answer everything: {error}"))
    return concerns
