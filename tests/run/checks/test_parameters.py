"""parameters: ignored, padded, misordered and shared parameters, and the sentence that names the mistake."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from builders import alter, make_card
from faults import CapAfterMask, Dense, Edited, changed
from subjects import make_subject

from qualify.facts.outcome import Finding
from qualify.report.causes import explain
from qualify.run.adapters.interface import AttentionCall, Prepared
from qualify.run.checks.interface import Result
from qualify.run.checks.parameters import Parameters, judge_probe
from qualify.run.checks.rows import rows_of
from qualify.run.checks.two_scores import STEP, make_probe
from qualify.selftest.planning import Tile
from qualify.selftest.simulator import Simulator


def parameters(adapter: Any = None, level: str = "smoke", lse: bool = True, **workload: Any) -> Finding:
    """The one finding of the check."""
    features = ["gqa", "softcap", "sinks", "ragged", "empty"] + ["lse"] * lse
    subject = make_subject(adapter, level=level, card=make_card(features=features), **workload)
    assert "" == Parameters().skips(subject)
    (finding,) = Parameters().run(subject)
    return finding


def sinks(edit: Any) -> Edited:
    """A kernel that takes other sinks."""
    return Edited(call=lambda call: replace(call, sinks=edit(call.sinks)))


def uncapped_lse(call: AttentionCall, out: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The output is right and the LSE is shifted, as by an ALiBi offset."""
    return out, lse + 0.5


FAULTS: dict[str, tuple[Any, dict[str, Any], str | None]] = {
    "scale ignored": (changed(scale=1 / 8), {"scale": 0.1}, "the scale of the call is ignored"),
    "scale padded": (changed(scale=1 / 8), {"head_dim": 40}, "the scale is that of a head_dim padded"),
    "scale of another head_dim": (changed(scale=128**-0.5), {}, None),
    "no scale": (changed(scale=1.0), {}, "no scale at all"),
    "scale a tenth off": (changed(scale=0.11), {"scale": 0.1}, None),
    "softcap ignored": (changed(softcap=0.0), {"softcap": 50.0}, "the softcap is ignored"),
    "softcap halved": (changed(softcap=25.0), {"softcap": 50.0}, "a softcap of 25 instead of 50"),
    "scale doubled under a softcap": (changed(scale=1 / 4), {"softcap": 50.0}, "a scale of 0.25 instead of 0.125"),
    "softcap before the scale": (
        Edited(call=lambda call: alter(call, softcap=call.softcap * call.scale)),
        {"softcap": 50.0},
        "the softcap is applied before the scale",
    ),
    "sinks ignored": (changed(sinks=None), {"sinks": True}, "the sinks are ignored"),
    "one sink for all": (sinks(lambda s: s[:1].expand_as(s)), {"sinks": True}, "the sink of head 0"),
    "sinks shifted by a head": (
        sinks(lambda s: s.roll(1)),
        {"sinks": True},
        "each head has the sink of the head before",
    ),
    "sinks of the next head": (sinks(lambda s: s.roll(-1)), {"sinks": True}, "each head has the sink of the next head"),
    "a number added to all sinks": (sinks(lambda s: s + 0.5), {"sinks": True}, "all sinks are 0.5 too large"),
    "sinks per split": (sinks(lambda s: s + torch.tensor(3.0).log()), {"sinks": True}, "the sinks are counted 3 times"),
    "sinks of four splits": (sinks(lambda s: s + torch.tensor(4.0).log()), {"sinks": True}, "the sinks are counted 4"),
    "lse shifted": (Edited(result=uncapped_lse), {}, None),
}


def nan_below_the_cap(call: AttentionCall, out: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """An exponential that is infinite far below zero."""
    far = call.softcap > 0 and float(call.q[..., 1].min()) * call.scale < -44 * call.softcap
    return (out * torch.nan if far else out), lse


@pytest.mark.parametrize("level", ["smoke", "full"])
@pytest.mark.parametrize("lse", [True, False])
def test_a_softcap_after_the_mask_gives_hidden_keys_weight(lse: bool, level: str) -> None:
    """With ordinary scores that weight is e^-30: no other check sees it where the card claims no LSE, no empty row."""
    finding = parameters(CapAfterMask(lse=lse), level, lse, softcap=30.0)
    named = "; it looks like a softcap that is applied after the mask, so that hidden keys score -30 and not -inf"
    assert ("fail", True) == (finding.verdict, finding.detail.endswith(named)), finding.detail


@pytest.mark.parametrize("wrong", [Edited(result=nan_below_the_cap), changed(softcap=0.0), changed(softcap=31.0)])
def test_another_mistake_is_not_called_a_softcap_after_the_mask(wrong: Any) -> None:
    """Even where it shows far below zero alone."""
    finding = parameters(wrong, softcap=30.0)
    assert ("fail", False) == (finding.verdict, "after the mask" in finding.detail), finding.detail


@pytest.mark.parametrize("name", FAULTS)
def test_wrong_parameters_are_caught_and_named(name: str) -> None:
    """With the mistake that explains every row, where it is a known one."""
    adapter, workload, cause = FAULTS[name]
    finding = parameters(adapter, **workload)
    assert "fail" == finding.verdict
    explained = str(finding.values.get("explained_by", ""))
    assert explained.startswith(cause) if cause else not explained


@pytest.mark.parametrize("lse", [True, False])
def test_another_scale_is_recovered(lse: bool) -> None:
    """A wrong scale that nobody knows is read back from the share, and the LSE agrees with it."""
    finding = parameters(changed(scale=0.11), scale=0.1, lse=lse)
    assert 0.11 == pytest.approx(float(finding.values["scale"] or 0), rel=0.02)


@pytest.mark.parametrize(
    ("wrong", "workload", "cause"),
    [
        ({"softcap": 45.0}, {"softcap": 30.0}, "a softcap of 45 instead of 30"),
        ({"scale": 1 / 4}, {"softcap": 30.0}, "a scale of 0.25 instead of 0.125"),
    ],
)
def test_a_wrong_number_is_recovered_without_an_lse_too(wrong: Any, workload: Any, cause: str) -> None:
    """From an output of three digits."""
    finding = parameters(changed(**wrong), lse=False, dtype="bf16", **workload)
    assert (cause, True) == (finding.values["explained_by"], finding.detail.endswith(f"; explained by: {cause}"))


def coarse(call: AttentionCall, out: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The output has lost bits, as if it were added in few; the LSE is right."""
    return (out * 64).round() / 64, lse


@pytest.mark.parametrize("lse", [True, False])
@pytest.mark.parametrize("edit", [coarse, uncapped_lse], ids=["rounded output", "shifted lse"])
def test_no_scale_is_named_that_does_not_explain_every_row(edit: Any, lse: bool) -> None:
    """A sum of few bits, or a wrong LSE alone, is no wrong scale."""
    finding = parameters(Edited(result=edit), lse=lse)
    assert finding.verdict == ("fail" if lse or edit is coarse else "pass")
    assert "scale" not in finding.values
    assert "that is a scale" not in finding.detail


def eight_bits(call: AttentionCall, out: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The output passes through eight bits; the LSE is right."""
    return out.to(torch.float8_e4m3fn).to(out.dtype), lse


@pytest.mark.parametrize("lse", [True, False])
@pytest.mark.parametrize("extra", [{}, {"softcap": 50.0}, {"sinks": True}], ids=str)
def test_a_rounded_output_is_no_wrong_parameter(extra: dict[str, Any], lse: bool) -> None:
    """Nobody looks for a wrong scale or sink where the output has lost bits."""
    said = explain(parameters(Edited(result=eight_bits), lse=lse, **extra)).sentence
    assert said.startswith("The output has fewer bits than its dtype: expected ")
    assert said.endswith("Likely cause: an output that is rounded to fp8_e4m3, which explains every row.")


@pytest.mark.parametrize("lse", [True, False])
def test_scores_of_fewer_bits_are_no_wrong_parameter(lse: bool) -> None:
    """A kernel that rounds its scores uses the scale of the call: it loses bits."""
    finding = parameters(ShortScores(1.0), lse=lse, dtype="bf16")
    said = explain(finding).sentence
    assert said.startswith("The result is off by no more than a rounding of the scores to bf16 explains: expected ")
    assert "Likely cause: scores, weights or sums that are rounded to fewer bits." in said


def test_a_wrong_output_beside_a_right_lse_is_told_as_that() -> None:
    """The LSE shows that scale, softcap and sinks are those of the call."""
    said = explain(parameters(Edited(result=coarse))).sentence
    assert said.startswith("The output is wrong beside an LSE that is right: expected ")
    assert "a default that replaces" not in said


def test_a_wrong_lse_beside_right_outputs_has_a_cause_of_its_own() -> None:
    """It is no replaced default, and no other head's sink."""
    said = explain(parameters(Edited(result=uncapped_lse))).sentence
    assert said.startswith("The LSE is wrong beside results that are right: expected ")
    assert said.endswith("Likely cause: a sum over other keys, another base, or too few bits.")


def test_a_mistake_that_explains_every_row_is_the_likely_cause() -> None:
    """The report says it, and not only the check."""
    said = explain(parameters(changed(softcap=0.0), softcap=50.0)).sentence
    assert said.startswith("The scale, the softcap or a head's sink is not the one of the call: expected ")
    assert said.endswith("Likely cause: the softcap is ignored, which explains every row.")
    said = explain(parameters(changed(sinks=None), sinks=True)).sentence
    assert said.endswith("Likely cause: the sinks are ignored, which explains every row.")


@pytest.mark.parametrize("base", [0.0, 30.0])
@pytest.mark.parametrize("scale", [1 / 8, 0.3])
def test_scores_of_a_probe_are_what_they_are_meant_to_be(base: float, scale: float) -> None:
    """Whatever the scale: the low one is the base, the high one lies one to nearly two steps above it."""
    probe = make_probe(make_subject(dtype="fp32", scale=scale), base)
    low, high = probe.low * scale, probe.high * scale
    assert torch.allclose(torch.full_like(low, base), low)
    assert torch.allclose(STEP * (1 + torch.arange(len(low)) % 4 / 4).double(), high - low)


def no_scale_given(call: AttentionCall) -> AttentionCall:
    """1.0 is taken for no scale."""
    return replace(call, scale=1 / 8) if call.scale == 1.0 else call


def infinite_beside_a_sink(call: AttentionCall, out: torch.Tensor, lse: torch.Tensor) -> tuple[Any, Any]:
    """The LSE overflows where a sink stands far above the scores."""
    return out, lse if call.sinks is None else torch.where(call.sinks.view(-1, 1) > 100, torch.inf, lse)


def nan_beyond_the_cap(call: AttentionCall, out: torch.Tensor, lse: torch.Tensor) -> tuple[Any, Any]:
    """Tanh by its exponentials is NaN where they are infinite."""
    far = call.softcap > 0 and float(call.q[..., 1].max()) * call.scale > 44 * call.softcap
    return (out * torch.nan if far else out), lse


@pytest.mark.parametrize(
    ("adapter", "workload"),
    [
        (Edited(call=no_scale_given), {}),
        (Edited(result=infinite_beside_a_sink), {"sinks": True}),
        (Edited(result=nan_beyond_the_cap), {"softcap": 30.0}),
    ],
    ids=["a scale of 1", "a sink above all", "fifty softcaps"],
)
def test_what_shows_far_from_the_usual_is_asked_at_full_level(adapter: Any, workload: dict[str, Any]) -> None:
    """Within the usual it is right."""
    assert "pass" == parameters(adapter, **workload).verdict
    assert "fail" == parameters(adapter, level="full", **workload).verdict


def test_an_lse_that_overflows_beside_right_results_is_told_as_that() -> None:
    """It is no wrong scale; the numbers are those of the LSE."""
    finding = parameters(Edited(result=infinite_beside_a_sink), level="full", sinks=True)
    assert "the output is right, but the LSE is inf, expected 12" in finding.detail
    said = explain(finding).sentence
    assert said.startswith("The LSE is wrong beside results that are right: expected 12")
    assert "Likely cause: an exponential beyond float32, which" in said


def test_an_ignored_scale_shows_at_full_level_even_where_it_is_the_default() -> None:
    """The scale is changed once."""
    assert "pass" == parameters(changed(scale=1 / 8)).verdict
    assert "fail" == parameters(changed(scale=1 / 8), level="full").verdict


@pytest.mark.parametrize("level", ["smoke", "full"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize(
    "workload",
    [
        {},
        {"softcap": 50.0, "head_dim": 256, "scale": 1 / 16},
        {"softcap": 30.0, "sinks": True},
        {"sinks": True, "window": (20, 0)},
        {"seqlens_q": (1, 1), "seqlens_k": (257, 33), "page_size": 16, "sinks": True},
        {"seqlens_q": (3, 0, 40), "seqlens_k": (5, 9, 90), "causal": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("adapter", [None, Dense()], ids=["tiled", "dense"])
def test_correct_kernels_pass(level: str, dtype: str, workload: dict[str, Any], adapter: Any) -> None:
    """Every parameter, dtype and phase."""
    assert "pass" == parameters(adapter, level=level, dtype=dtype, **workload).verdict


class OneByOne:
    """A correct float32 kernel that adds one key after another; one query that sees all keys, no grouped heads."""

    def prepare(self, call: AttentionCall) -> Prepared:
        return Prepared(launch=lambda: (self._attend(call), None), result=lambda native: native)

    def _attend(self, call: AttentionCall) -> torch.Tensor:
        weights = torch.softmax(torch.einsum("qhd,khd->hqk", call.q, call.k) * call.scale, -1)[:, 0]
        out = torch.zeros_like(call.q)
        for key in range(len(call.k)):
            out[0] += weights[:, key, None] * call.v[key]
        return out


def test_a_long_sum_of_equal_terms_may_be_off_by_the_same_rounding_in_every_step() -> None:
    """In float32, where it is more than all other roundings together; a scale off by 2^-11 still shows."""
    shape: dict[str, Any] = {"seqlens_q": (1,), "seqlens_k": (3000,), "heads_q": 2, "dtype": "fp32", "lse": False}
    assert "pass" == parameters(OneByOne(), **shape).verdict
    assert "fail" == parameters(changed(scale=1 / 8 + 2**-14), **shape).verdict


def test_one_key_tells_nothing() -> None:
    """The check is not asked, unless another sequence has two."""
    assert Parameters().skips(make_subject(seqlens_q=(1,), seqlens_k=(1,)))
    assert "" == Parameters().skips(make_subject(seqlens_q=(1, 1), seqlens_k=(1, 2)))


def test_keys_of_one_element_tell_nothing() -> None:
    """The two scores need one each; two elements are enough."""
    assert Parameters().skips(make_subject(head_dim=1))
    assert "" == Parameters().skips(make_subject(head_dim=2))
    assert "pass" == parameters(head_dim=2).verdict


class ShortScores(Simulator):
    """Scores are rounded to bf16 when they are scaled and capped; the scale may be off."""

    def __init__(self, wrong: float = 1.0) -> None:
        super().__init__()
        self.wrong = wrong

    def scale(self, call: AttentionCall) -> float:
        return call.scale * self.wrong

    def cap(self, tile: Tile, scores: torch.Tensor) -> torch.Tensor:
        return super().cap(tile, scores).bfloat16().float()

    def prepare(self, call: AttentionCall) -> Prepared:
        return Prepared(launch=lambda: self.attend(call), result=lambda native: native)


@pytest.mark.parametrize("workload", [{}, {"softcap": 50.0}, {"sinks": True}], ids=["plain", "softcap", "sinks"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_scores_in_bf16_pass_where_they_are_declared(workload: dict[str, Any], dtype: str) -> None:
    """A rounding moves a score near 30 by an eighth; a scale that is off by a tenth still shows."""
    card = make_card(
        accuracy=dict.fromkeys(("bf16", "fp16"), "lowp_scores"), dtypes=["bf16", "fp16"], lse={"rel": 0.02}
    )

    def found(wrong: float) -> str:
        subject = make_subject(ShortScores(wrong), level="full", card=card, dtype=dtype, **workload)
        return Parameters().run(subject)[0].verdict

    assert ("pass", "fail") == (found(1.0), found(0.9))


@pytest.mark.parametrize(
    "workload",
    [
        {"seqlens_q": (9,)},
        {"seqlens_q": (3, 0, 5), "seqlens_k": (8, 4, 2)},
        {"seqlens_q": (9,), "window": (3, 0)},
        {"seqlens_q": (9,), "seqlens_k": (11,), "causal": False, "window": (2, 1)},
        {"seqlens_q": (13,), "chunk": 5},
        {"seqlens_q": (13,), "dilation": 3, "window": (8, 0)},
        {"seqlens_q": (9,), "window": (1, 0), "spans": ((0, 2, 7),)},
    ],
    ids=str,
)
def test_both_halves_are_counted_as_each_row_sees_them(workload: dict[str, Any]) -> None:
    """By the keys whose value is 1; under a mask with gaps the halves alternate among the visible keys."""
    subject = make_subject(**workload)
    probe = make_probe(subject, 0.0)
    made, visible = subject.workload, rows_of(subject.workload, subject.device).visible()
    values = probe.inputs.call.v[:, 0, 0].float()
    starts = torch.tensor([0, *made.seqlens_k]).cumsum(0)
    owners = torch.repeat_interleave(torch.arange(made.batch), torch.tensor(made.seqlens_q)).tolist()
    for row, owner in enumerate(owners):
        own = values[starts[owner] : starts[owner + 1]]
        seen = own[int(visible.low[row]) : int(visible.high[row]) : visible.step]
        assert [int(seen.sum()), int((1 - seen).sum())] == [int(probe.ones[row]), int(probe.zeros[row])]
        assert abs(int(probe.ones[row]) - int(probe.zeros[row])) <= 1
    assert {0.0, 1.0} == set(values.tolist())


def test_each_head_has_its_own_distance_and_sink() -> None:
    """So a head that takes another's shows. Sinks stand near what all keys weigh, or far above or below."""
    subject = make_subject(sinks=True, scale=0.25)
    plain, above = make_probe(subject, 2.0), make_probe(subject, 2.0, sinks_above=120.0)
    assert [6.0, 7.5, 9.0, 10.5] * 2 == (plain.high - plain.low).tolist()
    assert [8.0] * 8 == plain.low.tolist()
    assert plain.inputs.call.sinks is not None
    assert above.inputs.call.sinks is not None
    middle = 2.0 + math.log(70)
    near = plain.inputs.call.sinks - middle
    assert [-1.0, -0.5, 0.0, 0.5, 1.0, -1.0, -0.5, 0.0] == pytest.approx(near.tolist(), abs=0.02)
    assert [middle + 119, middle + 119.5] == pytest.approx(above.inputs.call.sinks[:2].tolist(), abs=0.5)


PLAIN = [(0.0, ""), (30.0, "")]
"""(x, where sinks stand)"""
CAPPED = [(0.0, "near"), (20.0, "near"), (-1000.0, "near"), (1000.0, "near"), (0.0, "below"), (0.0, "above")]


@pytest.mark.parametrize(
    ("level", "jit", "workload", "asked"),
    [
        ("smoke", "never", {}, {0.125: PLAIN}),
        ("smoke", "never", {"softcap": 20.0, "sinks": True}, {0.125: CAPPED[:3]}),
        ("full", "never", {}, {0.125: PLAIN, 1.0: PLAIN}),
        ("full", "never", {"scale": 1.0}, {1.0: PLAIN, 0.5: PLAIN}),
        ("full", "shapes", {}, {0.125: PLAIN}),
        ("full", "never", {"softcap": 20.0, "sinks": True}, {0.125: CAPPED, 1.0: CAPPED}),
    ],
    ids=str,
)
def test_what_is_asked_at_each_level(
    level: str, jit: str, workload: dict[str, Any], asked: dict[float, list[tuple[float, str]]]
) -> None:
    """Under a softcap fifty of them below zero; at full another scale, fifty above, and sinks of no or all weight."""
    found: dict[float, list[tuple[float, str]]] = {}

    def kept(call: AttentionCall) -> AttentionCall:
        base = float(call.q[0, 0, 1]) * call.scale
        stands = 0.0 if call.sinks is None else float(call.sinks.mean()) - base - math.log(70)
        near = "" if call.sinks is None else "near" if abs(stands) < 5 else "above" if stands > 0 else "below"
        found.setdefault(call.scale, []).append((base, near))
        return call

    subject = make_subject(Edited(call=kept), level=level, card=make_card(jit=jit), **workload)
    assert "pass" == Parameters().run(subject)[0].verdict
    assert asked == found


LONG: dict[str, Any] = {"seqlens_q": (1,), "seqlens_k": (4000,)}
LOOSE = {"accuracy": {"bf16": "lowp_scores"}, "dtypes": ["bf16"]}


@pytest.mark.parametrize(
    ("card", "base", "workload", "relative"),
    [
        ({}, 0.0, {"dtype": "bf16"}, 2.25 * 2**-8),
        ({}, 30.0, {"dtype": "bf16"}, 2.254 * 2**-8),
        (LOOSE, 0.0, {"dtype": "bf16"}, 7.5 * 2**-8),
        ({}, 0.0, {"dtype": "fp16"}, 2.317 * 2**-11),
        ({}, 0.0, {"dtype": "fp32"}, 77 * 2**-24),
        ({}, 30.0, {"dtype": "fp32"}, 317 * 2**-24),
        ({}, 0.0, {"dtype": "fp32"} | LONG, 2042 * 2**-24),
    ],
    ids=str,
)
def test_a_share_may_be_as_far_off_as_its_formats_explain(
    card: dict[str, Any], base: float, workload: dict[str, Any], relative: float
) -> None:
    """Roundings of weights and output; in fp32 those of the scores, and of half the keys added one by one.

    One element beyond it is enough, and the LSE is held to what the card claims, here 1e-5.
    """
    subject = make_subject(card=make_card(**card), **workload)
    probe = make_probe(subject, base)
    scale = subject.workload.scale
    weights = [
        count[:, None] * torch.exp(scale * (raw - probe.low))[None]
        for count, raw in ((probe.ones.double(), probe.high), (probe.zeros.double(), probe.low))
    ]
    share = weights[0] / sum(weights)
    lse = torch.log(weights[0] + weights[1]) + scale * probe.low[None]
    row = int((probe.ones + probe.zeros).argmax())

    def verdict(share_off: float, lse_off: float = 0.0) -> bool:
        out = share.unsqueeze(-1).repeat(1, 1, subject.workload.head_dim_v)
        out[row, 3, 7] *= 1 + share_off
        told = lse.clone()
        told[row, 3] *= 1 + lse_off
        return judge_probe(subject, probe, Result(out=out.float(), lse=told.T.float())) is None

    assert [True, True, False, False] == [verdict(relative * by) for by in (0.95, -0.95, 1.05, -1.05)]
    assert [True, False] == [verdict(0.0, 1e-5 * by) for by in (0.9, 1.1)]
    assert not verdict(math.nan)
