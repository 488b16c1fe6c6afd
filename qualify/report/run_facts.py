"""Facts about a run for the header and the last section of the page: times, device, ceilings and parameters."""

from __future__ import annotations

from datetime import datetime

from qualify.facts.devices import HOST, KINDS
from qualify.facts.dtypes import FORMATS
from qualify.facts.run import Run
from qualify.facts.stack import Component, Device
from qualify.report import figures
from qualify.report.columns import Column

VERSIONS = ("driver", "cuda", "torch", "cudnn")
"""components whose versions the header names"""

COMPONENTS: tuple[Column[Component], ...] = (
    Column(key="kind", title="Kind", cell=lambda part: part.kind),
    Column(key="name", title="Name", cell=lambda part: part.name),
    Column(key="version", title="Version", cell=lambda part: part.version or "–"),
    Column(key="digest", title="Digest", cell=lambda part: part.digest or "–", code=True),
)


def moment(when: datetime | None) -> str:
    """A moment as people read it, in UTC."""
    return when.strftime("%Y-%m-%d %H:%M:%S UTC") if when else "not finished"


def header(run: Run, since: datetime) -> list[tuple[str, str]]:
    """Term and value of the header; a value may be empty."""
    facts = [
        ("Run", run.id),
        ("Started", moment(run.started_at)),
        ("Evidence since", moment(since) if since < run.started_at else ""),
        ("Finished", moment(run.finished_at) + (" (interrupted)" if run.state == "interrupted" else "")),
    ]
    if run.stack is None:
        return [*facts, ("Device", "no process that runs kernels reported one")]
    labels = {"driver": "Driver", "cuda": "CUDA", "torch": "PyTorch", "cudnn": "cuDNN"}
    return [*facts, ("Device", run.stack.device.name), *((labels[name], run.stack.version(name)) for name in VERSIONS)]


def device(device: Device) -> tuple[tuple[str, str], ...]:
    """The device that the run used."""
    facts = (
        ("Name", device.name),
        *_identity(device),
        ("Compute capability", device.compute_capability),
        (KINDS[device.kind].units, str(device.units)),
        ("Memory", figures.text(device.memory_bytes, "bytes")),
        ("Last-level cache", figures.text(device.cache_bytes, "bytes") if device.cache_bytes else ""),
    )
    return tuple((term, value) for term, value in facts if value)


def _identity(device: Device) -> tuple[tuple[str, str], ...]:
    """What tells it from its equals: a CPU has no UUID. Its own name stands there, or that of a logical device."""
    if device.kind != HOST:
        return (("UUID", device.uuid),)
    return (("Logical device", device.uuid),) if device.uuid != device.name else ()


def ceilings(run: Run) -> tuple[tuple[str, str], ...]:
    """The measured ceilings of the device; empty where none were measured."""
    if run.ceilings is None:
        return ()
    return (
        *(
            (f"Matrix product, {dtype}", figures.text(flops, "flops_per_s") + _taken_from(run, dtype))
            for dtype, flops in run.ceilings.matmul_flops_per_s.items()
        ),
        ("Copy, read plus write", figures.text(run.ceilings.copy_bytes_per_s, "bytes_per_s")),
        ("Exponentials", figures.text(run.ceilings.exps_per_s, "exps_per_s")),
        ("Empty launch", figures.duration(run.ceilings.launch_us)),
    )


def _taken_from(run: Run, dtype: str) -> str:
    """Where the rate of a dtype is that of another one: of fp32 on a CPU, of bf16 on a GPU that cannot multiply fp8."""
    rates = run.ceilings.matmul_flops_per_s if run.ceilings else {}
    on_cpu = run.stack is not None and run.stack.device.kind == HOST
    other = "fp32" if on_cpu else "bf16" if any(name == dtype and it.descaled for name, it in FORMATS.items()) else ""
    return f", taken from {other}" if other not in ("", dtype) and rates.get(other) == rates[dtype] else ""


def parameters(run: Run) -> tuple[tuple[str, str], ...]:
    """The run's parameters, as the command line gave them."""
    facts = (
        ("Matrix file", run.matrix_path),
        ("Matrix hash", run.matrix_hash),
        ("Level", run.level),
        ("Device", run.device),
        ("Selected", run.select or "all cases"),
        ("Kernel", run.kernel or "all kernels"),
        ("State", run.state),
        ("qualify", run.qualify_version),
        ("Stack fingerprint", run.stack.fingerprint if run.stack else ""),
    )
    return tuple((term, value) for term, value in facts if value)
