"""One sequence of a batch, as a call of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from qualify.facts.case import Workload
from qualify.run.adapters.interface import AttentionCall


def one_sequence(workload: Workload, index: int) -> Workload:
    """One sequence of a workload, with its images."""
    spans = tuple((0, start, end) for sequence, start, end in workload.spans if sequence == index)
    return replace(
        workload, seqlens_q=(workload.seqlens_q[index],), seqlens_k=(workload.seqlens_k[index],), spans=spans
    )


def only(call: AttentionCall, single: Workload, index: int, workload: Workload) -> AttentionCall:
    """One sequence of a call, as a call of its own.

    Its queries, keys and values are views. Its small tensors are copies, because they must begin at multiples of 16
    bytes.

    Args:
        single: the workload of the sequence alone (:func:`one_sequence`).
        index: number of the sequence.
        workload: the workload of the whole call.
    """
    rows, keys = (
        slice(sum(lengths[:index]), sum(lengths[: index + 1])) for lengths in (workload.seqlens_q, workload.seqlens_k)
    )
    bounds: dict[str, Any] = {"dtype": torch.int32, "device": call.q.device}
    factors = {"q_descale": call.q_descale, "k_descale": call.k_descale, "v_descale": call.v_descale}
    descales: dict[str, Any] = {
        name: None if factor is None else factor[index : index + 1].clone() for name, factor in factors.items()
    }
    one = replace(
        call,
        q=call.q[rows],
        cu_seqlens_q=torch.tensor([0, single.seqlens_q[0]], **bounds),
        max_seqlen_q=single.seqlens_q[0],
        max_seqlen_k=single.seqlens_k[0],
        bidirectional_spans=torch.tensor(single.spans, **bounds) if single.spans else None,
        **descales,
    )
    if call.block_table is None:
        return replace(
            one, k=call.k[keys], v=call.v[keys], cu_seqlens_k=torch.tensor([0, single.seqlens_k[0]], **bounds)
        )
    assert call.seqused_k is not None, "a paged call has seqused_k"
    used, pages = call.seqused_k[index : index + 1], call.block_table[index : index + 1]
    return replace(one, seqused_k=used.clone(), block_table=pages.clone())
