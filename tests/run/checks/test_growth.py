"""growth: a kernel that holds the score matrix."""

from __future__ import annotations

import pytest
import torch
from builders import make_card
from faults import Dense
from subjects import make_subject
from torch import Tensor

from qualify.run.adapters.interface import AttentionCall, Prepared
from qualify.run.adapters.tiled_torch import TiledTorch
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


class Sudden:
    """A kernel without temporary memory that holds a score matrix from so many keys on."""

    def __init__(self, least: int) -> None:
        self.least = least

    def prepare(self, call: AttentionCall) -> Prepared:
        out, lse = TiledTorch().prepare(call).launch()

        def launch() -> tuple[Tensor, Tensor]:
            result = out.clone()
            if call.max_seqlen_k >= self.least:
                torch.zeros(call.q.shape[1], call.max_seqlen_q, call.max_seqlen_k)
            return result, lse

        return Prepared(launch=launch, result=lambda native: native)


@pytest.mark.parametrize(("least", "verdict"), [(512, "fail"), (256, "fail"), (1024, "pass")])
def test_memory_that_begins_between_the_two_lengths_is_caught(least: int, verdict: str) -> None:
    """No byte at 256 keys and 2 MB at 512 is more than any exponent."""
    (finding,) = Growth().run(make_subject(Sudden(least), level="full", heads_q=2, heads_kv=1))
    assert verdict == finding.verdict, finding.detail


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
