"""Input kinds: each has the property that it is named for, under every mask, layout and dtype."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from builders import make_workload
from subjects import CPU, make_call

from qualify.run.adapters.interface import AttentionCall
from qualify.run.golden.reference import Golden, golden
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
