"""The memory that a judge shares with a host: free parts, and what is forgotten once nobody needs it."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qualify.masks import Mask
from qualify.run.adapters.interface import AttentionCall
from qualify.run.host.arena import LEAST_NEW, SWEPT_BYTES, Arena, Free, Mirror
from qualify.run.host.launch import new_file


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=60))
def test_parts_are_never_given_twice(steps: list[tuple[bool, int]]) -> None:
    """What is taken overlaps nothing that is taken, and all of it comes back as one part."""
    free, taken = Free(200), []
    for take, count in steps:
        if take and free.smallest(count):
            first = free.take(count)
            assert 0 <= first <= 200 - count
            assert all(first + count <= start or start + size <= first for start, size in taken)
            taken.append((first, count))
        elif taken:
            free.give(*taken.pop(count % len(taken)))
        assert max((size for _, size in free.parts), default=0) == free.most
    for part in taken:
        free.give(*part)
    assert [(0, 200)] == free.parts


def test_the_smallest_part_that_fits_is_taken() -> None:
    """A large part stays whole for a large tensor."""
    free = Free(100)
    parts = [free.take(20) for _ in range(5)]
    free.give(parts[1], 20)
    free.give(parts[3], 20)
    free.give(parts[4], 20)
    assert parts[1] == free.take(20)
    assert 40 == free.smallest(40)
    assert 0 == free.smallest(41)


def test_nobody_cuts_what_is_shared() -> None:
    """A judge that reads beyond the end of its file would be killed, and all of its hosts with it."""
    descriptor = new_file(1 << 20)
    try:
        for size in (0, 2 << 20):
            with pytest.raises(PermissionError):
                os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)


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
