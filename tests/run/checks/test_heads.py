"""heads: wrong mappings of query heads to KV heads, for the case's own and other group sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from builders import alter, make_card
from faults import Dense, Edited
from subjects import make_subject
from torch import Tensor

from qualify.facts.outcome import Finding
from qualify.run.adapters.interface import AttentionCall, LibraryRefusal
from qualify.run.adapters.tiled_torch import TiledTorch
from qualify.run.checks.heads import Heads, wrong_head
from qualify.run.host.local import local


def heads(
    adapter: Any = None,
    deterministic: bool = True,
    jit: str = "never",
    alignment: str = "bottom_right",
    **workload: Any,
) -> Finding:
    """The one finding of the check."""
    card = make_card(deterministic=deterministic, jit=jit, alignment=alignment)
    subject = make_subject(adapter, card=card, level="full", **{"head_dim": 16} | workload)
    assert "" == Heads().skips(subject)
    (finding,) = Heads().run(subject)
    return finding


MAPPINGS: dict[str, Any] = {
    "interleaved": lambda head, heads_q, heads_kv: head % heads_kv,
    "by shift": lambda head, heads_q, heads_kv: min(head >> ((heads_q // heads_kv).bit_length() - 1), heads_kv - 1),
    "first head for all": lambda head, heads_q, heads_kv: 0,
    "mirrored": lambda head, heads_q, heads_kv: heads_kv - 1 - head // (heads_q // heads_kv),
    "off by one at the end": lambda head, heads_q, heads_kv: min(
        (head + (head == heads_q - 1)) * heads_kv // heads_q, 0
    ),
}


@pytest.mark.parametrize("name", MAPPINGS)
def test_wrong_mappings_are_caught(name: str) -> None:
    """Eight heads on two; a mapping that is right there is wrong for another group size."""
    finding = heads(Dense(kv_head=MAPPINGS[name]))
    assert "fail" == finding.verdict


@pytest.mark.parametrize(
    ("mapping", "told"),
    [
        ("first head for all", "head 4 must read the values of KV head 1, but reads those of KV head 0"),
        ("mirrored", "head 0 must read the values of KV head 0, but reads those of KV head 1"),
    ],
)
def test_the_head_that_is_followed_instead_is_named(mapping: str, told: str) -> None:
    """By its number, the first one too."""
    assert told in heads(Dense(kv_head=MAPPINGS[mapping])).detail


def test_values_that_nobody_reads_are_told() -> None:
    """A result that does not move with its values follows no head."""
    deaf = Edited(result=lambda call, out, lse: (torch.ones_like(out), lse))
    assert "head 0 must read the values of KV head 0, but depends on none" in heads(deaf).detail


def test_keys_that_nobody_reads_are_caught() -> None:
    """Every key weighs the same, so the values are followed; other keys move no row of any head."""
    finding = heads(Edited(call=lambda call: replace(call, q=torch.zeros_like(call.q))))
    assert ("fail", "keys", 0) == (finding.verdict, finding.values["what"], finding.values["head"])
    assert "head 0 must read the keys of KV head 0, but does not depend on them" in finding.detail


def test_rows_with_one_key_do_not_depend_on_it() -> None:
    """Its weight is 1, whatever it is."""
    assert wrong_head(make_subject(seqlens_q=(1, 1), seqlens_k=(1, 1), level="full")) is None


def test_a_kernel_that_changes_by_itself_is_not_accused_of_its_heads() -> None:
    """The unchanged call does not repeat itself either, and that is what is told."""
    calls: list[int] = []

    def varies(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(1)
        return (out + len(calls)).to(out.dtype), lse

    assert ("repeat", "fail") == ((finding := heads(Edited(result=varies))).check, finding.verdict)


@pytest.mark.parametrize("seed", range(20))
def test_outputs_of_one_element_change_with_their_values(seed: int) -> None:
    """However many rows and heads there are, none keeps its bits by chance; a wrong mapping of such heads is caught."""
    shape = {"heads_q": 10, "heads_kv": 2, "head_dim": 1, "head_dim_v": 1, "seqlens_q": (60,), "seqlens_k": (60,)}
    card = make_card(jit="shapes")
    assert wrong_head(make_subject(card=card, level="full", seed=seed, **shape)) is None
    mixed = Dense(kv_head=MAPPINGS["interleaved"])
    assert wrong_head(make_subject(mixed, card=card, level="full", seed=seed, **shape)) is not None


def test_values_of_another_head_are_caught() -> None:
    """Keys are right, values are those of the neighbour."""

    def keys(call: AttentionCall, index: int, first: int, last: int) -> tuple[Tensor, Tensor]:
        return call.k[first:last], call.v[first:last].roll(1, dims=1)

    finding = heads(Dense(keys=keys))
    assert ("fail", "values") == (finding.verdict, finding.values["what"])


def test_a_trace_of_the_first_head_is_caught() -> None:
    """Every other one has some of its values."""

    def keys(call: AttentionCall, index: int, first: int, last: int) -> tuple[Tensor, Tensor]:
        v = call.v[first:last].float()
        v[:, 1:] += v[:, :1] / 16
        return call.k[first:last], v

    finding = heads(Dense(keys=keys))
    assert ("fail", "reads those of several" in finding.detail) == (finding.verdict, True)


@pytest.mark.parametrize("most", [64, 80])
def test_few_queries_of_a_large_group_are_more_rows_than_a_tile(most: int) -> None:
    """Where a kernel packs the queries of a group, and the last rows get another's result."""

    def edit(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        group = call.q.shape[1] // call.k.shape[1]
        packed = 1 < call.max_seqlen_q <= 8 and call.max_seqlen_q * group > most
        return torch.where((torch.arange(len(out)) % 8 == 7).view(-1, 1, 1) & packed, out * 2, out), lse

    finding = heads(Edited(result=edit))
    assert ("fail", 12) == (finding.verdict, finding.values["group"])


def test_keys_of_another_head_are_caught() -> None:
    """Values are right, keys are those of the neighbour."""

    def keys(call: AttentionCall, index: int, first: int, last: int) -> tuple[Tensor, Tensor]:
        return call.k[first:last].roll(1, dims=1), call.v[first:last]

    finding = heads(Dense(keys=keys))
    assert ("fail", "keys") == (finding.verdict, finding.values["what"])


@pytest.mark.parametrize(
    "workload",
    [
        {},
        {"heads_kv": 1},
        {"heads_kv": 8},
        {"heads_q": 15, "heads_kv": 5},
        {"window": (5, 0)},
        {"seqlens_q": (1, 0, 3)},
    ],
    ids=str,
)
def test_a_correct_kernel_passes(workload: dict[str, Any]) -> None:
    """One KV head, as many as query heads, odd numbers, windows, ragged batches."""
    finding = heads(**workload)
    assert ("pass", True) == (finding.verdict, "also with groups of 1, 3, 5, 6, 7, 8, 12, 16, 24" in finding.detail)


def test_a_decode_call_passes() -> None:
    """Paged, and with one query."""
    assert "pass" == heads(seqlens_q=(1, 1), seqlens_k=(40, 33), page_size=16).verdict


def test_refused_groups_are_told() -> None:
    """A library that takes only powers of two is not failed for it."""

    class Choosy(TiledTorch):
        def prepare(self, call: AttentionCall) -> Any:
            if call.q.shape[1] // call.k.shape[-2] in {3, 5, 6, 7, 12}:
                raise LibraryRefusal("group size")
            return super().prepare(call)

    finding = heads(Choosy())
    assert "pass" == finding.verdict
    assert finding.detail.endswith("groups of 1, 8, 16, 24, 71; the library refuses groups of 3, 5, 6, 7, 12")


def test_kernels_that_would_be_compiled_are_asked_for_their_own_heads_only() -> None:
    """Ten compilations would take a minute."""
    assert "every query head follows exactly its KV head" == heads(jit="kernels").detail


def test_other_groups_are_asked_only_where_the_card_claims_groups() -> None:
    """A library without them need not take any."""
    card = make_card(features=["lse", "ragged"])
    (finding,) = Heads().run(make_subject(card=card, level="full", heads_q=3, heads_kv=3))
    assert "every query head follows exactly its KV head" == finding.detail


def test_roundings_are_no_change_without_determinism() -> None:
    """Another order of the sum is not another head."""
    calls: list[int] = []

    def nudge(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(0)
        some = torch.arange(out.shape[-1]) % 8 == len(calls) % 2  # a gain of all elements would be a bias
        return (out.float() * (1 + 2.0**-9 * some)).to(torch.bfloat16), lse

    assert "pass" == heads(Edited(result=nudge), deterministic=False).verdict


def shapes_asked(**workload: Any) -> dict[int, tuple[int, int, int]]:
    """Group size -> (queries of a sequence, keys of a sequence, KV heads) of the calls beside the case's own."""
    asked: dict[int, tuple[int, int, int]] = {}

    def note(call: AttentionCall) -> AttentionCall:
        if len(call.cu_seqlens_q) == 3 and call.block_table is None:
            asked[call.q.shape[1] // call.k.shape[1]] = (call.max_seqlen_q, call.max_seqlen_k, call.k.shape[1])
        return call

    assert "pass" == heads(Edited(call=note), **workload).verdict
    return asked


def test_other_groups_have_more_rows_than_a_tile() -> None:
    """Heads and queries of a group fill it, with 8 to 22 queries, and with fewer in the largest group alone."""
    queries = {1: 22, 3: 22, 5: 18, 6: 15, 7: 13, 8: 11, 12: 8, 16: 8, 24: 8}
    expected = {group: (many, 40, 3) for group, many in queries.items()} | {71: (2, 40, 1)}
    assert expected == shapes_asked(seqlens_q=(9,))


def test_other_groups_of_a_decode_call_have_one_query() -> None:
    """Another kernel serves several."""
    expected = dict.fromkeys((1, 3, 5, 6, 7, 8, 12, 16, 24), (1, 40, 3)) | {71: (1, 40, 1)}
    assert expected == shapes_asked(seqlens_q=(1,), seqlens_k=(33,))


def test_other_groups_have_as_many_keys_as_queries_where_masks_begin_at_the_top() -> None:
    """Elsewhere such a kernel has another mask than the golden result."""
    asked = shapes_asked(seqlens_q=(9,), alignment="top_left")
    assert (10, True) == (len(asked), all(queries == keys for queries, keys, _ in asked.values()))


def test_calls_without_keys_are_not_asked() -> None:
    """Nothing can change there."""
    assert "no keys" == Heads().skips(make_subject(seqlens_q=(3,), seqlens_k=(0,)))
    assert "no keys" == Heads().skips(make_subject(seqlens_q=(3, 0), seqlens_k=(0, 5)))


def test_a_mask_that_is_wrong_for_one_group_size_is_caught() -> None:
    """Heads follow their KV heads, and a row of a group of five sees one key less."""

    def edit(call: AttentionCall) -> AttentionCall:
        five = call.q.shape[1] == 5 * call.k.shape[1]
        return alter(call, window=(len(call.k) // (len(call.cu_seqlens_q) - 1) - 2, 0)) if five else call

    finding = heads(Edited(call=edit))
    assert ("fail", 5, "budget") == (finding.verdict, finding.values["group"], finding.values["finding"])


def test_a_group_that_another_case_asked_does_not_end_the_question() -> None:
    """The groups after it are asked all the same."""

    class OnlyOne(TiledTorch):
        def prepare(self, call: AttentionCall) -> Any:
            if call.q.shape[1] // call.k.shape[-2] in {3, 5, 6, 7, 8, 12, 16, 24, 71}:
                raise LibraryRefusal("group size")
            return super().prepare(call)

    first = make_subject(OnlyOne(), card=make_card(jit="never"), level="full")
    assert "pass" == Heads().run(first)[0].verdict
    (finding,) = Heads().run(replace(first, kernel=local(TiledTorch())))
    assert finding.detail.endswith("groups of 3, 5, 6, 7, 8, 12, 16, 24, 71; groups of 1 passed in another case")
