"""nan: a NaN that a query sees appears in its result.

A NaN in the inputs is a defect that somebody must find. A kernel that treats it as a masked key, or as zero, hides it.
One element of a query, of a key and of a value becomes NaN, in one call each. Every row that sees it must become NaN
(for a value, only that element), and no row of another sequence or KV head may. A NaN in a query affects only that
query and head: all others must return the result without it, within rounding.

Keys and values get the NaN at the first, the middle and the last position that a row sees, because kernels treat tiles
that a mask cuts, the last tile and all other tiles differently. The head is one in the middle, because a padded head
may read its neighbour.

The check applies where the card claims that NaN propagates. It does not judge rows of the same sequence and head that
do not see the key or value, because several correct kernels compute 0 · NaN there.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from qualify.facts.outcome import Finding, Value
from qualify.run.adapters.interface import AttentionCall
from qualify.run.checks.difference import far_apart, unsteady
from qualify.run.checks.interface import Shipped, Subject, failing, passed
from qualify.run.checks.rows import rows_of
from qualify.run.inputs.tensors import Inputs, clone


class Nan(Shipped):
    """Plants a NaN in q, in k and in v."""

    def skips(self, subject: Subject) -> str:
        """Skips cards that do not claim it, and workloads in which no row sees a key."""
        if subject.card.claims.nan != "propagates":
            return "the card does not claim that NaN propagates"
        pairs = zip(subject.workload.seqlens_q, subject.workload.seqlens_k, strict=True)
        return "" if any(map(min, pairs)) else "no query sees a key"

    def run(self, subject: Subject) -> list[Finding]:
        """Plant NaN until one is hidden, or reaches another sequence or head."""
        workload = subject.workload
        inputs = subject.inputs()
        rows = rows_of(workload, subject.device)
        visible = rows.visible()
        row = int(visible.count.argmax())
        own = rows.sequence == rows.sequence[row]
        this = torch.arange(len(own), device=own.device) == row
        plain = subject.run(inputs.call)
        before = plain.out
        group, head = workload.heads_q // workload.heads_kv, workload.heads_kv // 2
        others = torch.arange(workload.heads_q, device=own.device) // group != head
        own_keys = range(int(visible.low[row]), int(visible.high[row]), visible.step)
        first, last = own_keys[0], own_keys[-1]
        places = sorted({first, own_keys[(len(own_keys) - 1) // 2], last})
        asked = [("q", last), *((name, position) for name in ("k", "v") for position in places)]
        for name, position in asked:
            seen = this if name == "q" else own & visible.has(position)
            heads, elements = (1 if name == "q" else group), (1 if name == "v" else None)
            slot = int(inputs.slots[int(rows.first_key[row]) + position])
            out = subject.run(_planted(inputs, name, row, slot, head * group if name == "q" else head)).out
            sees = torch.zeros_like(out, dtype=torch.bool)
            sees[:, head * group : head * group + heads, :elements] = seen.view(-1, 1, 1)
            moved = (out.isnan() != before.isnan()) & visible.some.view(-1, 1, 1)
            for wrong, what in (
                (~out.isnan() & sees, "sees it, but gives a number"),
                (moved & ~own.view(-1, 1, 1), "belongs to another sequence, but changes"),
                (moved & others.view(-1, 1), "reads another KV head, but changes"),
            ):
                if bool(wrong.any()):
                    return [_finding(subject, name, wrong, what)]
            shared = far_apart(before, out) & ~sees & visible.some.view(-1, 1, 1)
            if name == "q" and bool(shared.any()):
                own_finding = _finding(subject, name, shared, "belongs to another query or head, but changes")
                return [unsteady(subject, inputs.call, plain) or own_finding]
        return [passed(self.name, "a NaN in a query, a key or a value shows in every row that sees it")]


def _planted(inputs: Inputs, name: str, row: int, slot: int, head: int) -> AttentionCall:
    """The call with a NaN in the first element of a head: of a query row, or of the key or value in a slot."""
    planted = clone(inputs)
    if name == "q":
        planted.call.q[row, head, :1] = math.nan
    else:
        whole = planted.k_whole if name == "k" else planted.v_whole
        whole.view(-1, *whole.shape[-2:])[slot, head, :1] = math.nan
    return planted.call


def _finding(subject: Subject, name: str, wrong: Tensor, what: str) -> Finding:
    row, head, _ = (int(x) for x in wrong.nonzero()[0])
    sequence, query = subject.locate(row)
    count = int(wrong.sum())
    detail = f"with a NaN in {name}: sequence {sequence}, query {query}, head {head} {what} ({count} elements in all)"
    values: dict[str, Value] = {"tensor": name, "sequence": sequence, "query": query, "head": head, "elements": count}
    return failing("nan", detail, values)
