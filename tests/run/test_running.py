"""A case on its way: what the end of its host means for it, and who is the first that runs there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from builders import make_card, make_case, make_workload
from subjects import CPU

from qualify.facts.outcome import Crashed, Finding, Outcome, TimedOut
from qualify.run.adapters.tiled_torch import TiledTorch
from qualify.run.host.interface import HostLost
from qualify.run.host.local import LocalHost, LocalKernel
from qualify.run.inputs.tensors import make_inputs
from qualify.run.machine.device import Cpu
from qualify.run.process.messages import CaseRequest
from qualify.run.running import Running, asked_words, blame, join, no_room

KILLED = (Finding(check="watchdog", verdict="note", detail="killed after it ended"),)


@pytest.mark.parametrize(
    ("limit_s", "stage", "expected"),
    [
        (None, "timing", Crashed(stage="timing", error="it ended", log="bye", attempt=2)),
        (None, "", Crashed(stage="start", error="it ended", log="bye", attempt=2)),
        (60.0, "witness", TimedOut(stage="witness", limit_s=60.0, attempt=2, findings=KILLED)),
        (0.0, "", TimedOut(stage="start", limit_s=0.0, attempt=2, findings=KILLED)),
    ],
    ids=["a crash", "a crash before any stage", "a hang", "a hang before any stage"],
)
def test_the_end_of_a_host_is_a_crash_or_a_hang(limit_s: float | None, stage: str, expected: Outcome) -> None:
    """With the stage that was announced last, and what was seen."""
    request = CaseRequest(case=make_case(), attempt=2)
    assert expected == blame(HostLost("it ended", log="bye", limit_s=limit_s), request, stage)


@pytest.mark.parametrize(
    ("lengths", "words"),
    [
        (None, ""),
        (((5, 6), (7, 8)), ""),
        (((5,), (7,)), ", with seqlens_q [5], seqlens_k [7]"),
        (((1,) * 13, (0,)), f", with seqlens_q [{', '.join(12 * '1')}, ...] of 13 sequences, seqlens_k [0]"),
    ],
    ids=["unknown", "those of the case", "others", "many"],
)
def test_lengths_that_only_a_check_asked_for_are_told(lengths: Any, words: str) -> None:
    """They are not in the name of the case."""
    assert words == asked_words(lengths, make_workload(seqlens_q=(5, 6), seqlens_k=(7, 8)))
    lost = HostLost("it ended", log="", limit_s=None)
    lost.lengths = lengths
    case = make_case(workload=make_workload(seqlens_q=(5, 6), seqlens_k=(7, 8)))
    ended = blame(lost, CaseRequest(case=case, attempt=1), "checks:merge")
    assert isinstance(ended, Crashed)
    assert f"it ended{words}" == ended.error


def test_a_check_without_room_says_what_the_device_said() -> None:
    """In its first line, and not more than 200 characters of it: it is no verdict."""
    found = no_room("census", torch.OutOfMemoryError(f"{'x' * 300}\nsecond"))
    detail = f"not run: no room for it on the device ({'x' * 200})"
    assert Finding(check="census", verdict="inconclusive", detail=detail) == found


def test_whom_another_case_joins_in_its_host_is_no_longer_alone_there() -> None:
    """The cases of other hosts stay the first that ran in theirs."""
    batch: list[Running] = []
    one, two = LocalHost(Cpu()), LocalHost(Cpu())
    for host, fresh in ((one, True), (two, True), (one, True), (one, False)):
        join(batch, in_host(host, fresh=fresh))
    assert [(one, False), (two, True), (one, False), (one, False)] == [(each.host, each.fresh) for each in batch]


def in_host(host: LocalHost, *, fresh: bool) -> Running:
    """A prepared case that lives there."""
    workload = make_workload(seqlens_q=(5,))
    inputs = make_inputs(workload, kind="normal", seed=1, device=CPU)
    kernel = LocalKernel(TiledTorch(), host.processor)
    return Running(
        request=CaseRequest(case=make_case(workload=workload), attempt=1),
        card=make_card(),
        kernel=kernel,
        host=host,
        inputs=inputs,
        bound=kernel.prepare(inputs.call),
        native=None,
        first_call_us=1.0,
        peak_bytes=0,
        fresh=fresh,
    )
