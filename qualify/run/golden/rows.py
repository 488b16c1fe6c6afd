"""Which query rows are compared, which sequences are computed together, and the order of rows in the result."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

ROW_LIMIT = 4096
"""Most query rows of a sequence that are all compared, unless a caller asks for fewer. Of a longer sequence, only a
stratified sample is compared."""
SAMPLE_ROWS = 1024
"""size of that sample in rows"""
PADDED = 512
"""most queries, and most keys, of a sequence that is padded to be computed together with others of similar lengths"""


def select_rows(seqlen_q: int, limit: int = ROW_LIMIT, sample: int = SAMPLE_ROWS) -> list[int]:
    """Rows of a sequence that are compared: all up to the limit, else the first and last tile, tile edges, random rows.

    Args:
        seqlen_q: queries of the sequence.
        limit: most queries of which all are compared.
        sample: number of rows that are compared of a longer sequence.
    """
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
    """Sequences of similar lengths, computed together: the shorter ones are padded to the longest."""

    members: list[int]
    lengths_q: Tensor
    """(members,) int64, on the host"""
    lengths_k: Tensor
    """(members,) int64, on the host"""
    rows: Tensor
    """(r,) selected rows within a sequence, on the host; a shorter sequence uses only the first of them"""

    @property
    def seqlen_k(self) -> int:
        """Keys of the longest sequence."""
        return int(self.lengths_k.max())

    @property
    def even(self) -> bool:
        """Whether nothing is padded."""
        return all(len(set(lengths.tolist())) == 1 for lengths in (self.lengths_q, self.lengths_k))

    def part(self, members: slice, rows: slice) -> RowBucket:
        """The bucket limited to some members and rows."""
        lengths = {"lengths_q": self.lengths_q[members], "lengths_k": self.lengths_k[members]}
        return replace(self, members=self.members[members], rows=self.rows[rows], **lengths)


def make_buckets(bounds_q: Tensor, bounds_k: Tensor, row_limit: int) -> list[RowBucket]:
    """Buckets with all sequences that have queries.

    Sequences share a bucket where their lengths are equal, or short and between the same powers of 2.

    Args:
        bounds_q: (batch + 1,) cumulative query lengths.
        bounds_k: (batch + 1,) cumulative key lengths.
        row_limit: limit for :func:`select_rows`.
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
    """Reorders the numbers of a block to rows of the result: query by query, all heads together, without padding."""

    shape: tuple[int, int, int, int]
    """members, heads_kv, group, rows of each member"""
    kept: Tensor | None
    """numbers of the block's rows that are no padding; None = all"""

    @classmethod
    def of(cls, q: Tensor, real: Tensor) -> Self:
        """The order for a block.

        Args:
            q: (members, heads_kv, group, rows, head_dim) queries of the block.
            real: (members * rows,) whether a row is real, and not padding.
        """
        members, heads_kv, group, rows = q.shape[:4]
        kept = None if bool(real.all()) else real.nonzero().squeeze(-1).to(q.device)
        return cls(shape=(members, heads_kv, group, rows), kept=kept)

    def of_vectors(self, values: Tensor) -> Tensor:
        """(members, heads_kv, group * rows, dim) to (rows of the result, heads_q, dim)."""
        ordered = values.view(*self.shape, -1).permute(0, 3, 1, 2, 4)
        return self.real(ordered.reshape(-1, self.shape[1] * self.shape[2], ordered.shape[-1]))

    def of_numbers(self, values: Tensor) -> Tensor:
        """(members, heads_kv, group * rows), or (members, heads_kv, group, rows), to (rows of the result, heads_q)."""
        ordered = values.view(self.shape).permute(0, 3, 1, 2)
        return self.real(ordered.reshape(-1, self.shape[1] * self.shape[2]))

    def real(self, rows: Tensor) -> Tensor:
        """From (members * rows, …), the rows that are no padding."""
        return rows if self.kept is None else rows[self.kept]
