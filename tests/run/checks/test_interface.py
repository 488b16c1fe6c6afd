"""What all checks stand on: bitwise comparison, places, and lengths that leave room for faults."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from builders import make_card
from faults import Edited
from hypothesis import given
from hypothesis import strategies as st
from subjects import make_subject
from torch import Tensor

from qualify.run.adapters.interface import AttentionCall
from qualify.run.checks.difference import changed, difference, lse_apart, same_bits
from qualify.run.checks.interface import ContractBreach, Result, claimed, paged_or_ragged
from qualify.run.checks.registry import CHECKS


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_bits_are_compared_and_not_values(dtype: torch.dtype) -> None:
    """NaN equals itself, 0 differs from -0, neighbours differ; layout does not matter."""
    a = torch.tensor([[math.nan, 0.0, 1.0], [1.0, -2.0, math.inf]], dtype=dtype)
    b = torch.tensor([[math.nan, -0.0, 1.0], [1.0 + torch.finfo(dtype).eps, -2.0, math.inf]], dtype=dtype)
    assert [[True, False, True], [False, True, True]] == same_bits(a, b).tolist()
    assert bool(same_bits(a.T, a.T.contiguous()).all())


def test_a_packed_row_is_located_in_its_sequence() -> None:
    """Empty sequences own no row."""
    subject = make_subject(seqlens_q=(2, 0, 3))
    assert [(0, 0), (0, 1), (2, 0), (2, 1), (2, 2)] == [subject.locate(row) for row in range(5)]
    with pytest.raises(IndexError):
        subject.locate(5)


def test_a_difference_is_found_and_told() -> None:
    """The first place, how many elements and rows, and only among the rows asked for."""
    subject = make_subject(seqlens_q=(2, 3))
    before = Result(out=torch.zeros(5, 8, 64), lse=torch.zeros(8, 5))
    after = Result(out=before.out.clone(), lse=torch.zeros(8, 5))
    after.out[3, 1, 7], after.out[4, 0, 0] = 2.0, 1.0
    found = difference(subject, before, after)
    assert found is not None
    wanted = {"tensor": "out", "sequence": 1, "query": 1, "head": 1, "element": 7, "before": 0.0, "after": 2.0}
    assert wanted | {"elements": 2, "rows": 2, "share": 2 / (5 * 8 * 64)} == found
    assert "2 elements of out in 2 rows" in changed(found)
    assert "0 became 2" in changed(found)
    assert difference(subject, before, after, torch.tensor([True, True, True, False, False])) is None
    assert difference(subject, before, before) is None


@pytest.mark.parametrize(
    ("dtype", "steps", "far"),
    [(torch.bfloat16, 4, False), (torch.bfloat16, 12, True), (torch.float32, 12, False), (torch.float32, 80, True)],
)
def test_without_determinism_a_few_units_in_the_last_place_are_granted(
    dtype: torch.dtype, steps: int, far: bool
) -> None:
    """Counted at the largest element of the row."""
    subject = make_subject(seqlens_q=(1,))
    before = torch.ones(1, 8, 64, dtype=dtype)
    after = before.clone()
    after[0, 2, 3] += steps * torch.finfo(dtype).eps
    results = [Result(out=out, lse=None) for out in (before, after)]
    assert far == (difference(subject, *results, exact=False) is not None)
    assert difference(subject, *results) is not None


@pytest.mark.parametrize(
    ("was", "now", "far"),
    [
        (3.0, 3.0 + 5e-5, False),
        (3.0, 3.0 + 7e-5, True),
        (0.1, 0.1 + 3e-5, True),
        (-math.inf, -math.inf, False),
        (math.inf, 1e30, True),
        (-math.inf, 0.0, True),
        (1.0, math.nan, True),
    ],
)
def test_without_determinism_an_lse_may_differ_by_twice_its_accuracy(was: float, now: float, far: bool) -> None:
    """Relative, of at least 1; infinities and NaN are no rounding."""
    assert [far] == lse_apart(torch.tensor([was]), torch.tensor([now]), 1e-5).tolist()
    subject = make_subject(card=make_card(lse={"rel": 1e-5}), seqlens_q=(1,), heads_q=1, heads_kv=1)
    out = torch.ones(1, 1, 64)
    results = [Result(out=out, lse=torch.full((1, 1), value)) for value in (was, now)]
    assert far == (difference(subject, *results, exact=False) is not None)


@given(lengths=st.lists(st.integers(0, 200), min_size=1, max_size=7).filter(any), page_size=st.integers(1, 64))
def test_paged_lengths_shrink_a_little_and_never_away(lengths: list[int], page_size: int) -> None:
    """Every cache that had a key keeps one, none grows, and none loses much more than a page."""
    subject = make_subject(seqlens_q=(1,) * len(lengths), seqlens_k=tuple(lengths), page_size=page_size)
    shrunk = paged_or_ragged(subject).seqlens_k
    for before, after in zip(lengths, shrunk, strict=True):
        assert min(before, 1) <= after <= before
        assert before - after <= page_size + 1


def test_full_pages_get_a_tail() -> None:
    """Production shapes often end at a page's edge; a real cache does not."""
    subject = make_subject(seqlens_q=(1,) * 3, seqlens_k=(64,) * 3, page_size=16)
    assert (64, 63, 49) == paged_or_ragged(subject).seqlens_k
    single = make_subject(seqlens_q=(1,), seqlens_k=(64,), page_size=16)
    assert (63,) == paged_or_ragged(single).seqlens_k


@pytest.mark.parametrize(
    ("claims", "expected"),
    [({}, (64, 63, 49)), ({"longer_queries": ["full"]}, (64, 64, 60)), ({"alignment": "top_left"}, (64, 64, 60))],
    ids=str,
)
def test_lengths_stay_within_the_card(claims: dict[str, object], expected: tuple[int, ...]) -> None:
    """What a card does not claim (more queries than keys, another diagonal) is not asked."""
    card = make_card(**claims)
    subject = make_subject(card=card, seqlens_q=(64, 64, 60), seqlens_k=(64,) * 3, page_size=16)
    assert expected == paged_or_ragged(subject).seqlens_k


@pytest.mark.parametrize(("queries", "expected"), [((5, 5), True), ((5, 4), False), ((5, 4, 3), False)])
def test_a_card_of_equal_queries_claims_no_others(queries: tuple[int, ...], expected: bool) -> None:
    """Two different lengths are two too many."""
    subject = make_subject(card=make_card(queries="equal"))
    assert expected == claimed(subject, queries, (9,) * len(queries))


def test_packed_lengths_stay() -> None:
    """Only a paged cache has room for other lengths."""
    subject = make_subject(seqlens_q=(64, 64))
    assert subject.workload == paged_or_ragged(subject)


class Varying:
    """Every so many calls another result."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.calls = 0

    def __call__(self, call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        self.calls += 1
        return (out if self.calls % self.every else out + 1), lse


@pytest.mark.parametrize(
    "check", ["poison", "suffix", "page_permutation", "heads", "powers_of_two", "layout", "history"]
)
@pytest.mark.parametrize("every", [2, 3, 4])
def test_a_race_is_told_as_a_race(check: str, every: int) -> None:
    """Before a change is blamed for other bits, the unchanged call is repeated."""
    batch: dict[str, Any] = {"seqlens_q": (1, 1), "seqlens_k": (40, 33), "page_size": 16}
    shape = batch if check == "page_permutation" else {"seqlens_q": (40, 33)}
    (asked,) = (known for known in CHECKS if known.name == check)
    subject = make_subject(Edited(result=Varying(every)), level="full", **shape)
    failed = [finding for finding in asked.run(subject) if finding.verdict == "fail"]
    # What is compared with a golden result is wrong without any other call.
    assert [] == [each.detail for each in failed if each.check != "repeat" and "changed; first" in each.detail]
    assert failed


def test_an_unclaimed_lse_is_not_judged() -> None:
    """SDPA's flash operator returns one that is good to 6e-5; who claims none is asked about the output alone."""

    def rough(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        return out, lse.double()[:, :3] * 2

    features = ["gqa", "softcap", "sinks", "ragged", "empty", "empty_batch"]
    subject = make_subject(Edited(result=rough), card=make_card(features=features), heads_q=4, head_dim=32)
    assert subject.run(subject.inputs().call).lse is None
    failed = [finding for check in CHECKS if not check.skips(subject) for finding in check.run(subject)]
    assert [] == [f"{each.check}: {each.detail}" for each in failed if each.verdict == "fail"]


def test_what_is_judged_without_its_call_is_of_the_case() -> None:
    """A check of a third party gives only what the kernel returned, as in the first releases."""
    subject = make_subject(seqlens_q=(2, 3))
    returned = torch.zeros(5, 8, 64, dtype=torch.bfloat16), torch.zeros(8, 5)
    assert returned[0] is subject.judged(returned).out
    with pytest.raises(ContractBreach, match="shape"):
        subject.judged((returned[0][:4], returned[1]))
