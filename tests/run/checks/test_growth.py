"""growth: a kernel that holds the score matrix."""

from __future__ import annotations

import pytest
from builders import make_card
from faults import Dense
from subjects import make_subject

from qualify.run.checks.growth import Growth


def test_a_score_matrix_is_caught() -> None:
    """Its memory grows with exponent two."""
    (finding,) = Growth().run(make_subject(Dense(), level="full", heads_q=2, heads_kv=1))
    assert "fail" == finding.verdict
    assert 1.8 < float(finding.values["exponent"] or 0) < 2.2


def test_a_tiled_kernel_passes() -> None:
    """Tiles do not grow."""
    (finding,) = Growth().run(make_subject(level="full", heads_q=2, heads_kv=1))
    assert "pass" == finding.verdict


@pytest.mark.parametrize(
    ("why", "card", "seqlens_q"),
    [
        ("the card says that its memory grows with the square of the length", {"memory": "quadratic"}, (70,)),
        ("each shape would be compiled", {"jit": "shapes"}, (70,)),
        ("one query has no score matrix", {}, (1, 1)),
    ],
)
def test_where_it_does_not_apply(why: str, card: dict[str, str], seqlens_q: tuple[int, ...]) -> None:
    """The reason is told."""
    assert why == Growth().skips(make_subject(card=make_card(**card), seqlens_q=seqlens_q))


def test_a_mask_that_is_held_whole() -> None:
    """A card says so of windows; under a causal mask its memory must still be linear."""
    card = make_card(memory="mask")
    why = "the card says that a window mask is held whole"
    assert why == Growth().skips(make_subject(card=card, seqlens_q=(70,), window=(31, 0)))
    assert "" == Growth().skips(make_subject(card=card, seqlens_q=(70,)))
