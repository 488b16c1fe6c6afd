"""The search for a smaller failing workload: what it reaches, what it never makes, and where it stops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from builders import make_card, make_workload
from hypothesis import given, settings
from hypothesis import strategies as st

from qualify.facts.case import Workload
from qualify.fleet.minimise import TRIALS, Smaller, candidates, minimise
from qualify.plan.workloads import workload_refusals

BIG: dict[str, Any] = {
    "seqlens_q": (64, 512, 7, 100),
    "seqlens_k": (64, 512, 9, 300),
    "heads_q": 24,
    "heads_kv": 8,
    "page_size": 64,
    "window": (31, 0),
    "softcap": 5.0,
    "sinks": True,
}


def shrunk(fails: Callable[[Workload], bool], **changes: Any) -> Workload:
    """The end of a search from a big workload."""
    return minimise(make_workload(**BIG | changes), lambda candidate: fails(candidate.workload), limit=500).workload


def test_a_failure_that_needs_nothing_shrinks_to_one_of_each() -> None:
    """One sequence of one query and one key, one head, no pages, no feature."""
    least = make_workload(
        seqlens_q=(1,), heads_q=1, heads_kv=1, causal=False, page_size=0, scale=make_workload(**BIG).scale
    )
    assert least == shrunk(lambda workload: True)


@pytest.mark.parametrize(
    ("fails", "left"),
    [
        (lambda workload: max(workload.seqlens_k) > 256, lambda workload: max(workload.seqlens_k) == 257),
        (lambda workload: workload.batch >= 3, lambda workload: workload.batch == 3),
        (lambda workload: workload.heads_kv >= 3, lambda workload: (workload.heads_q, workload.heads_kv) == (3, 3)),
        (lambda workload: workload.heads_q // workload.heads_kv == 3, lambda workload: workload.heads_q == 3),
        (lambda workload: workload.page_size > 0, lambda workload: 0 < workload.page_size <= 16),
        (lambda workload: workload.sinks and workload.mask.causal, lambda workload: not workload.softcap),
    ],
    ids=["long", "batched", "KV heads", "group of three", "paged", "sinks under a mask"],
)
def test_what_the_failure_needs_stays(fails, left) -> None:
    """Down to its threshold, and nothing of the rest."""
    found = shrunk(fails)
    assert fails(found)
    assert left(found), found


@pytest.mark.parametrize("needed", [False, True])
def test_a_latent_cache_stays_where_the_failure_needs_it(needed: bool) -> None:
    """Else values get a tensor of their own: the failure has nothing to do with latent attention."""
    found = shrunk(lambda workload: workload.latent or not needed, heads_kv=1, head_dim_v=32, latent=True)
    assert needed == found.latent


def test_the_search_is_bounded_and_repeats() -> None:
    """At most the asked number of trials, the same every time."""
    asked: list[Workload] = []

    def fails(candidate: Smaller) -> bool:
        asked.append(candidate.workload)
        return sum(candidate.workload.seqlens_k) % 3 != 0

    first = minimise(make_workload(**BIG), fails)
    assert first.tried == len(asked) <= TRIALS
    assert len(set(asked)) == len(asked)
    assert first == minimise(make_workload(**BIG), fails)


def test_only_claimed_candidates_are_tried() -> None:
    """A candidate that the card refuses costs no trial."""
    card = make_card(page_size={"multiple_of": 32}, layouts=["paged"])
    tried: list[Workload] = []

    def fails(candidate: Smaller) -> bool:
        tried.append(candidate.workload)
        return True

    found = minimise(make_workload(**BIG), fails, lambda item: not workload_refusals(card, item.workload))
    assert {64, 32} == {workload.page_size for workload in tried}
    assert 32 == found.workload.page_size


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 60)), min_size=1, max_size=20),
    kv=st.integers(1, 9),
    group=st.integers(1, 9),
    page=st.sampled_from([0, 1, 16, 48]),
)
def test_every_candidate_is_a_workload(lengths, kv, group, page) -> None:
    """Heads divide, no sequence becomes empty, none grows, and what saw all its keys does not turn into Sq > Sk."""
    seqlens_q, seqlens_k = (tuple(column) for column in zip(*lengths, strict=True))
    whole = make_workload(seqlens_q=seqlens_q, seqlens_k=seqlens_k, heads_q=kv * group, heads_kv=kv, page_size=page)
    for candidate in candidates(whole):
        small = candidate.workload
        assert small.heads_kv >= 1
        assert small.heads_q % small.heads_kv == 0
        assert small.batch >= 1
        assert max(small.seqlens_k) <= max(seqlens_k)
        if small.batch == whole.batch:
            for old_q, old_k, new_q, new_k in zip(seqlens_q, seqlens_k, small.seqlens_q, small.seqlens_k, strict=True):
                assert bool(old_k) == bool(new_k)
                assert new_q <= new_k or old_q > old_k
