"""poison: bytes outside of the valid region must not change the result.

All bytes outside of the valid region (guard bands, the tail of each last page, free pages, the null page) are set to 0,
to 1e4 and to NaN. The output must keep its bits (for a kernel that does not claim determinism: stay within a few units
in the last place). Keys inside the valid region that no query of their sequence sees, such as those left of the window
in decode, get finite poison, which must not change the result either. NaN in such keys is only noted, because several
correct kernels compute 0 · NaN.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from qualify.facts.case import Workload
from qualify.facts.outcome import Finding, FindingVerdict, Value
from qualify.run.checks.difference import blame_change, changed, difference, unsteady
from qualify.run.checks.interface import Shipped, Subject, paged_or_ragged
from qualify.run.checks.rows import rows_of
from qualify.run.inputs.tensors import make_inputs, poison_outside, replace_keys

POISON = (0.0, 1e4, math.nan)
"""in an fp8 tensor 1e4 becomes its largest number"""


class Poison(Shipped):
    """Repeats the call with other bytes outside of the valid region, and compares bits."""

    def skips(self, subject: Subject) -> str:
        """Applies to every kernel."""
        return ""

    def run(self, subject: Subject) -> list[Finding]:
        """Make one call for each poison, and two more where there are keys that no query sees."""
        workload = paged_or_ragged(subject)
        subject = replace(subject, workload=workload)
        exact = subject.card.claims.deterministic
        inputs = make_inputs(workload, kind="normal", seed=subject.seed, device=subject.device)
        before = subject.run(inputs.call)
        dtype = inputs.k_whole.dtype
        for value in POISON:
            name = named(value, dtype)
            found = difference(subject, before, subject.run(poison_outside(inputs, workload, value).call), exact=exact)
            if found:
                said = f"with {name} in the bytes outside the valid region, "
                values: dict[str, Value] = {"poison": name}
                return [blame_change(subject, self.name, said, found, values, call=inputs.call, before=before)]
        how = "bitwise the same" if exact else "the same within rounding"
        detail = f"{how} with {', '.join(named(value, dtype) for value in POISON)} outside the valid region"
        findings = [Finding(check=self.name, verdict="pass", detail=detail)]
        if sees_all(workload):
            return findings
        hidden = unseen_keys(workload, subject.device).nonzero()[:, 0]
        if not len(hidden):
            return findings
        for value in POISON[1:]:
            name = named(value, dtype)
            filler = torch.full((1,), value, device=subject.device)
            after = subject.run(replace_keys(inputs, hidden, filler, filler).call)
            found = difference(subject, before, after, exact=exact)
            if found:
                detail = f"with {name} in keys that no query sees, {changed(found)}"
                verdict: FindingVerdict = "note" if name == "NaN" else "fail"
                values = {"masked_poison": name, **found}
                own = Finding(check=self.name, verdict=verdict, detail=detail, values=values)
                findings.append(unsteady(subject, inputs.call, before) or own)
                break
        return findings


def named(value: float, dtype: torch.dtype) -> str:
    """The name of a poison, as the dtype of keys and values holds it."""
    if math.isnan(value):
        return "NaN"
    return f"{min(value, torch.finfo(dtype).max):g}".replace("10000", "1e4")


def sees_all(workload: Workload) -> bool:
    """Whether the mask lets each key be seen; images may let more be seen than it does."""
    pairs = {*zip(workload.seqlens_q, workload.seqlens_k, strict=True)}
    return all(workload.mask.seen_keys(queries, keys) == keys for queries, keys in pairs)


def unseen_keys(workload: Workload, device: torch.device) -> Tensor:
    """(total_k,) bool: keys that no query of their own sequence sees."""
    rows = rows_of(workload, device)
    visible = rows.visible()
    total, step = sum(workload.seqlens_k), visible.step
    # Keys as lines of ``step`` columns: a query adds 1 at its first key and -1 one line after its last key, so sums
    # down the columns count the queries that see a key.
    edges = torch.zeros(-(-total // step) + 1, step, dtype=torch.int32, device=device)
    ones = torch.ones_like(visible.low, dtype=torch.int32)
    first = rows.first_key + visible.low
    edges.view(-1).index_add_(0, first, ones)
    edges.view(-1).index_add_(0, first + visible.count * step, -ones)
    return edges.cumsum(0).flatten()[:total] == 0
