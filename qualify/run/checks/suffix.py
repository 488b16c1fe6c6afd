"""suffix: keys that a query does not see must not change its result: later keys, other sequences, keys before a window.

Each sequence is split at a query. The keys after that query's position change (to finite values), and every row up to
the query must keep its bits. Under a window, the keys before the split query's window change, and every row from the
query on must keep its bits. In a batch, every second sequence changes completely, and all others must keep their bits.
Rows that see no key are left out where the card promises nothing about them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qualify.facts.case import Level
from qualify.facts.outcome import Finding
from qualify.masks import Mask
from qualify.run.checks.difference import Difference, changed, difference, unsteady
from qualify.run.checks.interface import Result, Shipped, Subject
from qualify.run.checks.rows import Rows, rows_of
from qualify.run.inputs.formats import fitted
from qualify.run.inputs.kept import lengths_on, owners_and_positions
from qualify.run.inputs.tensors import Inputs, replace_keys, with_tensors

SPLITS: dict[Level, tuple[float, ...]] = {"smoke": (0.45,), "full": (0.0, 0.3, 0.45, 0.77)}
"""places of the split in each sequence, as shares of its queries"""


def _ahead(mask: Mask) -> bool:
    """Whether the mask hides keys after some query."""
    return mask.causal or mask.window[1] >= 0 or bool(mask.pattern)


def _behind(mask: Mask) -> bool:
    """Whether the mask hides keys before some query."""
    return mask.window[0] >= 0 or bool(mask.pattern)


class Suffix(Shipped):
    """Changes keys that rows do not see, and compares bits."""

    def skips(self, subject: Subject) -> str:
        """Skips workloads in which every row sees every key."""
        workload = subject.workload
        if workload.batch == 1 and workload.mask.kind == "full":
            return "one sequence without a mask: every query sees every key"
        if workload.batch == 1 and max(workload.seqlens_q) == 1 and not _behind(workload.mask):
            return "one query that sees every key"
        return ""

    def run(self, subject: Subject) -> list[Finding]:
        """Change later keys, keys before the window, and neighbours, as far as the workload has them."""
        workload = subject.workload
        inputs = subject.inputs()
        before = subject.run(inputs.call)
        rows = rows_of(workload, subject.device)
        asked = []
        if _ahead(workload.mask) or _behind(workload.mask):
            for share in SPLITS[subject.level]:
                for name, keys, kept in self._splits(subject, rows, share):
                    found = self._difference(subject, inputs, before, keys, kept)
                    if found:
                        return [unsteady(subject, inputs.call, before) or self._finding(name, found)]
                    asked.append(name)
        if workload.batch > 1:
            leak = self._neighbours(subject, inputs, before)
            if leak:
                return [leak]
            asked.append("other sequences of the batch")
        how = "bit for bit" if subject.card.claims.deterministic else "within rounding"
        detail = f"no row changes with {' or '.join(dict.fromkeys(asked))}, {how}" if asked else "no key is hidden"
        return [Finding(check=self.name, verdict="pass", detail=detail)]

    def _splits(self, subject: Subject, rows: Rows, share: float) -> list[tuple[str, Tensor, Tensor]]:
        """(what changes, numbers of the packed keys, which rows must stay) for one place of the split."""
        workload, visible = subject.workload, rows.visible()
        split = (rows.seqlen_q * share).long()
        lengths = lengths_on(workload.seqlens_k, subject.device)
        owner, _ = owners_and_positions(workload.seqlens_k, subject.device)
        position = torch.arange(len(owner), device=subject.device)
        splits = []
        # For each sequence, packed start and end of the keys that the kept rows see; all keys where it has no query.
        ends = torch.cumsum(lengths, 0)
        starts = ends - lengths
        if _ahead(workload.mask):
            kept = rows.query <= split
            seen = torch.where(kept, rows.first_key + visible.high, -1)  # each sequence with rows keeps one of them
            ends = ends.scatter_reduce(0, rows.sequence, seen, "amax", include_self=False)
            splits.append(("later keys", position >= ends[owner], kept))
        if _behind(workload.mask):
            kept = rows.query >= split
            seen = torch.where(kept, rows.first_key + visible.low, len(owner))
            starts = starts.scatter_reduce(0, rows.sequence, seen, "amin", include_self=False)
            splits.append(("keys before its window", position < starts[owner], kept))
        if visible.step > 1:
            at_split = rows.query == split
            phase = torch.zeros_like(lengths).scatter(
                0, rows.sequence[at_split], (rows.first_key + visible.low)[at_split]
            )
            between = (position - phase[owner]) % visible.step != 0
            splits.append(("keys between those it sees", between, (rows.query - split) % visible.step == 0))
        found = [(name, marked.nonzero()[:, 0], kept) for name, marked, kept in splits]
        return [(name, keys, kept) for name, keys, kept in found if len(keys)]

    def _difference(
        self, subject: Subject, inputs: Inputs, before: Result, keys: Tensor, kept: Tensor
    ) -> Difference | None:
        count = len(keys)
        generator = torch.Generator(subject.device).manual_seed(subject.seed + 1)
        workload = subject.workload
        k = 3 * torch.randn(count, workload.heads_kv, workload.head_dim, generator=generator, device=subject.device)
        v = 100 + torch.randn(count, workload.heads_kv, workload.head_dim_v, generator=generator, device=subject.device)
        after = subject.run(replace_keys(inputs, keys, k, v).call)
        return difference(subject, before, after, kept, exact=subject.card.claims.deterministic)

    def _finding(self, name: str, found: Difference) -> Finding:
        detail = f"rows change with {name}: {changed(found)}"
        return Finding(check=self.name, verdict="fail", detail=detail, values={"what": name, **found})

    def _neighbours(self, subject: Subject, inputs: Inputs, before: Result) -> Finding | None:
        """Change every second sequence (queries, keys and values); the others must stay."""
        workload = subject.workload
        other = torch.arange(workload.batch, device=subject.device) % 2 == 1
        lengths_q = lengths_on(workload.seqlens_q, subject.device)
        lengths_k = lengths_on(workload.seqlens_k, subject.device)
        changes = torch.repeat_interleave(other, lengths_q, output_size=sum(workload.seqlens_q))
        q_whole = inputs.q_whole.clone()
        guard = (len(q_whole) - len(changes)) // 2
        rows, at = q_whole[guard : guard + len(changes)], changes.nonzero()[:, 0]
        rows[at] = fitted(rows[at].float() * -2, q_whole.dtype)
        moved = with_tensors(inputs, q=q_whole)
        keys = torch.repeat_interleave(other, lengths_k, output_size=sum(workload.seqlens_k)).nonzero()[:, 0]
        found = self._difference(subject, moved, before, keys, ~changes)
        if not found:
            return None
        return unsteady(subject, inputs.call, before) or self._finding("other sequences of the batch", found)
