"""growth: temporary memory grows with the length of the sequence, not with its square.

The check measures the peak of temporary memory for the case's shape at two lengths, one twice the other. For a kernel
that holds the score matrix, memory grows with exponent 2; for a fused kernel, with 1 or less. The card of the math path
declares the first (``memory: quadratic``). The cards of PyTorch's other paths declare that they hold a mask that is not
causal (``memory: mask``). Every other kernel fails where the exponent is above 1.3.
"""

from __future__ import annotations

import math
from dataclasses import replace

from qualify.facts.case import Workload
from qualify.facts.devices import Scale
from qualify.facts.outcome import Finding
from qualify.run.checks.interface import Shipped, Subject, failing, passed
from qualify.run.host.interface import out_bytes

EXPONENT_LIMIT = 1.3
FLOOR_BYTES = 1 << 20
"""below so many bytes, the check passes: workspaces of a fixed size say nothing about growth"""
LENGTHS: dict[Scale, tuple[int, int]] = {"small": (256, 512), "large": (2048, 4096)}


class Growth(Shipped):
    """Doubles the length and compares peaks of memory."""

    def skips(self, subject: Subject) -> str:
        """Skips decode, which has no score matrix, and memory that the card declares."""
        if subject.card.claims.memory == "quadratic":
            return "the card says that its memory grows with the square of the length"
        workload = subject.workload
        kind = workload.mask.kind
        if subject.card.claims.memory == "mask" and kind not in {"full", "causal"}:
            return f"the card says that a {kind} mask is held whole"
        if subject.card.jit == "shapes":
            return "each shape would be compiled"
        return "" if max(subject.workload.seqlens_q) > 1 else "one query has no score matrix"

    def run(self, subject: Subject) -> list[Finding]:
        """Compute the exponent from the peaks at the two lengths."""
        lengths = LENGTHS[subject.processor.scale]
        peaks = [peak(replace(subject, workload=stretched(subject.workload, length))) for length in lengths]
        exponent = math.log2(max(1, peaks[1]) / max(1, peaks[0]))  # at least one byte, so that the logarithm exists
        values = {"exponent": exponent, "peak_bytes": peaks[-1], "seqlen": lengths[-1]}
        if peaks[-1] <= FLOOR_BYTES or exponent <= EXPONENT_LIMIT:
            return [passed(self.name, f"temporary memory at {lengths[-1]} keys: {peaks[-1] / 1e6:.1f} MB", **values)]
        detail = (
            f"temporary memory grows with exponent {exponent:.2f} (limit {EXPONENT_LIMIT:g}): "
            + ", ".join(f"{bytes_ / 1e6:.1f} MB at {length}" for bytes_, length in zip(peaks, lengths, strict=True))
            + "; a score matrix grows with 2"
        )
        return [failing(self.name, detail, dict(values))]


def stretched(workload: Workload, length: int) -> Workload:
    """One sequence of that length."""
    return workload.with_lengths((length,), (length,))


def peak(subject: Subject) -> int:
    """Peak bytes of temporary memory of a call after a first one, without its result."""
    call = subject.inputs().call
    prepared = subject.kernel.prepare(call)
    prepared.launch()
    told = prepared.peak_bytes()
    if told is not None:
        return told
    return max(0, prepared.traced_peak_bytes() - out_bytes(call))
