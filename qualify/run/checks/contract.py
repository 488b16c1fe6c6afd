"""contract: the result has the right shape, dtype and device, the inputs stay unchanged, and results stay unchanged.

The next call must not change an earlier result. If a kernel returned its own workspace, every later comparison of two
results would compare one result with itself. An engine that still reads the first result would see the second.
"""

from __future__ import annotations

from dataclasses import fields
from itertools import compress

import torch
from torch import Tensor

from qualify.facts.outcome import Finding
from qualify.run.checks.difference import changed, difference
from qualify.run.checks.interface import Shipped, Subject, copied, failing, passed
from qualify.run.inputs.tensors import Inputs, clone
from qualify.run.unlike import unlike

NO_LSE = "returned no LSE, and the card claims `lse`: return `(out, lse)`, or remove `lse` from claims.features"


class Contract(Shipped):
    """Runs the kernel twice on ordinary inputs and looks at everything but the numbers."""

    def skips(self, subject: Subject) -> str:
        """Applies to every kernel."""
        return ""

    def run(self, subject: Subject) -> list[Finding]:
        """Fail where the kernel wrote to an input, around it, or to an earlier result, or where its LSE is missing."""
        inputs = subject.inputs()
        before = clone(inputs)
        returned = subject.run(inputs.call)
        wrote = written(subject, before, inputs)
        if wrote:
            return [wrote]
        if returned.lse is None and "lse" in subject.card.claims.features:
            return [failing(self.name, NO_LSE, {"tensor": "lse"})]
        prepared = subject.kernel.prepare(inputs.call)
        native = prepared.launch()
        kept = copied(subject.judged(prepared.result(native), inputs.call))
        subject.run(subject.inputs(seed=1).call)
        found = difference(subject, kept, subject.judged(prepared.result(native), inputs.call))
        if found:
            detail = f"the result of a call is overwritten by the next call: {changed(found)}"
            return [failing(self.name, detail, dict(found))]
        detail = "shapes, dtypes and device as the call contract says; inputs and guard bands untouched; results stay"
        return [passed(self.name, detail)]


def written(subject: Subject, before: Inputs, inputs: Inputs) -> Finding | None:
    """A finding where a call wrote to its inputs or to memory around them.

    Args:
        before: a copy of the inputs from before the call.
    """
    subject.kernel.read_back(inputs.call)
    tensors = dict(_tensors(before, inputs))
    names = ", ".join(compress(tensors, unlike([*tensors.values()])))
    detail = f"the kernel wrote into its inputs (or their guard bands): {names}"
    return failing("contract", detail, {"tensors": names}) if names else None


def _tensors(before: Inputs, after: Inputs) -> list[tuple[str, tuple[Tensor, Tensor]]]:
    """(name, (before, after)) of every input tensor; q, k and v with their guard bands."""
    pairs = [(name[0], (getattr(before, name), getattr(after, name))) for name in ("q_whole", "k_whole", "v_whole")]
    for field in fields(before.call):
        was = getattr(before.call, field.name)
        if isinstance(was, torch.Tensor) and field.name not in {"q", "k", "v"}:
            pairs.append((field.name, (was, getattr(after.call, field.name))))
    return pairs
