"""The memory that a judge shares with a host: free parts, and what is forgotten once nobody needs it."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from operators import counted
from subjects import make_call

from qualify.masks import Mask
from qualify.run.adapters.interface import AttentionCall
from qualify.run.host.arena import LEFT_BYTES, SLACK_BYTES, SPARSE_BYTES, Arena, Free
from qualify.run.host.launch import new_file
from qualify.run.host.mirror import LEAST_NEW, SWEPT_BYTES, Mirror


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


def filled(descriptor: int, first: int, count: int) -> None:
    """Let a part of a file take memory, as a host that maps it can."""
    os.posix_fallocate(descriptor, first, count)


def test_what_a_host_fills_beyond_its_slots_is_seen(mirror: Mirror) -> None:
    """A slot may be filled whole, and so may what small slots have left; nothing else."""
    arena = mirror.arena
    slots = [arena.take(SPARSE_BYTES) for _ in range(4)]
    filled(arena.shared, 0, 4 * SPARSE_BYTES)
    arena.handed_bytes -= SLACK_BYTES  # as if the slack were used up
    assert 0 == arena.beyond_bytes()
    filled(arena.shared, 0, 4 * SPARSE_BYTES + (1 << 20))
    assert 1 << 20 == arena.beyond_bytes()
    del slots[0]
    assert 1 << 20 == arena.beyond_bytes()


def test_small_slots_that_are_gone_leave_no_more_than_the_slack(mirror: Mirror) -> None:
    """However many there were: now and then all free parts give their pages back; a slot that is held keeps its own."""
    arena = mirror.arena
    kept = arena.take(1 << 20)
    kept.view.fill_(7)
    for _ in range(LEFT_BYTES // (16 << 20) + 1):
        slots = [arena.take(16 << 20) for _ in range(2)]
        for slot in slots:
            slot.view[::4096].fill_(1)
        del slots, slot
    assert arena.left_bytes < LEFT_BYTES
    assert os.fstat(arena.shared).st_blocks * 512 < 64 << 20
    assert bool((kept.view == 7).all())


def test_a_slot_that_outlives_its_host_changes_no_other_file() -> None:
    """The number of the closed descriptor is given to the next host's file, whose inputs must stay."""
    size = 2 * SPARSE_BYTES
    arena = Arena(new_file(size), size, lambda _: None, lambda _: True)
    number, slot = arena.shared, arena.take(SPARSE_BYTES)
    arena.close()
    os.pwrite(number, b"kept", 0)
    del slot
    assert b"kept" == os.pread(number, 4, 0)
    os.close(number)


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
