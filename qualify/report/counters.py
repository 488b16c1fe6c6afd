"""The counters of a case as text and as JSON."""

from __future__ import annotations

from typing import Any

from qualify.facts import codec
from qualify.facts.counters import CaseCounters, KernelCounters
from qualify.text import one_line

MISSING = "not counted on this card"


def to_text(found: CaseCounters) -> str:
    """For each kernel: the bytes that it moved, the least that the call must move, and the tensor cores' share."""
    lines = [f"{found.case}, run {found.run}"]
    for kernel in found.kernels:
        lines += [kernel.name, f"  memory: {_memory(kernel, found)}", f"  tensor cores: {_tensor(kernel)}"]
    if found.latency_us is not None:
        lines.append(f"time: {found.latency_us:.1f} µs as the run measured it; a profiler's own times are not quoted")
    return "\n".join(map(one_line, lines))


def to_data(found: CaseCounters) -> dict[str, Any]:
    """For JSON."""
    return dict(codec.to_data(found))


def _memory(kernel: KernelCounters, found: CaseCounters) -> str:
    if kernel.read_bytes is None or kernel.written_bytes is None:
        return MISSING
    moved = kernel.read_bytes + kernel.written_bytes
    words = f"{kernel.read_bytes / 1e6:.2f} MB read and {kernel.written_bytes / 1e6:.2f} MB written by a launch"
    if found.compulsory_bytes:
        words += f", {moved / found.compulsory_bytes:.2f} times the {found.compulsory_bytes / 1e6:.2f} MB that it must"
    if found.latency_us and found.copy_bytes_per_s:
        share = moved / (found.latency_us * 1e-6) / found.copy_bytes_per_s
        words += f"; {share:.0%} of the card's measured copy rate in the measured time"
    return words


def _tensor(kernel: KernelCounters) -> str:
    return MISSING if kernel.tensor_share is None else f"busy in {kernel.tensor_share:.1%} of the kernel's cycles"
