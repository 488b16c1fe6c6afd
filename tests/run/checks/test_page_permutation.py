"""page permutation: other places, another order, a wider table, strangers in the pool."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from builders import make_card
from faults import Edited
from subjects import make_subject
from torch import Tensor

from qualify.facts.outcome import Finding
from qualify.run.adapters.interface import AttentionCall
from qualify.run.checks.page_permutation import PagePermutation

DECODE: dict[str, Any] = {"seqlens_q": (1,) * 3, "seqlens_k": (70, 33, 64), "page_size": 16}


def permuted(adapter: Any = None, level: str = "smoke", deterministic: bool = True, **workload: Any) -> Finding:
    """The one finding of the check."""
    subject = make_subject(adapter, level=level, card=make_card(deterministic=deterministic), **(DECODE | workload))
    assert "" == PagePermutation().skips(subject)
    (finding,) = PagePermutation().run(subject)
    return finding


def with_table(edit: Any) -> Edited:
    """A kernel that reads another block table."""
    return Edited(call=lambda call: replace(call, block_table=edit(call.block_table, call).to(torch.int32)))


def consecutive(table: Tensor, call: AttentionCall) -> Tensor:
    """Pages are taken to stand one after another."""
    return (table[:, :1] + torch.arange(table.shape[1])) % call.k.shape[0]


def narrow_rows(table: Tensor, call: AttentionCall) -> Tensor:
    """The row stride is taken from the longest sequence and not from the table."""
    needed = -(-call.max_seqlen_k // call.k.shape[1])
    return table.flatten()[: needed * len(table)].view(len(table), needed)


def wraps(table: Tensor, _: AttentionCall) -> Tensor:
    """Page numbers keep their lowest four bits."""
    return table % 16


def marks(name: str) -> Edited:
    """A stranger's slot gets written."""

    def edit(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        getattr(call, name)[0, 0] = 7.0
        return out, lse

    return Edited(result=edit)


@pytest.mark.parametrize(
    ("edit", "order"),
    [(consecutive, "reversed"), (narrow_rows, "wider"), (wraps, "reversed")],
    ids=lambda part: getattr(part, "__name__", part),
)
def test_wrong_page_lookups_are_caught(edit: Any, order: str) -> None:
    """Each reads a page that is not the sequence's."""
    finding = permuted(with_table(edit))
    assert ("fail", order) == (finding.verdict, finding.values["order"])


@pytest.mark.parametrize(
    ("out_by", "lse_by", "what"),
    [
        ((2.0**-10, -(2.0**-10)), 1e-6, ""),
        ((2.0**-8, 2.0**-8), 0.0, "|β|"),
        ((2.0**-3, -(2.0**-3)), 0.0, "elements of out"),
        ((0.0, 0.0), 1e-3, "elements of lse"),
    ],
    ids=["rounding", "gain", "out", "lse"],
)
def test_splits_by_the_width_of_the_table_are_allowed(out_by: tuple[float, float], lse_by: float, what: str) -> None:
    """They round otherwise; what the width changes beyond that is wrong, small as it may be in each element."""

    def rounded(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        assert call.block_table is not None
        wide = call.block_table.shape[1] > -(-call.max_seqlen_k // call.k.shape[1])
        factors = 1 + wide * torch.tensor(out_by).repeat(out.shape[-1] // 2)
        return (out * factors).to(out.dtype), lse + wide * lse_by

    finding = permuted(Edited(result=rounded))
    assert ("fail" if what else "pass") == finding.verdict
    if what:
        assert ("wider", True) == (finding.values["order"], what in finding.detail)


def unnamed_is_last(table: Tensor, call: AttentionCall) -> Tensor:
    """Where a page is -1 the last one stands in, for the whole sequence."""
    return torch.where((table < 0).any(1, keepdim=True), len(call.k) - 1, table)


def longest_for_all(call: AttentionCall) -> AttentionCall:
    """The longest length that was planned for is that of every sequence."""
    return replace(call, seqused_k=call.seqused_k.clamp(max=0) + call.max_seqlen_k)


def test_unused_entries_of_a_table_have_no_meaning() -> None:
    """They may be -1, at full."""
    assert "pass" == permuted(with_table(unnamed_is_last)).verdict
    finding = permuted(with_table(unnamed_is_last), level="full")
    assert ("fail", "unnamed") == (finding.verdict, finding.values["order"])
    assert "unused entries of -1" in permuted(level="full").detail


def zero_is_absent(table: Tensor, call: AttentionCall) -> Tensor:
    """Page 0 is taken for none, and the last page stands in."""
    return torch.where(table == 0, len(call.k) - 1, table)


def shared_from_the_first(table: Tensor, call: AttentionCall) -> Tensor:
    """Who has the first page of an earlier sequence is taken to have all its pages."""
    rows: list[Tensor] = []
    for row in table:
        rows.append(next((earlier for earlier in rows if earlier[0] == row[0]), row))
    return torch.stack(rows)


def ascending_is_consecutive(table: Tensor, call: AttentionCall) -> Tensor:
    """The pages of a table that ascends from entry to entry are taken to have no gaps."""
    used = (-(-call.seqused_k // call.k.shape[1])).tolist()
    pages = torch.cat([row[:count] for row, count in zip(table, used, strict=True)])
    return consecutive(table, call) if (pages.diff() > 0).all() else table


@pytest.mark.parametrize(
    ("edit", "order"),
    [
        (zero_is_absent, "ascending"),
        (ascending_is_consecutive, "interleaved"),
        (shared_from_the_first, "shared"),
    ],
    ids=["page 0", "gaps", "first page"],
)
def test_numbers_and_owners_of_pages_have_no_meaning(edit: Any, order: str) -> None:
    """Page 0 is one, pages in order may have gaps, and a shared page says nothing about the next."""
    lengths = {"seqlens_q": (1,) * 4, "seqlens_k": (90, 70, 60, 50)}
    finding = permuted(with_table(edit), level="full", **lengths)
    assert ("fail", order) == (finding.verdict, finding.values["order"])


def test_a_larger_maximum_is_no_length() -> None:
    """An engine plans for its longest request."""
    finding = permuted(Edited(call=longest_for_all), seqlens_q=(1,), seqlens_k=(41,))
    assert ("fail", "wider") == (finding.verdict, finding.values["order"])


def of_one_owner(table: Tensor, call: AttentionCall) -> Tensor:
    """A page that two sequences hold is taken from the earlier one."""
    taken: set[int] = set()
    rows = []
    for row, length in zip(table.tolist(), call.seqused_k.tolist(), strict=True):
        used = row[: -(-length // call.k.shape[1])]
        rows.append([0 if page in taken else page for page in row])
        taken.update(used)
    return torch.tensor(rows)


def test_shared_pages_that_are_mixed_up_are_caught() -> None:
    """Only at full, and nothing else shows it."""
    finding = permuted(with_table(of_one_owner), level="full")
    assert ("fail", "shared") == (finding.verdict, finding.values["order"])
    assert "pass" == permuted(with_table(of_one_owner)).verdict


def test_no_whole_page_cannot_be_shared() -> None:
    """A single sequence, or pages that nobody fills."""
    assert "share" not in permuted(level="full", seqlens_q=(1,), seqlens_k=(70,)).detail
    assert "share" not in permuted(level="full", page_size=256).detail
    assert "share" in permuted(level="full").detail


@pytest.mark.parametrize("name", ["k", "v"])
def test_a_written_cache_is_caught(name: str) -> None:
    """A stranger's slot, too."""
    finding = permuted(marks(name))
    assert ("fail", f"{name} cache") == (finding.verdict, finding.values["tensor"])


def test_a_written_block_table_is_caught() -> None:
    """Also in entries past the pages that a sequence uses."""

    def marks_the_table(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        assert call.block_table is not None
        used = -(-call.max_seqlen_k // call.k.shape[1])
        call.block_table[:, used:] = 0
        return out, lse

    finding = permuted(Edited(result=marks_the_table))
    assert ("fail", "block table") == (finding.verdict, finding.values["tensor"])


@pytest.mark.parametrize("level", ["smoke", "full"])
@pytest.mark.parametrize("page_size", [1, 16, 256])
def test_a_correct_kernel_passes(level: str, page_size: int) -> None:
    """Whatever the size of its pages."""
    assert "pass" == permuted(level=level, page_size=page_size).verdict


@pytest.mark.parametrize("phase", range(4))
def test_rounding_is_allowed_without_determinism(phase: int) -> None:
    """The last bit may differ from call to call, whichever question it meets."""
    calls: list[int] = []

    def nudge(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(0)
        out.view(torch.int16)[0, 1, 5] ^= len(calls) % 4 == phase
        return out, lse

    for level in ("smoke", "full"):
        calls.clear()
        assert "pass" == permuted(Edited(result=nudge), level=level, deterministic=False).verdict
    calls.clear()
    assert "fail" == permuted(Edited(result=nudge), level="full").verdict


def test_a_page_before_the_pool_is_not_read() -> None:
    """NaN stands where an entry of -1 leads: a weight of 0 does not hide that it was read."""

    def reads_before(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        assert call.block_table is not None
        if bool((call.block_table < 0).any()):
            before = call.v.as_strided((1,), (1,), call.v.storage_offset() - call.v[0].numel())
            return out + 0 * before, lse
        return out, lse

    finding = permuted(Edited(result=reads_before), level="full")
    assert ("fail", "unnamed") == (finding.verdict, finding.values["order"])


def test_strangers_in_the_pool_are_not_read() -> None:
    """Other numbers stand in pages that the call does not own, and large ones: they must not matter."""

    def sums(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        assert call.block_table is not None
        owned = torch.isin(torch.arange(len(call.v)), call.block_table[:, : -(-70 // 16)])
        return out + (call.v[~owned].float().abs().mean() > 1.5).to(out.dtype), lse

    finding = permuted(Edited(result=sums))
    assert ("fail", "reversed") == (finding.verdict, finding.values["order"])


def test_packed_calls_are_not_asked() -> None:
    """They have no pages."""
    assert "the cache has no pages" == PagePermutation().skips(make_subject())
