"""What a golden result holds: the output, and what the error budget needs beside it (docs/numerics.md)."""

from __future__ import annotations

from dataclasses import dataclass, fields

from torch import Tensor

NUMBERS = 6
"""how many numbers a golden result has for each row and head"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Golden:
    """The golden result for n selected query rows of a call; all float64 (or float32 where asked)."""

    rows: Tensor
    """(n,) int64 indices into the packed queries"""
    sequence: Tensor
    """(n,) int64 sequence of the batch that the row belongs to"""
    out: Tensor
    """(n, heads_q, head_dim_v)"""
    A: Tensor
    """P|V|, same shape as ``out``"""
    Q: Tensor
    """(P∘P)(V∘V), same shape"""
    U: Tensor | None
    """Σ over visible keys of |v|, same shape; only where the class has an underflow term"""
    S: Tensor | None
    """P(|s|·|V|) + |o|·P|s|, same shape: worst effect of rounding the scores s; only with ``scores=True``"""
    T: Tensor | None
    """Σ p²s²(v - o)², same shape: mean square of that effect; only with ``scores=True``"""
    numbers: Tensor
    """(n, NUMBERS, heads_q): the numbers of each row and head, in one tensor, because each of them would be stored and
    picked by operators of its own"""
    keys: Tensor
    """(n,) visible keys of the row, int64"""
    sequences: int
    """number of sequences of the call"""

    @property
    def gain(self) -> Tensor:
        """(n, heads_q), Σ p²(v·o)²: power of the error that rounding P makes along the output."""
        return self.numbers[:, 0]

    @property
    def lse(self) -> Tensor:
        """(n, heads_q), natural logarithm."""
        return self.numbers[:, 1]

    @property
    def row_max(self) -> Tensor:
        """(n, heads_q), largest visible score, or the sink where it is larger, because a kernel may begin with it."""
        return self.numbers[:, 2]

    @property
    def score_bound(self) -> Tensor:
        """(n, heads_q), |q| · largest |k| · scale: no score, and no partial sum of a score, is larger."""
        return self.numbers[:, 3]

    @property
    def product_bound(self) -> Tensor:
        """(n, heads_q), √head_dim · largest |q_i| · largest |k_j| · scale, which bounds the products of elements."""
        return self.numbers[:, 4]

    @property
    def value_bound(self) -> Tensor:
        """(n, heads_q), largest |v| of the KV head, also of hidden keys."""
        return self.numbers[:, 5]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """By name, those that are there."""
        found = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: value for name, value in found if isinstance(value, Tensor)}
