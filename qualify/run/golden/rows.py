"""Which query rows of a call are compared, which sequences are computed together, and how their rows are laid out."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

ROW_LIMIT = 4096
"""query rows of a sequence that are all compared, unless a caller asks for fewer; of longer ones a stratified sample"""
SAMPLE_ROWS = 1024
"""size of that sample"""
PADDED = 512
"""queries and keys that a sequence may have at most to be computed together with others of like lengths"""


def select_rows(seqlen_q: int, limit: int = ROW_LIMIT, sample: int = SAMPLE_ROWS) -> list[int]:
    """All rows up to the limit; of a longer sequence the first and last tile, tile edges, and random ones."""
    if seqlen_q <= limit:
        return list(range(seqlen_q))
    chosen = set(range(128)) | set(range(seqlen_q - 128, seqlen_q))
    edges = torch.arange(128, seqlen_q - 128, 128)
    step = max(1, len(edges) * 2 // (sample // 2))
    for edge in edges[::step].tolist():
        chosen |= {edge - 1, edge}
    generator = torch.Generator().manual_seed(seqlen_q)
    order = torch.randint(seqlen_q, (4 * sample,), generator=generator).tolist()
    for row in order:
        if len(chosen) >= sample:
            break
        chosen.add(row)
    return sorted(chosen)


@dataclass(frozen=True, kw_only=True, slots=True)
class RowBucket:
    """Sequences of like lengths, computed together: the shorter ones are padded to the longest."""

    members: list[int]
    lengths_q: Tensor
    """(members,) int64, on the host"""
    lengths_k: Tensor
    """(members,) int64, on the host"""
    rows: Tensor
    """(r,) selected rows within a sequence, on the host; a shorter sequence has the first of them"""

    @property
    def seqlen_k(self) -> int:
        """Keys of the longest."""
        return int(self.lengths_k.max())

    @property
    def even(self) -> bool:
        """Whether nothing is padded."""
        return all(bool((lengths == lengths[0]).all()) for lengths in (self.lengths_q, self.lengths_k))

    def part(self, members: slice, rows: slice) -> RowBucket:
        """Some of its members and rows."""
        lengths = {"lengths_q": self.lengths_q[members], "lengths_k": self.lengths_k[members]}
        return replace(self, members=self.members[members], rows=self.rows[rows], **lengths)


def make_buckets(bounds_q: Tensor, bounds_k: Tensor, row_limit: int) -> list[RowBucket]:
    """All sequences that have queries.

    Lengths are alike where they are equal, or short and between the same powers of 2.
    """
    groups: dict[tuple[object, object], list[int]] = defaultdict(list)
    lengths_q, lengths_k = bounds_q.diff(), bounds_k.diff()
    short = min(PADDED, row_limit)
    for index, queries, keys in zip(range(len(lengths_q)), lengths_q.tolist(), lengths_k.tolist(), strict=True):
        if not queries:
            continue
        alike = queries <= short and 0 < keys <= PADDED
        key = (f"2^{(queries - 1).bit_length()}", f"2^{(keys - 1).bit_length()}") if alike else (queries, keys)
        groups[key].append(index)
    return [
        RowBucket(
            members=members,
            lengths_q=lengths_q[members],
            lengths_k=lengths_k[members],
            rows=torch.tensor(select_rows(int(lengths_q[members].max()), row_limit)),
        )
        for members in groups.values()
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockRows:
    """How what was computed of a block becomes rows of the result: query by query, all heads together, no padding."""

    shape: tuple[int, int, int, int]
    """members, heads_kv, group, rows of each member"""
    kept: Tensor | None
    """the rows that are no padding, by their number in the block; None = all"""

    @classmethod
    def of(cls, q: Tensor, real: Tensor) -> Self:
        """The rows of queries (members, heads_kv, group, rows, head_dim).

        Args:
            real: (members * rows,) whether a row is no padding.
        """
        members, heads_kv, group, rows = q.shape[:4]
        kept = None if bool(real.all()) else real.nonzero().squeeze(-1).to(q.device)
        return cls(shape=(members, heads_kv, group, rows), kept=kept)

    def of_vectors(self, values: Tensor) -> Tensor:
        """(members, heads_kv, group * rows, dim) to (rows of the result, heads_q, dim)."""
        ordered = values.view(*self.shape, -1).permute(0, 3, 1, 2, 4)
        return self.real(ordered.flatten(2, 3).flatten(0, 1))

    def of_numbers(self, values: Tensor) -> Tensor:
        """(members, heads_kv, group * rows), or the two apart, to (rows of the result, heads_q)."""
        ordered = values.view(self.shape).permute(0, 3, 1, 2)
        return self.real(ordered.flatten(2, 3).flatten(0, 1))

    def real(self, rows: Tensor) -> Tensor:
        """Of (members * rows, …) those that are no padding."""
        return rows if self.kept is None else rows[self.kept]
