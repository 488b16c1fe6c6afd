"""Shapes and their labels."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qualify.cards.phases import Phases
from qualify.plan.shapes import (
    LONGEST_LABEL,
    Shape,
    against,
    count_sequences,
    count_shapes,
    expand_shapes,
    varlen_label,
    with_images,
)

AXIS = st.lists(st.integers(1, 5000), min_size=1, max_size=3, unique=True)
LENGTHS = st.lists(st.integers(0, 9000), min_size=1, max_size=12).filter(any)
PAGES = st.sampled_from([["contiguous"], [16, "contiguous", 256]])
SEQUENCES = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 9000)), min_size=2, max_size=5)


def ragged(new: str) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Batches of different sequences, no two batches alike."""
    batches = SEQUENCES.filter(lambda pairs: len(set(pairs)) > 1 and any(pair[0] for pair in pairs))
    lists = st.lists(st.tuples(batches, PAGES), max_size=2, unique_by=lambda entry: tuple(entry[0]))
    return lists.map(
        lambda entries: [
            {new: [pair[0] for pair in pairs], "context": [pair[1] for pair in pairs], "page_size": pages}
            for pairs, pages in entries
        ]
    )


PHASES = st.fixed_dictionaries(
    {},
    optional={
        "prefill": st.fixed_dictionaries({"batch": AXIS, "seqlen": AXIS}),
        "chunked": st.fixed_dictionaries(
            {"batch": AXIS, "chunk": AXIS, "context": AXIS, "page_size": PAGES}, optional={"ragged": ragged("chunk")}
        ),
        "varlen": st.fixed_dictionaries({"lengths": st.lists(LENGTHS, min_size=1, max_size=3, unique_by=tuple)}),
        "verify": st.fixed_dictionaries(
            {"batch": AXIS, "draft": AXIS, "context": AXIS, "page_size": PAGES}, optional={"ragged": ragged("draft")}
        ),
        "decode": st.fixed_dictionaries({"batch": AXIS, "context": AXIS, "page_size": PAGES}),
    },
).filter(bool)


def labels(**phases: Any) -> list[str]:
    """``phase/label`` of every shape."""
    return [f"{shape.phase}/{shape.label}" for shape in expand_shapes(Phases.model_validate(phases))]


def test_labels_as_documented() -> None:
    """Batch, queries, keys and page size, in the order of the file's axes."""
    assert ["prefill/b1.q8192.k8192", "prefill/b4.q8192.k8192"] == labels(prefill={"batch": [1, 4], "seqlen": 8192})
    assert ["chunked/b1.q65.k257"] == labels(chunked={"chunk": 65, "context": 192})
    assert ["varlen/l1-17-256-3-0-129"] == labels(varlen={"lengths": [[1, 17, 256, 3, 0, 129]]})
    assert ["decode/b32.q1.k8192", "decode/b32.q1.k8192.p16"] == labels(
        decode={"batch": 32, "context": 8192, "page_size": ["contiguous", 16]}
    )
    assert ["verify/b8.q5.k8196.p16"] == labels(verify={"batch": 8, "draft": 4, "context": 8192, "page_size": 16})
    chunks = {"chunk": [130, 1], "context": [70, 129], "page_size": ["contiguous", 16]}
    assert [
        "chunked/b1.q65.k257",
        "chunked/b1.q65.k257.p64",
        "chunked/l130-1.on.l200-130",
        "chunked/l130-1.on.l200-130.p16",
    ] == labels(chunked={"chunk": 65, "context": 192, "page_size": ["contiguous", 64], "ragged": [chunks]})
    drafts = {"draft": [3, 0], "context": [400, 77], "page_size": 16}
    assert ["verify/b1.q2.k10", "verify/l4-1.on.l403-77.p16"] == labels(
        verify={"draft": 1, "context": 9, "ragged": [drafts]}
    )


def test_a_shape_knows_its_lengths_and_its_place_in_the_file() -> None:
    """Lengths of every sequence; the path of the axis."""
    (shape,) = expand_shapes(Phases.model_validate({"chunked": {"chunk": 3, "context": 4, "batch": 2}}))
    assert ((3, 3), (7, 7), 0) == (shape.seqlens_q, shape.seqlens_k, shape.page_size)
    assert ("phases", "chunked", "context", 0) == shape.where
    ragged_chunks = {"chunk": [1, 2], "context": [3, 0], "page_size": 16}
    _, uneven = expand_shapes(Phases.model_validate({"chunked": {"chunk": 3, "context": 4, "ragged": [ragged_chunks]}}))
    assert ((1, 2), (4, 2), 16) == (uneven.seqlens_q, uneven.seqlens_k, uneven.page_size)
    assert ("phases", "chunked", "ragged", 0) == uneven.where
    first, second = expand_shapes(Phases.model_validate({"varlen": {"lengths": [[1, 2], [3]]}}))
    assert ("phases", "varlen", "lengths", 1) == second.where
    assert (first.seqlens_q, first.seqlens_q) == ((1, 2), first.seqlens_k)


def one_shape(**phases: Any) -> Shape:
    """The only shape."""
    (shape,) = expand_shapes(Phases.model_validate(phases))
    return shape


@pytest.mark.parametrize(
    ("phases", "spans"),
    [
        ({"prefill": {"seqlen": 100}}, ((0, 42, 58),)),
        ({"chunked": {"batch": 2, "chunk": 65, "context": 192}}, ((0, 216, 232), (1, 216, 232))),
        ({"varlen": {"lengths": [[3, 16, 15, 40]]}}, ((1, 0, 16), (3, 12, 28))),
    ],
)
def test_an_image_lies_in_the_middle_of_the_new_tokens(
    phases: dict[str, Any], spans: tuple[tuple[int, int, int], ...]
) -> None:
    """It lies behind the history, and a sequence with fewer new tokens than the image has none."""
    shape = with_images(one_shape(**phases), 16)
    assert shape is not None
    assert spans == shape.spans


def test_a_shape_without_room_has_no_image() -> None:
    """A decode step is too short for one."""
    assert with_images(one_shape(decode={"context": 4096}), 2) is None


def test_long_batches_are_labelled_by_a_digest() -> None:
    """Batch, tokens and eight hexadecimal digits; another order is another label."""
    lengths = tuple(range(100, 130))
    label = varlen_label(lengths)
    assert label.startswith(f"b30.t{sum(lengths)}.x")
    assert 8 == len(label.rpartition("x")[2])
    assert label == varlen_label(lengths)
    assert label != varlen_label(lengths[::-1])


def test_a_label_may_be_as_long_as_the_limit() -> None:
    """One letter more, and a digest stands for it."""
    longest = (1000,) * 8 + (1000000,)
    assert LONGEST_LABEL == len(varlen_label(longest))
    assert varlen_label((*longest[:8], 10000000)).startswith("b9.")


@given(lengths=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=40))
def test_labels_stay_short_and_can_be_typed(lengths: list[int]) -> None:
    """No slash, no space, no glob character, never longer than the limit."""
    label = varlen_label(tuple(lengths))
    assert len(label) <= LONGEST_LABEL
    assert set(label) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-")


@settings(deadline=None)
@given(phases=PHASES)
def test_counting_equals_expanding(phases: dict[str, Any]) -> None:
    """The count is exact, labels are distinct, and lengths come in pairs."""
    made = Phases.model_validate(phases)
    shapes = list(expand_shapes(made))
    assert Counter(shape.phase for shape in shapes) == count_shapes(made)
    assert sum(len(shape.seqlens_q) for shape in shapes) == count_sequences(made)
    assert len(shapes) == len({(shape.phase, shape.label) for shape in shapes})
    assert all(len(shape.seqlens_q) == len(shape.seqlens_k) for shape in shapes)


def test_cross_attention_has_one_label_whatever_the_contexts() -> None:
    """The keys are those of another sequence: the contexts of the requests are not in the label, the pages are."""
    chunks = [{"chunk": [130, 1], "context": context, "page_size": 16} for context in ([70, 129], [5, 6])]
    phases = Phases.model_validate({"chunked": {"chunk": 3, "context": 4, "ragged": chunks}})
    crossing = [against(shape, 1500) for shape in expand_shapes(phases)]
    assert ["b1.q3.k1500", "l130-1.k1500.p16", "l130-1.k1500.p16"] == [shape.label for shape in crossing]
