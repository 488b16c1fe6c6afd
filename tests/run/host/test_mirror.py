"""Copies of calls' tensors in the memory that a host maps: made once, forgotten with the call, read back whole."""

from __future__ import annotations

import pytest
import torch
from operators import counted
from subjects import make_call

from qualify.masks import Mask
from qualify.run.adapters.interface import AttentionCall
from qualify.run.host.arena import Arena
from qualify.run.host.launch import new_file
from qualify.run.host.mirror import LEAST_NEW, SWEPT_BYTES, Mirror


@pytest.fixture
def mirror() -> Mirror:
    """Copies in a file of 256 MiB that no host maps."""
    size = 256 << 20
    return Mirror(Arena(new_file(size), size, lambda _: None, lambda _: True), lambda: None)


def call(heads: int = 2, value: float = 0.0) -> AttentionCall:
    """A call with tensors of its own."""
    q = torch.full((3, heads, 8), value)
    starts = torch.tensor([0, 3], dtype=torch.int32)
    return AttentionCall(
        q=q, k=q.clone(), v=q.clone(), cu_seqlens_q=starts, cu_seqlens_k=starts, seqused_k=None, block_table=None,
        max_seqlen_q=3, max_seqlen_k=3, scale=0.5, mask=Mask(causal=True), out_dtype=torch.float32,
    )  # fmt: skip


def test_copies_of_calls_that_are_gone_are_found_now_and_then(mirror: Mirror) -> None:
    """A thousand calls leave a bounded number of copies, and those of a call that is held stay as they were."""
    kept = call(value=7.0)
    placed = mirror.place(kept)
    for number in range(1000):
        mirror.place(call(value=float(number)))
        assert len(mirror.copies) <= 2 * LEAST_NEW
    (_, copied) = placed.copies["q"]
    assert copied is mirror.place(kept).copies["q"][1]
    assert bool((copied.slot.view.view(torch.float32) == 7.0).all())
    mirror.sweep()
    assert 4 == len(mirror.copies)


def test_memory_that_is_used_again_is_copied_again(mirror: Mirror) -> None:
    """A new tensor at the address of one that is gone has a copy of its own values."""
    for number in range(50):
        placed = mirror.place(call(value=float(number)))
        values = placed.copies["k"][1].slot.view.view(torch.float32)
        assert bool((values == number).all())


def test_large_copies_are_looked_for_at_once(mirror: Mirror) -> None:
    """Many large calls one after another need no more of the arena than a few of them."""
    heads = SWEPT_BYTES // (3 * 8 * 4) // 2
    for _ in range(8):
        mirror.place(call(heads))
    assert len(mirror.copies) <= 12


def test_what_a_kernel_wrote_is_found_with_one_wait(mirror: Mirror) -> None:
    """However many tensors a call has; those that it left as they are stay what they are."""
    call = make_call(page_size=16, sinks=True)
    placed = mirror.place(call)
    assert call.sinks is not None
    before = call.q.clone()
    placed.copies["sinks"][1].slot.view.fill_(0)
    with counted() as seen:
        mirror.read_back(call)
    assert ["tolist"] == seen.waits
    assert not call.sinks.any()
    assert torch.equal(before, call.q)
