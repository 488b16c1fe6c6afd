"""Small calls that several cases share are put once while a process lives, and only what was right is remembered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from faults import Edited
from subjects import make_subject
from torch import Tensor

from qualify.facts.outcome import Finding
from qualify.run.adapters.interface import AttentionCall, Prepared
from qualify.run.adapters.tiled_torch import TiledTorch
from qualify.run.checks.degenerate import Degenerate
from qualify.run.checks.heads import Heads
from qualify.run.checks.history import History
from qualify.run.checks.interface import Subject
from qualify.run.host.local import LocalKernel

CHECKS = pytest.mark.parametrize("check", [Heads(), Degenerate(), History()], ids=lambda check: check.name)


SMALL: dict[str, Any] = {"level": "full", "heads_q": 4, "heads_kv": 2, "head_dim": 8}


class Counting(TiledTorch):
    """Counts the calls that are prepared."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def prepare(self, call: AttentionCall) -> Prepared:
        self.calls += 1
        return super().prepare(call)


def adapter_of(subject: Subject) -> Counting:
    """The adapter of a kernel of this process."""
    assert isinstance(subject.kernel, LocalKernel)
    assert isinstance(subject.kernel.adapter, Counting)
    return subject.kernel.adapter


def ask(check: Any, subject: Subject) -> tuple[int, list[Finding]]:
    """(calls that it took, findings)."""
    counted = adapter_of(subject)
    before = counted.calls
    found = check.run(subject)
    return counted.calls - before, found


@CHECKS
def test_what_was_right_is_not_asked_again(check: Any) -> None:
    """Another case with the same small calls is told so and costs at most the calls that are its own."""
    subject = make_subject(Counting(), **SMALL)
    calls, _ = ask(check, subject)
    again, found = ask(check, replace(subject, seed=2))
    assert again < calls / 4
    assert {"pass", "note"} >= {finding.verdict for finding in found}
    assert any("another case" in finding.detail for finding in found)


@CHECKS
def test_another_call_is_asked_afresh(check: Any) -> None:
    """Whatever another case was right about."""
    subject = make_subject(Counting(), **SMALL)
    check.run(subject)
    changes: list[dict[str, Any]] = [{"softcap": 30.0}, {"dtype": "fp16"}, {"window": (31, 0)}]
    for change in changes:
        changed = make_subject(adapter_of(subject), **SMALL, **change)
        alone = make_subject(Counting(), **SMALL, **change)
        assert ask(check, alone)[0] == ask(check, replace(changed, asked=dict(subject.asked)))[0], change


@CHECKS
def test_another_kernel_is_asked_afresh(check: Any) -> None:
    """Kernels of one process share no answers."""
    subject = make_subject(Counting(), **SMALL)
    calls, _ = ask(check, subject)
    other = replace(subject, card=subject.card.model_copy(update={"kernel": "another"}))
    assert calls == ask(check, other)[0]


@CHECKS
def test_what_was_wrong_is_asked_again(check: Any) -> None:
    """Each case that meets the fault fails."""

    def edit(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        own_heads = call.q.shape[1] == subject.workload.heads_q  # else `heads` would end there
        return (out if own_heads and check.name == "heads" else out * 1.5), lse

    subject = make_subject(Edited(result=edit), **SMALL)
    for seed in (1, 2):
        assert "fail" == check.run(replace(subject, seed=seed))[0].verdict
