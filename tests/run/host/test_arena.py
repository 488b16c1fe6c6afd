"""The memory that a judge shares with a host: free parts, and what fills it."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qualify.run.host.arena import LEFT_BYTES, SLACK_BYTES, SPARSE_BYTES, Arena, Free
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
def arena() -> Arena:
    """A file of 256 MiB that no host maps."""
    size = 256 << 20
    return Arena(new_file(size), size, lambda _: None, lambda _: True)


def filled(descriptor: int, first: int, count: int) -> None:
    """Let a part of a file take memory, as a host that maps it can."""
    os.posix_fallocate(descriptor, first, count)


def test_what_a_host_fills_beyond_its_slots_is_seen(arena: Arena) -> None:
    """A slot may be filled whole, and so may what small slots have left; nothing else."""
    slots = [arena.take(SPARSE_BYTES) for _ in range(4)]
    filled(arena.shared, 0, 4 * SPARSE_BYTES)
    arena.handed_bytes -= SLACK_BYTES  # as if the slack were used up
    assert 0 == arena.beyond_bytes()
    filled(arena.shared, 0, 4 * SPARSE_BYTES + (1 << 20))
    assert 1 << 20 == arena.beyond_bytes()
    del slots[0]
    assert 1 << 20 == arena.beyond_bytes()


def test_small_slots_that_are_gone_leave_no_more_than_the_slack(arena: Arena) -> None:
    """However many there were: now and then all free parts give their pages back; a slot that is held keeps its own."""
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
