"""Latent attention: values that are the first elements of the keys, in one cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from builders import make_workload
from subjects import CPU, make_call, make_subject

from qualify.cards.load import load_kernels, load_matrix
from qualify.facts.case import Workload
from qualify.plan.plan import make_plan
from qualify.run.adapters import flashinfer_mla, flashmla
from qualify.run.adapters.flashinfer_mla import FlashInferMla, cache_of
from qualify.run.adapters.flashmla import FlashMla
from qualify.run.adapters.interface import Adapter, LibraryRefusal
from qualify.run.adapters.packing import from_batch
from qualify.run.checks.layout import LAYOUTS
from qualify.run.checks.page_permutation import move_pages, shared_prefix
from qualify.run.checks.registry import CHECKS
from qualify.run.checks.size_limits import far_rows
from qualify.run.checks.two_scores import make_probe
from qualify.run.inputs.tensors import (
    INPUT_KINDS,
    Inputs,
    clone,
    make_inputs,
    poison_outside,
    replace_keys,
    with_tensors,
)

SMALL: dict[str, Any] = {"heads_kv": 1, "head_dim": 96, "head_dim_v": 64, "latent": True}
LARGE: dict[str, Any] = SMALL | {"head_dim": 576, "head_dim_v": 512, "heads_q": 16}
PAGED: dict[str, Any] = {"seqlens_q": (1, 1, 1), "seqlens_k": (100, 64, 9), "page_size": 64}


def make(kind: Any = "normal", **changes: Any) -> tuple[Workload, Inputs]:
    """A paged workload and its inputs."""
    workload = make_workload(**SMALL | PAGED | changes)
    return workload, make_inputs(workload, kind=kind, seed=3, device=CPU)


def changed(workload: Workload, inputs: Inputs) -> dict[str, Inputs]:
    """Whatever is done to inputs."""
    k, v = torch.randn_like(inputs.k_whole), torch.randn_like(inputs.v_whole)
    return {
        "clone": clone(inputs),
        "other keys": with_tensors(inputs, k=k),
        "other values": with_tensors(inputs, v=v),
        "both": with_tensors(inputs, k=k, v=v),
        "poison": poison_outside(inputs, workload, 1e4),
        "replaced": replace_keys(inputs, None, torch.ones(1, 1, 96), torch.zeros(1)),
        "moved": move_pages(inputs, workload, "shuffled", 1),
    }


@pytest.mark.parametrize("kind", INPUT_KINDS)
def test_values_are_a_view_of_the_keys(kind: str) -> None:
    """For every kind of inputs, whatever is replaced; and the allocation is counted once."""
    workload, inputs = make(kind)
    for name, found in {"made": inputs, **changed(workload, inputs)}.items():
        assert found.call.latent, name
        assert torch.equal(found.call.v, found.call.k[..., :64]), name
    assert 2 * (inputs.call.q.numel() + inputs.call.k.numel()) == inputs.bytes


def test_what_is_asked_of_the_values_goes_into_the_keys() -> None:
    """Values win over the first elements of the keys that come with them, and leave the others."""
    workload, inputs = make()
    found = changed(workload, inputs)
    assert not torch.equal(found["both"].call.k, found["other keys"].call.k)
    assert torch.equal(found["both"].k_whole[..., 64:], found["other keys"].k_whole[..., 64:])
    assert torch.equal(found["other values"].k_whole[..., 64:], inputs.k_whole[..., 64:])
    assert not found["replaced"].call.k.view(-1, 96)[100:][:0].any()
    assert {0.0, 1.0} == set(replaced_rows(workload, found["replaced"]).flatten().tolist())


def replaced_rows(workload: Workload, inputs: Inputs) -> torch.Tensor:
    """The first key of each sequence: 64 elements of the value, then those that only the key has."""
    assert inputs.call.block_table is not None
    rows = inputs.call.k[inputs.call.block_table[:, 0].long(), 0, 0]
    assert not rows[:, : workload.head_dim_v].any()
    return rows


@pytest.mark.parametrize("page_size", [0, 64])
def test_layouts_and_far_keys_keep_one_cache(page_size: int) -> None:
    """Whatever strides the keys get, the values have the same; what would part them is not asked."""
    call = make_call(**SMALL | PAGED | {"page_size": page_size})
    found = {name: arranged for name, arrange in LAYOUTS.items() if (arranged := arrange(call)) is not None}
    assert {"padded", "heads first", "offset"} <= set(found)
    assert {"interleaved", "padded values", "unlike keys and values"}.isdisjoint(found)
    assert all(each.latent for each in found.values())
    if not page_size:
        assert far_rows(call, field="k", offsets=1 << 31).latent


def test_shared_pages_keep_one_cache() -> None:
    """Both calls of a prefix that sequences share."""
    workload, inputs = make()
    both = shared_prefix(inputs, workload)
    assert both is not None
    assert all(call.latent for call in both)


def test_probes_steer_with_what_is_no_value() -> None:
    """The queries' elements that meet the values are 0 where a probe has to know the scores."""
    subject = make_subject(**SMALL | PAGED)
    for far in (False, True):
        q = make_probe(subject, 30.0 if far else 0.0).inputs.call.q
        assert not q[..., :64].any()
        assert q[..., 64].all()


@pytest.mark.parametrize("length", [8192, 131072])
@pytest.mark.parametrize("batch", [1, 32])
def test_the_needle_has_room_in_production_shapes(batch: int, length: int) -> None:
    """63 elements of the rotated part are enough codes for 128 heads and long caches."""
    shape = {"seqlens_q": (1,) * batch, "seqlens_k": (length,) * batch, "page_size": 64}
    subject = make_subject(**LARGE | shape | {"heads_q": 128, "scale": 0.1352337788608801})
    (needle,) = (check for check in CHECKS if check.name == "needle")
    assert "" == needle.skips(subject)


def test_deepseek_is_latent_where_it_makes_tokens() -> None:
    """Decode and verify of the shipped matrix; prompts have values of their own."""
    plan = make_plan(load_matrix("deepseek"), load_kernels())
    cases = [*plan.cases, *(case for case, _ in plan.refused)]
    assert {"decode", "verify"} == {case.phase for case in cases if case.workload.latent}
    assert {"prefill", "chunked", "varlen"} == {case.phase for case in cases if not case.workload.latent}
    served = {case.kernel for case in plan.cases if case.workload.latent}
    assert {"flashmla", "flashinfer-mla-fa2", "flashinfer-mla-fa3"} <= served


ADAPTERS: dict[str, Callable[[], Adapter]] = {
    "FlashMLA": lambda: FlashMla(library=None),
    "FlashInfer MLA fa3": lambda: FlashInferMla(library=None, backend="fa3"),
}


@pytest.mark.parametrize("name", ADAPTERS)
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"latent": False}, "values must be the first elements of the keys, in the same memory"),
        ({"heads_kv": 2}, "one KV head, not 2"),
        ({"head_dim": 320, "head_dim_v": 256}, "(head_dim, head_dim_v)=(320, 256) is not (576, 512)"),
        ({"softcap": 30.0}, "no softcap: softcap=30.0"),
        ({"window": (9, 0)}, "no window mask: causal, window (9, 0)"),
        ({"sinks": True}, "no sinks: 16 given"),
        ({"dtype": "fp32"}, "dtype fp32 is none of bf16, fp16"),
    ],
)
def test_what_the_libraries_have_no_word_for_is_refused(name: str, changes: dict[str, Any], reason: str) -> None:
    """Before the library hears of it, with the value."""
    with pytest.raises(LibraryRefusal) as refused:
        ADAPTERS[name]().prepare(make_call(**LARGE | PAGED | changes))
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"page_size": 0}, "pages only"),
        ({"seqlens_q": (1, 2, 1)}, "as many queries in every sequence, at least 1, not [1, 2]"),
        ({"seqlens_q": (0, 1, 1)}, "as many queries in every sequence, at least 1, not [0, 1]"),
    ],
)
def test_flashmla_wants_a_rectangle_of_queries_on_pages(changes: dict[str, Any], reason: str) -> None:
    """Its queries are (batch, queries, heads, dim)."""
    with pytest.raises(LibraryRefusal) as refused:
        FlashMla(library=None).prepare(make_call(**LARGE | PAGED | changes))
    assert reason in str(refused.value)


@pytest.mark.parametrize("page_size", [0, 16])
def test_flashinfers_cache_holds_the_keys_of_each_sequence(page_size: int) -> None:
    """Pages of the block table, or of a single key each."""
    shape = {"seqlens_q": (1, 1, 1), "seqlens_k": (40, 0, 9)}
    call = make_call(**SMALL | shape | {"page_size": page_size})
    cache = cache_of(call)
    assert [40, 0, 9] == cache.lengths.tolist()
    starts = cache.indptr.tolist()
    for index, length in enumerate(cache.lengths.tolist()):
        pages = cache.indices[starts[index] : starts[index + 1]].long()
        keys = cache.keys[pages].flatten(0, 1)[:length]
        expected = call.k[40 * (index > 0) :][:length, 0]
        if call.block_table is not None:
            expected = call.k[call.block_table[index].long()].flatten(0, 1)[:length, 0]
        assert torch.equal(expected, keys)


def test_results_are_brought_into_the_packed_form() -> None:
    """FlashMLA's (batch, heads, queries) and FlashInfer's (rows, heads) LSE become (heads, rows)."""
    out, lse = torch.randn(3, 2, 4, 8), torch.randn(3, 4, 2)
    packed, packed_lse = from_batch((out, lse))
    assert torch.equal(out[1, 0], packed[2])
    assert ((6, 4, 8), (4, 6)) == (packed.shape, packed_lse.shape)
    assert torch.equal(lse[1, :, 0], packed_lse[:, 2])
    _, turned = flashinfer_mla.to_contract((packed, packed_lse.T))
    assert torch.equal(packed_lse, turned)


@pytest.mark.parametrize(("module", "options"), [(flashmla, {"fast": True}), (flashinfer_mla, {"backend": "cutlass"})])
def test_unknown_options_are_named(module: Any, options: dict[str, Any]) -> None:
    """With what there is."""
    with pytest.raises(ValueError, match=str(next(iter(options)))):
        module.create(options)
