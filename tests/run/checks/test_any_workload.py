"""Every check on any small workload: silent on a correct kernel, whatever the geometry, layout, mask or dtype."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from builders import make_workload, sees
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from subjects import CPU, make_subject

from qualify.run.adapters.tiled_torch import TiledTorch
from qualify.run.checks.census import Labelling
from qualify.run.checks.registry import CHECKS
from qualify.run.checks.rows import Visible, rows_of

SIDES = st.integers(-1, 40)
LENGTHS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 140)), min_size=1, max_size=4).filter(
    lambda pairs: any(q for q, _ in pairs) and any(k for _, k in pairs)
)
WORKLOADS = st.fixed_dictionaries(
    {
        "lengths": LENGTHS,
        "heads_kv": st.integers(1, 3),
        "group": st.sampled_from([1, 2, 3, 8]),
        "head_dim": st.sampled_from([8, 32, 48, 64]),
        "head_dim_v": st.sampled_from([16, 40]),
        "causal": st.booleans(),
        "window": st.tuples(SIDES, SIDES),
        "softcap": st.sampled_from([0.0, 20.0, 50.0]),
        "sinks": st.booleans(),
        "page_size": st.sampled_from([0, 0, 1, 16, 64]),
        "dtype": st.sampled_from(["bf16", "fp16", "fp32", "fp8_e4m3", "bf16_kv_fp8_e4m3", "fp16_kv_fp8_e4m3"]),
        "descale": st.sampled_from(["sequence", "head", "tensor"]),
        "latent": st.booleans(),
    }
)


def workload_of(drawn: dict[str, Any]) -> dict[str, Any]:
    """Arguments of make_workload; latent where the values are shorter than the keys."""
    drawn["latent"] &= drawn["head_dim_v"] < drawn["head_dim"]
    lengths, heads_kv, group = drawn.pop("lengths"), drawn["heads_kv"], drawn.pop("group")
    seqlens = {"seqlens_q": tuple(q for q, _ in lengths), "seqlens_k": tuple(k for _, k in lengths)}
    return {**drawn, **seqlens, "heads_q": heads_kv * group}


DRAWN = {"drawn": WORKLOADS, "seed": st.integers(0, 2**20), "tiles": st.sampled_from([(16, 32), (48, 17), (256, 512)])}
OWN_SHAPES = {"size_limits", "long_context"}
"""checks whose calls have thousands of keys whatever is drawn: a third of a second each"""
MANY_CALLS = {"degenerate", "history", "surroundings", "growth"}
"""checks that make dozens of calls, or large ones, of one drawn workload, most with lengths of their own"""


FEW_CALLS = [check for check in CHECKS if check.name not in OWN_SHAPES | MANY_CALLS]


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(**DRAWN)
@pytest.mark.parametrize("check", FEW_CALLS, ids=lambda check: check.name)
def test_no_check_alarms_on_a_correct_kernel(check: Any, drawn: dict[str, Any], seed: int, tiles: Any) -> None:
    """Batches with empty sequences, more queries than keys, any heads, dimensions, mask, pages and dtype."""
    alarms_on_nothing(check, drawn, seed, tiles)


@settings(deadline=None, max_examples=8, suppress_health_check=[HealthCheck.too_slow])
@given(**DRAWN)
@pytest.mark.parametrize("check", [check for check in CHECKS if check.name in MANY_CALLS], ids=lambda check: check.name)
def test_no_check_of_many_calls_alarms_either(check: Any, drawn: dict[str, Any], seed: int, tiles: Any) -> None:
    """Each draw is tried at many lengths, or in many places."""
    alarms_on_nothing(check, drawn, seed, tiles)


@settings(deadline=None, max_examples=5, suppress_health_check=[HealthCheck.too_slow])
@given(**DRAWN)
@pytest.mark.parametrize("check", [check for check in CHECKS if check.name in OWN_SHAPES], ids=lambda check: check.name)
def test_no_check_of_long_calls_alarms_either(check: Any, drawn: dict[str, Any], seed: int, tiles: Any) -> None:
    """Of the drawn workload they only take heads, dimensions, mask, pages and dtype, so few draws tell."""
    alarms_on_nothing(check, drawn, seed, tiles)


def alarms_on_nothing(check: Any, drawn: dict[str, Any], seed: int, tiles: tuple[int, int]) -> None:
    """The check does not apply, or passes."""
    adapter = TiledTorch(tile_q=tiles[0], tile_k=tiles[1])
    subject = make_subject(adapter, seed=seed, shared=False, **workload_of(dict(drawn)))
    if check.skips(subject):
        return
    for finding in check.run(subject):
        assert finding.verdict in {"pass", "note"}, finding.detail


@settings(deadline=None, max_examples=10, suppress_health_check=[HealthCheck.too_slow])
@given(drawn=WORKLOADS, seed=st.integers(0, 2**20))
def test_every_input_kind_is_within_the_budget_of_a_correct_kernel(drawn: dict[str, Any], seed: int) -> None:
    """The same at full level for the budget: all input kinds."""
    subject = make_subject(TiledTorch(tile_q=32, tile_k=48), seed=seed, level="full", **workload_of(dict(drawn)))
    (check,) = (check for check in CHECKS if check.name == "budget")
    for finding in check.run(subject):
        assert "pass" == finding.verdict, finding.detail


@settings(deadline=None, max_examples=100)
@given(
    pairs=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 14)), min_size=1, max_size=3),
    causal=st.booleans(),
    window=st.tuples(st.integers(-1, 9), st.integers(-1, 9)),
)
def test_visible_ranges_of_rows_agree_with_counting(
    pairs: list[tuple[int, int]], causal: bool, window: tuple[int, int]
) -> None:
    """What census, needle, poison and suffix take for granted: the first and last key of each row of each sequence."""
    lengths = {"seqlens_q": tuple(q for q, _ in pairs), "seqlens_k": tuple(k for _, k in pairs)}
    visible = rows_of(make_workload(**lengths, causal=causal, window=window), CPU).visible()
    expected = [
        [j for j in range(seqlen_k) if sees(i, j, seqlen_q, seqlen_k, causal, window)]
        for seqlen_q, seqlen_k in pairs
        for i in range(seqlen_q)
    ]
    ends = zip(visible.low.tolist(), visible.high.tolist(), strict=True)
    assert expected == [list(range(first, last, visible.step)) for first, last in ends]


@settings(deadline=None, max_examples=100)
@given(
    start=st.integers(0, 20),
    size=st.integers(1, 60),
    block=st.integers(0, 6),
    dim=st.integers(10, 16),
    edges=st.tuples(st.integers(0, 90), st.integers(0, 90)),
    step=st.integers(1, 7),
)
def test_label_counts_agree_with_counting(
    start: int, size: int, block: int, dim: int, edges: tuple[int, int], step: int
) -> None:
    """The closed form of how many visible keys carry a label."""
    labelling = Labelling(start=start, size=min(size, block * dim) if block else size, block=block, dim=dim)
    low, high = sorted(edges)
    counted = [0] * dim
    for key in range(low, high, step):
        if labelling.start <= key < labelling.start + labelling.size:
            counted[int(labelling.label(torch.tensor(key - labelling.start)))] += 1
    seen = Visible(low=torch.tensor([low]), high=torch.tensor([high]), step=step)
    assert [counted] == labelling.counts(seen).tolist()
