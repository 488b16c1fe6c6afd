"""surroundings: kernels that are right only where they were tried."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from builders import make_card, make_workload
from faults import Edited
from subjects import make_subject, on_gpu
from torch import Tensor

from qualify.facts.outcome import Finding
from qualify.run.adapters.interface import AttentionCall, LibraryRefusal, Prepared
from qualify.run.adapters.tiled_torch import TiledTorch
from qualify.run.checks.surroundings import Surroundings

PAGED: dict[str, Any] = {"seqlens_q": (1, 1), "seqlens_k": (40, 33), "page_size": 16}


def asked(adapter: Any = None, *, deterministic: bool = True, **subject: Any) -> Finding:
    """The first finding of the check."""
    card = make_card(deterministic=deterministic)
    return Surroundings().run(make_subject(adapter, level="full", card=card, **subject))[0]


def elsewhere(place: Callable[[], Any], *, rounded: bool = False) -> Edited:
    """A kernel whose result changes, or is rounded otherwise, where it finds itself elsewhere than now."""
    here = place()

    def edit(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        if rounded and place() != here:
            out.view(torch.int16)[12, 3, 5] ^= 1
        return (out if rounded or place() == here else out * 2), lse

    return Edited(result=edit)


class Forgetful(TiledTorch):
    """After 64 other lengths it answers a call as the last new one."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[Any, int] = {}

    def prepare(self, call: AttentionCall) -> Prepared:
        number = self.seen.setdefault(call.max_seqlen_k, len(self.seen))
        return super().prepare(replace(call, scale=call.scale * 2) if len(self.seen) - number > 64 else call)


@pytest.mark.parametrize("workload", [{}, PAGED, {"dtype": "fp32"}, {"seqlens_q": (9, 0, 70)}], ids=str)
@pytest.mark.parametrize("deterministic", [True, False])
def test_a_correct_kernel_passes(workload: dict[str, Any], *, deterministic: bool) -> None:
    """Everything is asked, and the process is left as it was."""
    before = torch.get_num_threads(), torch.is_inference_mode_enabled()
    finding = asked(deterministic=deterministic, **workload)
    assert "pass" == finding.verdict, finding.detail
    asked_for = ("in inference mode", "from another thread", "with 3 threads", "after 66 other lengths")
    assert all(where in finding.detail for where in asked_for)
    assert before == (torch.get_num_threads(), torch.is_inference_mode_enabled())


@pytest.mark.parametrize(
    ("place", "where"),
    [
        (torch.is_inference_mode_enabled, "in inference mode"),
        (threading.get_ident, "from another thread"),
        (torch.get_num_threads, "with 3 threads"),
    ],
    ids=["mode", "thread", "count"],
)
@pytest.mark.parametrize("deterministic", [True, False])
def test_a_kernel_that_is_wrong_elsewhere_is_caught(
    place: Callable[[], Any], where: str, *, deterministic: bool
) -> None:
    """With and without a claim of determinism."""
    finding = asked(elsewhere(place), deterministic=deterministic)
    assert ("fail", where) == (finding.verdict, finding.values["where"])


@pytest.mark.parametrize("deterministic", [True, False])
def test_other_roundings_elsewhere_are_granted_where_no_bits_are_claimed(*, deterministic: bool) -> None:
    """A sum that is cut elsewhere has other last bits; under another number of threads always."""
    finding = asked(elsewhere(threading.get_ident, rounded=True), deterministic=deterministic)
    assert ("fail" if deterministic else "pass") == finding.verdict
    assert "pass" == asked(elsewhere(torch.get_num_threads, rounded=True), deterministic=deterministic).verdict


@pytest.mark.parametrize("part", ["result", "block_table"])
@pytest.mark.parametrize(
    ("place", "where"),
    [
        (torch.is_inference_mode_enabled, "in inference mode"),
        (threading.get_ident, "from another thread"),
        (torch.get_num_threads, "with 3 threads"),
    ],
    ids=["mode", "thread", "count"],
)
def test_what_a_call_from_here_left_is_not_taken_elsewhere(place: Callable[[], Any], where: str, part: str) -> None:
    """What the same call left would be right by chance, so a call with other contents stands between them."""
    here, kept = place(), dict[Any, Any]()

    def left(call: AttentionCall) -> AttentionCall:
        if part == "result" or place() != here:
            return replace(call, block_table=kept["table"]) if part != "result" else call
        kept["table"] = call.block_table
        return call

    def result(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        if part == "result" and place() != here:
            return kept["result"]
        kept["result"] = out, lse
        return out, lse

    finding = asked(Edited(call=left, result=result), **PAGED)
    assert ("fail", where) == (finding.verdict, finding.values["where"])


def test_inference_mode_is_left_where_the_process_is_in_it() -> None:
    """The selftest's processes are."""
    with torch.inference_mode():
        finding = asked(elsewhere(torch.is_inference_mode_enabled))
    assert ("fail", "outside inference mode") == (finding.verdict, finding.values["where"])


def test_buffers_of_inference_mode_are_no_fault() -> None:
    """PyTorch forbids to write to them outside it; everything else is asked."""
    buffers: dict[Any, Tensor] = {}

    def kept(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        buffer = buffers.setdefault(out.shape, torch.empty_like(out))
        return buffer.copy_(out).clone(), lse

    with torch.inference_mode():
        found = Surroundings().run(make_subject(Edited(result=kept), level="full"))
    assert ["pass", "note"] == [finding.verdict for finding in found], found
    assert "not run outside inference mode" in found[1].detail


def test_a_cache_of_64_plans_is_caught() -> None:
    """Its first shape is asked again after 66 others; a length that the library refuses is left out."""
    finding = asked(Forgetful())
    assert ("fail", "after 66 other lengths") == (finding.verdict, finding.values["where"])

    def refused(call: AttentionCall) -> AttentionCall:
        if call.max_seqlen_k == 7:
            raise LibraryRefusal("not 7")
        return call

    assert "pass" == asked(Edited(call=refused)).verdict


@pytest.mark.parametrize(("shape", "queries"), [({}, set(range(1, 67))), (PAGED, {1})], ids=["prefill", "decode"])
def test_the_other_lengths_are_of_the_same_phase(shape: dict[str, Any], queries: set[int]) -> None:
    """A kernel that decodes keeps its plans apart: it has one query of each length, as many times."""
    lengths: list[tuple[int, int]] = []

    def note(call: AttentionCall) -> AttentionCall:
        if len(call.cu_seqlens_q) == 2:
            lengths.append((call.max_seqlen_q, call.max_seqlen_k))
        return call

    assert "pass" == asked(Edited(call=note), **({"seqlens_q": (9, 9)} | shape)).verdict
    assert (queries, set(range(1, 67))) == tuple(set(side) for side in zip(*lengths, strict=True))


def test_other_lengths_are_not_asked_where_each_would_be_compiled() -> None:
    """Sixty-six compilations would take minutes."""
    (finding,) = Surroundings().run(make_subject(level="full", card=make_card(jit="shapes")))
    assert ("pass", False) == (finding.verdict, "other lengths" in finding.detail)


@pytest.mark.parametrize("where", ["inference mode", "thread"])
def test_an_error_elsewhere_is_no_refusal(where: str) -> None:
    """Only a buffer of inference mode is granted, and only where the mode is another one."""

    def breaks(call: AttentionCall) -> AttentionCall:
        if where == "inference mode" and torch.is_inference_mode_enabled():
            raise RuntimeError("no kernel image is available")
        if where == "thread" and threading.current_thread() is not threading.main_thread():
            raise RuntimeError("Inplace update to inference tensor outside InferenceMode is not allowed")
        return call

    with pytest.raises(RuntimeError, match="no kernel image" if where == "inference mode" else "inference tensor"):
        asked(Edited(call=breaks))


def test_a_race_is_told_as_a_race() -> None:
    """A kernel that never repeats itself is not accused of its thread."""
    calls: list[int] = []

    def varies(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(1)
        return (out + len(calls)).to(out.dtype), lse

    finding = asked(Edited(result=varies))
    assert ("repeat", "fail") == (finding.check, finding.verdict)


def test_a_kernel_is_asked_once() -> None:
    """It is about host code: pages and decode are other questions, another dtype is not; a failure is told again."""
    subject = make_subject(level="full")
    assert ["pass", "note"] == [Surroundings().run(subject)[0].verdict for _ in range(2)]
    assert "note" == Surroundings().run(replace(subject, workload=replace(subject.workload, dtype="fp16")))[0].verdict
    for other in (PAGED, {"seqlens_q": (1,), "seqlens_k": (40,)}):
        assert "pass" == Surroundings().run(replace(subject, workload=make_workload(**other)))[0].verdict, other
    wrong = make_subject(Forgetful(), level="full")
    assert "fail" == Surroundings().run(wrong)[0].verdict
    assert {} == wrong.asked


@pytest.mark.gpu
@pytest.mark.parametrize("stream", ["current", "default"])
def test_a_kernel_on_a_stream_of_its_own_is_caught(stream: str) -> None:
    """It reads its inputs before the work that makes them is done."""

    class Elsewhere(TiledTorch):
        def prepare(self, call: AttentionCall) -> Prepared:
            native = super().prepare(call)

            def launch() -> Any:
                with torch.cuda.stream(torch.cuda.default_stream() if stream == "default" else None):
                    return native.launch()

            return Prepared(launch=launch, result=native.result)

    subject = on_gpu(make_subject(level="full"), Elsewhere())
    findings = Surroundings().run(subject)
    failed = [finding for finding in findings if finding.verdict == "fail"]
    assert (stream == "default") == bool(failed), findings
    assert all("does not wait" in finding.detail for finding in failed)
