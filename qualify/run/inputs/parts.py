"""One sequence of a batch, or several that follow one another, as a call of their own."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
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


def only(call: AttentionCall, some: Workload, index: int, workload: Workload) -> AttentionCall:
    """One sequence of a call, or several that follow one another, as a call of their own.

    Their queries, keys and values are views. Their small tensors are copies, because they must begin at multiples of 16
    bytes.

    Args:
        some: the workload of those sequences alone (for one, :func:`one_sequence`).
        index: number of the first of them.
        workload: the workload of the whole call.
    """
    own = slice(index, index + some.batch)
    rows, keys = (
        slice(sum(lengths[:index]), sum(lengths[: own.stop])) for lengths in (workload.seqlens_q, workload.seqlens_k)
    )
    bounds: dict[str, Any] = {"dtype": torch.int32, "device": call.q.device}
    factors = {"q_descale": call.q_descale, "k_descale": call.k_descale, "v_descale": call.v_descale}
    descales: dict[str, Any] = {
        name: None if factor is None else factor[own].clone() for name, factor in factors.items()
    }
    one = replace(
        call,
        q=call.q[rows],
        cu_seqlens_q=torch.tensor([0, *accumulate(some.seqlens_q)], **bounds),
        max_seqlen_q=max(some.seqlens_q),
        max_seqlen_k=max(some.seqlens_k),
        bidirectional_spans=torch.tensor(some.spans, **bounds) if some.spans else None,
        **descales,
    )
    if call.block_table is None:
        return replace(
            one, k=call.k[keys], v=call.v[keys], cu_seqlens_k=torch.tensor([0, *accumulate(some.seqlens_k)], **bounds)
        )
    assert call.seqused_k is not None, "a paged call has seqused_k"
    return replace(one, seqused_k=call.seqused_k[own].clone(), block_table=call.block_table[own].clone())
