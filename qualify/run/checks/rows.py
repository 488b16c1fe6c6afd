"""The query rows of a workload in packed order: the place of each row, and the keys that it may see."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from qualify.facts.case import Workload
from qualify.masks import Mask
from qualify.run.inputs.kept import keep, lengths_on, owners_and_positions

WORKLOADS = 3
"""most workloads whose rows are kept: that of the case, and those that a check makes of it"""
TILE = 256
"""more keys than a tile has beyond the end of a sequence"""


@dataclass(frozen=True, kw_only=True)
class Visible:
    """The keys that rows see: ``range(low, high, step)``, counted within each row's sequence."""

    low: Tensor
    """(rows,) the first key"""
    high: Tensor
    """(rows,) one past the last key; equal to ``low`` where a row sees none"""
    step: int

    @cached_property
    def count(self) -> Tensor:
        """(rows,) number of keys that a row sees."""
        return self._steps(self.high - self.low)

    @cached_property
    def some(self) -> Tensor:
        """(rows,) bool: whether a row sees a key."""
        return self.high > self.low

    def at(self, rows: slice | list[int]) -> Visible:
        """The same for some of the rows."""
        return replace(self, low=self.low[rows], high=self.high[rows])

    def before(self, keys: Tensor) -> Tensor:
        """(rows, n) number of visible keys before each of n keys."""
        distance = keys - self.low.unsqueeze(-1)
        return self._steps(distance).clamp(min=0).minimum(self.count.unsqueeze(-1))

    def _steps(self, keys: Tensor) -> Tensor:
        """How many visible keys lie in so many keys that begin with one."""
        return keys if self.step == 1 else (keys + self.step - 1) // self.step

    def nearest(self, keys: Tensor) -> Tensor:
        """(rows, n) for each of a row's n keys, the last visible key up to it, else the row's first visible key."""
        low = self.low.unsqueeze(-1)
        keys = torch.maximum(keys.minimum(self.high.unsqueeze(-1) - 1), low)
        return keys if self.step == 1 else keys - (keys - low) % self.step

    def has(self, key: int) -> Tensor:
        """(rows,) bool: whether a row sees a key."""
        return (self.low <= key) & (key < self.high) & ((key - self.low) % self.step == 0)

    def words(self, row: int) -> str:
        """The visible keys of a row, in words; the row must see at least one."""
        steps = f", every {self.step} keys" if self.step > 1 else ""
        return f"keys {int(self.low[row])} to {int(self.high[row]) - 1}{steps}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Every packed query row: its place, and the keys that it may see."""

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
    """(total_q, 2) first key and one past the last key of the row's image; without an image, past all keys and 0"""
    own: list[Visible] = field(default_factory=list)
    """what the rows see by the workload's mask, once somebody has asked"""

    def visible(
        self,
        mask: Mask | None = None,
        *,
        shift: int = 0,
        top_left: bool = False,
        spans: bool = True,
    ) -> Visible:
        """The keys that each row sees.

        The arguments describe masks of faulty kernels.

        Args:
            mask: another mask; None = the workload's.
            shift: by how many keys the mask is moved to the right.
            top_left: whether the mask is aligned to the top left corner.
            spans: whether tokens of an image see each other.
        """
        if mask is None and not shift and not top_left and spans:
            if not self.own:
                self.own.append(self._visible(self.mask, shift=0, top_left=False, spans=True))
            return self.own[0]
        return self._visible(self.mask if mask is None else mask, shift=shift, top_left=top_left, spans=spans)

    def _visible(self, mask: Mask, *, shift: int, top_left: bool, spans: bool) -> Visible:
        query = self.query + shift - (self.seqlen_k - self.seqlen_q if top_left else 0)
        low, high = mask.key_range(query, self.seqlen_q, self.seqlen_k)
        if spans:
            # A row's own key is in its image and in its mask, so both together are one range: with images step is 1.
            low, high = torch.minimum(low, self.span[:, 0]), torch.maximum(high, self.span[:, 1])
        return Visible(low=low, high=high, step=mask.step)


@keep(WORKLOADS)
def rows_of(workload: Workload, device: torch.device) -> Rows:
    """The packed query rows of a workload. They are kept, because most checks of a case need the same ones."""
    lengths_q = lengths_on(workload.seqlens_q, device)
    lengths_k = lengths_on(workload.seqlens_k, device)
    sequence, query = owners_and_positions(workload.seqlens_q, device)
    position = query + (lengths_k - lengths_q)[sequence]
    span = torch.tensor([max(workload.seqlens_k) + 1, 0], device=device).repeat(len(query), 1)
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


def capped(lse: Tensor, workload: Workload) -> list[str]:
    """What wrong LSEs of rows that see no key look like; empty where a softcap after the mask does not explain them.

    tanh turns the score -inf of a hidden key into -softcap, so such an LSE counts keys, with those that fill a tile.
    """
    cap = workload.softcap
    keys = (lse + cap).exp() if cap else lse.new_zeros(1)
    most = max(workload.seqlens_k) + TILE
    if not len(lse) or not bool(((keys - keys.round()).abs() < 0.01 * keys).all() & (keys < most).all()):
        return []
    return [f"it looks like {cap_after_mask(cap)}"]


def cap_after_mask(cap: float) -> str:
    """The mistake, in words."""
    return f"a softcap that is applied after the mask, so that hidden keys score {-cap:g} and not -inf"
