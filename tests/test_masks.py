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


def counted(seqlen_q: int, seqlen_k: int, causal: bool, window: tuple[int, int], chunk: int) -> list[list[int]]:
    """The keys that each query sees, one comparison at a time."""
    return [
        [j for j in range(seqlen_k) if sees(i, j, seqlen_q, seqlen_k, causal, window, chunk)] for i in range(seqlen_q)
    ]


def assert_all_agree(seqlen_q: int, seqlen_k: int, causal: bool, window: tuple[int, int], chunk: int = 0) -> None:
    """The three functions say what counting says."""
    mask = make_mask(causal=causal, window=window, chunk=chunk)
    expected = counted(seqlen_q, seqlen_k, causal, window, chunk)
    for i, keys in enumerate(expected):
        assert keys == [j for j in range(seqlen_k) if mask.visible(i, j, seqlen_q, seqlen_k)]
        assert keys == list(range(*mask.key_range(i, seqlen_q, seqlen_k), mask.step))
    assert sum(map(len, expected)) == mask.pairs(seqlen_q, seqlen_k)


@pytest.mark.parametrize(("causal", "window"), MASKS)
def test_all_small_sequences_agree_with_counting(causal: bool, window: tuple[int, int]) -> None:
    """Every pair of lengths up to 7, with more queries than keys and empty ones among them."""
    for seqlen_q, seqlen_k in product(range(8), repeat=2):
        assert_all_agree(seqlen_q, seqlen_k, causal, window)


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("causal", [True, False])
def test_chunks_agree_with_counting(causal: bool, chunk: int) -> None:
    """Chunks that divide the keys and that do not; queries that begin inside of one, or before all keys."""
    for seqlen_q, seqlen_k in product(range(9), repeat=2):
        assert_all_agree(seqlen_q, seqlen_k, causal, (-1, -1), chunk)


def test_the_first_token_of_a_chunk_sees_itself_alone() -> None:
    """Chunks of 8192: token 8191 sees 8192 keys, token 8192 only itself, token 8193 two."""
    mask = make_mask(chunk=8192)
    assert [(0, 8192), (8192, 8193), (8192, 8194)] == [mask.key_range(i, 9000, 9000) for i in (8191, 8192, 8193)]
    assert (8192, 8194) == mask.key_range(0, 1, 8194)


@settings(deadline=None)
@given(
    seqlen_q=LENGTHS, seqlen_k=LENGTHS, causal=st.booleans(), window=st.tuples(SIDES, SIDES), chunk=st.integers(0, 9)
)
def test_any_mask_agrees_with_counting(
    seqlen_q: int, seqlen_k: int, causal: bool, window: tuple[int, int], chunk: int
) -> None:
    """Windows wider than the sequence, one-sided, together with causal, and in chunks."""
    assert_all_agree(seqlen_q, seqlen_k, causal, window, chunk)


@settings(deadline=None)
@given(
    seqlen_q=LENGTHS, seqlen_k=LENGTHS, causal=st.booleans(), window=st.tuples(SIDES, SIDES), chunk=st.integers(0, 9)
)
def test_tensors_and_ints_give_the_same_mask(
    seqlen_q: int, seqlen_k: int, causal: bool, window: tuple[int, int], chunk: int
) -> None:
    """``visible`` broadcasts over index tensors, as far as the mask depends on them."""
    i, j = torch.arange(seqlen_q).view(-1, 1), torch.arange(seqlen_k).view(1, -1)
    mask = make_mask(causal=causal, window=window, chunk=chunk)
    seen = mask.visible(i, j, seqlen_q, seqlen_k)
    expected = [
        [sees(a, b, seqlen_q, seqlen_k, causal, window, chunk) for b in range(seqlen_k)] for a in range(seqlen_q)
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
    drawn = [[row.split()[5 * block : 5 * block + 5] for row in lines] for block in range(5)]
    shown = ((True, (-1, -1), 0), (False, (1, 0), 0), (False, (1, 1), 0), (False, (-1, -1), 0), (True, (-1, -1), 2))
    for picture, (causal, window, chunk) in zip(drawn, shown, strict=True):
        expected = [["x" if sees(i, j, 3, 5, causal, window, chunk) else "." for j in range(5)] for i in range(3)]
        assert expected == picture


@pytest.mark.parametrize("chunk", [0, 7])
@pytest.mark.parametrize(("causal", "window"), MASKS)
def test_a_label_names_its_mask_and_no_other(causal: bool, window: tuple[int, int], chunk: int) -> None:
    """What is parsed sees the same keys and has the same label and family."""
    mask = make_mask(causal=causal, window=window, chunk=chunk)
    again = parse(mask.label)
    assert (mask.label, mask.kind) == (again.label, again.kind)
    assert_all_agree(6, 9, causal, window, chunk)
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
    ],
)
def test_a_label_and_the_words_for_people(label: str, words: str) -> None:
    """As case ids and pages have them."""
    assert (label, words) == (parse(label).label, parse(label).words)


@pytest.mark.parametrize("text", ["", "causal4", "window", "chunked", "chunked0", "striped4", "full.", ".chunked4"])
def test_what_is_no_label_is_refused(text: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(ValueError, match=r"names no mask|a size of 1 or more"):
        parse(text)


@pytest.mark.parametrize("fields", [{"pattern": "striped", "size": 2}, {"pattern": "chunked"}, {"size": 2}])
def test_a_pattern_that_nobody_knows_is_no_mask(fields: dict[str, Any]) -> None:
    """Nor one without its number, or a number without a pattern: it would see keys that nobody meant."""
    with pytest.raises(ValueError, match="pattern="):
        Mask(**fields)
