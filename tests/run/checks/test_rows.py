"""Which keys each packed query row sees, as checks count them: against one query and one key at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from builders import make_workload
from hypothesis import given, settings
from hypothesis import strategies as st
from subjects import CPU

from qualify.facts.case import Workload
from qualify.run.checks.rows import rows_of

SIDE = st.integers(-1, 6)
MASKS: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries({"causal": st.booleans(), "window": st.tuples(SIDE, SIDE)}),
    st.fixed_dictionaries({"chunk": st.integers(1, 5)}),
    st.fixed_dictionaries({"dilation": st.integers(2, 4), "window": st.tuples(st.integers(0, 9), st.just(0))}),
    st.fixed_dictionaries({"window": st.tuples(SIDE, st.just(0)), "spans": st.just(((1, 4, 7),))}),
)
LENGTHS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9)), min_size=1, max_size=3).filter(
    lambda pairs: any(query for query, _ in pairs) and any(key for _, key in pairs)
)


def brute(workload: Workload) -> list[tuple[int, int, set[int]]]:
    """(sequence, query, visible keys) of every row; what an image holds sees all of it."""
    found = []
    for at, (queries, keys) in enumerate(zip(workload.seqlens_q, workload.seqlens_k, strict=True)):
        for query in range(queries):
            position = query + keys - queries
            seen = {key for key in range(keys) if workload.mask.visible(query, key, queries, keys)}
            for owner, start, end in workload.spans:
                if owner == at and start <= position < end:
                    seen |= set(range(start, end))
            found.append((at, query, seen))
    return found


@given(lengths=LENGTHS, mask=MASKS)
@settings(max_examples=80)
def test_rows_see_what_one_query_and_one_key_say(lengths: list[tuple[int, int]], mask: dict[str, Any]) -> None:
    """Ranges, counts, keys before a place and the nearest one, of every mask."""
    lengths = lengths if "spans" not in mask else [*lengths[:1], (6, 9), *lengths[2:]]
    mask = mask if len(lengths) > 1 else {name: each for name, each in mask.items() if name != "spans"}
    queries, keys = zip(*lengths, strict=True)
    workload = make_workload(seqlens_q=queries, seqlens_k=keys, **mask)
    rows, expected = rows_of(workload, CPU), brute(workload)
    visible = rows.visible()
    assert [(at, query) for at, query, _ in expected] == list(
        zip(rows.sequence.tolist(), rows.query.tolist(), strict=True)
    )
    assert [sum(keys[:at]) for at, _, _ in expected] == rows.first_key.tolist()
    assert [(queries[at], keys[at]) for at, _, _ in expected] == list(
        zip(rows.seqlen_q.tolist(), rows.seqlen_k.tolist(), strict=True)
    )
    ranges = zip(visible.low.tolist(), visible.high.tolist(), strict=True)
    sets = [set(range(low, high, visible.step)) for low, high in ranges]
    assert [seen for _, _, seen in expected] == sets
    assert [len(seen) for seen in sets] == visible.count.tolist()
    assert [bool(seen) for seen in sets] == visible.some.tolist()
    places = torch.arange(-2, 12)
    assert [[sum(key < place for key in seen) for place in range(-2, 12)] for seen in sets] == (
        visible.before(places).tolist()
    )
    assert [[key in seen for seen in sets] for key in range(9)] == [visible.has(key).tolist() for key in range(9)]
    nearest = visible.nearest(places.expand(len(sets), -1))
    for seen, found in zip(sets, nearest.tolist(), strict=True):
        if seen:
            assert [max((key for key in seen if key <= place), default=min(seen)) for place in range(-2, 12)] == found


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ({}, [[0, 1, 2, 3], [0, 1, 2, 3], [3, 4]]),
        ({"spans": False}, [[1, 2], [2, 3], [3, 4]]),
        ({"shift": 1}, [[0, 1, 2, 3], [0, 1, 2, 3, 4], [4]]),
        ({"shift": -1, "spans": False}, [[0, 1], [1, 2], [2, 3]]),
        ({"top_left": True, "spans": False}, [[0], [0, 1], [1, 2]]),
    ],
    ids=str,
)
def test_suspected_faults_are_other_masks(fault: dict[str, Any], expected: list[list[int]]) -> None:
    """A mask one key off, aligned to the top left, or without its image."""
    workload = make_workload(seqlens_q=(3,), seqlens_k=(5,), window=(1, 0), spans=((0, 0, 4),))
    visible = rows_of(workload, CPU).visible(**fault)
    assert expected == [
        list(range(low, high)) for low, high in zip(visible.low.tolist(), visible.high.tolist(), strict=True)
    ]


def test_the_keys_of_a_row_in_words_and_of_some_rows() -> None:
    """As findings say them."""
    visible = rows_of(make_workload(seqlens_q=(4,), dilation=2, window=(3, 0)), CPU).visible()
    assert ["keys 0 to 0, every 2 keys", "keys 1 to 3, every 2 keys"] == [visible.words(row) for row in (0, 3)]
    assert [[1], [3]] == [each.tolist() for each in (visible.at([3]).low, visible.at(slice(3, 4)).high - 1)]
    assert "keys 0 to 2" == rows_of(make_workload(seqlens_q=(3,)), CPU).visible().words(2)
