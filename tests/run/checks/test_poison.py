"""poison: what lies outside the valid region must not matter."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from builders import make_card, make_workload, sees
from faults import Dense, Edited
from subjects import CPU, make_subject
from torch import Tensor

from qualify.facts.outcome import Finding
from qualify.run.adapters.interface import AttentionCall
from qualify.run.adapters.tiled_torch import TiledTorch
from qualify.run.checks.poison import Poison, sees_all, unseen_keys

PAGED: dict[str, Any] = {"seqlens_q": (1, 1, 1), "seqlens_k": (40, 70, 33), "page_size": 16, "head_dim": 32}
FULL_PAGES: dict[str, Any] = {"seqlens_q": (1, 1), "seqlens_k": (48, 48), "page_size": 16, "head_dim": 32}


def poison(adapter: Any = None, **workload: Any) -> list[Finding]:
    """The findings of the check."""
    return Poison().run(make_subject(adapter, **workload))


def around(tensor: Tensor, offset: int) -> Tensor:
    """One element before (offset < 0) or after the rows of a view, in its guard band."""
    at = tensor.storage_offset() + (offset if offset < 0 else tensor.numel() + offset - 1)
    return torch.as_strided(tensor, (1,), (1,), at)


def touch(where: Any) -> Edited:
    """A kernel that adds a millionth part of something that it must not read, times zero: NaN gives it away."""
    return Edited(result=lambda call, out, lse: ((out.float() + 0.0 * where(call)).to(out.dtype), lse))


def tail_of_last_page(call: AttentionCall) -> Tensor:
    """The first key after the end of the last sequence."""
    assert call.block_table is not None
    assert call.seqused_k is not None
    length, size = int(call.seqused_k[-1]), call.k.shape[1]
    return call.v[call.block_table[-1, (length - 1) // size].long(), length % size, 0, 0]


LEAKS: dict[str, tuple[Any, dict[str, Any]]] = {
    "before q": (touch(lambda call: around(call.q, -1)), {}),
    "after q": (touch(lambda call: around(call.q, 1)), {}),
    "before k": (touch(lambda call: around(call.k, -64)), {}),
    "after v": (touch(lambda call: around(call.v, 640)), {}),
    "tail of the last page": (touch(tail_of_last_page), PAGED),
    "tail of a page that the matrix fills": (touch(tail_of_last_page), FULL_PAGES),
    "null page": (touch(lambda call: call.k[0, 3, 0, 0]), PAGED),
    "one key past the end": (
        Edited(call=lambda call: replace(call, seqused_k=call.seqused_k + 1)),  # type: ignore[operator]
        PAGED,
    ),
}


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("leak", LEAKS)
def test_reading_outside_fails(leak: str, deterministic: bool) -> None:
    """Guard bands, tails, the null page: every read shows, whether or not the card claims determinism."""
    adapter, workload = LEAKS[leak]
    card = make_card(deterministic=deterministic)
    found = Poison().run(make_subject(adapter, card=card, **workload))
    assert ["fail"] == [finding.verdict for finding in found]
    assert found[0].values["poison"] in {"0", "1e4", "NaN"}
    assert "bytes outside the valid region" in found[0].detail


def test_an_unwritten_row_is_reported() -> None:
    """A row that no block writes keeps what the memory held before."""

    def unwritten(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        fresh = torch.empty_like(out)
        fresh[:9], fresh[10:] = out[:9], out[10:]
        fresh[9] = around(call.q, -1)
        return fresh, lse

    assert "fail" == poison(Edited(result=unwritten))[0].verdict


def keys_behind_the_window(call: AttentionCall) -> Tensor:
    """The first key of a sequence whose window has long passed it."""
    return call.v[0, 0, 0].float()


def test_finite_poison_in_unseen_keys_is_mandatory() -> None:
    """A kernel that lets a thousandth of a key behind the window through fails."""
    leak = Edited(result=lambda call, out, lse: (out + (1e-3 * keys_behind_the_window(call)).to(out.dtype), lse))
    found = poison(leak, seqlens_q=(2,), seqlens_k=(50,), window=(9, 0))
    assert ["pass", "fail"] == [finding.verdict for finding in found]
    assert "1e4" == found[1].values["masked_poison"]


def test_nan_in_unseen_keys_is_only_a_note() -> None:
    """Correct kernels compute 0 · NaN for a masked key of a tile: that is told, and is no failure."""
    found = poison(Dense(), seqlens_q=(2,), seqlens_k=(50,), window=(9, 0))
    assert ["pass", "note"] == [finding.verdict for finding in found]
    assert "NaN" == found[1].values["masked_poison"]


@pytest.mark.parametrize(
    "workload",
    [
        {},
        PAGED,
        FULL_PAGES,
        {"causal": False, "sinks": True},
        {"seqlens_q": (9, 3), "seqlens_k": (4, 3)},
        {"seqlens_q": (1, 17, 100, 3, 0, 64)},
        {**PAGED, "seqlens_k": (1, 70, 0), "window": (20, 0)},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_correct_kernel_passes(workload: dict[str, Any], dtype: str) -> None:
    """Nothing outside matters to it; unseen keys at worst earn a note."""
    verdicts = [finding.verdict for finding in poison(TiledTorch(tile_q=16, tile_k=16), dtype=dtype, **workload)]
    assert "pass" == verdicts[0]
    assert set(verdicts[1:]) <= {"note"}


@pytest.mark.parametrize("value", [math.nan, 7.0])
@pytest.mark.parametrize("deterministic", [True, False])
def test_what_empty_rows_hold_is_not_asked_here(value: float, deterministic: bool) -> None:
    """A kernel that leaves NaN in rows without keys does so with every poison."""
    left = Edited(result=lambda call, out, lse: (out.masked_fill((lse == -math.inf).T.unsqueeze(-1), value), lse))
    card = make_card(deterministic=deterministic, empty_row={"out": "any", "lse": "any"})
    found = Poison().run(make_subject(left, card=card, seqlens_q=(9, 3), seqlens_k=(4, 3)))
    assert "pass" == found[0].verdict


def test_rounding_noise_is_granted_to_a_kernel_without_determinism() -> None:
    """A kernel whose sums come in any order differs in last bits: it passes without the claim and fails with it."""

    class Noisy:
        def __init__(self) -> None:
            self.generator = torch.Generator().manual_seed(0)

        def __call__(self, call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
            return (out.double() * (1 + 2**-9 * torch.randn(out.shape, generator=self.generator))).to(out.dtype), lse

    for deterministic, expected in ((False, "pass"), (True, "fail")):
        card = make_card(deterministic=deterministic)
        assert expected == Poison().run(make_subject(Edited(result=Noisy()), card=card))[0].verdict


@pytest.mark.parametrize(
    "workload",
    [
        {"seqlens_q": (5, 1), "seqlens_k": (9, 20), "window": (3, 0)},
        {"seqlens_q": (5, 0, 3), "seqlens_k": (5, 4, 2), "window": (1, 0)},
        {"seqlens_q": (1, 1), "seqlens_k": (0, 20), "window": (3, 0), "page_size": 4},
        {"causal": False},
    ],
    ids=str,
)
def test_unseen_keys_are_those_that_no_query_sees(workload: dict[str, Any]) -> None:
    """Against asking every query of the sequence about every key."""
    made = make_workload(**workload)
    expected = [
        not any(sees(i, j, seqlen_q, seqlen_k, made.mask.causal, made.mask.window) for i in range(seqlen_q))
        for seqlen_q, seqlen_k in zip(made.seqlens_q, made.seqlens_k, strict=True)
        for j in range(seqlen_k)
    ]
    assert expected == unseen_keys(made, CPU).tolist()
    assert sees_all(made) == (not any(expected)) or made.spans
    assert not (sees_all(made) and any(expected))


@pytest.mark.parametrize("deterministic", [True, False])
def test_other_roundings_are_no_sign_of_keys_that_no_query_sees(deterministic: bool) -> None:
    """Sums in another order are granted there too, where no determinism is claimed."""
    calls: list[int] = []

    def nudged(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(1)
        if len(calls) > 4:  # the call itself, and three with other bytes outside
            out.view(torch.int16)[0, 3, 5] ^= 1
        return out, lse

    card = make_card(deterministic=deterministic)
    found = Poison().run(make_subject(Edited(result=nudged), card=card, seqlens_q=(2,), seqlens_k=(50,), window=(9, 0)))
    assert deterministic == any(finding.verdict == "fail" for finding in found), found


def test_a_kernel_that_changes_by_itself_is_not_accused_of_reading_unseen_keys() -> None:
    """The unchanged call does not repeat itself either, and that is what is told."""
    calls: list[int] = []

    def varies(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(1)
        return (out + max(0, len(calls) - 4)).to(out.dtype), lse

    found = poison(Edited(result=varies), seqlens_q=(2,), seqlens_k=(50,), window=(9, 0))
    assert [("poison", "pass"), ("repeat", "fail")] == [(finding.check, finding.verdict) for finding in found]
