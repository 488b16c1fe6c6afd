"""Class H and related faults: wrong pages, wrong rows of the block table, wrong lengths, and misread cache contents."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from qualify.run.adapters.interface import AttentionCall
from qualify.selftest.planning import CallPlan
from qualify.selftest.simulator import Simulator
from qualify.selftest.specimen import Fault

NARROW_PAGES = 16
"""number of pages that a page index with too few bits can name"""


class _StaleLastPage(Simulator):
    def pages(self, name: str, plan: CallPlan, index: int) -> Tensor:
        pages, length = super().pages(name, plan, index).clone(), plan.lengths_k[index]
        if length % plan.page_size and length > plan.page_size:
            pages[length // plan.page_size] = pages[length // plan.page_size - 1]
        return pages


class _FloorStride(Simulator):
    """The row stride of the block table is taken to be the number of full pages of the longest sequence."""

    def pages(self, name: str, plan: CallPlan, index: int) -> Tensor:
        assert plan.table is not None, "only a paged cache has pages"
        start = index * (plan.max_seqlen_k // plan.page_size)
        row: Tensor = plan.table.flatten()[start : start + plan.table.shape[1]]
        return row


class _NarrowIndex(Simulator):
    def pages(self, name: str, plan: CallPlan, index: int) -> Tensor:
        return super().pages(name, plan, index) % NARROW_PAGES


class _PreviousValues(Simulator):
    def pages(self, name: str, plan: CallPlan, index: int) -> Tensor:
        return super().pages(name, plan, max(0, index - 1) if name == "v" else index)


class _PageOf128(Simulator):
    """The slot within a page is stored in seven bits, so slots beyond 128 wrap."""

    def slots(self, name: str, plan: CallPlan, index: int, positions: Tensor) -> Tensor:
        slots = super().slots(name, plan, index, positions)
        return slots // plan.page_size * plan.page_size + slots % plan.page_size % 128 if plan.page_size else slots


class _PageByShift(Simulator):
    """The page of a key is found by a shift, as if the page size were a power of two."""

    def slots(self, name: str, plan: CallPlan, index: int, positions: Tensor) -> Tensor:
        if not plan.page_size:
            return super().slots(name, plan, index, positions)
        size = 1 << (plan.page_size.bit_length() - 1)
        pages = self.pages(name, plan, index)
        return pages[(positions // size).clamp(max=len(pages) - 1)] * plan.page_size + positions % size


class _FirstPageOnly(Simulator):
    """With pages of 48 keys or more, every read beyond the first page returns the token at slot 0 of the first page."""

    def slots(self, name: str, plan: CallPlan, index: int, positions: Tensor) -> Tensor:
        slots = super().slots(name, plan, index, positions)
        return torch.where(positions > plan.page_size, slots[0], slots) if plan.page_size >= 48 else slots


class _WritesCache(Simulator):
    """A padded token with slot -1 is written to the last slot of the cache."""

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        result = super().attend(call)
        if call.block_table is not None:
            call.k.view(-1, *call.k.shape[-2:])[-1] = 0.0
        return result


class _WritesPastEnd(Simulator):
    """The last tile of queries is written back whole, and so beyond the end of the tensor."""

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        result = super().attend(call)
        whole = call.q.untyped_storage().nbytes() // call.q.element_size()
        end = call.q.storage_offset() + call.q.numel()
        call.q.as_strided((whole - end,), (1,), end)[: call.q.stride(0)] = 0.0
        return result


class _EmptyWrites(Simulator):
    """A sequence without keys writes a row where its first key would be: a key of the next one, or what lies behind."""

    def attend_sequence(self, call: AttentionCall, plan: CallPlan, index: int, out: Tensor, lse: Tensor) -> None:
        super().attend_sequence(call, plan, index, out, lse)
        if not plan.lengths_k[index]:
            whole = call.k.untyped_storage().nbytes() // call.k.element_size()
            row = plan.starts_k[index] if plan.table is None else int(plan.table[index, 0])
            start = call.k.storage_offset() + row * call.k.stride(0)
            call.k.as_strided((whole - start,), (1,), start)[: plan.head_dim] = 0.0


class _PagesBySlack(Simulator):
    """A table with more columns than the longest sequence needs shifts every row except the first."""

    def make_plan(self, call: AttentionCall) -> CallPlan:
        plan = super().make_plan(call)
        if plan.table is None:
            return plan
        used = max(1, -(-max(plan.lengths_k) // plan.page_size))
        rows = plan.table.flatten()[: plan.batch * used].view(plan.batch, used)
        return replace(plan, table=rows)


class _PagesOfOneOwner(Simulator):
    """Each page belongs to one sequence only. Of two that share it, the earlier one reads the later's first page."""

    def pages(self, name: str, plan: CallPlan, index: int) -> Tensor:
        pages = super().pages(name, plan, index).clone()
        for later in range(index + 1, plan.batch):
            if not plan.lengths_k[later]:
                continue
            other = super().pages(name, plan, later)
            used = other[: -(-plan.lengths_k[later] // plan.page_size)]
            own = pages[: -(-plan.lengths_k[index] // plan.page_size)]
            own[torch.isin(own, used)] = other[0]
        return pages


class _UnusedEntries(Simulator):
    """Lanes beyond the end read pages of unused entries and mask them. An entry without a page is an illegal access."""

    def slots(self, name: str, plan: CallPlan, index: int, positions: Tensor) -> Tensor:
        if not plan.page_size:
            return super().slots(name, plan, index, positions)
        if bool((self.pages(name, plan, index) < 0).any()):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return super().slots(name, plan, index, positions)


class _TableOf64(Simulator):
    """Rows of a block table of more than 64 columns are taken to be 64 apart."""

    def pages(self, name: str, plan: CallPlan, index: int) -> Tensor:
        assert plan.table is not None, "only a paged cache has pages"
        columns = plan.table.shape[1]
        if columns <= 64:
            return super().pages(name, plan, index)
        row: Tensor = plan.table.flatten()[index * 64 :][:columns]
        return row


class _PlannedLength(Simulator):
    """A sequence that is alone in a paged call is taken to have ``max_seqlen_k`` keys."""

    def key_lengths(self, call: AttentionCall) -> tuple[tuple[int, ...], tuple[int, ...]]:
        starts, lengths = super().key_lengths(call)
        if call.block_table is None or len(lengths) != 1:
            return starts, lengths
        return starts, (min(call.max_seqlen_k, call.block_table.shape[1] * call.k.shape[1]),)


class _PageZeroAbsent(Simulator):
    """Page 0 is taken to mean "no page", so values in it count as 0."""

    def fetch(self, name: str, tensor: Tensor, strides: tuple[int, ...], slots: Tensor, plan: CallPlan) -> Tensor:
        rows = super().fetch(name, tensor, strides, slots, plan)
        return rows if not plan.page_size or name == "k" else rows.float() * (slots >= plan.page_size).view(-1, 1, 1)


class _Cascade(Simulator):
    """Sequences with the same first page are taken to share all whole pages that both have."""

    def pages(self, name: str, plan: CallPlan, index: int) -> Tensor:
        pages = super().pages(name, plan, index).clone()
        for leader in range(index):
            first = super().pages(name, plan, leader)
            whole = min(plan.lengths_k[leader], plan.lengths_k[index]) // plan.page_size
            if whole and bool(first[0] == pages[0]):
                pages[:whole] = first[:whole]
                break
        return pages


class _TableFromStart(Simulator):
    """The block table and the sinks are read from the start of their allocation, without their offset."""

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        moved: dict[str, Any] = {}
        for name in ("block_table", "sinks"):
            tensor = getattr(call, name)
            if tensor is not None:
                moved[name] = tensor.as_strided(tensor.shape, tensor.stride(), 0)
        return super().attend(replace(call, **moved))


class _SmallValues(Simulator):
    """Values of an fp8 cache below e4m3's normal range become 0."""

    def fetch(self, name: str, tensor: Tensor, strides: tuple[int, ...], slots: Tensor, plan: CallPlan) -> Tensor:
        rows = super().fetch(name, tensor, strides, slots, plan)
        if name == "k" or tensor.element_size() > 1 or plan.dtype.itemsize == 1:
            return rows
        wide = rows.float()
        return wide.masked_fill(wide.abs() < 2.0**-6, 0.0)


FAULTS: tuple[Fault, ...] = (
    Fault(
        name="stale-last-page",
        kind="H",
        mirrors="sglang#36531",
        does="the last partial page is read from the previous page",
        make=_StaleLastPage,
    ),
    Fault(
        name="bt-floor",
        kind="H",
        mirrors="flashinfer#4270",
        does="the stride of the block table is floor(max_kv / page)",
        make=_FloorStride,
    ),
    Fault(
        name="idx-wrap",
        kind="H",
        mirrors="vllm#50427, flash-attention#772, flash-attention#2611",
        does="the page index has too few bits and wraps",
        make=_NarrowIndex,
    ),
    Fault(
        name="v-page-prev",
        kind="H",
        mirrors="vllm#41834",
        does="V uses the page table of the previous request",
        make=_PreviousValues,
    ),
    Fault(
        name="page-128",
        kind="H",
        mirrors="flashinfer#4347",
        does="slots of a page beyond 128 wrap",
        make=_PageOf128,
    ),
    Fault(
        name="page-by-shift",
        kind="H",
        mirrors="pytorch#195650",
        does="a page size that is no power of two is rounded down to one",
        make=_PageByShift,
    ),
    Fault(
        name="first-page-only",
        kind="H",
        mirrors="sglang#36531",
        does="pages of 48 keys or more: after the first page, token 0 is read",
        make=_FirstPageOnly,
    ),
    Fault(
        name="table-slack",
        kind="H",
        mirrors="vllm#41834, sglang#22800",
        does="the block table is taken to be as wide as the longest sequence needs",
        make=_PagesBySlack,
    ),
    Fault(
        name="one-owner",
        kind="H",
        mirrors="page_permutation: pages that sequences share",
        does="a page that two sequences share is booked for the later one",
        make=_PagesOfOneOwner,
    ),
    Fault(
        name="writes-cache",
        kind="H",
        mirrors="vllm#43810, sglang#33253, vllm#13922",
        does="a padded token is written to the last slot of the cache",
        make=_WritesCache,
    ),
    Fault(
        name="writes-past-end",
        kind="H",
        mirrors="flash-attention#638, flash-attention#1155",
        does="what lies behind the queries is overwritten",
        make=_WritesPastEnd,
    ),
    Fault(
        name="empty-writes-k",
        kind="H",
        mirrors="flash-attention#1155",
        does="a sequence without keys overwrites the place of its first key, in the keys or behind them",
        make=_EmptyWrites,
    ),
    Fault(
        name="unused-entries",
        kind="H",
        mirrors="flash-attention#2711",
        does="block table entries past the used pages are followed: one that names no page is an illegal access",
        make=_UnusedEntries,
    ),
    Fault(
        name="table-of-64",
        kind="H",
        mirrors="vllm#41834, flashinfer#4270",
        does="rows of a block table of more than 64 columns are taken to be 64 apart",
        make=_TableOf64,
    ),
    Fault(
        name="planned-length",
        kind="B",
        mirrors="flashinfer#3716",
        does="a sequence alone has the keys that were planned for at most, not its own",
        make=_PlannedLength,
    ),
    Fault(
        name="page-zero",
        kind="H",
        mirrors="vllm#57158",
        does="page 0 is taken for no page",
        make=_PageZeroAbsent,
    ),
    Fault(
        name="cascade",
        kind="H",
        mirrors="vllm#41834",
        does="sequences with the same first page are taken to share all whole pages",
        make=_Cascade,
    ),
    Fault(
        name="offset-ignored",
        kind="D",
        mirrors="flash-attention#2368",
        does="block table and sinks are read from the start of their memory",
        make=_TableFromStart,
    ),
    Fault(
        name="small-values",
        kind="I",
        mirrors="vllm#51363",
        does="values of an fp8 cache below the normal range become 0",
        make=_SmallValues,
    ),
)
"""Reads and writes of a cache."""
