"""Recorded operations: what the lines of a program make is, bit for bit, what the check had."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_process import server
from subjects import CPU, make_subject
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from qualify.facts.checks import CHECKS as KNOWN
from qualify.masks import Mask
from qualify.run.adapters.interface import AttentionCall
from qualify.run.checks import budget, difference, size_limits
from qualify.run.checks.registry import CHECKS
from qualify.run.golden.reference import golden
from qualify.run.repro import standalone
from qualify.run.repro.recording import Recorder, RecordingKernel, literal

WORKLOADS: dict[str, dict[str, Any]] = {
    "packed": {"seqlens_q": (5, 0, 9), "seqlens_k": (21, 3, 30)},
    "paged, window, sinks": {
        "seqlens_q": (1, 1),
        "seqlens_k": (33, 50),
        "page_size": 16,
        "window": (7, 0),
        "sinks": True,
    },
    "fp32, softcap, equal lengths": {"dtype": "fp32", "softcap": 5.0, "seqlens_q": (20, 20)},
}

SMALL: dict[str, Any] = {"heads_q": 4, "heads_kv": 2, "head_dim": 32}
"""golden results are literals in what is recorded, which costs by the byte"""

RECORDABLE = [check for check, known in zip(CHECKS, KNOWN, strict=True) if known.recordable]
"""a trial runs the others without a recorder"""


def unrecorded(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of whose result no tensor of a call is made; test_trial.py records these too."""

    def alone(*given: Any, **asked: Any) -> Any:
        with _disable_current_modes():
            return function(*given, **asked)

    return alone


@pytest.fixture(autouse=True, scope="module")
def unrecorded_judgement() -> Iterator[None]:
    """What compares an output with its golden result, or with another output, is most of the operations of a check."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget, "compare", unrecorded(budget.compare))
        patch.setattr(difference, "unlike", unrecorded(difference.unlike))
        yield


@pytest.fixture(autouse=True, scope="module")
def few_heads() -> Iterator[None]:
    """``size_limits`` asks a kernel for a hundred numbers of heads, and makes the call of each in the same way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(size_limits, "MOST_HEADS", 8)
        yield


def recorded(check: Any, level: str = "smoke", **workload: Any) -> Recorder:
    """A correct kernel under one check."""
    subject = make_subject(level=level, **SMALL | workload)
    recorder = Recorder(CPU)
    subject = replace(subject, kernel=RecordingKernel(subject.kernel, recorder), golden_of=unrecorded(golden))
    with recorder:
        if not check.skips(subject):
            check.run(subject)
    return recorder


def repeated(lines: list[str]) -> dict[str, Any]:
    """The names that a program defines, in a namespace that has torch and what every script is made of."""
    names: dict[str, Any] = {name: getattr(standalone, name) for name in ("aten", "torch", "unpack")}
    names |= {
        "device": CPU,
        "kernel": None,
        "run": lambda kernel, call: (None, None),
        "AttentionCall": AttentionCall,
        "Mask": Mask,
    }
    exec("\n".join(lines), names)
    return names


def same(expected: Any, actual: Any) -> bool:
    """Equal bytes and strides, or equal values."""
    if not isinstance(expected, Tensor):
        return expected == actual
    layout = (expected.shape, expected.stride(), expected.storage_offset(), expected.dtype)
    if layout != (actual.shape, actual.stride(), actual.storage_offset(), actual.dtype):
        return False
    bits = [tensor.contiguous().flatten().view(torch.uint8) for tensor in (expected, actual)]
    return torch.equal(*bits)


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
@pytest.mark.parametrize("check", RECORDABLE, ids=lambda check: check.name)
def test_every_call_of_every_check_is_repeated_bit_for_bit(check, workload) -> None:
    """Each tensor of each call has the same bytes, strides and offset, whichever launches a script keeps."""
    recorder = recorded(check, **workload)
    for number, launch in list(enumerate(recorder.launches))[-3:]:
        made = repeated(recorder.program([number]))[f"call{number}"]
        wrong = [
            item.name
            for item in fields(AttentionCall)
            if not same(getattr(launch.call, item.name), getattr(made, item.name))
        ]
        assert [] == wrong


def test_only_what_a_launch_needs_is_kept() -> None:
    """A program for one launch holds no other launch, and not what others were made of."""
    (suffix,) = [check for check in CHECKS if check.name == "suffix"]
    recorder = recorded(suffix, seqlens_q=(30, 30))
    lines = recorder.program([0])
    assert 1 == sum("run(kernel, call" in line for line in lines)
    assert len(lines) < len(recorder.program(range(len(recorder.launches)))) / 2


def test_a_generator_that_draws_twice_keeps_its_first_draw() -> None:
    """What is needed of a later draw needs the earlier ones of its generator, though nobody reads them."""
    with Recorder(CPU) as recorder:
        generator = torch.Generator(CPU).manual_seed(3)
        torch.randn(5, generator=generator)
        wanted = torch.randn(5, generator=generator)
        recorder.launch(call_of(wanted))
    assert torch.equal(wanted, repeated(recorder.program([0]))["call0"].q)


def test_what_was_written_in_place_is_written_again() -> None:
    """Through a view, before and after the view was taken."""
    with Recorder(CPU) as recorder:
        base = torch.zeros(6)
        view = base[2:4]
        base[3] = 5.0
        view.add_(1)
        base[0] = 9.0
        recorder.launch(call_of(base))
    assert [9.0, 0.0, 1.0, 6.0, 0.0, 0.0] == repeated(recorder.program([0]))["call0"].q.tolist()


def test_a_draw_without_a_generator_is_written_out() -> None:
    """Nothing can make it again, so its bytes are in the program."""
    with Recorder(CPU) as recorder:
        drawn = torch.rand(500)
        recorder.launch(call_of(drawn))
    assert torch.equal(drawn, repeated(recorder.program([0]))["call0"].q)


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int32, torch.bool, torch.float8_e4m3fn]
)
@pytest.mark.parametrize("shape", [(3,), (0, 4), (40, 7), ()])
def test_literals(dtype, shape) -> None:
    """A literal has the same bytes, not-a-number and infinities included."""
    tensor = (torch.randn(shape) * 3).to(dtype)
    if tensor.is_floating_point() and tensor.numel() > 2:
        tensor.view(-1)[:3] = torch.tensor([float("nan"), float("inf"), -float("inf")]).to(dtype)
    made = repeated([f"made = {literal(tensor, CPU)}"])["made"]
    assert same(tensor.contiguous(), made)


def call_of(tensor: Tensor) -> AttentionCall:
    """A call that only carries a tensor."""
    return AttentionCall(
        q=tensor,
        k=tensor,
        v=tensor,
        cu_seqlens_q=torch.tensor([0, 1], dtype=torch.int32),
        cu_seqlens_k=None,
        seqused_k=None,
        block_table=None,
        max_seqlen_q=1,
        max_seqlen_k=1,
        scale=1.0,
        mask=Mask(),
        out_dtype=torch.float32,
    )


def test_recording_imports_no_compiler(tmp_path: Path) -> None:
    """A dispatch mode usually imports torch's, which takes longer than most trials."""
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, torch; from qualify.run.repro.recording import Recorder\n"
        "with Recorder(torch.device('cpu')) as recorder: torch.ones(3) + 1\n"
        "assert recorder.steps; assert 'torch._dynamo' not in sys.modules"
    )
    ended = server().run([], tmp_path, 240, script=str(program))
    assert 0 == ended.code, ended.err
