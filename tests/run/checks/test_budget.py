"""budget: the error against the golden result, the LSE and its base, empty rows, and what a NaN may hide."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from builders import make_card
from faults import CapAfterMask, Dense, Edited, changed
from subjects import make_subject
from torch import Tensor

from qualify.facts.accuracy import class_named
from qualify.facts.outcome import Finding, Statistics
from qualify.report.causes import explain
from qualify.run.adapters.interface import AttentionCall, Prepared
from qualify.run.adapters.tiled_torch import TiledTorch
from qualify.run.checks.budget import FEW_ROWS, KINDS, Budget, keeps
from qualify.run.checks.interface import Subject
from qualify.run.golden.comparison import compared
from qualify.run.golden.result import Golden
from qualify.run.golden.rows import SAMPLE_ROWS, select_rows
from qualify.selftest.correct import VARIANTS

EMPTY: dict[str, Any] = {"seqlens_q": (9, 3), "seqlens_k": (4, 3)}


def budget(adapter: Any = None, **subject: Any) -> dict[str, Finding]:
    """The findings of the check that are not a pass, or all of them, by name."""
    found = Budget().run(make_subject(adapter, **subject))
    return {finding.check: finding for finding in found}


def measured(subject: Subject) -> tuple[list[Finding], list[Statistics]]:
    """Findings, and what the check adds to the subject."""
    return Budget().run(subject), subject.statistics


def verdicts(adapter: Any = None, **subject: Any) -> dict[str, str]:
    """The verdict of each finding."""
    return {name: finding.verdict for name, finding in budget(adapter, **subject).items()}


def unwritten_row(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Row 33 is never written: it holds what was there before, which is not always something else."""
    fresh = torch.ones_like(out)
    fresh[:33], fresh[34:] = out[:33], out[34:]
    return fresh, lse


def fp8_weights(call: AttentionCall) -> AttentionCall:
    """Values that were rounded to eight bits on the way."""
    return replace(call, v=call.v.to(torch.float8_e4m3fn).to(call.v.dtype))


def skips_rescaling(i: Tensor, j: Tensor, seqlen_q: int, seqlen_k: int, call: AttentionCall) -> Tensor:
    """The last tile of 32 keys is lost."""
    seen: Tensor = call.mask.visible(i, j, seqlen_q, seqlen_k)
    return seen & (j < seqlen_k // 32 * 32)


FAULTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "scale ignored": (changed(scale=1.0), {}),
    "scale one percent off": (changed(scale=1.01 * 64**-0.5), {"dtype": "fp16"}),
    "softcap ignored": (changed(softcap=0.0), {"softcap": 5.0}),
    "sink dropped": (changed(sinks=None), {"sinks": True}),
    "window ignored": (changed(window=(-1, 0)), {"window": (15, 0)}),
    "interleaved KV heads": (Dense(kv_head=lambda head, heads_q, heads_kv: head % heads_kv), {}),
    "a lost tile": (Dense(mask=skips_rescaling), {"seqlens_q": (40,), "seqlens_k": (90,), "causal": False}),
    "an unwritten row": (Edited(result=unwritten_row), {}),
    "eight-bit values": (Edited(call=fp8_weights), {}),
    "one percent gain": (Edited(result=lambda call, out, lse: (out * 1.01, lse)), {"dtype": "fp32"}),
    "rounded twice": (Edited(result=lambda call, out, lse: (out.bfloat16().to(out.dtype), lse)), {"dtype": "fp16"}),
    "one wrong element": (
        Edited(result=lambda call, out, lse: (out.index_put((torch.tensor(5), torch.tensor(1)), out[5, 2]), lse)),
        {},
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_arithmetic_fails(fault: str) -> None:
    """Parameters ignored, heads mixed up, tiles lost, formats too coarse."""
    adapter, workload = FAULTS[fault]
    assert "fail" == verdicts(adapter, **workload)["budget"]


@pytest.mark.parametrize("level", ["smoke", "full"])
def test_an_ignored_softcap_of_fifty_shows_in_the_lse_at_least(level: str) -> None:
    """With ordinary scores a softcap of 50 hardly bends them: the LSE gives it away where there is one."""
    found = Budget().run(make_subject(changed(softcap=0.0), softcap=50.0, level=level))
    assert ("lse", "fail") in {(finding.check, finding.verdict) for finding in found}


def test_an_ignored_softcap_of_fifty_shows_in_the_output_at_full_level() -> None:
    """A kernel without an LSE is caught by peaked inputs."""
    without = Edited(call=lambda call: replace(call, softcap=0.0), result=lambda call, out, lse: out)
    card = make_card(features=["gqa", "softcap"])
    found = Budget().run(make_subject(without, card=card, softcap=50.0, level="full"))
    assert ("budget", "fail") in {(finding.check, finding.verdict) for finding in found}


def test_the_finding_names_classes_statistics_and_places() -> None:
    """Declared and measured class, each broken limit, the worst element and how many are over."""
    finding = budget(Edited(result=lambda call, out, lse: (out.bfloat16().half(), lse)), dtype="fp16")["budget"]
    assert "declared fp16, measured bf16" in finding.detail
    assert "bf16" == finding.values["measured_class"]
    wrong = budget(Edited(result=unwritten_row), seqlens_q=(30, 40))["budget"]
    assert (1, 3) == (wrong.values["sequence"], wrong.values["query"])


@pytest.mark.parametrize(("factor", "size"), [(1 - 3.6e-4, "small"), (1 + 3.6e-4, "large")])
def test_a_bias_alone_is_told_in_words(factor: float, size: str) -> None:
    """A truncated output: no element is too far off, but nearly all are off in the same direction."""
    finding = budget(Edited(result=lambda call, out, lse: ((out.double() * factor).half(), lse)), dtype="fp16")[
        "budget"
    ]
    told = f"measured bf16: the outputs are too {size} by 0.03"
    assert told in finding.detail
    assert "% on the whole: |β| 0.0003" in finding.detail
    said = explain(finding).sentence
    assert said.startswith(f"The outputs are too {size} on the whole: expected |β| ≤ 0.0002")
    assert ("truncated" in said) == (size == "small")


def test_worse_than_every_class_is_said_so() -> None:
    """No class fits: the finding does not name one."""
    finding = budget(changed(scale=1.0))["budget"]
    assert "measured worse than fp8: error " in finding.detail
    assert " > 1 (worst element), " in finding.detail
    assert "" == finding.values["measured_class"]


def test_better_than_declared_passes_and_is_told() -> None:
    """An fp16 kernel under a card that claims the class bf16 passes, and the measured class is named."""
    card = make_card(dtypes=["fp16"], accuracy={"fp16": "bf16"})
    finding = budget(dtype="fp16", card=card)["budget"]
    assert "pass" == finding.verdict
    assert "within the budget of bf16; measured fp16" in finding.detail


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_one_row_that_is_not_finite_fails(value: float) -> None:
    """One row of one head: the count, the first place and the value are told."""

    def broken(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        out[35, 2] = value
        return out, lse

    finding = budget(Edited(result=broken), seqlens_q=(30, 40))["budget"]
    assert "fail" == finding.verdict
    wanted = {"elements": 64, "sequence": 1, "query": 5, "head": 2}
    assert wanted == {name: finding.values[name] for name in wanted}
    assert "64 of 35840 output elements are NaN or infinite" in finding.detail


@dataclass(frozen=True, kw_only=True)
class BrokenReference(Subject):
    """A subject whose golden result has a NaN in it."""

    def golden(self, call: AttentionCall) -> Golden:
        found = super().golden(call)
        copy = replace(found, out=found.out.clone(), numbers=found.numbers.clone())
        (copy.lse if self.seed % 2 else copy.out)[7, 1] = math.nan
        return copy


@pytest.mark.parametrize("seed", [0, 1])
def test_a_nan_in_the_golden_result_fails(seed: int) -> None:
    """Nan > limit is False: a broken reference must not pass everything."""
    (finding,) = Budget().run(make_subject(kind=BrokenReference, seed=seed))
    assert ("budget", "fail") == (finding.check, finding.verdict)
    assert "the golden result itself is not finite" in finding.detail


@pytest.mark.parametrize(
    ("edit", "words", "base"),
    [
        (lambda lse: lse / math.log(2), "it is in base 2", "2"),
        (lambda lse: lse + math.log(2), "LSE is off by", ""),
        (lambda lse: lse * (1 + 3e-5), "LSE is off by", "e"),
        (lambda lse: lse.index_fill(1, torch.tensor([20]), math.nan), "LSE is off by", ""),
        (lambda lse: lse.index_fill(1, torch.tensor([20]), math.inf), "LSE is off by", "e"),
        (torch.zeros_like, "LSE is off by", ""),
    ],
    ids=["base 2", "ln 2", "inaccurate", "nan", "inf", "zeros"],
)
def test_a_wrong_lse_fails(edit: Any, words: str, base: str) -> None:
    """The base is recognised by the ratio; NaN and infinities are never close."""
    finding = budget(Edited(result=lambda call, out, lse: (out, edit(lse))), seqlens_k=(300,))["lse"]
    assert "fail" == finding.verdict
    assert words in finding.detail
    assert base == finding.values["base"]
    assert ("base 2" in finding.detail) == (base == "2")


def test_an_lse_that_was_claimed_and_is_missing_fails() -> None:
    """The card says lse, and nothing comes back."""
    finding = budget(Edited(result=lambda call, out, lse: out))["lse"]
    assert ("fail", "the card claims an LSE and the kernel returned none") == (finding.verdict, finding.detail)


def test_an_lse_that_is_not_claimed_may_be_missing() -> None:
    """Without the claim there is nothing to say."""
    found = verdicts(Edited(result=lambda call, out, lse: out), card=make_card(features=["gqa"]))
    assert {"budget": "pass"} == found


@pytest.mark.parametrize(("rel", "expected"), [(2e-3, "pass"), (1e-5, "fail")])
def test_the_accuracy_of_the_lse_is_a_claim(rel: float, expected: str) -> None:
    """An LSE good to 1e-3 is right or wrong as the card says."""
    sloppy = Edited(result=lambda call, out, lse: (out, lse * 1.001))
    assert expected == verdicts(sloppy, card=make_card(lse={"rel": rel}))["lse"]


def empty_rows(out: float, lse: float) -> Edited:
    """A kernel that gives these values where a row sees no key."""

    def edit(call: AttentionCall, right: Tensor, right_lse: Tensor) -> tuple[Tensor, Tensor]:
        empty = right_lse == -math.inf
        return right.masked_fill(empty.T.unsqueeze(-1), out), right_lse.masked_fill(empty, lse)

    return Edited(result=edit)


@pytest.mark.parametrize(
    ("policy", "given", "kept"),
    [
        (("0", "-inf"), (0.0, -math.inf), True),
        (("0", "-inf"), (1.0, -math.inf), False),
        (("0", "-inf"), (math.nan, -math.inf), False),
        (("0", "-inf"), (0.0, math.inf), False),
        (("0", "-inf"), (0.0, math.nan), False),
        (("0", "-inf"), (0.0, 0.0), False),
        (("0", "inf"), (0.0, math.inf), True),
        (("0", "inf"), (0.0, -math.inf), False),
        (("nan", "-inf"), (math.nan, -math.inf), True),
        (("nan", "-inf"), (0.0, -math.inf), False),
        (("any", "any"), (17.0, math.nan), True),
        (("any", "any"), (math.nan, math.inf), True),
        (("0", "any"), (0.0, 3.0), True),
        (("any", "-inf"), (3.0, -math.inf), True),
    ],
)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_rows_without_keys_follow_the_card(
    policy: tuple[str, str], given: tuple[float, float], kept: bool, dtype: str
) -> None:
    """Out 0, nan or any; lse -inf, inf or any: the card decides, and nothing else is judged by those rows."""
    card = make_card(empty_row={"out": policy[0], "lse": policy[1]})
    found = verdicts(empty_rows(*given), card=card, dtype=dtype, **EMPTY)
    assert {"budget": "pass", "lse": "pass"} | ({} if kept else {"empty_row": "fail"}) == found


def test_a_broken_empty_row_policy_tells_how_many_and_an_example() -> None:
    """Five of twelve rows see no key."""
    finding = budget(empty_rows(2.5, math.inf), **EMPTY)["empty_row"]
    assert 5 == finding.values["rows"]
    assert finding.detail.endswith(
        ": 5 query rows see no key; the card claims 0 for their output, but one element is 2.5; "
        "the card claims -inf for their LSE, but one is inf"
    )


@pytest.mark.parametrize(
    ("adapter", "softcap", "told"),
    [
        ("cap-after-mask", 30.0, True),
        (math.log(4.5) - 30, 30.0, False),
        (-31.0, 30.0, False),
        (math.log(3) - 30, 0.0, False),
    ],
)
def test_a_softcap_after_the_mask_is_named(adapter: str | float, softcap: float, told: bool) -> None:
    """Hidden keys score -softcap: a row that sees none has the LSE of so many keys. Others are not accused."""
    wrong = CapAfterMask() if isinstance(adapter, str) else empty_rows(2.5, adapter)
    finding = budget(wrong, softcap=softcap, **EMPTY)["empty_row"]
    named = "; it looks like a softcap that is applied after the mask, so that hidden keys score -30 and not -inf"
    assert finding.detail.endswith(named) == told


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("dtype", "lengths"),
    [
        ("fp16", {"seqlens_q": (500,), "heads_q": 2, "heads_kv": 1}),
        ("bf16", {"seqlens_q": (40,), "seqlens_k": (1500,)}),
    ],
    ids=["fp16", "bf16"],
)
def test_weights_below_the_normal_range_are_not_accused(dtype: str, lengths: dict[str, Any], seed: int) -> None:
    """A kernel whose row maximum begins with the sink has nothing but such weights where the sink is far above.

    fp16 rounds them in its own steps, and float32 on a GPU has no subnormal numbers.
    """

    class SinkFirst:
        def prepare(self, call: AttentionCall) -> Prepared:
            kernel = {variant.name: variant for variant in VARIANTS}["sink-first"].make()
            return Prepared(launch=lambda: kernel.launch(call), result=lambda native: native)

    subject = make_subject(SinkFirst(), level="full", dtype=dtype, seed=seed, window=(127, 0), sinks=True, **lengths)
    assert {"pass"} == {finding.verdict for finding in Budget().run(subject)}


def test_a_batch_of_empty_rows_only_has_no_statistics() -> None:
    """Nothing can be compared, and nothing is claimed to be."""
    findings, statistics = measured(make_subject(seqlens_q=(3, 2), seqlens_k=(0, 0), causal=False))
    assert ([], []) == (findings, statistics)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_statistics_of_every_input_kind(dtype: str) -> None:
    """At full level there is one record for each kind, each of its own seed; every number is finite."""
    _, statistics = measured(make_subject(level="full", dtype=dtype))
    assert list(KINDS["full"]) == [record.inputs for record in statistics]
    assert len(KINDS["full"]) == len({record.seed for record in statistics})
    for record in statistics:
        assert (dtype, "fp64") == (record.declared_class, record.reference)
        assert (560, "e") == (record.rows, record.lse_base)
        assert record.measured_class
        assert all(math.isfinite(value) for value in (record.E, record.R, record.G, record.beta, record.beta_limit))
        assert record.lse_rel is not None
        assert record.lse_rel < 1e-5
    assert dtype == statistics[0].measured_class


def test_long_prompts_are_sampled_for_all_kinds_but_the_first() -> None:
    """Normal inputs are compared in every row up to 4,096; the others in a sample, in a class with every term too."""
    lengths = (SAMPLE_ROWS + 1,)
    long = {"heads_q": 1, "heads_kv": 1, "head_dim": 16, "seqlens_q": lengths, "seqlens_k": lengths}
    card = make_card()
    card = card.model_copy(update={"accuracy": dict(card.accuracy) | {"bf16": "lowp_scores"}})
    sample = len(select_rows(SAMPLE_ROWS + 1, SAMPLE_ROWS))
    assert sample <= SAMPLE_ROWS
    for options in ({}, {"card": card}):
        findings, statistics = measured(make_subject(level="full", dtype="bf16", **options, **long))
        assert {"pass"} == {finding.verdict for finding in findings}
        assert [SAMPLE_ROWS + 1] + [sample] * (len(KINDS["full"]) - 1) == [record.rows for record in statistics]


def test_a_class_is_kept_by_all_rows_and_not_only_the_first() -> None:
    """The few rows that are asked first may rule a class out; they never let one in."""
    subject = make_subject(dtype="bf16")
    call = subject.inputs().call
    golden = subject.golden(call)
    out = golden.out.bfloat16()
    assert keeps(compared(golden, out), class_named("bf16"))
    for row in (0, len(out) - 1):
        wrong = out.clone()
        wrong[row] *= 1.5
        assert not keeps(compared(golden, wrong), class_named("bf16"))
    assert len(out) > FEW_ROWS


def test_underflow_is_shown_in_fp16_only() -> None:
    """E without the underflow term is at least E, and the same where the class has no such term."""
    for dtype in ("bf16", "fp16"):
        _, (record,) = measured(make_subject(dtype=dtype))
        assert (record.E_without_underflow > record.E) == (dtype == "fp16")


@pytest.mark.parametrize(
    "workload",
    [
        {},
        {"causal": False, "heads_kv": 8},
        {"window": (9, 4), "causal": False},
        {"softcap": 30.0, "sinks": True},
        {"head_dim_v": 16, "scale": 0.3},
        {"seqlens_q": (1, 17, 100, 3, 0, 64)},
        {"seqlens_q": (1, 1, 1), "seqlens_k": (40, 0, 33), "page_size": 16},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("adapter", [TiledTorch(tile_q=16, tile_k=32), Dense()], ids=["tiled", "dense"])
def test_correct_kernels_pass(adapter: Any, workload: dict[str, Any], dtype: str) -> None:
    """Two kernels that sum in different orders, under every feature, on all kinds of inputs."""
    assert {"budget": "pass", "lse": "pass"} == verdicts(adapter, level="full", dtype=dtype, **workload)
