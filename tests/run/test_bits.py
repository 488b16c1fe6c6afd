"""Digests of the bits of a call's inputs and outputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from builders import CEILINGS, make_card, make_case, make_workload
from faults import Edited
from torch import Tensor

from qualify.facts.outcome import Evidence, evidence_of
from qualify.facts.stack import Device
from qualify.run import bits
from qualify.run.adapters.tiled_torch import TiledTorch
from qualify.run.bits import inputs_digest
from qualify.run.execute import Session
from qualify.run.host.hosts import LocalHosts
from qualify.run.inputs.tensors import make_inputs
from qualify.run.machine.device import Cpu
from qualify.run.process.messages import CaseRequest

CPU = torch.device("cpu")


def evidence(adapter: Any, *, seqlens_q: tuple[int, ...] = (20,), **claims: Any) -> Evidence:
    """The evidence of one case of a kernel."""
    card = make_card(kernel="under-test", **claims)
    made = Session(
        device=Device(
            kind="cpu", name="a CPU", uuid="", compute_capability="", units=2, memory_bytes=1 << 30, cache_bytes=1 << 20
        ),
        ceilings=CEILINGS,
        cards={"under-test": card},
        announce=lambda *_: None,
        level="smoke",
        reference="fp64",
        hosts=LocalHosts(Cpu(), {"under-test": adapter}),
        timed=False,
    )
    workload = make_workload(seqlens_q=seqlens_q, seqlens_k=(20,))
    (ended,) = made.run([CaseRequest(case=make_case("under-test", workload=workload), attempt=1)])
    found = evidence_of(ended.outcome)
    assert found is not None
    return found


def off_by_one_bit(call: Any, out: Tensor, lse: Tensor | None) -> Any:
    """The last bit of one element is another one."""
    flat = out.clone().view(torch.int16)
    flat[3, 1, 5] ^= 1
    return flat.view(out.dtype), lse


def test_equal_calls_have_equal_digests_and_one_bit_more_has_another() -> None:
    """Two sessions, which draw the inputs anew, agree; a flipped bit of the output shows, the inputs stay."""
    one, other = (evidence(TiledTorch()) for _ in range(2))
    spoiled = evidence(Edited(result=off_by_one_bit))
    assert (one.output_digest, one.inputs_digest) == (other.output_digest, other.inputs_digest)
    assert 64 == len(one.output_digest) == len(one.inputs_digest)
    assert one.inputs_digest == spoiled.inputs_digest
    assert one.output_digest != spoiled.output_digest


def test_rows_that_nobody_promises_do_not_count() -> None:
    """Queries beyond the keys see none: where the card promises nothing of them, what they hold makes no difference."""

    def fill(call: Any, out: Tensor, lse: Tensor | None) -> Any:
        changed = out.clone()
        changed[:4] = 7.0
        return changed, lse

    for promised, same in (({"out": "any", "lse": "any"}, True), ({"out": 0, "lse": "-inf"}, False)):
        pair = [evidence(kernel, seqlens_q=(30,), empty_row=promised) for kernel in (TiledTorch(), Edited(result=fill))]
        assert same == (pair[0].output_digest == pair[1].output_digest)


def test_a_result_without_numbers_has_no_digest() -> None:
    """It breaks the contract, which says so; the case has its outcome all the same."""
    found = evidence(Edited(result=lambda call, out, lse: (out.to("meta"), lse)))
    assert not found.output_digest
    assert "out has device meta, the contract says cpu" == found.findings[0].detail


@pytest.mark.parametrize(("policy", "same"), [("any", True), ("-inf", False)])
def test_an_lse_that_nobody_promises_does_not_count(policy: str, *, same: bool) -> None:
    """Also where the card says what the output of such rows is."""

    def fill(call: Any, out: Tensor, lse: Tensor) -> Any:
        changed = lse.clone()
        changed[:, :4] = 7.0
        return out, changed

    promised = {"out": 0, "lse": policy}
    pair = [evidence(kernel, seqlens_q=(30,), empty_row=promised) for kernel in (TiledTorch(), Edited(result=fill))]
    assert same == (pair[0].output_digest == pair[1].output_digest)


@pytest.mark.parametrize("words", [1 << 24, 1000])
def test_a_sum_of_inputs_knows_values_and_places(words: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In however many portions: other values, swapped rows and another page table are other inputs."""
    monkeypatch.setattr(bits, "WORDS", words)
    workload = make_workload(seqlens_q=(40,), page_size=16)
    call = make_inputs(workload, kind="normal", seed=1, device=CPU).call
    again = make_inputs(workload, kind="normal", seed=1, device=CPU).call
    other = make_inputs(workload, kind="normal", seed=2, device=CPU).call
    swapped = replace(call, q=call.q.roll(1, 0))
    table = replace(call, block_table=call.block_table.flip(1))
    assert inputs_digest(call) == inputs_digest(again)
    assert 4 == len({inputs_digest(some) for some in (call, other, swapped, table)})
