"""long context: kernels that lose late keys, bits or their determinism where keys are many."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from builders import make_card
from faults import Edited, EightBit
from subjects import make_subject
from torch import Tensor

from qualify.facts.outcome import Finding
from qualify.run.adapters.interface import AttentionCall
from qualify.run.adapters.tiled_torch import Sequence
from qualify.run.checks import long_context
from qualify.run.checks.long_context import LongContext, Role, cancelling, roles_of, rounds, steered

PAGED: dict[str, Any] = {"seqlens_q": (1, 1), "seqlens_k": (40, 33), "page_size": 16}
ALL: list[Role] = ["late", "early", "even"]
SHAPES = pytest.mark.parametrize("shape", [{}, {"seqlens_q": (1,)}, PAGED], ids=["prefill", "decode", "paged"])


def asked(adapter: Any = None, **subject: Any) -> Finding:
    """The one finding of the check."""
    (finding,) = LongContext().run(make_subject(adapter, level="full", **{"head_dim": 16} | subject))
    return finding


def cut(keys: int) -> Edited:
    """A kernel that does not see keys from a number on."""

    def without(call: AttentionCall) -> AttentionCall:
        if call.seqused_k is not None:
            return replace(call, seqused_k=call.seqused_k.clamp(max=keys))
        assert call.cu_seqlens_k is not None
        return replace(call, cu_seqlens_k=call.cu_seqlens_k.clamp(max=keys)) if call.max_seqlen_k > keys else call

    return Edited(call=without)


def result(edit: Callable[[Tensor, Tensor], None], least: int = 1 << 14) -> Edited:
    """A kernel whose result is edited in place where keys are many."""

    def edited(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        if call.max_seqlen_k >= least:
            edit(out, lse)
        return out, lse

    return Edited(result=edited)


@SHAPES
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "fp8_e4m3", "bf16_kv_fp8_e4m3"])
def test_a_correct_kernel_passes(shape: dict[str, Any], dtype: str) -> None:
    """In every dtype, for one query and for several."""
    finding = asked(**shape, dtype=dtype)
    assert ("pass", True) == (finding.verdict, finding.detail.startswith("right with 65600 keys")), finding.detail


@pytest.mark.parametrize(
    "workload",
    [
        {"heads_q": 2},
        {"heads_q": 2, "seqlens_q": (1,)},
        {"softcap": 20.0},
        {"softcap": 28.0, "dtype": "fp16_kv_fp8_e4m3"},
        {"sinks": True},
        {"window": (20, 0)},
        {"chunk": 64},
        {"causal": False},
        {"head_dim": 576, "head_dim_v": 512, "heads_kv": 1, "latent": True, "scale": 192**-0.5, "seqlens_q": (1,)},
    ],
    ids=str,
)
def test_a_correct_kernel_passes_under_every_mask(workload: dict[str, Any]) -> None:
    """Also where a group has one head, and under what hides the early keys."""
    finding = asked(**workload)
    assert "pass" == finding.verdict, finding.detail


@SHAPES
def test_indices_of_16_bits_are_caught(shape: dict[str, Any]) -> None:
    """The last key is number 65,599."""
    finding = asked(cut(1 << 16), **shape)
    assert ("fail", True) == (finding.verdict, finding.detail.startswith("65600 keys"))


@pytest.mark.parametrize("dtype", ["bf16", "bf16_kv_fp8_e4m3"])
def test_telling_values_are_as_large_beside_any_factor(dtype: str) -> None:
    """The early key's values go from 1 to 2, whatever the cache multiplies them by."""
    subject = make_subject(dtype=dtype, seqlens_q=(1,), seqlens_k=(300,))
    call = steered(subject, subject.inputs("offset"), {(0, 0): "early"}).call
    factors = torch.ones(1, 2) if call.v_descale is None else call.v_descale
    values = call.v[0].float() * factors[0][:, None]
    torch.testing.assert_close(torch.linspace(1.0, 2.0, 64).expand(2, -1), values, rtol=2.0**-4, atol=0.0)


class StandsStill(EightBit):
    """A kernel whose accumulator is rounded to bf16 after every 4,096 keys."""

    def _sequence(self, call: AttentionCall, sequence: Sequence) -> tuple[Tensor, Tensor]:
        scores = sequence.q @ sequence.k[:, None].transpose(-1, -2) * call.scale
        i, j = torch.arange(scores.shape[-2])[:, None], torch.arange(scores.shape[-1])
        scores = scores.masked_fill(~call.mask.visible(i, j, len(i), len(j)), -math.inf)
        weights = torch.exp(scores - scores.amax(-1, keepdim=True)).bfloat16().float()
        out = torch.zeros(*scores.shape[:-1], sequence.v.shape[-1])
        for first in range(0, len(j), 4096):
            keys = slice(first, first + 4096)
            out = (out + weights[..., keys] @ sequence.v[:, None, keys]).bfloat16().float()
        out = out / weights.sum(-1, keepdim=True)
        if call.v_descale is not None:
            out = out * call.v_descale[sequence.index].view(-1, 1, 1, 1)
        return out, scores.logsumexp(-1)


@pytest.mark.parametrize("dtype", ["bf16", "bf16_kv_fp8_e4m3"])
def test_an_accumulator_that_stands_still_is_caught(dtype: str) -> None:
    """What the later keys add to the row of the early one is lost: 3 % of it, also where its value has a factor."""
    finding = asked(StandsStill(), dtype=dtype, head_dim=64)
    assert ("fail", 1, 0) == (finding.verdict, finding.values["query"], finding.values["head"]), finding.detail


@pytest.mark.parametrize(
    ("head_dim", "softcap", "roles"),
    [(32, 30.0, ["late", "even"]), (16, 10.0, ["even"]), (64, 25.0, ["even"]), (64, 0.0, ["late", "even"])],
)
@pytest.mark.parametrize("queries", [1, 3])
def test_weights_in_fp8_are_not_asked_what_they_cannot_hold(
    head_dim: int, softcap: float, roles: list[str], queries: int
) -> None:
    """Beside a late key all others are 0 in fp8: the key is there only where it stands so far above that none shows."""
    card = make_card(accuracy={"fp8_e4m3": "fp8"}, dtypes=["fp8_e4m3"], fp8={"weight_scale": 256.0})
    subject = make_subject(
        EightBit(),
        card=card,
        level="full",
        dtype="fp8_e4m3",
        head_dim=head_dim,
        softcap=softcap,
        heads_q=2,
        heads_kv=1,
        seqlens_q=(queries,),
        seqlens_k=(65600,),
    )
    assert roles == roles_of(subject, subject.inputs("offset", seed=11))
    (finding,) = LongContext().run(subject)
    assert "pass" == finding.verdict, finding.detail


@SHAPES
@pytest.mark.parametrize("deterministic", [True, False])
def test_what_varies_at_many_keys_only_is_caught(shape: dict[str, Any], *, deterministic: bool) -> None:
    """One bit of the third call with the same keys; without the claim nothing is asked."""
    calls: list[int] = []

    def varies(out: Tensor, lse: Tensor) -> None:
        calls.append(1)
        if len(calls) == calls_before + 3:
            out.view(torch.int16)[-1, -1, 3] ^= 1

    roles = rounds(make_subject(**shape | {"heads_q": 6}).workload, ALL)
    calls_before = len(roles)
    finding = asked(result(varies), **shape, heads_q=6, card=make_card(deterministic=deterministic))
    assert ("fail" if deterministic else "pass") == finding.verdict, finding.detail
    assert deterministic == ("call 3 differs from call 1" in finding.detail)


@SHAPES
@pytest.mark.parametrize(("keys", "repeated"), [((1024, 4096), 2176), ((8192, 32768), 16448)])
def test_what_varies_within_a_range_of_keys_is_caught(
    shape: dict[str, Any], keys: tuple[int, int], repeated: int
) -> None:
    """Kernels split some thousands of keys in another way than some ten thousand."""
    calls: list[int] = []

    def varies(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(1)
        if keys[0] < call.max_seqlen_k < keys[1]:
            out.view(torch.int16)[-1, -1, 3] ^= len(calls) % 2
        return out, lse

    finding = asked(Edited(result=varies), **shape)
    assert "fail" == finding.verdict
    assert finding.detail.startswith(f"{repeated} keys")


def test_splits_in_another_order_show() -> None:
    """The values cancel, and no partial sum of them is exact."""
    call = cancelling(subject := make_subject(seqlens_q=(1,), seqlens_k=(4096,)), subject.inputs()).call
    v = call.v[:, 0].float()
    splits = [part.sum(0) for part in v.chunk(4)]
    assert not torch.equal(splits[0] + splits[1] + splits[2] + splits[3], splits[3] + splits[0] + splits[2] + splits[1])
    assert 0 == float(v.double().sum(0).abs().max())
    assert 0 == float(call.q.abs().max())


def test_rows_have_roles() -> None:
    """All in one call where there are three rows; else call by call; the last role is that of all further rows."""
    prefill = make_subject(seqlens_q=(3,), heads_q=4).workload
    assert [["late", "early", "even", "even", "even", "even"]] == [
        list(roles.values()) for roles in rounds(prefill, ALL)
    ]
    assert {"late": (2, 0), "early": (2, 1)} == {
        role: place for roles in rounds(prefill, ALL) for place, role in roles.items() if role != "even"
    }
    alone = make_subject(seqlens_q=(1,), heads_q=2).workload
    assert [["late"], ["early"], ["even"]] == [list(roles.values()) for roles in rounds(alone, ALL)]
    fp8 = make_subject(seqlens_q=(1,), heads_q=4, dtype="fp8_e4m3").workload
    assert [["late", "even"]] == [list(roles.values()) for roles in rounds(fp8, ["late", "even"])]


def test_a_kernel_is_asked_once() -> None:
    """The next case of the same dtype, layout and kind of mask says so; a failure is told by every case."""
    first = make_subject(level="full", head_dim=16)
    assert ["pass", "note"] == [LongContext().run(replace(first, seed=seed))[0].verdict for seed in (1, 5)]
    windowed = first.workload.masked(window=(20, 0))
    assert "pass" == LongContext().run(replace(first, workload=windowed))[0].verdict
    wrong = make_subject(cut(1 << 16), level="full", head_dim=16)
    assert ["fail", "fail"] == [LongContext().run(wrong)[0].verdict for _ in range(2)]


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_what_the_machine_has_no_room_for_is_noted(error: type[Exception]) -> None:
    """And asked again by the next case."""

    def large(call: AttentionCall) -> AttentionCall:
        raise error("no 9 GB")

    subject = make_subject(Edited(call=large), level="full")
    (finding,) = LongContext().run(subject)
    assert ("note", "not run: no room for it (no 9 GB)") == (finding.verdict, finding.detail)
    assert {} == subject.asked


def test_a_gpu_is_asked_longer_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 2^17 keys, where that costs nothing; here on a CPU."""
    monkeypatch.setattr(long_context, "KEYS", {"small": long_context.KEYS["large"]})
    finding = asked(cut(1 << 17), heads_q=2, heads_kv=1)
    assert ("fail", True) == (finding.verdict, finding.detail.startswith("131136 keys"))


def test_where_it_does_not_apply() -> None:
    """Queries at the top left see the first keys alone; compiled shapes are not compiled for it."""
    top_left = make_card(alignment="top_left")
    assert "top left" in LongContext().skips(make_subject(card=top_left))
    assert "" == LongContext().skips(make_subject(card=top_left, causal=False))
    assert "each shape would be compiled" == LongContext().skips(make_subject(card=make_card(jit="shapes")))
