"""Mask predicates against counting every pair."""

from __future__ import annotations

import inspect
from itertools import product
from typing import Any

import pytest
import torch
from builders import CAUSAL, make_mask, sees
from hypothesis import given, settings
from hypothesis import strategies as st

from qualify import masks
from qualify.masks import UNBOUNDED, Mask, parse

SIDES = st.integers(UNBOUNDED, 12)
LENGTHS = st.integers(0, 14)
MASKS = [
    (causal, (left, right))
    for causal in (False, True)
    for left, right in product((UNBOUNDED, 0, 1, 3), (UNBOUNDED, 0, 2))
]


SIZED = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"chunk": st.integers(1, 9)}),
    st.fixed_dictionaries({"dilation": st.integers(1, 9)}),
)
"""no pattern, or one with its size"""


def counted(seqlen_q: int, seqlen_k: int, causal: bool, window: tuple[int, int], **size: int) -> list[list[int]]:
    """The keys that each query sees, one comparison at a time."""
    return [
        [j for j in range(seqlen_k) if sees(i, j, seqlen_q, seqlen_k, causal, window, **size)] for i in range(seqlen_q)
    ]


def assert_all_agree(seqlen_q: int, seqlen_k: int, causal: bool, window: tuple[int, int], **size: int) -> None:
    """All functions say what counting says."""
    mask = make_mask(causal=causal, window=window, **size)
    expected = counted(seqlen_q, seqlen_k, causal, window, **size)
    for i, keys in enumerate(expected):
        assert keys == [j for j in range(seqlen_k) if mask.visible(i, j, seqlen_q, seqlen_k)]
        assert keys == list(range(*mask.key_range(i, seqlen_q, seqlen_k), mask.step))
    assert sum(map(len, expected)) == mask.pairs(seqlen_q, seqlen_k)
    assert len(set().union(*expected)) == mask.seen_keys(seqlen_q, seqlen_k)


@settings(deadline=None)
@given(
    lengths=st.tuples(st.integers(1, 14), LENGTHS),
    tile=st.tuples(st.integers(0, 13), st.integers(1, 14)),
    causal=st.booleans(),
    window=st.tuples(SIDES, SIDES),
    size=SIZED,
)
def test_the_range_of_a_tile_holds_what_its_queries_see(
    lengths: tuple[int, int], tile: tuple[int, int], causal: bool, window: tuple[int, int], size: dict[str, int]
) -> None:
    """Nothing is left out, and where no row is empty nothing is read in vain but keys between those of two rows."""
    seqlen_q, seqlen_k = lengths
    start = min(tile[0], seqlen_q - 1)
    stop = min(start + tile[1], seqlen_q)
    mask = make_mask(causal=causal, window=window, **size)
    rows = counted(seqlen_q, seqlen_k, causal, window, **size)[start:stop]
    low, high = mask.tile_range(start, stop, seqlen_q, seqlen_k)
    seen = set().union(*rows)
    assert seen <= set(range(low, high))
    if all(rows):
        assert (min(seen), max(seen) + 1) == (low, high)


@pytest.mark.parametrize(("causal", "window"), MASKS)
def test_all_small_sequences_agree_with_counting(causal: bool, window: tuple[int, int]) -> None:
    """Every pair of lengths up to 7, with more queries than keys and empty ones among them."""
    for seqlen_q, seqlen_k in product(range(8), repeat=2):
        assert_all_agree(seqlen_q, seqlen_k, causal, window)


@pytest.mark.parametrize("dilation", [1, 2, 3, 7, 8, 20])
@pytest.mark.parametrize(("causal", "window"), MASKS)
def test_dilated_masks_agree_with_counting(causal: bool, window: tuple[int, int], dilation: int) -> None:
    """Windows that the dilation divides and that it does not; more queries than keys, and more phases than either."""
    for seqlen_q, seqlen_k in product(range(9), repeat=2):
        assert_all_agree(seqlen_q, seqlen_k, causal, window, dilation=dilation)


def test_a_dilated_window_shows_every_second_key_from_the_query_on() -> None:
    """The last query of 10,000, under a window of 4096 keys, sees 2048 of them, and itself."""
    mask = parse("dilated4096x2")
    seen = [key for key in range(10_000) if mask.visible(0, key, 1, 10_000)]
    assert (2048, 9999, 9997, 9999 - 4094) == (len(seen), seen[-1], seen[-2], seen[0])
    assert (2048, 2048) == (mask.pairs(1, 10_000), mask.seen_keys(1, 10_000))
    assert 4096 == mask.seen_keys(2, 10_000)


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("causal", [True, False])
def test_chunks_agree_with_counting(causal: bool, chunk: int) -> None:
    """Chunks that divide the keys and that do not; queries that begin inside of one, or before all keys."""
    for seqlen_q, seqlen_k in product(range(9), repeat=2):
        assert_all_agree(seqlen_q, seqlen_k, causal, (-1, -1), chunk=chunk)


def test_the_first_token_of_a_chunk_sees_itself_alone() -> None:
    """Chunks of 8192: token 8191 sees 8192 keys, token 8192 only itself, token 8193 two."""
    mask = make_mask(chunk=8192)
    assert [(0, 8192), (8192, 8193), (8192, 8194)] == [mask.key_range(i, 9000, 9000) for i in (8191, 8192, 8193)]
    assert (8192, 8194) == mask.key_range(0, 1, 8194)


@settings(deadline=None, max_examples=400)
@given(seqlen_q=LENGTHS, seqlen_k=LENGTHS, causal=st.booleans(), window=st.tuples(SIDES, SIDES), size=SIZED)
def test_any_mask_agrees_with_counting(
    seqlen_q: int, seqlen_k: int, causal: bool, window: tuple[int, int], size: dict[str, int]
) -> None:
    """Windows wider than the sequence, one-sided, together with causal, in chunks, and dilated."""
    assert_all_agree(seqlen_q, seqlen_k, causal, window, **size)


@settings(deadline=None)
@given(seqlen_q=LENGTHS, seqlen_k=LENGTHS, causal=st.booleans(), window=st.tuples(SIDES, SIDES), size=SIZED)
def test_tensors_and_ints_give_the_same_mask(
    seqlen_q: int, seqlen_k: int, causal: bool, window: tuple[int, int], size: dict[str, int]
) -> None:
    """``visible`` broadcasts over index tensors, as far as the mask depends on them."""
    i, j = torch.arange(seqlen_q).view(-1, 1), torch.arange(seqlen_k).view(1, -1)
    mask = make_mask(causal=causal, window=window, **size)
    seen = mask.visible(i, j, seqlen_q, seqlen_k)
    expected = [
        [sees(a, b, seqlen_q, seqlen_k, causal, window, **size) for b in range(seqlen_k)] for a in range(seqlen_q)
    ]
    assert expected == seen.expand(seqlen_q, seqlen_k).tolist()
    rows = torch.arange(seqlen_q)
    low, high = mask.key_range(rows, torch.full_like(rows, seqlen_q), torch.full_like(rows, seqlen_k))
    assert [mask.key_range(a, seqlen_q, seqlen_k) for a in range(seqlen_q)] == list(
        zip(low.tolist(), high.tolist(), strict=True)
    )


def test_keys_outside_the_sequence_are_never_visible() -> None:
    """Key -1 and key seqlen_k are hidden even under a full mask."""
    shown = [Mask().visible(0, j, 1, 3) for j in range(-1, 4)]
    assert [False, True, True, True, False] == shown


def test_pairs_of_a_long_sequence_need_no_loop() -> None:
    """A million tokens: n(n + 1)/2 under a causal mask."""
    n = 1_000_000
    assert n * (n + 1) // 2 == CAUSAL.pairs(n, n)


def test_docstring_shows_the_masks_as_they_are() -> None:
    """The picture of 3 queries and 5 keys is what the function computes."""
    text = inspect.getdoc(masks) or ""
    lines = [line.replace("q", " ") for line in text.splitlines()]
    lines = [line for line in lines if line.strip() and set(line) <= set("x. ")]
    shown = (
        (True, (-1, -1), {}),
        (False, (1, 0), {}),
        (False, (1, 1), {}),
        (False, (-1, -1), {}),
        (True, (-1, -1), {"chunk": 2}),
        (True, (2, 0), {"dilation": 2}),
    )
    drawn = [[row.split()[5 * block : 5 * block + 5] for row in lines] for block in range(len(shown))]
    for picture, (causal, window, size) in zip(drawn, shown, strict=True):
        expected = [["x" if sees(i, j, 3, 5, causal, window, **size) else "." for j in range(5)] for i in range(3)]
        assert expected == picture


@pytest.mark.parametrize("size", [{}, {"chunk": 7}, {"dilation": 2}], ids=str)
@pytest.mark.parametrize(("causal", "window"), MASKS)
def test_a_label_names_its_mask_and_no_other(causal: bool, window: tuple[int, int], size: dict[str, int]) -> None:
    """What is parsed sees the same keys and has the same label and family."""
    mask = make_mask(causal=causal, window=window, **size)
    again = parse(mask.label)
    assert (mask.label, mask.kind) == (again.label, again.kind)
    assert_all_agree(6, 9, causal, window, **size)
    shown = [[one.visible(i, j, 6, 9) for i in range(6) for j in range(9)] for one in (mask, again)]
    assert shown[0] == shown[1]


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ("full", ""),
        ("causal", "causal"),
        ("window4096", "causal, window (4095, 0)"),
        ("full.window16.all", "window (16, ∞)"),
        ("chunked8192", "causal, chunks of 8192"),
        ("window9.chunked16", "causal, window (8, 0), chunks of 16"),
        ("dilated4096x2", "causal, window (4095, 0), dilation of 2"),
        ("causal.dilated3", "causal, dilation of 3"),
        ("full.window4.4.dilated2", "window (4, 4), dilation of 2"),
    ],
)
def test_a_label_and_the_words_for_people(label: str, words: str) -> None:
    """As case ids and pages have them."""
    assert (label, words) == (parse(label).label, parse(label).words)


@pytest.mark.parametrize(
    "text",
    ["", "causal4", "window", "chunked", "chunked0", "striped4", "full.", ".chunked4", "dilated4", "dilated4x0", "4x2"],
)
def test_what_is_no_label_is_refused(text: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(ValueError, match=r"names no mask|a size of 1 or more"):
        parse(text)


@pytest.mark.parametrize("fields", [{"pattern": "striped", "size": 2}, {"pattern": "chunked"}, {"size": 2}])
def test_a_pattern_that_nobody_knows_is_no_mask(fields: dict[str, Any]) -> None:
    """Nor one without its number, or a number without a pattern: it would see keys that nobody meant."""
    with pytest.raises(ValueError, match="pattern="):
        Mask(**fields)
