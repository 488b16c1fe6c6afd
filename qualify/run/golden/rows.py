"""Which query rows are compared, which sequences are computed together, and the order of rows in the result."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import chain, pairwise

import torch
from torch import Tensor

ROW_LIMIT = 4096
"""Most query rows of a sequence that are all compared, unless a caller asks for fewer. Of a longer sequence, only a
stratified sample is compared."""
SAMPLE_ROWS = 1024
"""size of that sample in rows"""
PADDED = 512
"""most queries, and most keys, of a sequence that is padded to be computed together with others of similar lengths"""
PLACES = ("sequence", "first_q", "length_q", "first_k", "length_k")
"""what a bucket holds of each member on the device: its number in the batch, and its place among queries and keys"""


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

    lengths_q: list[int]
    """of the members"""
    lengths_k: list[int]
    rows: Tensor
    """(r,) int64 on the device: selected rows within a sequence; a shorter sequence uses only the first of them"""
    first: int
    """number of the first of these rows among all selected ones"""
    places: Tensor
    """(5, members) int64 on the device: :data:`PLACES`"""

    @property
    def seqlen_k(self) -> int:
        """Keys of the longest sequence."""
        return max(self.lengths_k)

    @property
    def even(self) -> bool:
        """Whether nothing is padded."""
        return len(set(self.lengths_q)) == 1 and len(set(self.lengths_k)) == 1

    @property
    def real(self) -> int:
        """Rows of all members together, without padding."""
        return sum(max(0, min(len(self.rows), length - self.first)) for length in self.lengths_q)

    def place(self, name: str) -> Tensor:
        """(members,) int64 on the device: one of :data:`PLACES`."""
        return self.places[PLACES.index(name)]

    def part(self, members: slice, rows: slice) -> RowBucket:
        """The bucket limited to some members and rows."""
        return RowBucket(
            lengths_q=self.lengths_q[members],
            lengths_k=self.lengths_k[members],
            rows=self.rows[rows],
            first=self.first + (rows.start or 0),
            places=self.places[:, members],
        )


def make_buckets(bounds_q: list[int], bounds_k: list[int], row_limit: int, device: torch.device) -> list[RowBucket]:
    """Buckets with all sequences that have queries.

    Sequences share a bucket where their lengths are equal, or short and between the same powers of 2.

    Args:
        bounds_q: batch + 1 cumulative query lengths.
        bounds_k: batch + 1 cumulative key lengths.
        row_limit: limit for :func:`select_rows`.
        device: that computes the rows.
    """
    groups: dict[tuple[object, object], list[int]] = defaultdict(list)
    lengths_q, lengths_k = ([end - begin for begin, end in pairwise(bounds)] for bounds in (bounds_q, bounds_k))
    short = min(PADDED, row_limit)
    for index, (queries, keys) in enumerate(zip(lengths_q, lengths_k, strict=True)):
        if not queries:
            continue
        alike = queries <= short and 0 < keys <= PADDED
        key = (f"2^{(queries - 1).bit_length()}", f"2^{(keys - 1).bit_length()}") if alike else (queries, keys)
        groups[key].append(index)
    chosen = [select_rows(max(lengths_q[index] for index in members), row_limit) for members in groups.values()]
    order = [index for members in groups.values() for index in members]
    told = [[index, bounds_q[index], lengths_q[index], bounds_k[index], lengths_k[index]] for index in order]
    # One copy to the device for all buckets: each of them is a wait.
    numbers = torch.tensor([*chain(*told), *chain(*chosen)], dtype=torch.int64).to(device)
    count = len(PLACES) * len(order)
    places = torch.split(numbers[:count].view(-1, len(PLACES)).T, [len(members) for members in groups.values()], 1)
    rows = torch.split(numbers[count:], [len(some) for some in chosen])
    return [
        RowBucket(
            lengths_q=[lengths_q[index] for index in members],
            lengths_k=[lengths_k[index] for index in members],
            rows=own_rows,
            first=0,
            places=own_places,
        )
        for members, own_rows, own_places in zip(groups.values(), rows, places, strict=True)
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockRows:
    """Reorders the numbers of a block to rows of the result: query by query, all heads together, without padding."""

    shape: tuple[int, int, int, int]
    """members, rows of each member, heads_kv, group"""
    kept: Tensor | None
    """numbers of the block's rows that are no padding; None = all"""

    def store(self, into: Tensor, values: Tensor) -> None:
        """Write the values of a block into rows of the result.

        Args:
            into: (rows of the result, heads_q), or (rows of the result, heads_q, dim).
            values: (members, heads_kv, group, rows), with ``dim`` at the end where ``into`` has it; the first two
                dimensions, and the next two, may be one.
        """
        members, rows, heads_kv, group = self.shape
        ordered = values.view(members, heads_kv, group, rows, *into.shape[2:]).movedim(3, 1)
        if self.kept is None:
            into.view(ordered.shape).copy_(ordered)
        else:
            torch.index_select(ordered.reshape(-1, *into.shape[1:]), 0, self.kept, out=into)

    def store_numbers(self, into: Tensor, values: Tensor) -> None:
        """The same for several numbers of each row and head.

        Args:
            into: (rows of the result, numbers, heads_q).
            values: (numbers, members, heads_kv, group, rows).
        """
        ordered = values.permute(1, 4, 0, 2, 3)
        if self.kept is None:
            into.view(ordered.shape).copy_(ordered)
        else:
            torch.index_select(ordered.reshape(-1, *into.shape[1:]), 0, self.kept, out=into)

    def store_rows(self, into: Tensor, values: Tensor) -> None:
        """The same for one number of each row: ``into`` (rows of the result,), ``values`` (members or 1, rows or 1)."""
        values = values.expand(self.shape[:2])
        if self.kept is None:
            into.view(values.shape).copy_(values)
        else:
            torch.index_select(values.reshape(-1), 0, self.kept, out=into)
