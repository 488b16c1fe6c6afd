"""fp8: unequal descale factors, exact probes in one byte, and faults that only eight bits know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from builders import make_card, make_workload
from faults import Edited, EightBit, changed
from subjects import CPU, answers, make_call, make_subject
from torch import Tensor

from qualify.run.adapters.interface import AttentionCall
from qualify.run.checks.budget import Budget
from qualify.run.checks.registry import CHECKS
from qualify.run.inputs.formats import TORCH_DTYPES, fitted
from qualify.run.inputs.tensors import Inputs, make_inputs, poison_outside

SHAPES: dict[str, dict[str, Any]] = {
    "prefill": {"seqlens_q": (200,)},
    "ragged": {"seqlens_q": (1, 17, 100, 3, 0, 64)},
    "paged": {"seqlens_q": (1,) * 5, "seqlens_k": (130, 64, 300, 17, 1), "page_size": 16},
    "window": {"seqlens_q": (200,), "window": (31, 0), "head_dim": 64},
    "softcap": {"seqlens_q": (100,), "softcap": 30.0, "head_dim": 64},
    "sinks": {"seqlens_q": (100,), "sinks": True, "heads_q": 4, "heads_kv": 4},
}
every_shape = pytest.mark.parametrize("shape", SHAPES)
FP8 = TORCH_DTYPES["fp8_e4m3"]
NAMES = ("q_descale", "k_descale", "v_descale")


def small(shape: str) -> dict[str, Any]:
    """A shape with few and narrow heads, for the full level, which has many calls and some long ones."""
    return {"heads_q": 4, "heads_kv": 2} | SHAPES[shape] | {"head_dim": 32}


def card(weight_scale: float = 256.0) -> Any:
    """A kernel that computes in fp8 and says so."""
    return make_card(
        dtypes=["fp8_e4m3"],
        masks=["full", "causal", "window"],
        accuracy={"fp8_e4m3": "fp8"},
        fp8={"weight_scale": weight_scale},
        memory="quadratic",
    )


def failed(adapter: Any, *, level: str = "smoke", answered: dict[str, str] | None = None, **subject: Any) -> set[str]:
    """Names of the level's checks that fail; checks that run once do not repeat what they have answered."""
    made = make_subject(adapter, level=level, dtype="fp8_e4m3", **subject)
    made = replace(made, asked={} if answered is None else answered)
    asked = [check for check in CHECKS if level in check.levels and not check.skips(made)]
    found = [finding for check in asked for finding in check.run(made)]
    return {finding.check for finding in found if finding.verdict == "fail"}


@pytest.mark.parametrize("descale", ["sequence", "head"])
@every_shape
def test_descale_factors_are_unequal(shape: str, descale: str) -> None:
    """Every KV head (of every sequence) has its own; a head has one for the whole batch if the kernel wants it."""
    workload = make_workload(dtype="fp8_e4m3", descale=descale, **SHAPES[shape])
    call = make_inputs(workload, kind="normal", seed=1, device=CPU, descaled=True).call
    for name in NAMES:
        factors: Tensor = getattr(call, name)
        assert ((workload.batch, workload.heads_kv), torch.float32) == (factors.shape, factors.dtype)
        if descale == "head":
            assert torch.equal(factors[:1].expand_as(factors), factors)
            factors = factors[:1]
        used = factors[factors != 1]
        assert len(used.unique()) == len(used) > 0


def test_inputs_fill_the_range_of_e4m3_without_clipping() -> None:
    """The largest number of each head lies between half the range and all of it."""
    call = make_call(dtype="fp8_e4m3", kind="outliers", seqlens_q=(200,))
    assert FP8 == call.q.dtype == call.k.dtype == call.v.dtype
    for tensor in (call.k, call.v):
        largest = tensor.float().abs().amax((0, 2))
        assert bool(((largest >= 200) & (largest <= 448)).all())


def test_factors_are_one_where_probes_set_values() -> None:
    """Without the keyword nothing is scaled, so a probe's exact values come back exactly."""
    call = make_inputs(make_workload(dtype="fp8_e4m3"), kind="normal", seed=1, device=CPU).call
    for name in NAMES:
        assert bool((getattr(call, name) == 1).all())


@pytest.mark.parametrize("value", [1e4, float("inf"), -1e9])
def test_what_e4m3_cannot_hold_becomes_its_largest_number(value: float) -> None:
    """There is no infinity to become, and a NaN would be another question."""
    assert 448 == abs(float(fitted(torch.tensor(value), FP8)))
    inputs = make_inputs(make_workload(dtype="fp8_e4m3"), kind="normal", seed=1, device=CPU)
    poisoned: Inputs = poison_outside(inputs, make_workload(dtype="fp8_e4m3"), 1e4)
    assert 448 == float(poisoned.q_whole[0, 0, 0])
    assert bool(poison_outside(inputs, make_workload(dtype="fp8_e4m3"), float("nan")).k_whole[0].float().isnan().all())


@every_shape
@pytest.mark.parametrize("level", ["smoke", "full"])
def test_a_correct_portable_kernel_passes(shape: str, level: str) -> None:
    """Every probe and every input kind, with unequal factors."""
    made = small(shape) if level == "full" else SHAPES[shape]
    assert set() == failed(None, level=level, answered=answers(f"portable, {level}", made), **made)


@pytest.mark.parametrize(("shape", "weight_scale"), [*((shape, 256.0) for shape in SHAPES), ("ragged", 448.0)])
def test_a_correct_fp8_kernel_passes(shape: str, weight_scale: float) -> None:
    """Weights in e4m3, scaled as the card says: silent in the class fp8, on every input kind and every probe."""
    kernel, made = EightBit(weight_scale), small(shape)
    answered = answers(f"fp8, {weight_scale}", made)
    assert set() == failed(kernel, level="full", card=card(weight_scale), answered=answered, **made)


def measured(adapter: Any, **subject: Any) -> list[str]:
    """Measured class on each input kind."""
    made = make_subject(adapter, dtype="fp8_e4m3", seqlens_q=(200,), **subject)
    Budget().run(made)
    return [record.measured_class for record in made.statistics]


def test_fp8_weights_are_measured_as_such() -> None:
    """Declared bf16, measured fp8; the portable kernel under a card that claims fp8 is measured bf16."""
    assert ["fp8"] == measured(EightBit())
    assert ["bf16"] == measured(None, card=card())


def test_unscaled_weights_collapse_under_a_sink() -> None:
    """Weights of at most 1 in e4m3 lose every key beside the sink: a scale of 256 keeps them."""
    for weight_scale, expected in ((1.0, "fail"), (256.0, "pass")):
        made = make_subject(
            EightBit(weight_scale),
            card=card(weight_scale),
            dtype="fp8_e4m3",
            level="full",
            seqlens_q=(16,),
            seqlens_k=(4096,),
            heads_q=2,
            heads_kv=1,
        )
        verdicts = {
            finding.values["inputs"]: finding.verdict for finding in Budget().run(made) if finding.check == "budget"
        }
        assert expected == verdicts["sink"], weight_scale
        assert "pass" == verdicts["normal"]


def first_head(name: str) -> Callable[[AttentionCall], AttentionCall]:
    """The factor of KV head 0 for every head."""

    def edit(call: AttentionCall) -> AttentionCall:
        factors: Tensor = getattr(call, name)
        return replace(call, **{name: factors[:, :1].expand_as(factors)})  # type: ignore[arg-type]

    return edit


def first_sequence(name: str) -> Callable[[AttentionCall], AttentionCall]:
    """The factors of sequence 0 for every sequence."""

    def edit(call: AttentionCall) -> AttentionCall:
        factors: Tensor = getattr(call, name)
        return replace(call, **{name: factors[:1].expand_as(factors)})  # type: ignore[arg-type]

    return edit


FAULTS: dict[str, Any] = {
    **{f"{name} dropped": changed(**{name: None}) for name in NAMES},
    **{f"{name} of head 0 for all": Edited(call=first_head(name)) for name in NAMES},
    **{f"{name} of sequence 0 for all": Edited(call=first_sequence(name)) for name in NAMES},
    "q and k exchanged": Edited(call=lambda call: replace(call, q_descale=call.k_descale, v_descale=call.q_descale)),
    "v off by three percent": EightBit(gain=1.03),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_descale_factors_fail(fault: str) -> None:
    """Dropped, shared between heads or sequences, taken for one another, or a little off."""
    assert "budget" in failed(FAULTS[fault], card=card(), seqlens_q=(100, 40))


def test_a_gain_in_one_short_sequence_shows_beside_a_long_one() -> None:
    """Three percent in 8 of 1,032 rows: the long sequence does not average it away."""

    def edit(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        right, right_lse = EightBit().prepare(call).launch()
        right[1024:] = (right[1024:].float() * 1.05).to(out.dtype)
        return right, right_lse

    made = make_subject(
        Edited(result=edit), card=card(), dtype="fp8_e4m3", seqlens_q=(1024, 64), heads_q=2, heads_kv=1, causal=False
    )
    Budget().run(made)
    (record,) = made.statistics
    assert 1 == record.worst_sequence
    assert abs(record.beta) > record.beta_limit
