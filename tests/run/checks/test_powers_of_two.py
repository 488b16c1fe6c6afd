"""powers of two: kernels whose scores or accumulators are 16 bits wide."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from builders import make_card
from faults import Edited
from subjects import make_subject
from torch import Tensor

from qualify.facts.dtypes import FORMATS
from qualify.facts.outcome import Finding
from qualify.run.adapters.interface import AttentionCall, Prepared
from qualify.run.checks.powers_of_two import GONE, PowersOfTwo, exponent_of, loudest, quiet, small_multiples, subnormal


class Half:
    """Attention of one sequence, with chosen parts in fp16, and hidden keys by a finite score."""

    def __init__(self, *, scores: bool = False, accumulator: bool = False, hidden: float = 0.0) -> None:
        self.scores = scores
        self.accumulator = accumulator
        self.hidden = hidden

    def prepare(self, call: AttentionCall) -> Prepared:
        return Prepared(launch=lambda: self.attend(call), result=lambda native: native)

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        group = call.q.shape[1] // call.k.shape[1]
        q = call.q.float().transpose(0, 1)
        k, v = (tensor.float().repeat_interleave(group, 1).transpose(0, 1) for tensor in (call.k, call.v))
        raw = q @ k.transpose(1, 2)
        raw = raw.half().float() if self.scores else raw
        if self.hidden:
            raw = raw.masked_fill(torch.ones_like(raw, dtype=torch.bool).triu(1), self.hidden)
        p = torch.exp(raw * call.scale)
        lse = torch.log(p.sum(-1))
        weighted = p @ v
        weighted = weighted.half().float() if self.accumulator else weighted
        return (weighted / p.sum(-1, keepdim=True)).transpose(0, 1).to(call.out_dtype), lse


def scaled(
    adapter: Any = None, deterministic: bool = True, hidden_score: float | None = None, **workload: Any
) -> Finding:
    """The one finding of the check."""
    card = make_card(deterministic=deterministic, hidden_score=hidden_score)
    subject = make_subject(adapter, level="full", card=card, **workload)
    assert "" == PowersOfTwo().skips(subject)
    (finding,) = PowersOfTwo().run(subject)
    return finding


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_scores_in_fp16_are_caught(dtype: str) -> None:
    """They overflow before the scale."""
    finding = scaled(Half(scores=True), causal=False, dtype=dtype)
    assert ("fail", "q") == (finding.verdict, finding.values["scaled"])


def test_a_finite_score_of_hidden_keys_is_caught_or_declared() -> None:
    """-5e4, as FlashInfer has it, is gone at a usual scale and not at 2^-40 of it. A wrong card is no excuse."""
    kernel = Half(hidden=-5e4)
    assert ("fail", 40) == (scaled(kernel).verdict, scaled(kernel).values["exponent"])
    finding = scaled(kernel, hidden_score=-5e4)
    assert "pass" == finding.verdict
    assert "2^4 q" in finding.detail
    assert "fail" == scaled(Half(hidden=-5e2), hidden_score=-5e4).verdict


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp8_e4m3"])
def test_a_clamped_scale_is_caught(dtype: str) -> None:
    """A kernel that takes no scale above some number."""
    clamped = Edited(call=lambda call: replace(call, scale=min(call.scale, 0.25)))
    finding = scaled(clamped, causal=False, dtype=dtype)
    assert ("fail", "q", True) == (finding.verdict, finding.values["scaled"], int(str(finding.values["exponent"])) < 0)


def test_a_scale_in_two_square_roots_is_no_fault() -> None:
    """As PyTorch's math path takes it: half of it on q and half on k."""

    def halves(call: AttentionCall) -> AttentionCall:
        root = call.scale**0.5
        return replace(call, q=(call.q.float() * root).bfloat16(), k=(call.k.float() * root).bfloat16(), scale=1.0)

    assert "pass" == scaled(Edited(call=halves)).verdict


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_an_accumulator_in_fp16_is_caught(dtype: str) -> None:
    """It overflows with values that the output itself can hold."""
    finding = scaled(Half(accumulator=True), causal=False, dtype=dtype)
    assert ("fail", "v") == (finding.verdict, finding.values["scaled"])


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize(
    "workload",
    [
        {},
        {"softcap": 50.0},
        {"sinks": True},
        {"seqlens_q": (1,), "seqlens_k": (300,), "page_size": 16},
        {"scale": 0.1},
        {"heads_kv": 1, "head_dim": 96, "head_dim_v": 64, "latent": True},
    ],
    ids=str,
)
def test_correct_kernels_pass(dtype: str, workload: dict[str, Any]) -> None:
    """Softcap, sinks, pages, odd scales and values within the keys change nothing."""
    assert "pass" == scaled(dtype=dtype, **workload).verdict


def test_correct_kernels_of_another_kind_pass() -> None:
    """The same attention without the faults."""
    assert "pass" == scaled(Half(), causal=False, deterministic=False).verdict


def test_an_lse_that_changes_with_the_values_is_told_as_that() -> None:
    """The output is right, so the finding does not accuse it."""

    def moved(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        return out, lse + call.v.float().abs().max()

    finding = scaled(Edited(result=moved))
    assert ("fail", "v", "lse") == (finding.verdict, finding.values["scaled"], finding.values["tensor"])
    assert "V must not change the LSE, but " in finding.detail


def through_fp16(*names: str) -> Edited:
    """A kernel that takes tensors through fp16 on their way."""

    def call(given: AttentionCall) -> AttentionCall:
        return replace(given, **{name: getattr(given, name).half().to(given.q.dtype) for name in names})

    return Edited(call=call)


@pytest.mark.parametrize(("name", "scaled_tensor"), [("q", "q"), ("k", "k"), ("v", "v")])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_what_goes_through_fp16_is_caught(name: str, scaled_tensor: str, dtype: str) -> None:
    """The multiples are exact in fp16, 2^40 and 2^-40 of them are not."""
    finding = scaled(through_fp16(name), dtype=dtype)
    assert ("fail", scaled_tensor) == (finding.verdict, finding.values["scaled"])


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "fp8_e4m3", "bf16_kv_fp8_e4m3"])
def test_a_correct_kernel_passes_with_every_exponent(dtype: str) -> None:
    """Bit for bit."""
    assert "pass" == scaled(dtype=dtype).verdict


def test_exponents_keep_to_the_ranges_of_each_format() -> None:
    """Up: fp16 and e4m3 are narrow. Down: e4m3's normal range ends at 2^-6, where its values are exact to 2^-9."""
    assert {"bf16": 40, "fp16": 12, "fp32": 40, "fp8_e4m3": 7} == {name: exponent_of(name) for name in FORMATS}
    assert {"bf16": -6, "fp16": -6, "fp32": -6, "fp8_e4m3": -2} == {name: quiet(name) for name in FORMATS}
    assert (-6, 0, 0) == (subnormal("fp8_e4m3", "bf16"), subnormal("fp8_e4m3", "fp16"), subnormal("bf16", "bf16"))


@pytest.mark.parametrize(
    ("hidden_score", "scale", "dtype", "expected"),
    [
        (None, 0.125, "bf16", 40),
        (None, 0.125, "fp16", 12),
        (-5e4, 0.125, "bf16", 4),
        (-5e4, 0.5, "bf16", 6),
        (-3.2e4, 0.1, "bf16", 4),
        (-6.4e3, 0.25, "bf16", 4),
        (-1e30, 0.125, "bf16", 40),
        (-1e30, 0.125, "fp16", 12),
        (-800.0, 0.125, "bf16", 0),
        (-100.0, 0.125, "bf16", 0),
    ],
)
def test_queries_grow_while_hidden_keys_stay_gone(
    hidden_score: float | None, scale: float, dtype: str, expected: int
) -> None:
    """An even power of two, after which the score of hidden keys times the scale is 100 below zero or lower."""
    subject = make_subject(card=make_card(hidden_score=hidden_score), scale=scale, dtype=dtype)
    assert expected == loudest(subject, subject.inputs())
    if hidden_score is not None and expected:
        assert hidden_score * scale / 2**expected <= -GONE


@pytest.mark.parametrize(("q", "k", "expected"), [(1.0, 1.0, 6), (0.25, 1.0, 4), (1.0, 0.25, 4), (0.0625, 0.0625, 0)])
def test_factors_of_fp8_count_as_the_scale_does(q: float, k: float, expected: int) -> None:
    """The smallest of either side."""
    subject = make_subject(card=make_card(hidden_score=-(2.0**17)), scale=0.125, dtype="fp8_e4m3")
    inputs = subject.inputs()
    call = replace(inputs.call, q_descale=torch.tensor([[1.0, q]]), k_descale=torch.tensor([[k, 1.0]]))
    assert expected == loudest(subject, replace(inputs, call=call))


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "fp8_e4m3"])
def test_inputs_are_exact_multiples_of_their_whole_range(dtype: str) -> None:
    """Queries and keys of 1/8 from -2 to 2, values of 1/4 from 1/2 to 2: as exact after they were scaled."""
    inputs = small_multiples(make_subject(dtype=dtype, seqlens_q=(200,)))
    for tensor, values in (
        (inputs.q_whole, [step / 8 for step in range(-16, 17)]),
        (inputs.k_whole, [step / 8 for step in range(-16, 17)]),
        (inputs.v_whole, [step / 4 for step in range(2, 9)]),
    ):
        assert values == sorted(tensor.float().unique().tolist())
