"""Inputs: seeded, guarded, paged as asked, and poisoned only where no kernel may look."""

from __future__ import annotations

import math
from dataclasses import fields
from itertools import accumulate
from typing import Any

import pytest
import torch
from builders import make_workload
from hypothesis import given, settings
from hypothesis import strategies as st
from subjects import CPU
from torch import Tensor

from qualify.facts.case import Workload
from qualify.run.checks.difference import same_bits
from qualify.run.inputs.formats import TORCH_DTYPES
from qualify.run.inputs.tensors import (
    FREE_PAGES,
    GUARD_ROWS,
    INPUT_KINDS,
    Inputs,
    clone,
    kept_inputs,
    make_inputs,
    poison_outside,
    replace_keys,
    with_tensors,
)

RAGGED: dict[str, Any] = {"seqlens_q": (3, 0, 1), "seqlens_k": (5, 7, 33), "causal": False}
LAYOUTS = {
    "packed": make_workload(),
    "ragged": make_workload(**RAGGED),
    "paged": make_workload(**RAGGED, page_size=8),
    "paged, full pages": make_workload(seqlens_q=(1, 1), seqlens_k=(16, 32), page_size=16),
    "paged, an empty cache": make_workload(seqlens_q=(1, 1), seqlens_k=(0, 5), page_size=4),
    "short values": make_workload(head_dim_v=16, sinks=True),
    "latent": make_workload(**RAGGED, heads_kv=1, head_dim_v=48, latent=True),
    "latent, paged": make_workload(**RAGGED, page_size=8, heads_kv=1, head_dim_v=48, latent=True),
}
every_layout = pytest.mark.parametrize("workload", LAYOUTS.values(), ids=LAYOUTS)


def make(workload: Workload, kind: Any = "normal", seed: int = 5) -> Inputs:
    """Inputs on the CPU."""
    return make_inputs(workload, kind=kind, seed=seed, device=CPU)


def tensors(inputs: Inputs) -> dict[str, Tensor]:
    """Every tensor of the inputs by name."""
    named = {field.name: getattr(inputs.call, field.name) for field in fields(inputs.call)}
    named |= {name: getattr(inputs, name) for name in ("q_whole", "k_whole", "v_whole")}
    return {name: value for name, value in named.items() if isinstance(value, Tensor)}


def equal(a: Inputs, b: Inputs) -> bool:
    """Whether all tensors are equal bit for bit."""
    ours, theirs = tensors(a), tensors(b)
    return ours.keys() == theirs.keys() and all(bool(same_bits(ours[name], theirs[name]).all()) for name in ours)


@every_layout
@pytest.mark.parametrize("kind", INPUT_KINDS)
def test_a_seed_gives_the_same_bits(workload: Workload, kind: str) -> None:
    """Equal seeds repeat to the last bit, guard bands included; another seed gives other values."""
    first = make(workload, kind)
    kept_inputs().clear()
    assert equal(first, make(workload, kind))
    assert not equal(make(workload, kind), make(workload, kind, seed=6))


@every_layout
def test_shapes_are_those_of_the_call_contract(workload: Workload) -> None:
    """Shapes, dtypes and lengths as AttentionCall documents them."""
    call = make(workload).call
    total_q, total_k = sum(workload.seqlens_q), sum(workload.seqlens_k)
    assert (total_q, workload.heads_q, workload.head_dim) == call.q.shape
    assert [0, *accumulate(workload.seqlens_q)] == call.cu_seqlens_q.tolist()
    assert (max(workload.seqlens_q), max(workload.seqlens_k)) == (call.max_seqlen_q, call.max_seqlen_k)
    assert {call.q.dtype, call.k.dtype, call.v.dtype, call.out_dtype} == {TORCH_DTYPES[workload.dtype]}
    if not workload.page_size:
        assert (total_k, workload.heads_kv, workload.head_dim) == call.k.shape
        assert (total_k, workload.heads_kv, workload.head_dim_v) == call.v.shape
        assert call.cu_seqlens_k is not None
        assert [0, *accumulate(workload.seqlens_k)] == call.cu_seqlens_k.tolist()
        assert (None, None) == (call.seqused_k, call.block_table)
        return
    assert call.seqused_k is not None
    assert call.cu_seqlens_k is None
    assert list(workload.seqlens_k) == call.seqused_k.tolist()
    assert (workload.page_size, workload.heads_kv) == call.k.shape[1:3] == call.v.shape[1:3]
    assert call.k.shape[0] == call.v.shape[0]


def test_parameters_of_the_workload_reach_the_call() -> None:
    """Scale, mask, softcap and sinks are passed on; sinks are float32 and exact in bf16."""
    workload = make_workload(window=(7, 3), softcap=30.0, sinks=True, scale=0.2, causal=False)
    call = make(workload).call
    assert (0.2, False, (7, 3), 30.0) == (call.scale, call.causal, call.window, call.softcap)
    assert call.sinks is not None
    assert ((8,), torch.float32) == (call.sinks.shape, call.sinks.dtype)
    assert torch.equal(call.sinks, call.sinks.bfloat16().float())
    assert make(make_workload()).call.sinks is None


@every_layout
def test_guard_bands_lie_around_every_packed_tensor(workload: Workload) -> None:
    """Q always, k and v where they are packed, are views with 64 rows before and after them."""
    inputs = make(workload)
    packed = [(inputs.call.q, inputs.q_whole)]
    if not workload.page_size:
        packed += [(inputs.call.k, inputs.k_whole), (inputs.call.v, inputs.v_whole)]
    for inner, whole in packed:
        assert len(inner) + 2 * GUARD_ROWS == len(whole)
        assert whole[GUARD_ROWS].data_ptr() == inner.data_ptr()


@every_layout
def test_bytes_are_those_that_a_kernel_may_read(workload: Workload) -> None:
    """Guard bands do not count, and what is key and value counts once."""
    inputs = make(workload)
    call = inputs.call
    read = (call.q, call.k) if workload.latent else (call.q, call.k, call.v)
    assert inputs.bytes == sum(tensor.numel() * tensor.element_size() for tensor in read)


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(any),
    page_size=st.sampled_from([1, 4, 16, 64]),
    seed=st.integers(0, 2**31),
)
def test_pages_are_disjoint_and_leave_free_ones(lengths: list[int], page_size: int, seed: int) -> None:
    """Used pages belong to one sequence each; page 0 and three more to nobody; unused entries are the null page."""
    workload = make_workload(
        seqlens_q=(1,) * len(lengths), seqlens_k=tuple(lengths), page_size=page_size, heads_q=1, heads_kv=1, head_dim=8
    )
    call = make(workload, seed=seed).call
    assert call.block_table is not None
    needed = [-(-length // page_size) for length in lengths]
    rows = call.block_table.tolist()
    used = [page for row, pages in zip(rows, needed, strict=True) for page in row[:pages]]
    assert len(used) == len(set(used))
    assert all(1 <= page < call.k.shape[0] for page in used)
    assert {0} >= {page for row, pages in zip(rows, needed, strict=True) for page in row[pages:]}
    assert 1 + FREE_PAGES + len(used) == call.k.shape[0]


def test_pages_are_shuffled() -> None:
    """Consecutive pages of a sequence do not lie one after another in memory."""
    table = make(make_workload(seqlens_q=(1,), seqlens_k=(160,), page_size=8)).call.block_table
    assert table is not None
    assert sorted(table[0].tolist()) != table[0].tolist()


def slots_by_hand(inputs: Inputs, workload: Workload) -> list[int]:
    """Rows of the flattened key allocation, one key at a time."""
    table, size, slots = inputs.call.block_table, workload.page_size, []
    for sequence, length in enumerate(workload.seqlens_k):
        for key in range(length):
            before = sum(workload.seqlens_k[:sequence])
            slots.append(
                GUARD_ROWS + before + key if table is None else int(table[sequence, key // size]) * size + key % size
            )
    return slots


@every_layout
def test_key_slots_find_every_key(workload: Workload) -> None:
    """Packed: behind the guard band. Paged: through the block table."""
    inputs = make(workload)
    assert slots_by_hand(inputs, workload) == inputs.slots.tolist()


@every_layout
@pytest.mark.parametrize("value", [0.0, 1e4, math.nan])
def test_poison_changes_every_byte_outside_and_none_inside(workload: Workload, value: float) -> None:
    """Row by row: valid rows keep their bits, every other row of every allocation holds the poison."""
    inputs = make(workload)
    poisoned = poison_outside(inputs, workload, value)
    poison = torch.tensor(value, dtype=inputs.q_whole.dtype)
    valid_q = set(range(GUARD_ROWS, GUARD_ROWS + sum(workload.seqlens_q)))
    valid_k = set(slots_by_hand(inputs, workload))
    for name, valid in (("q_whole", valid_q), ("k_whole", valid_k), ("v_whole", valid_k)):
        before = getattr(inputs, name).view(-1, *getattr(inputs, name).shape[-2:])
        after = getattr(poisoned, name).view_as(before)
        for row in range(len(before)):
            expected = before[row] if row in valid else poison.expand_as(after[row])
            assert bool(same_bits(expected, after[row]).all()), (name, row)
    assert bool(same_bits(inputs.call.q, poisoned.call.q).all())
    assert bool((poisoned.q_whole[0] == poison).all()) or math.isnan(value)


@every_layout
def test_poison_and_replacement_leave_the_original_alone(workload: Workload) -> None:
    """Both return copies."""
    inputs, before = make(workload), make(workload)
    which = torch.ones(sum(workload.seqlens_k), dtype=torch.bool)
    poison_outside(inputs, workload, math.nan)
    replace_keys(inputs, which, torch.zeros(1), torch.zeros(1))
    assert equal(before, inputs)


@every_layout
def test_replace_keys_changes_exactly_the_marked_keys(workload: Workload) -> None:
    """Every second key gets its own new vector, all other rows of the allocation keep their bits."""
    inputs = make(workload)
    which = torch.arange(sum(workload.seqlens_k)) % 2 == 1
    count = int(which.sum())
    k = torch.arange(count, dtype=torch.float32).view(-1, 1, 1).expand(-1, workload.heads_kv, workload.head_dim)
    moved = replace_keys(inputs, which, k, torch.full((1,), 3.0))
    slots = [slot for slot, marked in zip(slots_by_hand(inputs, workload), which.tolist(), strict=True) if marked]
    before, after = (each.k_whole.view(-1, workload.heads_kv, workload.head_dim) for each in (inputs, moved))
    assert slots == sorted(set(range(len(before))) & set(slots), key=slots.index)
    for index, slot in enumerate(slots):
        assert bool((after[slot][:, workload.rope] == index).all())
        assert bool((moved.v_whole.view(-1, workload.heads_kv, workload.head_dim_v)[slot] == 3).all())
    others = torch.ones(len(before), dtype=torch.bool)
    others[slots] = False
    assert bool(same_bits(before[others], after[others]).all())


@every_layout
def test_a_clone_shares_no_memory(workload: Workload) -> None:
    """Equal bytes in new allocations, the small tensors too."""
    inputs = make(workload)
    copy = clone(inputs)
    assert equal(inputs, copy)
    ours, theirs = tensors(inputs), tensors(copy)
    shared = [name for name in ours if ours[name].numel() and ours[name].data_ptr() == theirs[name].data_ptr()]
    assert [] == shared


@every_layout
def test_what_is_written_to_inputs_stays_there(workload: Workload) -> None:
    """The next one who asks for the same inputs gets them as they were drawn."""
    kept_inputs().clear()
    drawn = make(workload)
    for tensor in tensors(make(workload)).values():
        tensor.fill_(0)
    assert equal(drawn, make(workload))


def test_what_takes_much_room_is_not_kept() -> None:
    """Few keys in large pages are large too."""
    kept_inputs().clear()
    make(make_workload(seqlens_q=(1,) * 9, seqlens_k=(2,) * 9, page_size=16))
    assert 1 == len(kept_inputs())
    make(make_workload(seqlens_q=(1,) * 9, seqlens_k=(2,) * 9, page_size=1 << 13))
    assert 1 == len(kept_inputs())


def test_with_tensors_replaces_one_and_shares_the_rest() -> None:
    """The new allocation is seen through the call, its guard band cut off."""
    inputs = make(make_workload())
    other = with_tensors(inputs, q=torch.zeros_like(inputs.q_whole))
    assert bool((other.call.q == 0).all())
    assert inputs.call.q.shape == other.call.q.shape
    assert inputs.call.k.data_ptr() == other.call.k.data_ptr()


LARGE = make_workload(seqlens_q=(1000,), heads_q=8, heads_kv=8, head_dim=128, dtype="fp32")


def test_normal_inputs_are_normal() -> None:
    """Half a million values: mean 0, deviation 1, five percent beyond 1.96."""
    values = make(LARGE).q_whole
    assert abs(float(values.mean())) < 0.01
    assert abs(float(values.std()) - 1) < 0.01
    assert abs(float((values.abs() > 1.96).float().mean()) - 0.05) < 0.003


def test_outliers_have_the_stated_distribution() -> None:
    """N(0, 1) + N(0, 100) · Bernoulli(0.001): a thousandth of all values has a deviation of about ten."""
    inputs = make(LARGE, "outliers")
    for values in (inputs.q_whole, inputs.k_whole, inputs.v_whole):
        # P(|N(0, 101)| > 6) = 0.5505, and six standard deviations never happen otherwise.
        share = float((values.abs() > 6).double().mean())
        assert abs(share / (0.001 * 0.5505) - 1) < 0.2
        assert abs(float(values.double().var()) - 1.1) < 0.05


def test_peaked_inputs_have_large_queries_only() -> None:
    """Q times 4; k and v stay normal."""
    inputs = make(LARGE, "peaked")
    deviations = [float(values.std()) for values in (inputs.q_whole, inputs.k_whole, inputs.v_whole)]
    assert [4, 1, 1] == [round(deviation) for deviation in deviations]


def test_offset_inputs_have_values_of_one_sign() -> None:
    """V is at least 0.5, so nothing cancels; q and k stay normal."""
    inputs = make(LARGE, "offset")
    assert float(inputs.v_whole.min()) >= 0.5
    assert abs(float(inputs.q_whole.mean())) < 0.01
    assert abs(float(inputs.k_whole.mean())) < 0.01
