"""leak: kernels that keep what they were given."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import pytest
import torch
from builders import make_card, make_workload
from faults import Edited
from subjects import make_subject, on_gpu
from torch import Tensor

from qualify.facts.outcome import Finding
from qualify.run.adapters.interface import AttentionCall
from qualify.run.checks.leak import Leak
from qualify.run.machine import device
from qualify.run.machine.device import Cpu

pytestmark = pytest.mark.usefixtures("settled")
DECODE: dict[str, Any] = {"seqlens_q": (1, 1), "seqlens_k": (40, 33), "page_size": 16}


def asked(adapter: Any = None, **subject: Any) -> Finding:
    """The one finding of the check."""
    (finding,) = Leak().run(make_subject(adapter, level="full", **subject))
    return finding


class Keeping:
    """Keeps something of the first calls, or of all."""

    def __init__(self, *, copy: bool, most: int = 1 << 30) -> None:
        self.copy, self.most = copy, most
        self.kept: list[Tensor] = []

    def __call__(self, call: AttentionCall) -> AttentionCall:
        if len(self.kept) < self.most:
            self.kept.append(call.k.clone() if self.copy else call.k)
        return call


@pytest.mark.parametrize("shape", [{}, DECODE], ids=["prefill", "decode"])
@pytest.mark.parametrize("copy", [True, False], ids=["copy", "tensor"])
def test_kept_keys_are_caught(shape: dict[str, Any], *, copy: bool) -> None:
    """A copy of them, and the tensor itself; what else the process frees meanwhile is a few kB."""
    finding = asked(Edited(call=Keeping(copy=copy)), **shape)
    assert "fail" == finding.verdict, finding.detail
    assert 0.9 <= float(finding.values["bytes_per_call"] or 0) / float(finding.values["key_bytes"] or 0) < 1.5


@pytest.mark.parametrize("shape", [{}, DECODE], ids=["prefill", "decode"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32", "fp8_e4m3"])
def test_a_correct_kernel_passes(shape: dict[str, Any], dtype: str) -> None:
    """What a call takes it gives back."""
    assert "pass" == asked(**shape, dtype=dtype).verdict


@pytest.mark.parametrize("most", [1, 5, 12])
def test_a_cache_that_fills_up_passes(most: int) -> None:
    """The first calls fill it; the growth ends before it was measured three times."""
    finding = asked(Edited(call=Keeping(copy=True, most=most)))
    assert "pass" == finding.verdict, finding.detail


@pytest.mark.parametrize(("share", "verdict"), [(0.7, "fail"), (0.3, "pass")])
def test_half_of_the_keys_is_a_leak(share: float, verdict: str) -> None:
    """A call that keeps less may fill something up; more would be a copy of the keys or of the values."""
    kept: list[Tensor] = []

    def keep(call: AttentionCall) -> AttentionCall:
        kept.append(call.k[: int(share * len(call.k))].clone())
        return call

    finding = asked(Edited(call=keep))
    assert verdict == finding.verdict, finding.detail


def test_there_are_as_many_queries_as_keys_where_masks_begin_at_the_top() -> None:
    """Such a card claims no other lengths; elsewhere a few queries suffice."""
    lengths: set[tuple[int, int]] = set()

    def note(call: AttentionCall) -> AttentionCall:
        lengths.add((call.max_seqlen_q, call.max_seqlen_k))
        return call

    assert "pass" == asked(Edited(call=note), card=make_card(alignment="top_left")).verdict
    assert {(1024, 1024)} == lengths
    lengths.clear()
    assert "pass" == asked(Edited(call=note)).verdict
    assert {(3, 1024)} == lengths


def test_garbage_is_no_leak() -> None:
    """What only the collector of garbage frees is freed before a growth counts."""

    def cycle(call: AttentionCall) -> AttentionCall:
        ring: list[Any] = [call.k.clone()]
        ring.append(ring)
        return call

    finding = asked(Edited(call=cycle))
    assert "pass" == finding.verdict, finding.detail


def test_where_nothing_is_told_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another allocator than glibc's is loaded."""
    assert Cpu().counts_bytes()
    monkeypatch.setattr(device, "malloc_bytes", lambda: 0)
    finding = asked(Edited(call=Keeping(copy=True)))
    assert ("note", True) == (finding.verdict, "does not tell" in finding.detail)


def test_a_kernel_is_asked_once() -> None:
    """Another case of the same dtype, layout and phase says that it was; other dtypes, pages and decode are asked."""
    subject = make_subject(level="full")
    assert ["pass", "note"] == [Leak().run(subject)[0].verdict for _ in range(2)]
    for other in ({"dtype": "fp16"}, {"seqlens_q": (1,), "seqlens_k": (40,)}, DECODE):
        assert "pass" == Leak().run(replace(subject, workload=make_workload(**other)))[0].verdict, other
    assert "each shape would be compiled" == Leak().skips(make_subject(card=make_card(jit="shapes")))
    assert "" == Leak().skips(subject)


@pytest.mark.gpu
@pytest.mark.parametrize("where", ["allocator", "outside"])
def test_kept_keys_are_caught_on_a_gpu(where: str) -> None:
    """In PyTorch's allocator, and in what a library allocates by itself."""
    kept: list[Any] = []
    runtime = ctypes.CDLL("libcudart.so." + str(torch.version.cuda).partition(".")[0])

    def keep(call: AttentionCall) -> AttentionCall:
        if where == "allocator":
            kept.append(call.k.clone())
        else:
            place = ctypes.c_void_p()
            assert 0 == runtime.cudaMalloc(ctypes.byref(place), ctypes.c_size_t(call.k.nbytes))
            kept.append(place)
        return call

    subject = on_gpu(make_subject(level="full"), Edited(call=keep))
    (finding,) = Leak().run(subject)
    assert "fail" == finding.verdict, finding.detail
    (finding,) = Leak().run(on_gpu(subject, Edited()))
    assert "pass" == finding.verdict, finding.detail
    for place in kept if where == "outside" else ():
        runtime.cudaFree(place)
