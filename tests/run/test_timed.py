"""The time of a case: over copies that all differ, by ceilings that are believed, of launches that compute."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import CEILINGS, make_card, make_case, make_finding, make_launch, make_witness
from faults import Edited
from subjects import CPU, make_subject
from torch import Tensor

from qualify.cards.kernel import KernelCard
from qualify.facts.outcome import Finding
from qualify.facts.stack import Ceilings, Device
from qualify.run.adapters.interface import AttentionCall, Prepared
from qualify.run.adapters.tiled_torch import TiledTorch
from qualify.run.host.local import LocalHost
from qualify.run.inputs.tensors import GUARD_ROWS, make_inputs
from qualify.run.machine import neighbours
from qualify.run.machine.device import Cpu
from qualify.run.machine.neighbours import SERVER, Neighbours
from qualify.run.measure import ceilings as measured
from qualify.run.measure import timing
from qualify.run.process.messages import CaseRequest
from qualify.run.running import Running
from qualify.run.timed import time_case, turned

DEVICE = Device(
    kind="cpu", name="a CPU", uuid="", compute_capability="", units=2, memory_bytes=1 << 30, cache_bytes=1 << 20
)
CUDA = replace(DEVICE, kind="cuda")
"""what is said of a time that was taken there; the launches run here"""
SMALL: dict[str, Any] = {"seqlens_q": (20,), "dtype": "fp32"}


class Watched:
    """A correct kernel that tells each launch, by a number from 1 on, and may return something else."""

    def __init__(self, result: Callable[[int, Any], Any] = lambda number, native: native) -> None:
        self.result = result
        self.queries: list[Tensor] = []
        """those of every launch"""

    def prepare(self, call: AttentionCall) -> Prepared:
        prepared = TiledTorch().prepare(call)
        number = 0

        def launch() -> Any:
            nonlocal number
            number += 1
            self.queries.append(call.q.clone())
            return self.result(number, prepared.launch())

        return Prepared(launch=launch, result=lambda native: native)


def timed(
    adapter: Any = None,
    *,
    device: Device = DEVICE,
    ceilings: Ceilings = CEILINGS,
    card: KernelCard | None = None,
    findings: tuple[Finding, ...] = (),
    witness: Any = None,
    **workload: Any,
) -> tuple[Running, Ceilings]:
    """A case after its time was taken, and the ceilings that are believed then."""
    subject = make_subject(adapter, card=card, **(SMALL | workload))
    inputs = make_inputs(subject.workload, kind="normal", seed=1, device=CPU)
    bound = subject.kernel.prepare(inputs.call)
    native = bound.launch()
    running = Running(
        request=CaseRequest(case=make_case(workload=subject.workload), attempt=1),
        card=subject.card,
        kernel=subject.kernel,
        host=LocalHost(Cpu()),
        inputs=inputs,
        bound=bound,
        native=native,
        first_call_us=1.0,
        peak_bytes=0,
        fresh=False,
        findings=list(findings),
        witness=witness,
    )
    return running, time_case(
        running, replace(subject, first=partial(bound.result, native)), device, ceilings, Neighbours()
    )


@pytest.mark.parametrize(("cache_bytes", "copies", "last"), [(1 << 20, 4, 3), (0, 1, 1)])
def test_no_two_copies_have_the_same_queries(
    monkeypatch: pytest.MonkeyPatch, cache_bytes: int, copies: int, last: int
) -> None:
    """Whoever knows a result by its inputs must compute each; after the time was taken, the last copy moves on."""
    monkeypatch.setattr(timing, "COPIES_US", 1e9)  # a busy machine would have fewer copies
    kernel = Watched()
    running, _ = timed(kernel, device=replace(DEVICE, cache_bytes=cache_bytes))
    whole = running.inputs.q_whole
    for rows in (0, last, last + 1):
        moved = whole.roll(rows, 0)[GUARD_ROWS:-GUARD_ROWS]
        assert any(torch.equal(moved, seen) for seen in kernel.queries)
    assert last + 2 == len({seen.numpy().tobytes() for seen in kernel.queries})
    assert running.timing is not None
    assert copies * running.inputs.bytes == running.timing.rotated_bytes
    assert [] == running.findings


def test_turned_inputs_are_a_copy_whose_queries_have_moved_on() -> None:
    """With their guard bands; keys and values are the same, in memory of their own."""
    inputs = make_inputs(make_subject(**SMALL).workload, kind="normal", seed=1, device=CPU)
    before, copy = inputs.q_whole.clone(), turned(inputs, 3)
    assert torch.equal(before, inputs.q_whole)
    assert torch.equal(before.roll(3, 0), copy.q_whole)
    assert torch.equal(copy.q_whole[GUARD_ROWS:-GUARD_ROWS], copy.call.q)
    assert torch.equal(inputs.call.k, copy.call.k)
    assert inputs.call.k.data_ptr() != copy.call.k.data_ptr()


def test_what_differs_only_while_it_is_timed_fails() -> None:
    """From the second launch of a prepared call on, as checks never see one."""
    wrong = Watched(lambda number, native: native if number < 2 else (native[0] * 1.01, native[1]))
    (finding,) = timed(wrong)[0].findings
    assert ("timing", "fail") == (finding.check, finding.verdict)
    assert finding.detail.startswith("while it is timed, the call gives something else: ")
    assert {"tensor": "out", "sequence": 0, "query": 0, "head": 0} == {
        name: finding.values[name] for name in ("tensor", "sequence", "query", "head")
    }


@pytest.mark.parametrize(("adapter", "told"), [("call", ["timing"]), ("tiled_torch", [])])
def test_an_old_result_is_a_fault_of_a_function_only(adapter: str, told: list[str]) -> None:
    """An adapter may have copied its inputs when it prepared the call; a function has nothing to prepare."""
    kept: dict[int, Any] = {}

    class Keeps:
        """Computes each prepared call once."""

        def prepare(self, call: AttentionCall) -> Prepared:
            prepared = TiledTorch().prepare(call)
            return Prepared(
                launch=lambda: kept.setdefault(id(prepared), (prepared.launch(), prepared))[0],
                result=lambda native: native,
            )

    card = make_card(adapter="call", entry="mine:attend", shipped_by=...) if adapter == "call" else make_card()
    assert told == [finding.check for finding in timed(Keeps(), card=card)[0].findings]


@pytest.mark.parametrize(("deterministic", "told"), [(True, ["timing"]), (False, [])])
def test_a_kernel_that_claims_no_determinism_may_differ_by_a_rounding(deterministic: bool, told: list[str]) -> None:
    """Those that claim it must repeat every bit."""
    rounded = Watched(lambda number, native: (native[0] * (1 + 2.0**-22 * (number > 1)), native[1]))
    card = make_card(deterministic=deterministic)
    assert told == [finding.check for finding in timed(rounded, card=card)[0].findings]


@pytest.mark.parametrize(("known", "told"), [((), ["contract"]), (("contract",), ["contract"])])
def test_a_breach_of_the_contract_is_told_once(known: tuple[str, ...], told: list[str]) -> None:
    """Where the checks have told it, the timing does not say it again."""
    short = Edited(result=lambda call, out, lse: (out[1:], lse))
    found = timed(short, findings=tuple(make_finding("fail", check=name) for name in known))[0].findings
    assert told == [finding.check for finding in found]


@pytest.mark.parametrize("result", [lambda out: out[1:], lambda out: out.double(), lambda out: out[:, :, None]])
def test_another_form_only_while_it_is_timed_is_a_breach(result: Callable[[Tensor], Tensor]) -> None:
    """Also where the check of the contract has passed."""
    wrong = Watched(lambda number, native: native if number < 2 else (result(native[0]), native[1]))
    _, finding = timed(wrong, findings=(make_finding("pass", check="contract"),))[0].findings
    assert ("contract", "fail") == (finding.check, finding.verdict)
    assert finding.detail.startswith("while it is timed: out has ")


@pytest.fixture
def quick_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ceilings of this machine that take no second to measure."""
    monkeypatch.setattr(measured, "MATMUL_SIZE", {"small": 128})
    monkeypatch.setattr(measured, "COPY_BYTES", {"small": 8 << 20})


@pytest.mark.usefixtures("quick_ceilings")
@pytest.mark.parametrize("device", [DEVICE, CUDA], ids=["a CPU", "a GPU"])
def test_ceilings_that_a_time_exceeds_are_measured_again(device: Device) -> None:
    """Something else may have used the card when they were taken; a CPU has no firm ones."""
    low = replace(CEILINGS, matmul_flops_per_s=dict.fromkeys(CEILINGS.matmul_flops_per_s, 1.0))
    running, believed = timed(device=device, ceilings=low)
    assert running.timing is not None
    assert [] == running.findings
    assert (device.kind == "cpu") == (believed == low)
    assert (device.kind == "cpu") == (running.timing.bound == "flops" and running.timing.roofline_us > 1e9)
    assert believed.copy_bytes_per_s >= low.copy_bytes_per_s


class Skips:
    """Computes when the call is prepared, and nothing in a launch."""

    def prepare(self, call: AttentionCall) -> Prepared:
        result = TiledTorch().prepare(call).launch()
        return Prepared(launch=lambda: result, result=lambda native: native)


@pytest.mark.usefixtures("quick_ceilings")
def test_a_time_that_stays_impossible_fails_once() -> None:
    """By the ceilings that were just measured."""
    running, _ = timed(Skips(), device=CUDA, seqlens_q=(900,))
    assert ["timing"] == [finding.check for finding in running.findings]
    assert "the work was skipped or cached" in running.findings[0].detail


@pytest.mark.usefixtures("quick_ceilings")
@pytest.mark.parametrize(
    ("before", "after", "verdict", "end"),
    [
        ((), (), "fail", "the work was skipped or cached"),
        ((1,), (), "inconclusive", "because another process (pid 1) used the card too. Run it again when it is free"),
        ((1,), (1, 2), "inconclusive", "because others (pid 1, 2) used the card too. Run it again when it is free"),
    ],
)
def test_an_impossible_time_on_a_card_that_others_use_accuses_nobody(
    monkeypatch: pytest.MonkeyPatch, before: tuple[int, ...], after: tuple[int, ...], verdict: str, end: str
) -> None:
    """Correct kernels failed there: ceilings take long to measure, and shared the card more often than a short call."""
    with subprocess.Popen(["sleep", "60"]) as host:  # a process of this run is nobody else's
        looks = iter((before, before, after))
        monkeypatch.setattr(Cpu, "users", lambda self, device: (*next(looks), os.getpid(), host.pid))
        try:
            (finding,) = timed(Skips(), device=CUDA, seqlens_q=(900,))[0].findings
        finally:
            host.kill()
    assert verdict == finding.verdict
    assert finding.detail.endswith(end)


@pytest.mark.parametrize(
    ("looks", "detail"),
    [
        (((), ()), ""),
        (((1,), ()), "another process (pid 1) used the card while the call was timed"),
        (((1,), (1, 2)), "others (pid 1, 2) used the card while the call was timed"),
    ],
)
def test_a_time_taken_beside_others_has_a_note(
    monkeypatch: pytest.MonkeyPatch, looks: tuple[tuple[int, ...], ...], detail: str
) -> None:
    """It may be too long. Nothing else would tell why the case is slower than last night."""
    left = iter(looks)
    monkeypatch.setattr(Cpu, "users", lambda self, device: (*next(left), os.getpid()))
    found = timed(device=CUDA)[0].findings
    assert [("timing", "note")] * bool(detail) == [(it.check, it.verdict) for it in found]
    assert [True] * len(found) == [it.detail.startswith(detail) for it in found]


def test_a_server_that_passes_on_the_work_of_others_is_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """NVIDIA's multi-process service is listed beside its clients. Who is not of this run stays so, without a look."""
    served = shutil.copy(shutil.which("sleep") or "", tmp_path / f"{SERVER}-server")
    begun = [subprocess.Popen([program, "60"]) for program in (served, "sleep")]  # by now each has its name
    server, other = (process.pid for process in begun)
    try:
        monkeypatch.setattr(Cpu, "users", lambda self, device: (server, other, 1, os.getpid()))
        monkeypatch.setattr(neighbours, "family", lambda eldest: {os.getpid()})
        assert {other, 1} == Neighbours().now(Cpu(), CUDA)
    finally:
        for process in begun:
            process.kill()
            process.wait()


def test_whose_a_process_is_is_found_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """To look at every process of a large machine takes longer than a call."""
    looks: list[int] = []
    monkeypatch.setattr(neighbours, "family", lambda eldest: looks.append(eldest) or {os.getpid()})
    users = [(os.getpid(),), (os.getpid(), 1), (1, os.getpid()), (os.getpid(),)]
    left, known = iter(users), Neighbours()
    monkeypatch.setattr(Cpu, "users", lambda self, device: next(left))
    assert [set(), {1}, {1}, set()] == [known.now(Cpu(), CUDA) for _ in users]
    assert 2 == len(looks)


@pytest.mark.parametrize(("device", "told"), [(DEVICE, []), (CUDA, ["trace"])], ids=["a CPU", "a GPU"])
def test_a_trace_that_disagrees_with_the_clock_is_noted(device: Device, told: list[str]) -> None:
    """On a GPU; a CPU's trace is of operators within operators."""
    launch = replace(make_launch("under_test"), duration_us=1e9, grid=None)
    running, _ = timed(device=device, witness=replace(make_witness(), launches=(launch,)), seqlens_q=(200,))
    assert told == [finding.check for finding in running.findings]
    assert [] == timed(device=device)[0].findings
