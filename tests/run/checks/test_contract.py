"""contract: what comes back has the right form, and inputs stay as they were."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from builders import make_card
from faults import Edited
from subjects import make_subject
from torch import Tensor

from qualify.run.adapters.interface import AttentionCall
from qualify.run.checks.contract import Contract
from qualify.run.checks.interface import ContractBreach

PAGED: dict[str, Any] = {"seqlens_q": (1, 1), "seqlens_k": (20, 33), "page_size": 16}


def first_element(tensor: Tensor) -> Tensor:
    """The first element of the allocation that a view lies in: guard band, not data."""
    return torch.as_strided(tensor, (1,), (1,), 0)


WRITES: dict[str, tuple[dict[str, Any], Callable[[AttentionCall], Any], str]] = {
    "q": ({}, lambda call: call.q[3, 1, 5].add_(1), "q"),
    "k": ({}, lambda call: call.k[-1, -1, -1].add_(1), "k"),
    "v": ({}, lambda call: call.v[0, 0, 0].neg_(), "v"),
    "guard band of q": ({}, lambda call: first_element(call.q).add_(1), "q"),
    "guard band of v": ({}, lambda call: first_element(call.v).add_(1), "v"),
    "null page": (PAGED, lambda call: call.k[0, 0, 0, 0].add_(1), "k"),
    "block table": (PAGED, lambda call: call.block_table[0, -1].add_(1), "block_table"),  # type: ignore[index]
    "lengths": (PAGED, lambda call: call.seqused_k.add_(1), "seqused_k"),  # type: ignore[union-attr]
    "cu_seqlens": ({}, lambda call: call.cu_seqlens_q[1].sub_(1), "cu_seqlens_q"),
    "sinks": ({"sinks": True}, lambda call: call.sinks.mul_(2), "sinks"),  # type: ignore[union-attr]
}


@pytest.mark.parametrize("what", WRITES)
def test_writing_into_an_input_fails(what: str) -> None:
    """Every input tensor and what lies around it; the finding names it."""
    workload, write, name = WRITES[what]

    def after(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        write(call)
        return out, lse

    (finding,) = Contract().run(make_subject(Edited(result=after), **workload))
    assert ("contract", "fail") == (finding.check, finding.verdict)
    assert {"tensors": name} == finding.values
    assert finding.detail.endswith(name)


def breach(result: Callable[[AttentionCall, Tensor, Tensor], Any]) -> ContractBreach:
    """The breach that a wrong return raises."""
    with pytest.raises(ContractBreach) as caught:
        Contract().run(make_subject(Edited(result=result)))
    assert ("contract", "fail") == (caught.value.finding.check, caught.value.finding.verdict)
    return caught.value


@pytest.mark.parametrize(
    ("result", "detail"),
    [
        (lambda call, out, lse: None, r"returned None; "),
        (lambda call, out, lse: 7, r"returned int; "),
        (lambda call, out, lse: (out, None, lse), r"returned \(Tensor, None, Tensor\); "),
        (lambda call, out, lse: [out, lse, lse], r"returned \(Tensor, Tensor, Tensor\)"),
        (lambda call, out, lse: [out], r"returned \(Tensor\)"),
        (lambda call, out, lse: (out, 3.0), r"returned \(Tensor, float\)"),
        (lambda call, out, lse: out.tolist(), "returned"),
        (
            lambda call, out, lse: type("coroutine", (), {})(),
            r"returned coroutine; .*; write `def` in place of `async def`",
        ),
        (
            lambda call, out, lse: (part for part in (out, lse)),
            r"returned generator; .*; write `return` in place of `yield`",
        ),
        (lambda call, out, lse: (out[1:], lse), r"out has shape \(69, 8, 64\), the contract says \(70, 8, 64\)"),
        (lambda call, out, lse: (out.transpose(0, 1), lse), r"out has shape \(8, 70, 64\)"),
        (lambda call, out, lse: (out.unsqueeze(0), lse), r"out has shape \(1, 70, 8, 64\)"),
        (lambda call, out, lse: (out.float(), lse), r"out has dtype torch.float32, the contract says torch.bfloat16"),
        (lambda call, out, lse: (out, lse.T), r"lse has shape \(70, 8\), the contract says \(8, 70\)"),
        (lambda call, out, lse: (out, lse.double()), "lse has dtype torch.float64, the contract says torch.float32"),
        (lambda call, out, lse: (out, lse.to("meta")), "lse has device meta, the contract says cpu"),
    ],
)
def test_a_wrong_return_is_a_breach(result: Any, detail: str) -> None:
    """Type, shape, dtype and device, of the output and of the LSE; the message has both values."""
    raised = breach(result)
    assert re.search(detail, raised.finding.detail), raised.finding.detail


def test_an_lse_that_the_card_claims_belongs_to_the_contract() -> None:
    """The author reads what to return, before a check of other lengths meets the missing LSE."""
    subject = make_subject(Edited(result=lambda call, out, lse: out), card=make_card(features=["gqa", "lse"]))
    (finding,) = Contract().run(subject)
    told = "returned no LSE, and the card claims `lse`: return `(out, lse)`, or remove `lse` from claims.features"
    assert ("contract", "fail", told) == (finding.check, finding.verdict, finding.detail)


@pytest.mark.parametrize("which", [0, 1], ids=["out", "lse"])
def test_a_result_in_memory_that_is_used_again_fails(which: int) -> None:
    """The next call of the same shape overwrites it."""
    kept: dict[Any, Tensor] = {}

    def again(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        results = [out, lse]
        results[which] = kept.setdefault(out.shape, results[which]).copy_(results[which])
        return results[0], results[1]

    (finding,) = Contract().run(make_subject(Edited(result=again)))
    assert ("contract", "fail") == (finding.check, finding.verdict)
    assert ("out", "lse")[which] == finding.values["tensor"]
    assert finding.detail.startswith("the result of a call is overwritten by the next call: ")


@pytest.mark.parametrize("workload", [{}, PAGED, {"sinks": True, "head_dim_v": 32}, {"seqlens_q": (3, 0, 2)}], ids=str)
def test_a_correct_kernel_passes(workload: dict[str, Any]) -> None:
    """Packed, paged, with a sink, with short values and with an empty sequence."""
    (finding,) = Contract().run(make_subject(**workload))
    assert "pass" == finding.verdict


@pytest.mark.parametrize(
    "result",
    [lambda call, out, lse: out, lambda call, out, lse: (out, None), lambda call, out, lse: [out, lse]],
    ids=["out", "pair without LSE", "list of two"],
)
def test_the_lse_may_be_left_out(result: Any) -> None:
    """Where the card claims none, a bare output, a pair without an LSE, and a list as pair are within the contract."""
    (finding,) = Contract().run(make_subject(Edited(result=result), card=make_card(features=["gqa"])))
    assert "pass" == finding.verdict
