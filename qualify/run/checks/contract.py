"""contract: shape, dtype and device of what comes back, and inputs left as they were."""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import Tensor

from qualify.facts.case import Level
from qualify.facts.outcome import Finding
from qualify.run.checks.interface import Subject, same_bits
from qualify.run.inputs import Inputs, clone


class Contract:
    """Runs the kernel once on ordinary inputs and looks at everything but the numbers."""

    name = "contract"
    levels: tuple[Level, ...] = ("smoke", "full")
    cost = "one call"

    def skips(self, subject: Subject) -> str:
        """Applies to every kernel."""
        return ""

    def run(self, subject: Subject) -> list[Finding]:
        """Fails where an input tensor, or what lies around it, was written to."""
        inputs = subject.inputs()
        before = clone(inputs)
        subject.run(inputs.call)
        written = [name for name, was, now in _tensors(before, inputs) if not bool(same_bits(was, now).all())]
        if not written:
            detail = "shapes, dtypes and device as the call contract says; inputs and guard bands untouched"
            return [Finding(check=self.name, verdict="pass", detail=detail)]
        detail = f"the kernel wrote into its inputs (or their guard bands): {', '.join(written)}"
        return [Finding(check=self.name, verdict="fail", detail=detail, values={"tensors": ", ".join(written)})]


def _tensors(before: Inputs, after: Inputs) -> list[tuple[str, Tensor, Tensor]]:
    """Every input tensor, before and after, allocations with their guard bands."""
    pairs = [(name[0], getattr(before, name), getattr(after, name)) for name in ("q_whole", "k_whole", "v_whole")]
    for field in fields(before.call):
        was = getattr(before.call, field.name)
        if isinstance(was, torch.Tensor) and field.name not in {"q", "k", "v"}:
            pairs.append((field.name, was, getattr(after.call, field.name)))
    return pairs
