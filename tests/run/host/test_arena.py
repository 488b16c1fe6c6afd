"""The memory that a judge shares with a host: free parts, and what is forgotten once nobody needs it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qualify.run.host.arena import Free


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
