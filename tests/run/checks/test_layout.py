"""layout: kernels that assume strides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from builders import make_subject
from faults import Edited
from torch import Tensor

from qualify.facts.outcome import Finding
from qualify.run.adapters.interface import AttentionCall, LibraryRefusal
from qualify.run.adapters.tiled_torch import TiledTorch
from qualify.run.checks.layout import Layout


def layout(adapter: Any = None, **workload: Any) -> list[Finding]:
    """What the check finds."""
    subject = make_subject(adapter, level="full", **workload)
    assert "" == Layout().skips(subject)
    return Layout().run(subject)


def as_if_contiguous(tensor: Tensor) -> Tensor:
    """The same memory read with the strides of a contiguous tensor, as far as it reaches."""
    usual = torch.empty(tensor.shape, device="meta").stride()
    reach = tensor.storage_offset() + sum((n - 1) * step for n, step in zip(tensor.shape, usual, strict=True))
    if reach >= tensor.untyped_storage().nbytes() // tensor.element_size():
        return tensor
    return torch.as_strided(tensor, tensor.shape, usual, tensor.storage_offset())


def ignoring(*names: str) -> Edited:
    """A kernel that ignores the strides of some tensors."""
    return Edited(call=lambda call: replace(call, **{name: as_if_contiguous(getattr(call, name)) for name in names}))


@pytest.mark.parametrize("names", [("q",), ("k",), ("v",), ("q", "k", "v")], ids=str)
def test_ignored_strides_are_caught(names: tuple[str, ...]) -> None:
    """Of any tensor."""
    (finding,) = layout(ignoring(*names))
    assert "fail" == finding.verdict


def test_strides_of_pages_are_caught() -> None:
    """A cache whose keys and values are interleaved."""
    (finding,) = layout(ignoring("k"), seqlens_q=(1, 1), seqlens_k=(40, 33), page_size=16)
    assert "fail" == finding.verdict


@pytest.mark.parametrize(
    "workload",
    [{}, {"heads_kv": 1}, {"head_dim_v": 32}, {"seqlens_q": (1, 1), "seqlens_k": (40, 33), "page_size": 16}],
    ids=str,
)
def test_a_correct_kernel_passes(workload: dict[str, Any]) -> None:
    """Other roundings at most."""
    assert {"pass", "note"} >= {finding.verdict for finding in layout(**workload)}


def test_a_refusal_is_told() -> None:
    """A library that wants contiguous rows says so."""

    class Choosy(TiledTorch):
        def prepare(self, call: AttentionCall) -> Any:
            if not call.q.is_contiguous():
                raise LibraryRefusal("q must be contiguous")
            return super().prepare(call)

    notes = [finding for finding in layout(Choosy()) if finding.verdict == "note" and "refuses" in finding.detail]
    assert 3 == len(notes)
