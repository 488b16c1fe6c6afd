"""page permutation: the places of a cache's pages must not change the result, and the call must not change the cache.

First the block table becomes wider than needed, and ``max_seqlen_k`` becomes larger by another amount, as in an engine
that prepares for its longest request. This may change the rounding of the result, because kernels choose their number
of KV splits by either.

Then the same pages are placed in another pool, under a table of the same width. The pool is twice as large. It holds
the pages in another order, between pages with other numbers, and unused entries of the table point to one of these. The
result must have the same bits (for a kernel that does not claim determinism: the same within rounding), and no slot of
the cache and no entry of the table may change.

At level full, unused entries are also -1, and before page 0 of the pool there is a page of NaN. Besides, sequences get
equal beginnings: once in pages of their own, once in shared pages, as a prefix cache provides them.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from qualify.facts.case import Level, Workload
from qualify.facts.outcome import Finding, Value
from qualify.run.adapters.interface import AttentionCall
from qualify.run.checks.budget import beyond_budget
from qualify.run.checks.difference import blame_change, difference, unlike_bits
from qualify.run.checks.interface import Result, Shipped, Subject, failing, paged_or_ragged, passed
from qualify.run.inputs.kept import lengths_on
from qualify.run.inputs.tensors import Inputs, clone, make_inputs
from qualify.run.unlike import unlike

SPARE_COLUMNS = 3
"""columns of the block table beyond those that the longest sequence needs"""
FILL = 3.0
"""standard deviation of the numbers in pages that the call does not use"""
AT_ONCE = 1 << 26
"""elements of a pool that are drawn in float32, or compared, at a time, so that temporaries for many GB fit"""
ORDERS: dict[Level, tuple[str, ...]] = {
    "smoke": ("reversed",),
    "full": ("reversed", "shuffled", "interleaved", "ascending"),
}


class PagePermutation(Shipped):
    """Moves the pages and compares bits."""

    def skips(self, subject: Subject) -> str:
        """Skips packed caches."""
        return "" if subject.workload.page_size else "the cache has no pages"

    def run(self, subject: Subject) -> list[Finding]:
        """Move the pages until a result differs."""
        workload = paged_or_ragged(subject)
        subject = replace(subject, workload=workload)
        inputs = make_inputs(workload, kind="normal", seed=subject.seed, device=subject.device)
        wide = widened(inputs.call, workload.page_size)
        before = subject.run(wide)
        wrong = self._wider(subject, inputs, wide, before)
        if wrong:
            return [wrong]
        inputs = replace(inputs, call=replace(inputs.call, max_seqlen_k=wide.max_seqlen_k))
        for order in ORDERS[subject.level]:
            wrong = self._moved(subject, inputs, wide, before, order)
            if wrong:
                return [wrong]
        asked = f"pages {', '.join(ORDERS[subject.level])} in a larger pool"
        if subject.level == "full":
            wrong = self._unnamed(subject, inputs, wide, before)
            if wrong:
                return [wrong]
            asked += ", unused entries of -1"
            both = shared_prefix(inputs, workload)
            if both:
                wrong = self._shared(subject, *both)
                if wrong:
                    return [wrong]
                asked += ", shared pages"
        return [passed(self.name, f"the same result with a wider block table, {asked}")]

    def _wider(self, subject: Subject, inputs: Inputs, wide: AttentionCall, before: Result) -> Finding | None:
        """A finding where a wider block table changes the result beyond rounding, or makes it wrong."""
        narrow, values = subject.run(inputs.call), dict[str, Value](order="wider")
        found = difference(subject, narrow, before, exact=False)
        said = "under a wider block table, "
        if found:
            return blame_change(subject, self.name, said, found, values, call=inputs.call, before=narrow)
        wrong = beyond_budget(subject, wide, before) if difference(subject, narrow, before) else None
        return failing(self.name, f"{said}{wrong.detail}", {**values, **wrong.values}) if wrong else None

    def _unnamed(self, subject: Subject, inputs: Inputs, wide: AttentionCall, before: Result) -> Finding | None:
        """A finding where unused entries of the block table change the result."""
        after = subject.run(unnamed(inputs, subject.workload))
        found = difference(subject, before, after, exact=subject.card.claims.deterministic)
        if not found:
            return None
        said = "with -1 in the unused entries of the block table, "
        return blame_change(subject, self.name, said, found, {"order": "unnamed"}, call=wide, before=before)

    def _shared(self, subject: Subject, own: AttentionCall, shared: AttentionCall) -> Finding | None:
        """A finding where shared pages change the result."""
        before, after = subject.run(own), subject.run(shared)
        found = difference(subject, before, after, exact=subject.card.claims.deterministic)
        if not found:
            return None
        said = "with pages that several sequences share, "
        return blame_change(subject, self.name, said, found, {"order": "shared"}, call=own, before=before)

    def _moved(
        self, subject: Subject, inputs: Inputs, wide: AttentionCall, before: Result, order: str
    ) -> Finding | None:
        """A finding where the places of pages change the result, or where the call writes to its cache or table."""
        moved = move_pages(inputs, subject.workload, order, subject.seed)
        assert moved.call.block_table is not None, "skips() asked"
        kept = (moved.k_whole.clone(), moved.v_whole.clone(), moved.call.block_table.clone())
        found = difference(subject, before, subject.run(moved.call), exact=subject.card.claims.deterministic)
        values: dict[str, Value] = {"order": order}
        if found:
            said = f"with the pages {order}, "
            return blame_change(subject, self.name, said, found, values, call=wide, before=before)
        subject.kernel.read_back(moved.call)
        pairs = [*zip(kept, (moved.k_whole, moved.v_whole, moved.call.block_table), strict=True)]
        for name, pair, wrote in zip(("k cache", "v cache", "block table"), pairs, unlike(pairs), strict=True):
            if wrote:
                written = changed_elements(*pair)
                detail = f"the call changed {written} elements of the {name}"
                return failing(self.name, detail, values | {"tensor": name, "elements": written})
        return None


def widened(call: AttentionCall, page_size: int) -> AttentionCall:
    """The call with more columns in its block table, which hold the null page, and a larger ``max_seqlen_k``."""
    assert call.block_table is not None, "skips() asked"
    table = torch.nn.functional.pad(call.block_table, (0, SPARE_COLUMNS))
    return replace(call, block_table=table, max_seqlen_k=(call.block_table.shape[1] + 1) * page_size)


def unnamed(inputs: Inputs, workload: Workload) -> AttentionCall:
    """The call with -1 in unused entries of its block table, and NaN before page 0, so that reading page -1 shows."""
    table = inputs.call.block_table
    assert table is not None, "skips() asked"
    used, _ = _used(workload, table)
    wide = torch.nn.functional.pad(torch.where(used, table, -1), (0, SPARE_COLUMNS), value=-1)

    def behind_nan(whole: Tensor) -> Tensor:
        return torch.cat([torch.full_like(whole[:1], math.nan), whole])[1:]

    k = behind_nan(inputs.k_whole)
    v = k[..., : workload.head_dim_v] if workload.latent else behind_nan(inputs.v_whole)
    return replace(inputs.call, k=k, v=v, block_table=wide)


def changed_elements(was: Tensor, now: Tensor) -> int:
    """Number of elements whose bits differ, counted in parts, because summing booleans takes eight bytes for each."""
    parts = (torch.split(tensor, max(1, AT_ONCE // tensor[0].numel())) for tensor in (was, now))
    return sum(int(unlike_bits(*pair).sum()) for pair in zip(*parts, strict=True))


def shared_prefix(inputs: Inputs, workload: Workload) -> tuple[AttentionCall, AttentionCall] | None:
    """Two calls with equal contents in the first whole pages of every sequence: on own pages, and on shared pages.

    Every second sequence shares only one page and then differs. None where fewer than two sequences have a whole page.
    """
    table = inputs.call.block_table
    assert table is not None, "skips() asked"
    whole = [length // workload.page_size for length in workload.seqlens_k]
    leader = max(range(len(whole)), key=whole.__getitem__)
    followers = [index for index, pages in enumerate(whole) if pages and index != leader]
    if not followers:
        return None
    copy, shared = clone(inputs), table.clone()
    for number, index in enumerate(followers):
        first = slice(1 if number % 2 else whole[index])
        for tensor in (copy.k_whole, copy.v_whole):
            tensor[table[index, first].long()] = tensor[table[leader, first].long()]
        shared[index, first] = table[leader, first]
    own = replace(inputs.call, k=copy.k_whole, v=copy.v_whole)
    return own, replace(own, block_table=shared)


def move_pages(inputs: Inputs, workload: Workload, order: str, seed: int) -> Inputs:
    """The same call with its pages at other places in a pool of twice the size.

    Args:
        order: order of the pages in the pool, one of ORDERS.
    """
    table = inputs.call.block_table
    assert table is not None, "skips() asked"
    used, owned = _used(workload, table)
    pool = 2 * inputs.k_whole.shape[0] + 1
    places = _places(order, len(owned), pool, table.device, seed)
    number = torch.zeros(inputs.k_whole.shape[0], dtype=torch.int32, device=table.device)
    number[owned] = places.to(torch.int32)
    strangers = torch.ones(pool, dtype=torch.bool, device=table.device)
    strangers[places] = False
    wide = torch.full(
        (table.shape[0], table.shape[1] + SPARE_COLUMNS), int(strangers.nonzero()[-1]), device=table.device
    ).to(torch.int32)
    wide[:, : table.shape[1]][used] = number[table.long()][used]
    generator = torch.Generator(table.device).manual_seed(seed)

    def moved(whole: Tensor) -> Tensor:
        fresh = torch.empty((pool, *whole.shape[1:]), dtype=whole.dtype, device=whole.device)
        for part in torch.split(fresh, max(1, AT_ONCE // whole[0].numel())):
            part.copy_(FILL * torch.randn(part.shape, generator=generator, device=whole.device))
        fresh[places] = whole[owned]
        return fresh

    k_whole = moved(inputs.k_whole)
    v_whole = k_whole[..., : workload.head_dim_v] if workload.latent else moved(inputs.v_whole)
    return replace(
        inputs,
        call=replace(inputs.call, k=k_whole, v=v_whole, block_table=wide),
        k_whole=k_whole,
        v_whole=v_whole,
        slots=number.long()[inputs.slots // workload.page_size] * workload.page_size
        + inputs.slots % workload.page_size,
    )


def _used(workload: Workload, table: Tensor) -> tuple[Tensor, Tensor]:
    """(batch, max_pages) bool: entries in use; (owned,) int64: their pages."""
    lengths = lengths_on(workload.seqlens_k, table.device)
    pages = (lengths + workload.page_size - 1) // workload.page_size
    used = torch.arange(table.shape[1], device=table.device) < pages[:, None]
    return used, table[used].long()


def _places(order: str, count: int, pool: int, device: torch.device, seed: int) -> Tensor:
    """(count,) new page numbers. Page 0 is used only by "ascending", which numbers pages as in a new cache."""
    if order == "ascending":
        return torch.arange(count, device=device)
    if order == "reversed":
        return torch.arange(pool - 1, pool - 1 - count, -1, device=device)
    if order == "interleaved":
        return 1 + 2 * torch.arange(count, device=device)
    generator = torch.Generator(device).manual_seed(seed + 1)
    return 1 + torch.randperm(pool - 1, generator=generator, device=device)[:count]
