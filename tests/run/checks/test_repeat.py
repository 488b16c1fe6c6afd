"""repeat: the same call gives the same bits, where that is claimed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from builders import make_card
from faults import Edited
from subjects import make_subject, on_gpu
from torch import Tensor

from qualify.facts.outcome import Finding
from qualify.run.adapters.interface import AttentionCall
from qualify.run.adapters.tiled_torch import TiledTorch
from qualify.run.checks.difference import unsteady
from qualify.run.checks.interface import ContractBreach
from qualify.run.checks.repeat import TIMES, Repeat
from qualify.run.host.local import LOADS


class Changing:
    """Changes one element of the output, or of the LSE, in one later call."""

    def __init__(self, at: int, what: str = "out") -> None:
        self.at = at
        self.what = what
        self.calls = 0

    def __call__(self, call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        self.calls += 1
        if self.calls == self.at and self.what == "out":
            out.view(torch.int16)[12, 3, 5] ^= 1
        elif self.calls == self.at:
            lse[3, 12] += 1e-6 * lse[3, 12].abs()
        return out, lse


def repeat(result: Any, level: str = "smoke", *, deterministic: bool = True) -> Finding:
    """The one finding of the check."""
    card = make_card(deterministic=deterministic)
    (finding,) = Repeat().run(make_subject(Edited(result=result), level=level, card=card, seqlens_q=(9, 30)))
    return finding


@pytest.mark.parametrize(("level", "at"), [("smoke", 2), ("smoke", 3), ("full", 20)])
def test_one_bit_of_a_later_call_fails(level: str, at: int) -> None:
    """The call, the place and both values are named."""
    finding = repeat(Changing(at), level)
    assert "fail" == finding.verdict
    place = {"call": at, "sequence": 1, "query": 3, "head": 3, "element": 5, "elements": 1, "rows": 1}
    assert place == {name: finding.values[name] for name in place}
    assert finding.values["before"] != finding.values["after"]


def test_a_changing_lse_fails_and_its_values_are_shown() -> None:
    """The output may repeat while the LSE does not."""
    finding = repeat(Changing(2, "lse"))
    assert "fail" == finding.verdict
    assert (1, 3, 3) == tuple(finding.values[name] for name in ("sequence", "query", "head"))
    assert "lse" == finding.values["tensor"]
    assert finding.values["before"] != finding.values["after"]
    assert "1 elements of lse in 1 rows" in finding.detail


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_first_call_of_the_process_is_one_of_them(*, deterministic: bool) -> None:
    """A result of the first call that no other call gives fails, also without a claim; within rounding it may."""
    subject = make_subject(card=make_card(deterministic=deterministic), seqlens_q=(9, 30))
    out, lse = TiledTorch().prepare(subject.inputs().call).launch()
    (finding,) = Repeat().run(replace(subject, first=lambda: (torch.zeros_like(out), lse)))
    assert ("fail", 0) == (finding.verdict, finding.values["call"])
    (finding,) = Repeat().run(replace(subject, first=lambda: (out, lse)))
    assert "pass" == finding.verdict
    rounded = out.clone()
    rounded.view(torch.int16)[12, 3, 5] ^= 1
    (finding,) = Repeat().run(replace(subject, first=lambda: (rounded, lse)))
    assert ("fail" if deterministic else "pass") == finding.verdict


@pytest.mark.parametrize("other", [lambda out: out[1:], lambda out: out.float(), lambda out: out.to("meta")])
def test_a_first_call_of_another_form_breaks_the_contract(other: Callable[[Tensor], Tensor]) -> None:
    """Of another shape, dtype or device than the later ones, which are right."""
    subject = make_subject(seqlens_q=(9, 30))
    out, lse = TiledTorch().prepare(subject.inputs().call).launch()
    with pytest.raises(ContractBreach, match=r"out has (shape|dtype|device) .*, the contract says "):
        Repeat().run(replace(subject, first=lambda: (other(out), lse)))


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_later_call_without_the_lse_breaks_the_contract(*, deterministic: bool) -> None:
    """Whoever reads it would read nothing. Where the card claims none, nobody reads it."""
    calls: list[int] = []

    def sometimes(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor | None]:
        calls.append(1)
        return out, lse if len(calls) < 3 else None

    with pytest.raises(ContractBreach, match="claims an LSE; one call returned it, another did not"):
        repeat(sometimes, deterministic=deterministic)
    subject = make_subject(Edited(result=sometimes), card=make_card(features=["gqa", "ragged"]), seqlens_q=(9, 30))
    assert ["pass"] == [finding.verdict for finding in Repeat().run(subject)]


def test_without_a_claim_of_determinism_it_is_a_note() -> None:
    """The difference is told, and nobody promised otherwise."""
    assert "note" == repeat(Changing(2), deterministic=False).verdict


@pytest.mark.parametrize(("level", "at"), [("smoke", 3), ("full", 15)])
@pytest.mark.parametrize("rounded_before", [False, True])
def test_what_is_no_rounding_fails_without_a_claim(level: str, at: int, *, rounded_before: bool) -> None:
    """A race that gives something else once is a defect, even where an earlier call was rounded otherwise."""
    calls: list[int] = []

    def racing(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(1)
        if rounded_before and len(calls) == 2:
            out.view(torch.int16)[12, 3, 5] ^= 1
        if len(calls) == at:
            out[:] = 1000.0
        return out, lse

    finding = repeat(racing, level, deterministic=False)
    assert ("fail", at, 1000.0) == (finding.verdict, finding.values["call"], finding.values["after"])


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_finding_says_whether_rounding_explains_the_difference(*, deterministic: bool) -> None:
    """A result that is not the same beyond rounding makes every other comparison doubtful."""
    calls: list[int] = []

    def noisy(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(1)
        return out * len(calls), lse

    assert repeat(noisy, deterministic=deterministic).values["beyond_rounding"] is True
    assert "beyond_rounding" not in repeat(Changing(2), deterministic=deterministic).values
    subject = make_subject(Edited(result=noisy), card=make_card(deterministic=deterministic))
    found = unsteady(subject, subject.inputs().call)
    assert found is not None
    assert found.values["beyond_rounding"] is True


@pytest.mark.parametrize(
    ("policy", "verdict"),
    [({"out": "any", "lse": "any"}, "pass"), ({"out": 0, "lse": "any"}, "fail"), ({"out": 0, "lse": "-inf"}, "fail")],
    ids=str,
)
def test_rows_without_a_key_may_vary_where_nothing_is_promised_of_them(policy: dict[str, Any], verdict: str) -> None:
    """What nobody wrote there holds what was there before."""
    calls: list[int] = []

    def unwritten(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(1)
        out[:5], lse[:, :5] = len(calls), len(calls)
        return out, lse

    card = make_card(deterministic=True, empty_row=policy)
    (finding,) = Repeat().run(make_subject(Edited(result=unwritten), card=card, seqlens_q=(5, 9), seqlens_k=(0, 9)))
    assert verdict == finding.verdict


@pytest.mark.parametrize(("lse", "verdict"), [("any", "pass"), ("-inf", "fail")])
def test_the_lse_alone_may_vary_where_nothing_is_promised_of_it(lse: str, verdict: str) -> None:
    """The output of such a row is 0 in every call."""
    calls: list[int] = []

    def unwritten(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(1)
        lse[:, :5] = len(calls)
        return out, lse

    card = make_card(deterministic=True, empty_row={"out": 0, "lse": lse})
    (finding,) = Repeat().run(make_subject(Edited(result=unwritten), card=card, seqlens_q=(5, 9), seqlens_k=(0, 9)))
    assert verdict == finding.verdict


@pytest.mark.parametrize("level", ["smoke", "full"])
def test_equal_bits_pass(level: str) -> None:
    """Equal NaNs in the output are equal bits too."""

    def with_nan(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        return out.index_fill(0, torch.tensor([4]), torch.nan), lse

    for result in (None, with_nan):
        finding = repeat(result, level)
        assert ("pass", TIMES[level]) == (finding.verdict, finding.values["calls"])  # type: ignore[index]


def test_zeros_of_either_sign_differ() -> None:
    """Bits are compared, not values."""
    calls: list[int] = []

    def signed(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(1)
        out[0, 0, 0] = -0.0 if len(calls) == 2 else 0.0
        return out, lse

    assert "fail" == repeat(signed).verdict


class ByBatch(TiledTorch):
    """Splits its tiles by the number of sequences: another order of the sum."""

    def prepare(self, call: AttentionCall) -> Any:
        return TiledTorch(tile_k=16 if len(call.cu_seqlens_q) > 2 else 64).prepare(call)


@pytest.mark.parametrize("page_size", [0, 16])
def test_what_depends_on_the_batch_fails_where_the_card_claims_that_nothing_does(page_size: int) -> None:
    """A sequence alone against the same one among others; only where it is claimed."""
    batch = {"seqlens_q": (1, 1, 1), "seqlens_k": (90, 70, 200), "page_size": page_size}
    for claimed, adapter, verdict in ((True, ByBatch(), "fail"), (True, None, "pass"), (False, ByBatch(), "pass")):
        card = make_card(batch_invariant=claimed)
        (finding,) = Repeat().run(make_subject(adapter, level="full", card=card, **batch))
        assert verdict == finding.verdict


def test_a_batch_without_an_lse_is_compared_by_its_output() -> None:
    """A kernel whose card claims none is asked all the same."""
    batch: dict[str, Any] = {"seqlens_q": (1, 1, 1), "seqlens_k": (90, 70, 200), "level": "full"}
    card = make_card(batch_invariant=True, features=["gqa", "ragged"])
    for adapter, verdict in ((ByBatch(), "fail"), (None, "pass")):
        assert verdict == Repeat().run(make_subject(adapter, card=card, **batch))[0].verdict


@pytest.mark.parametrize("dtype", ["bf16", "bf16_kv_fp8_e4m3"])
def test_a_sequence_alone_has_aligned_tensors(dtype: str) -> None:
    """Its lengths, pages and factors begin at multiples of 16 bytes, as the call contract says of all tensors."""

    def aligned(call: AttentionCall) -> AttentionCall:
        tensors = [getattr(call, field.name) for field in fields(call)]
        assert not [
            tensor.data_ptr() % 16 for tensor in tensors if isinstance(tensor, Tensor) and tensor.data_ptr() % 16
        ]
        return call

    card = make_card(batch_invariant=True)
    workload: dict[str, Any] = {"seqlens_q": (1,) * 3, "seqlens_k": (70, 33, 64), "page_size": 16, "dtype": dtype}
    (finding,) = Repeat().run(make_subject(Edited(call=aligned), level="full", card=card, **workload))
    assert "pass" == finding.verdict


@pytest.mark.gpu
def test_a_kernel_that_changes_beside_other_work_is_caught() -> None:
    """It sees that the load's stream is busy when it is called."""
    busy: list[bool] = []

    def look(call: AttentionCall) -> AttentionCall:
        busy.append("cuda" in LOADS and not LOADS["cuda"].stream.query())
        return call

    def elbowed(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        return (out + 1 if busy[-1] else out), lse

    usual = make_subject(level="full", card=make_card(deterministic=True))
    subject = on_gpu(usual, Edited(call=look, result=elbowed))
    (finding,) = Repeat().run(subject)
    assert ("fail", True) == (finding.verdict, "beside other work differs" in finding.detail)
    (finding,) = Repeat().run(on_gpu(subject, Edited()))
    assert ("pass", True) == (finding.verdict, "half of them beside other work" in finding.detail)
