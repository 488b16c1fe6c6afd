"""growth: temporary memory grows like the sequence, not like its square.

The peak of temporary memory is measured for the case's shape at two lengths, one twice the other. A kernel that
holds the score matrix grows with exponent 2, a fused one with 1 or less. The card of the math path says so (``memory:
quadratic``). The cards of PyTorch's other paths say that they hold a mask that is not causal (``memory: mask``). Any
other kernel fails where its memory grows with an exponent above 1.3.
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
"""below it, workspaces of a fixed size say nothing about growth"""
LENGTHS: dict[Scale, tuple[int, int]] = {"small": (256, 512), "large": (2048, 4096)}


class Growth(Shipped):
    """Doubles the length and looks at the allocator."""

    def skips(self, subject: Subject) -> str:
        """A score matrix needs several queries."""
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
        """The exponent between the two lengths."""
        lengths = LENGTHS[subject.processor.scale]
        peaks = [peak(replace(subject, workload=stretched(subject.workload, length))) for length in lengths]
        exponent = math.log2(max(1, peaks[1]) / max(1, peaks[0]))  # one byte in place of none
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
    """Bytes of temporary memory that a warm call takes at most, without its result."""
    call = subject.inputs().call
    prepared = subject.kernel.prepare(call)
    prepared.launch()
    told = prepared.peak_bytes()
    if told is not None:
        return told
    return max(0, prepared.traced_peak_bytes() - out_bytes(call))
