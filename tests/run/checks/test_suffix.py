"""suffix: no row notices the future, its past behind the window, or its neighbours."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from builders import make_card
from faults import Dense, Edited, changed
from subjects import make_subject
from torch import Tensor

from qualify.facts.outcome import Finding
from qualify.run.adapters.interface import AttentionCall
from qualify.run.adapters.tiled_torch import TiledTorch
from qualify.run.checks.suffix import Suffix

BATCH: dict[str, Any] = {"seqlens_q": (30, 40, 9)}


def suffix(adapter: Any = None, level: str = "smoke", deterministic: bool = True, **workload: Any) -> Finding:
    """The one finding of the check."""
    subject = make_subject(adapter, level=level, card=make_card(deterministic=deterministic), **workload)
    assert "" == Suffix().skips(subject)
    (finding,) = Suffix().run(subject)
    return finding


def leak(query: int, key: int) -> Any:
    """One query sees one key that it must not see."""

    def mask(i: Tensor, j: Tensor, seqlen_q: int, seqlen_k: int, call: AttentionCall) -> Tensor:
        seen: Tensor = call.mask.visible(i, j, seqlen_q, seqlen_k)
        return seen | ((i == query) & (j == key))

    return Dense(mask=mask)


def neighbours_first_value(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """A hundredth of the second sequence's first value ends up in the first sequence."""
    start = int(call.cu_seqlens_q[1])
    out[: start // 2] += 0.01 * call.v[start, 0]
    return out, lse


def neighbours_query(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """A kernel that scales by the largest query of the whole batch."""
    return (out.float() * (1 + 0.1 * call.q.float().abs().max())).to(out.dtype), lse


FAULTS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "one key of the future": (leak(30, 50), {}, "later keys"),
    "the very next key": (leak(31, 32), {"seqlens_q": (70,)}, "later keys"),
    "a shifted mask": (changed(causal=False, window=(-1, 1)), {}, "later keys"),
    "a bidirectional mask": (changed(causal=False), {}, "later keys"),
    "a window one too long": (changed(window=(10, 0)), {"window": (9, 0)}, "keys before its window"),
    "a window ignored": (changed(window=(-1, 0)), {"window": (9, 0)}, "keys before its window"),
    "a key behind the window": (leak(60, 20), {"window": (9, 0)}, "keys before its window"),
    "values of a neighbour": (Edited(result=neighbours_first_value), BATCH, "other sequences of the batch"),
    "queries of a neighbour": (Edited(result=neighbours_query), BATCH, "other sequences of the batch"),
    "a band one too long": (
        changed(window=(9, 5)),
        {"causal": False, "window": (9, 4)},
        "later keys",
    ),
    "a band that ends at the query": (changed(window=(9, 1)), {"causal": False, "window": (9, 0)}, "later keys"),
    "a window of the query alone": (changed(window=(1, 0)), {"window": (0, 0)}, "keys before its window"),
    "a window that only the mask ends": (changed(window=(10, -1)), {"window": (9, -1)}, "keys before its window"),
    "a chunk too long": (changed(chunk=32), {"chunk": 16}, "keys before its window"),
    "a window one too long in decode": (
        changed(window=(10, 0)),
        {"seqlens_q": (1,), "seqlens_k": (40,), "window": (9, 0)},
        "keys before its window",
    ),
    "a neighbour without a mask": (
        Edited(result=neighbours_first_value),
        {**BATCH, "causal": False},
        "other sequences of the batch",
    ),
}


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_leak_is_caught_and_named(fault: str, deterministic: bool) -> None:
    """The finding fails, says what changed, and where."""
    adapter, workload, what = FAULTS[fault]
    level = "full" if fault == "the very next key" else "smoke"
    finding = suffix(adapter, level, deterministic, **workload)
    assert ("fail", what) == (finding.verdict, finding.values["what"])
    assert finding.detail.startswith(f"rows change with {what}")


@pytest.mark.parametrize("query", [0, 21, 31, 53])
def test_the_next_key_is_hidden_from_queries_everywhere(query: int) -> None:
    """At full the sequence is split at its first query, and in both halves."""
    finding = suffix(leak(query, query + 1), "full", seqlens_q=(70,))
    assert ("fail", query) == (finding.verdict, finding.values["query"])


@pytest.mark.parametrize("workload", [{}, BATCH | {"causal": False}], ids=str)
def test_a_kernel_that_changes_by_itself_is_not_accused_of_a_leak(workload: dict[str, Any]) -> None:
    """The unchanged call does not repeat itself either, and that is what is told."""
    calls: list[int] = []

    def varies(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(1)
        return (out + len(calls)).to(out.dtype), lse

    assert ("repeat", "fail") == ((finding := suffix(Edited(result=varies), **workload)).check, finding.verdict)


@pytest.mark.parametrize(
    "workload",
    [
        {},
        BATCH,
        {"window": (9, 0)},
        {**BATCH, "window": (9, 4), "causal": False},
        {**BATCH, "sinks": True, "softcap": 20.0},
        {"seqlens_q": (9, 3), "seqlens_k": (4, 3)},
        {"seqlens_q": (1, 17, 100, 3, 0, 64)},
        {"seqlens_q": (1,) * 3, "seqlens_k": (40, 70, 33), "page_size": 16, "window": (20, 0)},
        {"seqlens_q": (1,) * 3, "seqlens_k": (0, 70, 33), "page_size": 16},
        {"seqlens_q": (5, 9), "seqlens_k": (70, 9), "causal": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("adapter", [TiledTorch(tile_q=16, tile_k=16), Dense()], ids=["tiled", "dense"])
def test_correct_kernels_pass(adapter: Any, workload: dict[str, Any], deterministic: bool) -> None:
    """Masks, windows on both sides, pages, empty sequences, more queries than keys; at full level."""
    assert "pass" == suffix(adapter, "full", deterministic, **workload).verdict


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        ({"causal": False}, "one sequence without a mask: every query sees every key"),
        ({"seqlens_q": (1,), "seqlens_k": (40,)}, "one query that sees every key"),
    ],
)
def test_what_cannot_leak_is_skipped_with_the_reason(workload: dict[str, Any], reason: str) -> None:
    """Nothing is hidden from anybody there."""
    assert reason == Suffix().skips(make_subject(**workload))


def test_a_window_that_hides_nothing_is_told_as_that() -> None:
    """One query whose window is longer than its sequence: nothing could be changed."""
    assert "no key is hidden" == suffix(seqlens_q=(1,), seqlens_k=(9,), window=(20, 0)).detail


def test_nan_never_counts_as_unchanged() -> None:
    """A row that turns NaN when the future changes is a leak, with or without determinism."""

    def infected(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        if float(call.v[-1].float().abs().max()) > 50:
            out[3, 2, 1] = torch.nan
        return out, lse

    for deterministic in (True, False):
        finding = suffix(Edited(result=infected), deterministic=deterministic)
        assert "fail" == finding.verdict
        assert (3, 2, 1) == tuple(finding.values[name] for name in ("query", "head", "element"))


def test_what_a_row_without_keys_gives_is_asked_where_the_card_promises_it() -> None:
    """It follows the future here, as cuDNN's does."""

    def last_value(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        out[0] = call.v[-1, :1]
        return out, lse

    lengths: dict[str, Any] = {"seqlens_q": (9,), "seqlens_k": (4,)}
    assert "fail" == suffix(Edited(result=last_value), "full", **lengths).verdict
    subject = make_subject(
        Edited(result=last_value), card=make_card(empty_row={"out": "any", "lse": "any"}), level="full", **lengths
    )
    assert "pass" == Suffix().run(subject)[0].verdict
