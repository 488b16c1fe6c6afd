"""What --select means: words, globs, several of them, and what is left out."""

from __future__ import annotations

import pytest

from qualify.plan.selection import matched_words, selected_by

IDS = (
    "gemma-2-9b.tp4/prefill/b2.q277.k277/bf16/window4096/tiled-torch",
    "llama-3.1-8b.tp4/prefill/b2.q277.k277/fp16/causal/torch-sdpa-flash",
    "llama-3.1-8b.tp4/varlen/l1-17-256-3-0-129/bf16/causal/tiled-torch",
    "llama-3.1-8b.tp4/decode/b3.q1.k257.p16/bf16/causal/tiled-torch",
    "llama-3.1-8b.tp4/decode/b3.q1.k257/fp16/causal/tiled-torch",
)


@pytest.mark.parametrize(
    ("select", "places"),
    [
        ("", [0, 1, 2, 3, 4]),
        ("decode", [3, 4]),
        ("8b", [1, 2, 3, 4]),
        ("ragged", [2]),
        ("paged", [3]),
        ("decode !paged", [4]),
        ("decode prefill", [0, 1, 3, 4]),
        ("decode,prefill", [0, 1, 3, 4]),
        ("!fp16", [0, 2, 3]),
        ("decode !fp16", [3]),
        ("gemma-2*", [0]),
        ("window*", [0]),
        ("decode/*", [3, 4]),
        ("decode/*.p16", [3]),
        ("*/decode/*", [3, 4]),
        ("llama*", [1, 2, 3, 4]),
        ("tiled*", [0, 2, 3, 4]),
        ("nothing", []),
    ],
)
def test_it_finds_what_people_mean(select: str, places: list[int]) -> None:
    """A word anywhere, a glob over the whole id or whole parts, any of several, nothing behind an exclamation mark."""
    selected = selected_by(select) or (lambda _: True)
    assert [IDS[place] for place in places] == [case_id for case_id in IDS if selected(case_id)]


def test_it_says_what_matched() -> None:
    """How many of how many, and the values of each part where they are few."""
    assert (
        "--select 'decode' matches 2 of 5 cases: model llama-3.1-8b.tp4; phase decode; "
        "shape b3.q1.k257.p16, b3.q1.k257; dtype bf16, fp16; mask causal; kernel tiled-torch"
    ) == matched_words("decode", IDS[3:], IDS)


def test_it_names_words_that_match_nothing() -> None:
    """Mistyped ones, behind an exclamation mark too; not where a program selects many ids."""
    assert "--select 'decod !fp61, smoke' matches 0 of 5 cases (nothing has 'fp61' or 'smoke')" == matched_words(
        "decod !fp61, smoke", (), IDS
    )
    assert "nothing has" not in matched_words(" ".join(f"word{number}" for number in range(21)), (), IDS)
