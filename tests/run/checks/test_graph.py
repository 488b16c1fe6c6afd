"""graph: a kernel that bakes in what it saw when it was captured."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from builders import make_card, make_workload
from subjects import make_subject

from qualify.run.adapters.interface import AttentionCall, Prepared
from qualify.run.checks.graph import Graph, replaced
from qualify.run.checks.interface import Subject
from qualify.run.host.local import local


class Eager:
    """Attention of one sequence in plain operations; as it is, or with values copied when prepared or captured."""

    def __init__(self, *, bakes: bool = False, copies: bool = False, waits: bool = False) -> None:
        self.bakes = bakes
        self.copies = copies
        self.waits = waits

    def prepare(self, call: AttentionCall) -> Prepared:
        copy = call.v.clone()

        def launch() -> Any:
            v = copy if self.copies or (self.bakes and torch.cuda.is_current_stream_capturing()) else call.v
            group = call.q.shape[1] // call.k.shape[1]
            q, k, values = (tensor.float().transpose(0, 1) for tensor in (call.q, call.k, v))
            k, values = k.repeat_interleave(group, 0), values.repeat_interleave(group, 0)
            scores = q @ k.transpose(1, 2) * call.scale
            if self.waits and float(scores.max()) > 1e9:
                return None
            out = (scores.softmax(-1) @ values).transpose(0, 1).to(call.out_dtype)
            return out, torch.logsumexp(scores, -1)

        return Prepared(launch=launch, result=lambda native: native)


class Paged:
    """One query on the pages of one sequence; its lengths or pages as they are, or as when prepared or captured."""

    def __init__(self, *, bakes: str = "", plans: bool = False) -> None:
        self.bakes = bakes
        self.plans = plans

    def prepare(self, call: AttentionCall) -> Prepared:
        assert call.seqused_k is not None
        assert call.block_table is not None
        lengths, pages = call.seqused_k.clone(), call.block_table.clone()

        def launch() -> Any:
            baked = self.bakes if torch.cuda.is_current_stream_capturing() else ""
            used = lengths if self.plans or baked == "lengths" else call.seqused_k
            table = (pages if baked == "pages" else call.block_table)[0].long()
            group = call.q.shape[1] // call.k.shape[2]
            k, v = (pool[table].flatten(0, 1).float().transpose(0, 1) for pool in (call.k, call.v))
            scores = call.q.float().transpose(0, 1) @ k.repeat_interleave(group, 0).transpose(1, 2) * call.scale
            unseen = torch.arange(k.shape[1], device=k.device) >= used
            scores = scores.masked_fill(unseen, -torch.inf)
            values = v.masked_fill(unseen[:, None], 0).repeat_interleave(group, 0)
            out = (scores.softmax(-1) @ values).transpose(0, 1).to(call.out_dtype)
            return out, torch.logsumexp(scores, -1)

        return Prepared(launch=launch, result=lambda native: native)


def verdict(adapter: Any, *features: str, **workload: Any) -> tuple[str, str]:
    """Verdict and detail on a GPU."""
    subject = Subject(
        workload=make_workload(causal=False, **workload),
        card=make_card(features=["gqa", "lse", *features]),
        kernel=local(adapter, "cuda"),
        device=torch.device("cuda", 0),
        level="full",
        reference=torch.float64,
        seed=1,
    )
    (finding,) = Graph().run(subject)
    return finding.verdict, finding.detail


def test_a_cpu_has_no_graphs() -> None:
    """The check is not asked."""
    assert "there are no CUDA graphs on a CPU" == Graph().skips(make_subject())


def steps(**workload: Any) -> dict[str, list[Any]]:
    """What an engine's next step replaces in a call, by name: the pages that are used, or the lengths."""
    made = make_workload(**workload)
    call = make_subject(**workload).inputs().call
    found: dict[str, list[Any]] = {}
    for name, metadata in replaced(made, call):
        ((field, tensor),) = metadata.items()
        assert (getattr(call, field).shape, getattr(call, field).dtype) == (tensor.shape, tensor.dtype)
        found[name] = tensor.tolist()
    return found


def test_a_step_has_other_pages_and_shorter_lengths() -> None:
    """The used entries of the table change places; half of the keys stay, but as many as there are queries."""
    paged: dict[str, Any] = {"seqlens_q": (1, 30), "seqlens_k": (41, 33), "page_size": 16}
    table = make_subject(**paged).inputs().call.block_table
    assert table is not None
    used = [*table[0, :3].tolist(), *table[1, :3].tolist()]
    pages = steps(**paged)["pages"]
    assert [used[-1], *used[:-1]] == [*pages[0][:3], *pages[1][:3]]
    assert table[:, 3:].tolist() == [row[3:] for row in pages]
    assert [21, 30] == steps(**paged)["lengths"]


@pytest.mark.parametrize(
    ("workload", "asked"),
    [
        ({}, []),
        ({"seqlens_q": (1,), "seqlens_k": (9,), "page_size": 16}, ["lengths"]),
        ({"seqlens_q": (1,), "seqlens_k": (17,), "page_size": 16}, ["lengths", "pages"]),
        ({"seqlens_q": (9,), "seqlens_k": (9,), "page_size": 16}, []),
        ({"seqlens_q": (40,), "page_size": 16, "spans": ((0, 3, 9),)}, ["pages"]),
    ],
    ids=str,
)
def test_a_step_replaces_what_it_can(workload: dict[str, Any], asked: list[str]) -> None:
    """One page has no other place, no query outlives its keys, and spans lie at keys that have to stay."""
    assert asked == sorted(steps(**workload))


@pytest.mark.gpu
def test_baked_contents_are_caught() -> None:
    """The replay gives the old values."""
    assert "fail" == verdict(Eager(bakes=True))[0]


@pytest.mark.gpu
def test_an_adapter_that_copies_is_not_asked() -> None:
    """Neither an eager launch nor a replay sees new contents."""
    assert ("note", True) == (verdict(Eager(copies=True))[0], "copies its inputs" in verdict(Eager(copies=True))[1])


@pytest.mark.gpu
def test_a_kernel_that_can_be_captured_passes() -> None:
    """Its replay is bitwise what it gives eagerly."""
    assert "pass" == verdict(Eager())[0]


@pytest.mark.gpu
def test_lengths_and_pages_that_are_baked_in_are_caught() -> None:
    """The replay reads the keys of the longest context, or the pages of another request."""
    decode: dict[str, Any] = {"seqlens_q": (1,), "seqlens_k": (500,), "page_size": 16}
    found, detail = verdict(Paged(bakes="lengths"), **decode)
    assert ("fail", True) == (found, "replayed with other lengths" in detail)
    found, detail = verdict(Paged(bakes="pages"), **decode)
    assert ("fail", True) == (found, "replayed with other pages" in detail)
    found, detail = verdict(Paged(), **decode)
    assert ("pass", True) == (found, "with other contents, pages, lengths" in detail)


@pytest.mark.gpu
def test_lengths_that_are_planned_on_the_host_are_told() -> None:
    """An eager launch does not see them change either: whoever serves with it plans anew before a replay."""
    found, detail = verdict(Paged(plans=True), seqlens_q=(1,), seqlens_k=(500,), page_size=16)
    assert ("pass", True) == (found, "lengths are planned on the host" in detail)


@pytest.mark.gpu
def test_a_kernel_that_waits_cannot_be_captured() -> None:
    """That is noted, fails only where the card claims it, and leaves the device usable."""
    found, detail = verdict(Eager(waits=True))
    assert ("note", True) == (found, detail.startswith("cannot be captured: "))
    assert "fail" == verdict(Eager(waits=True), "graph")[0]
    assert "pass" == verdict(Eager())[0]
