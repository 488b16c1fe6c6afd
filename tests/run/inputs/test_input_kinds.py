"""Input kinds: each has the property that it is named for, under every mask, layout and dtype."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from builders import make_workload
from subjects import CPU, make_call

from qualify.run.adapters.interface import AttentionCall
from qualify.run.golden.reference import golden
from qualify.run.golden.result import Golden
from qualify.run.inputs.tensors import GUARD_ROWS, INPUT_KINDS, make_inputs

PAGED: dict[str, Any] = {"seqlens_q": (1, 1, 1, 1), "seqlens_k": (300, 0, 64, 130), "page_size": 16}
LAYOUTS: dict[str, dict[str, Any]] = {
    "packed": {"seqlens_q": (200,)},
    "ragged": {"seqlens_q": (3, 0, 200, 65)},
    "paged": PAGED,
    "window": {"seqlens_q": (300,), "window": (31, 0)},
    "softcap": {"seqlens_q": (200,), "softcap": 20.0},
}
every_layout = pytest.mark.parametrize("layout", LAYOUTS)
every_dtype = pytest.mark.parametrize("dtype", ["bf16", "fp8_e4m3"])


def exact(kind: str, layout: str, dtype: str, **changes: Any) -> tuple[AttentionCall, Golden]:
    """A call of that kind and its golden result."""
    call = make_call(kind=kind, dtype=dtype, **{**LAYOUTS[layout], **changes})
    return call, golden(call)


@every_layout
@every_dtype
@pytest.mark.parametrize("kind", INPUT_KINDS)
def test_every_kind_is_finite(kind: str, layout: str, dtype: str) -> None:
    """No overflow in any dtype, and a golden result of finite numbers in every row that sees a key."""
    call, found = exact(kind, layout, dtype, sinks=True)
    for tensor in (call.q, call.k, call.v):
        assert bool(tensor.float().isfinite().all())
    assert bool(found.out.isfinite().all())
    assert bool(found.lse[found.keys > 0].isfinite().all())
    assert float(found.out.abs().max()) > 1e-3


@every_layout
@every_dtype
@pytest.mark.parametrize(("kind", "level"), [("negative", -120.0), ("positive", 400.0)])
def test_every_logit_stands_near_its_level(kind: str, level: float, layout: str, dtype: str) -> None:
    """The largest score of every row is the level and some noise; under a softcap it is where the softcap bends it."""
    call, found = exact(kind, layout, dtype)
    if call.softcap:
        level = call.softcap * torch.tensor(level).sign().item() * 0.76
    seen = found.keys > 0
    largest = found.row_max[seen]
    if kind == "positive":  # it stands at the level where row and head have evenly many binary digits of 1, else at 0
        ones = torch.tensor([number.bit_count() for number in range(int(found.rows.max()) + GUARD_ROWS + 1)])
        high = (ones[found.rows[seen] + GUARD_ROWS][:, None] + ones[: largest.shape[1]] + 1) % 2 == 1
        assert bool((largest[high] > 2 * largest[~high].max()).all()) or call.softcap
        largest = largest[high]
    off = (largest - level).abs()
    # An element of e4m3 has four significant bits, so the known part of q·k is off by up to an eighth.
    assert float(off.max()) <= 8 + (abs(level) / 8 if dtype == "fp8_e4m3" else 0)


@every_layout
def test_the_sink_takes_most_of_the_weight(layout: str) -> None:
    """The largest score stands alone: the other keys share less than the sink has."""
    _, found = exact("sink", layout, "bf16")
    seen = found.keys > 0
    weight = torch.exp(found.row_max - found.lse)[seen]
    assert float(weight.median()) > 0.75
    assert float(found.out[seen].square().mean().sqrt()) < 0.2


def test_logits_rise_or_fall_by_head() -> None:
    """KV head 0 finds a new maximum in every tile, KV head 1 has its maximum in the first one."""
    call = make_call(kind="rising", seqlens_q=(1,), seqlens_k=(640,), heads_q=2)
    scores = torch.einsum("qhd,khd->hk", call.q.double(), call.k.double()) * call.scale
    tiles = scores.view(2, 10, 64).mean(-1)
    assert tiles[0].tolist() == sorted(tiles[0].tolist())
    assert tiles[1].tolist() == sorted(tiles[1].tolist(), reverse=True)
    assert 30 < float(tiles[0, -1] - tiles[0, 0]) < 40


@pytest.mark.parametrize("page_size", [0, 16])
def test_rising_logits_follow_positions_and_not_storage(page_size: int) -> None:
    """In a ragged batch every sequence ends at 0 by itself, whether its keys are packed or in shuffled pages."""
    workload: dict[str, Any] = {"seqlens_q": (1, 1), "seqlens_k": (640, 130), "heads_q": 1, "heads_kv": 1}
    call = make_call(kind="rising", page_size=page_size, **workload)
    found = golden(call)
    assert float(found.row_max.abs().max()) < 5
    expected = golden(make_call(kind="rising", **workload))
    assert torch.allclose(expected.row_max, found.row_max, atol=5)


def test_peaked_kinds_multiply_the_queries() -> None:
    """By 4 and by 8, exactly, and nothing else."""
    normal = make_call(dtype="fp32")
    for kind, factor in (("peaked", 4), ("peaked8", 8)):
        call = make_call(dtype="fp32", kind=kind)
        assert torch.equal(normal.q * factor, call.q)
        assert torch.equal(normal.k, call.k)


def test_values_of_one_sign_stay_of_one_sign() -> None:
    """Offset is positive, same_sign negative."""
    assert float(make_call(kind="offset").v.min()) >= 0.49
    assert float(make_call(kind="same_sign").v.max()) <= 0


def test_learned_sinks_follow_the_level_of_the_logits() -> None:
    """Otherwise a sink near 0 would take all the weight from logits near -120, and nothing would be left to compare."""
    workload = make_workload(sinks=True)
    sinks = make_inputs(workload, kind="negative", seed=1, device=CPU).call.sinks
    assert sinks is not None
    assert float((sinks + 120).abs().max()) < 5


def known_logits(call: AttentionCall) -> torch.Tensor:
    """What the last elements of q and k contribute to the scores, (heads_q, rows, keys); head 0 and head 1."""
    assert (call.q.shape[1], call.k.shape[1]) == (2, 2)
    return torch.einsum("qh,kh->hqk", call.q[..., -1], call.k[..., -1]) * call.scale


TWO_HEADS: dict[str, Any] = {"dtype": "fp32", "heads_q": 2, "heads_kv": 2}


@pytest.mark.parametrize("length", [1, 63, 64, 65, 128, 640, 2000])
@pytest.mark.parametrize("softcap", [0.0, 20.0])
def test_each_tile_is_four_above_the_one_before(length: int, softcap: float) -> None:
    """Up to 0 at the last key, or down from 0 at the first one; no deeper than 100, or than the softcap."""
    call = make_call(kind="rising", seqlens_q=(1,), seqlens_k=(length,), softcap=softcap, **TWO_HEADS)
    deepest = -(softcap or 100.0)
    up = [max(deepest, 4.0 * (key // 64 - (length - 1) // 64)) for key in range(length)]
    down = [max(deepest, -4.0 * (key // 64)) for key in range(length)]
    torch.testing.assert_close(torch.tensor([up, down]), known_logits(call)[:, 0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("mask", "period", "softcap"),
    [({}, 300, 0.0), ({"window": (31, 0)}, 32, 0.0), ({"window": (0, 0)}, 1, 0.0), ({}, 300, 5.0)],
    ids=str,
)
def test_a_sink_is_eight_above_the_others_and_has_a_small_value(
    mask: dict[str, Any], period: int, softcap: float
) -> None:
    """The first key; under a window one in each of its lengths, so that every query sees one."""
    lengths: dict[str, Any] = {"seqlens_q": (300,), "seqlens_k": (300,)}
    call = make_call(kind="sink", softcap=softcap, **lengths, **mask, **TWO_HEADS)
    sinks = [key % period == 0 for key in range(300)]
    expected = torch.tensor(sinks).float() * (softcap or 8.0)
    for head in known_logits(call)[:, 0]:
        torch.testing.assert_close(expected, head, rtol=1e-4, atol=1e-4)
    normal = make_call(**lengths, softcap=softcap, **mask, **TWO_HEADS)
    factors = torch.where(torch.tensor(sinks), 1 / 16, 1.0)[:, None, None]
    assert torch.equal(normal.v * factors, call.v)
    assert torch.equal(normal.q[..., :-1], call.q[..., :-1])


@pytest.mark.parametrize(("kind", "level"), [("negative", -120.0), ("positive", 400.0)])
@pytest.mark.parametrize("softcap", [0.0, 50.0])
def test_the_level_is_exact_and_shared_between_query_and_key(kind: str, level: float, softcap: float) -> None:
    """Neither of the two elements is larger than it must be: fp16 and fp8 must hold them."""
    call = make_call(kind=kind, seqlens_q=(9,), seqlens_k=(9,), softcap=softcap, **TWO_HEADS)
    level = max(-softcap, min(softcap, level)) if softcap else level
    found = known_logits(call)
    asked = found.new_full((2, 9), level)
    if kind == "positive":  # of rows, guard bands included, and heads those that together have odd many digits of 1
        digits = [[(row + GUARD_ROWS).bit_count() + head.bit_count() + 1 for row in range(9)] for head in range(2)]
        asked *= torch.tensor(digits) % 2
    torch.testing.assert_close(asked[:, :, None].expand(-1, -1, 9), found, rtol=1e-4, atol=1e-4)
    size = (abs(level) / call.scale) ** 0.5
    assert [size, size] == pytest.approx([float(call.q[..., -1].max()), float(call.k[..., -1].abs().max())], rel=1e-4)


def test_outliers_are_added_to_normal_values() -> None:
    """To one in a thousand, with a deviation of ten; the others are as they were."""
    normal, found = (make_call(kind=kind, seqlens_q=(4000,), dtype="fp32") for kind in ("normal", "outliers"))
    moved = normal.q != found.q
    assert 0.0008 < float(moved.float().mean()) < 0.0012
    assert 9 < float((found.q - normal.q)[moved].std()) < 11


def test_same_sign_queries_are_a_quarter() -> None:
    """So many weights are nearly 1; the values are the normal ones without their sign."""
    normal, found = (make_call(kind=kind, dtype="fp32") for kind in ("normal", "same_sign"))
    assert torch.equal(normal.q / 4, found.q)
    assert torch.equal(-normal.v.abs(), found.v)
    assert torch.equal(normal.v.abs() + 0.5, make_call(kind="offset", dtype="fp32").v)
    assert torch.equal(normal.k, found.k)


def test_negative_sinks_stay_within_the_softcap() -> None:
    """They compete with keys that cannot be lower."""
    workload = make_workload(sinks=True, softcap=30.0)
    capped, plain, normal = (
        make_inputs(each, kind=kind, seed=1, device=CPU).call.sinks
        for each, kind in (
            (workload, "negative"),
            (make_workload(sinks=True), "positive"),
            (make_workload(sinks=True), "normal"),
        )
    )
    assert capped is not None
    assert plain is not None
    assert normal is not None
    assert float((capped + 30).abs().max()) < 5
    assert torch.equal(plain, normal)
