"""Kernels of this process: how often a call launches them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from subjects import make_subject

from qualify.run.adapters.interface import AttentionCall, LibraryRefusal, Prepared
from qualify.run.adapters.packing import tried
from qualify.run.adapters.tiled_torch import TiledTorch
from qualify.run.host.local import local


class Careful:
    """Like the adapters of libraries, makes a launch to find out whether the library accepts the call."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.launches = 0

    def prepare(self, call: AttentionCall) -> Prepared:
        prepared = TiledTorch().prepare(call)

        def launch() -> Any:
            self.launches += 1
            if self.error is not None:
                raise self.error
            return prepared.launch()

        return tried(Prepared(launch=launch, result=prepared.result), "library")


def test_a_single_call_launches_once() -> None:
    """The launch that showed that the library accepts it is the one that counts: a second one would find its memory."""
    adapter, subject = Careful(), make_subject()
    out, _ = local(adapter).run(subject.inputs().call)
    assert 1 == adapter.launches
    assert torch.equal(subject.kernel.run(subject.inputs().call)[0], out)


def test_a_prepared_call_launches_each_time() -> None:
    """Times, traces and checks of repeated launches need as many as they ask for."""
    adapter = Careful()
    bound = local(adapter).prepare(make_subject().inputs().call)
    assert () == bound.prepared.tried, "nobody asks for it"
    for _ in range(2):
        bound.result(bound.launch())
    assert 3 == adapter.launches


def test_a_library_declines_at_the_first_launch() -> None:
    """Single and prepared calls are refused alike; an error of the device is none."""
    call = make_subject().inputs().call
    declined = local(Careful(RuntimeError("head_size 320 > 256\nstack")))
    for ask in (declined.run, declined.prepare):
        with pytest.raises(LibraryRefusal, match=r"^library: head_size 320 > 256$"):
            ask(call)
    with pytest.raises(RuntimeError, match="CUDA error"):
        local(Careful(RuntimeError("CUDA error"))).run(call)
