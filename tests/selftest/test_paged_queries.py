"""What the shipped matrices plan on pages is enough to see a kernel that loses the end of a chunk there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from subjects import make_call

from qualify.cards.load import load_kernels, load_matrix
from qualify.facts.case import Case
from qualify.plan.plan import Selection, make_plan
from qualify.run.execute import Session
from qualify.run.host.hosts import LocalHosts
from qualify.run.machine.device import processor_of
from qualify.run.process.messages import CaseRequest
from qualify.selftest import examine, kernel, workloads
from qualify.selftest.faults import paged_queries
from qualify.selftest.planning import CallPlan

SMOKE = make_plan(load_matrix("smoke"), load_kernels(), selection=Selection(kernel="tiled-torch")).cases


def said_of(specimen: str, cases: list[Case]) -> list[str]:
    """The checks that fail a simulated kernel on cases of a matrix, at level smoke."""
    kernel.forget()
    session = Session(
        device=examine._DEVICE,
        ceilings=examine._CEILINGS,
        cards={specimen: workloads.card(specimen)},
        level="smoke",
        reference="fp64",
        hosts=LocalHosts(processor_of(examine._DEVICE.kind)),
        announce=lambda _case, _stage: None,
        timed=False,
        golden_of=examine._goldens(),
    )
    requests = [CaseRequest(case=replace(case, kernel=specimen), attempt=1) for case in cases]
    return [said.check for settled in session.run(requests) for said in examine.against(settled.outcome)]


@pytest.mark.parametrize("fault", [fault.name for fault in paged_queries.FAULTS])
def test_the_chunks_that_smoke_plans_on_pages_tell_of_every_fault_there(fault: str) -> None:
    """One model's step of chunked prefill is enough."""
    (case,) = [case for case in SMOKE if case.id.startswith("llama-3.1-8b.tp4/chunked/l130") and "p256/bf16" in case.id]
    assert said_of(fault, [case])


def test_decode_on_pages_and_packed_chunks_tell_nothing_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without several queries on pages the whole matrix passes: the shape is needed.

    No check makes such a call of these cases, so no fault acts: each asks :func:`paged_queries.several`.
    """
    told: set[bool] = set()
    several = paged_queries.several

    def noted(plan: CallPlan) -> bool:
        found = several(plan)
        told.add(found)
        return found

    monkeypatch.setattr(paged_queries, "several", noted)
    without = [case for case in SMOKE if case.model == "llama-3.1-8b.tp4" and case.dtype == "bf16"]
    others = [case for case in without if max(case.workload.seqlens_q) == 1 or not case.workload.page_size]
    assert [] == said_of("paged-equal-queries", others)
    assert {False} == told


@pytest.mark.parametrize("fault", [fault.name for fault in paged_queries.FAULTS])
@pytest.mark.parametrize(
    "lengths",
    [
        {"seqlens_q": (1,) * 3, "seqlens_k": (70, 33, 5), "page_size": 16},
        {"seqlens_q": (70, 1, 21), "seqlens_k": (138, 97, 30)},
    ],
    ids=["decode on pages", "packed chunks"],
)
def test_each_is_right_without_several_queries_on_pages(fault: str, lengths: dict[str, Any]) -> None:
    """It gives what a correct kernel gives, bit for bit."""
    call = make_call(**lengths)
    kernel.forget()
    results = [kernel.attend(call, specimen=specimen) for specimen in (fault, "plain")]
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_a_correct_kernel_passes_them() -> None:
    """All models; under a window that hides no key, a case is what it is without one."""
    chunks = [case for case in SMOKE if case.workload.page_size and max(case.workload.seqlens_q) > 1]
    assert 6 == len(chunks)
    telling = [case for case in chunks if case.workload.mask.window[0] < max(case.workload.seqlens_k)]
    assert {case.model for case in chunks} == {case.model for case in telling}
    assert [] == said_of("plain", telling)
