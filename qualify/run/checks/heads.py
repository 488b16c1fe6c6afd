"""heads: each query head reads its own KV head and no other.

The values of some KV heads change their sign. Then exactly the outputs of their query groups must change, and all
others must keep their bits. KV heads are numbered from 1, and there is one call for each binary digit of these numbers.
So the calls in which a query head changes spell the number of the KV head that it reads. One more call does the same
with new keys.

Where a card claims grouped heads, the check tries other group sizes too, and compares them with the golden result. A
kernel that packs the heads of a group into rows also divides row numbers by the group size for its mask, sinks, factors
and LSE. The calls have more such rows than a tile. The largest groups have few queries, as when a draft is verified,
and one group has more heads than a tile has rows. Small calls that passed in another case of this process do not run
again.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from qualify.facts.case import Workload
from qualify.facts.outcome import Finding, Value
from qualify.run.adapters.interface import LibraryRefusal
from qualify.run.checks.degenerate import judge_lengths
from qualify.run.checks.difference import far_apart, unlike_bits, unsteady
from qualify.run.checks.interface import Result, Shipped, Subject, failing, passed
from qualify.run.checks.rows import rows_of
from qualify.run.inputs.tensors import Inputs, with_tensors

RATIOS = (1, 3, 5, 6, 7, 8, 12, 16, 24, 71)
ROWS, SMALL_K = 88, 40
"""for calls with other group sizes: packed rows (heads of a group times queries), more than a tile of 64; and keys"""
MOST_Q, FEW_Q = 22, 8
"""most queries of such calls; least queries, except for the largest groups"""


class Heads(Shipped):
    """Changes KV heads, in one call for each binary digit of their numbers."""

    def skips(self, subject: Subject) -> str:
        """Needs a query that sees a key."""
        return (
            "" if any(map(min, zip(subject.workload.seqlens_q, subject.workload.seqlens_k, strict=True))) else "no keys"
        )

    def run(self, subject: Subject) -> list[Finding]:
        """Judge the case's own heads, then other group sizes."""
        wrong = wrong_head(subject)
        if wrong:
            return [wrong]
        asked, told, refused = [], [], []
        for ratio in self._ratios(subject):
            other = replace(subject, workload=_grouped(subject, ratio))
            question = other.question(self.name)
            if question in subject.asked:
                told.append(str(ratio))
                continue
            try:
                wrong, judged = wrong_head(other), judge_lengths(other)
            except LibraryRefusal:
                refused.append(str(ratio))
                continue
            if wrong:
                return [wrong]
            if judged:
                detail = f"group size {ratio}: {judged.detail}"
                return [failing(self.name, detail, dict(judged.values) | {"group": ratio, "finding": judged.check})]
            subject.asked[question] = "right"
            asked.append(str(ratio))
        detail = "every query head follows exactly its KV head"
        detail += f"; also with groups of {', '.join(asked)}" if asked else ""
        detail += f"; groups of {', '.join(told)} passed in another case" if told else ""
        detail += f"; the library refuses groups of {', '.join(refused)}" if refused else ""
        return [passed(self.name, detail)]

    def _ratios(self, subject: Subject) -> tuple[int, ...]:
        """Other group sizes; none where the card claims no groups or the kernel would compile each size."""
        claims = subject.card.claims
        if subject.card.jit != "never" or "gqa" not in claims.features:
            return ()
        return RATIOS


def _grouped(subject: Subject, ratio: int) -> Workload:
    """A small workload with groups of that size, and packed rows for more than one tile."""
    workload, large = subject.workload, ratio > ROWS // 2
    seqlen_q = min(MOST_Q, max(1 if large else FEW_Q, -(-ROWS // ratio)))
    seqlen_q = 1 if max(workload.seqlens_q) == 1 else seqlen_q
    seqlen_k = seqlen_q if subject.card.claims.alignment == "top_left" else SMALL_K
    heads_kv = 1 if large else 3
    small = replace(workload, heads_kv=heads_kv, heads_q=heads_kv * ratio)
    return small.with_lengths((seqlen_q,) * 2, (seqlen_k,) * 2)


def wrong_head(subject: Subject) -> Finding | None:
    """A finding where a query head reads another KV head than its own; None where all are right."""
    workload = subject.workload
    inputs = subject.inputs()
    before = subject.run(inputs.call)
    own = torch.arange(workload.heads_q, device=subject.device) // (workload.heads_q // workload.heads_kv)
    number = torch.arange(workload.heads_kv, device=subject.device) + 1
    read = torch.zeros(len(before.out), workload.heads_q, dtype=torch.int64, device=subject.device)
    rows = rows_of(workload, subject.device)
    visible = rows.visible()
    for digit in range(workload.heads_kv.bit_length()):
        after = subject.run(_turned_values(inputs, (number >> digit) & 1 == 1).call)
        read += _changes(subject, before, after).long() << digit
    wrong = (read != own + 1) & visible.some[:, None]
    found: Finding | None
    if bool(wrong.any()):
        row, head = (int(x) for x in wrong.nonzero()[0])
        seen = int(read[row, head]) - 1
        other = "depends on none" if seen < 0 else f"reads those of KV head {seen}"
        other = "reads those of several" if seen >= workload.heads_kv else other
        found = _finding(subject, "values", row, head, int(own[head]), seen, other, int(wrong.sum()))
    else:
        found = _wrong_keys(subject, inputs, before, own, visible.count > 1)
    return (unsteady(subject, inputs.call, before) or found) if found else None


def _wrong_keys(subject: Subject, inputs: Inputs, before: Result, own: Tensor, several: Tensor) -> Finding | None:
    """The same for keys: every second KV head gets new ones. Rows that see one key do not depend on it."""
    heads_kv = subject.workload.heads_kv
    marked = torch.arange(heads_kv, device=subject.device) % 2 == 0
    moved = _changes(subject, before, subject.run(_other_keys(inputs, marked, subject.seed).call)) & several[:, None]
    follows = marked[own]
    # A single row may round to its old bits. But if all rows of a head keep them, its keys have no effect.
    deaf = (follows & ~moved.any(0))[None, :] & several[:, None]
    wrong = (moved & ~follows[None, :]) | deaf
    if not bool(wrong.any()):
        return None
    row, head = (int(x) for x in wrong.nonzero()[0])
    kv = int(own[head])
    other = "does not depend on them" if bool(follows[head]) else "reads those of another"
    return _finding(subject, "keys", row, head, kv, None, other, int(wrong.sum()))


def _finding(
    subject: Subject, what: str, row: int, head: int, kv: int, seen: int | None, other: str, count: int
) -> Finding:
    sequence, query = subject.locate(row)
    ratio = subject.workload.heads_q // subject.workload.heads_kv
    detail = (
        f"group size {ratio}: sequence {sequence}, query {query}, head {head} must read the {what} of KV head {kv}, "
        f"but {other} ({count} rows and heads are wrong)"
    )
    values: dict[str, Value] = {"what": what, "sequence": sequence, "query": query, "head": head, "kv_head": kv}
    return failing("heads", detail, values | {"seen": seen, "group": ratio})


def _other_keys(inputs: Inputs, marked: Tensor, seed: int) -> Inputs:
    """The inputs with new keys in the marked KV heads."""
    whole = inputs.k_whole
    generator = torch.Generator(whole.device).manual_seed(seed + 17)
    fresh = (2 * torch.randn(whole.shape, generator=generator, device=whole.device)).to(whole.dtype)
    return with_tensors(inputs, k=torch.where(marked[:, None], fresh, whole))


def _turned_values(inputs: Inputs, marked: Tensor) -> Inputs:
    """The inputs with values of the other sign in the marked KV heads, so that every output that reads them changes.

    New random values would by chance return the same bits once in some hundred rows, where outputs have one element.
    """
    whole = inputs.v_whole
    turned = -whole.float()
    turned.masked_fill_(turned == 0, 1.0)
    return with_tensors(inputs, v=torch.where(marked[:, None], turned.to(whole.dtype), whole))


def _changes(subject: Subject, before: Result, after: Result) -> Tensor:
    """(total_q, heads_q) bool: whether the output changed; without determinism, whether it changed beyond rounding."""
    if subject.card.claims.deterministic:
        return unlike_bits(before.out, after.out).any(-1)
    return far_apart(before.out, after.out).any(-1)
