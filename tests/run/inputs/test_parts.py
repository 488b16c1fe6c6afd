"""Sequences of a batch as a call of their own: they have the rows that they have in the batch."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch
from builders import make_workload
from subjects import make_call
from torch import Tensor

from qualify.run.golden.reference import golden
from qualify.run.inputs.parts import one_sequence, only

BATCH: dict[str, Any] = {"seqlens_q": (3, 0, 5, 2), "seqlens_k": (7, 4, 20, 33), "sinks": True}
BATCHES: dict[str, dict[str, Any]] = {
    "packed": {},
    "paged": {"page_size": 8},
    "fp8": {"dtype": "fp8_e4m3"},
    "fp8, paged": {"dtype": "fp8_e4m3", "page_size": 8},
    "images": {"seqlens_q": (7, 4, 20, 33), "spans": ((0, 1, 4), (2, 3, 9), (2, 12, 20), (3, 0, 5))},
    "latent": {"heads_kv": 1, "head_dim_v": 48, "latent": True},
}


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("index", range(4))
def test_a_sequence_by_itself_gives_what_it_gives_in_the_batch(batch: str, index: int) -> None:
    """Whatever its neighbours are: queries, keys, pages, factors and images are its own."""
    workload = make_workload(**BATCH | BATCHES[batch])
    call = make_call(**BATCH | BATCHES[batch])
    single = one_sequence(workload, index)
    one = only(call, single, index, workload)
    queries, keys = workload.seqlens_q, workload.seqlens_k
    assert ((queries[index],), (keys[index],)) == (single.seqlens_q, single.seqlens_k)
    assert [0, queries[index]] == one.cu_seqlens_q.tolist()
    assert (queries[index], keys[index]) == (one.max_seqlen_q, one.max_seqlen_k)
    if not queries[index]:
        return
    whole, alone = golden(call), golden(one)
    mine = (whole.rows >= sum(queries[:index])) & (whole.rows < sum(queries[: index + 1]))
    torch.testing.assert_close(whole.out[mine], alone.out, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(whole.lse[mine], alone.lse, rtol=1e-9, atol=1e-12)
    assert whole.keys[mine].tolist() == alone.keys.tolist()


@pytest.mark.parametrize("batch", [name for name in BATCHES if name != "images"])
@pytest.mark.parametrize("first", [0, 1, 2])
def test_several_sequences_by_themselves_give_what_they_give_in_the_batch(batch: str, first: int) -> None:
    """Those that follow one another; one of them may have no query."""
    workload = make_workload(**BATCH | BATCHES[batch])
    call = make_call(**BATCH | BATCHES[batch])
    own = slice(first, first + 2)
    queries, keys = workload.seqlens_q, workload.seqlens_k
    both = only(call, workload.with_lengths(queries[own], keys[own]), first, workload)
    assert (max(queries[own]), max(keys[own])) == (both.max_seqlen_q, both.max_seqlen_k)
    whole, alone = golden(call), golden(both)
    mine = (whole.rows >= sum(queries[:first])) & (whole.rows < sum(queries[: own.stop]))
    torch.testing.assert_close(whole.out[mine], alone.out, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(whole.lse[mine], alone.lse, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("batch", BATCHES)
def test_what_is_large_is_shared_and_what_is_small_is_copied(batch: str) -> None:
    """Nobody has room for the cache twice; a kernel reads small tensors from multiples of 16 bytes."""
    workload = make_workload(**BATCH | BATCHES[batch])
    call = make_call(**BATCH | BATCHES[batch])
    one = only(call, one_sequence(workload, 2), 2, workload)
    small = {"cu_seqlens_q", "cu_seqlens_k", "seqused_k", "block_table", "q_descale", "k_descale", "v_descale"}
    for name in (field.name for field in fields(one)):
        before, after = getattr(call, name), getattr(one, name)
        assert isinstance(before, Tensor) == isinstance(after, Tensor), name
        if not isinstance(after, Tensor):
            continue
        assert (before.dtype, before.device) == (after.dtype, after.device), name
        shared = before.untyped_storage().data_ptr() == after.untyped_storage().data_ptr()
        assert (name not in small | {"bidirectional_spans"}) == shared, name
        assert not (name in small and after.data_ptr() % 16), name
