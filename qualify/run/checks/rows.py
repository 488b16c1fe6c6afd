"""The query rows of a workload in packed order: where each stands, and which keys it may see."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from qualify.facts.case import Workload
from qualify.masks import Mask


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Every packed query row: where it stands and what it may see."""

    sequence: Tensor
    """(total_q,) index of its sequence"""
    query: Tensor
    """(total_q,) query index within its sequence"""
    seqlen_q: Tensor
    seqlen_k: Tensor
    first_key: Tensor
    """(total_q,) packed index of the sequence's first key"""
    mask: Mask
    span: Tensor
    """(total_q, 2) first key and one past the last of the image that a row is in; past all keys and 0 where none"""

    def visible_range(
        self,
        mask: Mask | None = None,
        *,
        shift: int = 0,
        top_left: bool = False,
        spans: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """First visible key and one past the last, per row; arguments describe suspected faults."""
        query = self.query + shift - (self.seqlen_k - self.seqlen_q if top_left else 0)
        low, high = (self.mask if mask is None else mask).key_range(query, self.seqlen_q, self.seqlen_k)
        if spans:
            # A row's own key is in its image and in its mask, so both together are one range.
            low, high = torch.minimum(low, self.span[:, 0]), torch.maximum(high, self.span[:, 1])
        return low, high


def rows_of(workload: Workload, device: torch.device) -> Rows:
    """The packed query rows of a workload."""
    lengths_q = torch.tensor(workload.seqlens_q, device=device)
    lengths_k = torch.tensor(workload.seqlens_k, device=device)
    total = sum(workload.seqlens_q)
    sequence = torch.arange(len(lengths_q), device=device).repeat_interleave(lengths_q, output_size=total)
    query = torch.arange(total, device=device) - (torch.cumsum(lengths_q, 0) - lengths_q)[sequence]
    position = query + (lengths_k - lengths_q)[sequence]
    span = torch.tensor([max(workload.seqlens_k) + 1, 0], device=device).repeat(total, 1)
    for owner, start, end in workload.spans:
        span[(sequence == owner) & (position >= start) & (position < end)] = torch.tensor([start, end], device=device)
    return Rows(
        sequence=sequence,
        query=query,
        seqlen_q=lengths_q[sequence],
        seqlen_k=lengths_k[sequence],
        first_key=(torch.cumsum(lengths_k, 0) - lengths_k)[sequence],
        mask=workload.mask,
        span=span,
    )
