"""A workload that no axis of a matrix made: its geometry, its shape, and why a card does not claim it."""

from __future__ import annotations

import math
from dataclasses import replace

from qualify.cards.incident import IncidentCall
from qualify.cards.kernel import KernelCard
from qualify.facts.case import INCIDENTS, Phase, Workload
from qualify.facts.dtypes import FORMATS
from qualify.plan.geometry import Geometry
from qualify.plan.refusals import dtype_refusals, geometry_refusals, length_refusals, shape_refusals
from qualify.plan.shapes import Shape, label_of


def workload_refusals(card: KernelCard, workload: Workload) -> list[str]:
    """Why a card does not claim a workload; empty where it does."""
    geometry = Geometry(
        model="",
        label="",
        mask=workload.mask,
        layers=1,
        heads_q=workload.heads_q,
        heads_kv=workload.heads_kv,
        head_dim=workload.head_dim,
        head_dim_v=workload.head_dim_v,
        softcap=workload.softcap,
        sinks=workload.sinks,
        scale=workload.scale,
        refusals=(),
        latent=workload.latent,
    )
    shape = shape_of(workload.seqlens_q, workload.seqlens_k, workload.page_size, where=())
    shape = replace(shape, spans=workload.spans)
    return [
        *geometry_refusals(card, geometry),
        *dtype_refusals(card, workload.dtype),
        *shape_refusals(card, shape),
        *length_refusals(card, geometry, shape),
    ]


def descaled(workload: Workload, card: KernelCard) -> Workload:
    """Where keys and values are fp8, the workload with the descale factors that the kernel takes."""
    return replace(workload, descale=card.claims.fp8.descale) if FORMATS[workload.kv_format].descaled else workload


def geometry_of(call: IncidentCall) -> Geometry:
    """The geometry of a call that a matrix writes out, with a label that holds what differs between such calls."""
    mask = call.mask
    heads = f"h{call.heads_q}x{call.heads_kv}.d{call.head_dim}"
    details = [
        f"x{call.head_dim_v}" if call.head_dim_v != call.head_dim else "",
        f".c{call.softcap:g}" if call.softcap else "",
        ".sinks" if call.sinks else "",
        f".s{call.scale:g}" if call.scale != 1 / math.sqrt(call.head_dim) else "",
    ]
    return Geometry(
        model=INCIDENTS,
        label=f"{mask.label}.{heads}{''.join(details)}",
        mask=mask,
        layers=1,
        heads_q=call.heads_q,
        heads_kv=call.heads_kv,
        head_dim=call.head_dim,
        head_dim_v=call.head_dim_v,
        softcap=call.softcap,
        sinks=call.sinks,
        scale=call.scale,
        refusals=(),
    )


def shape_of(
    seqlens_q: tuple[int, ...], seqlens_k: tuple[int, ...], page_size: int, where: tuple[str | int, ...]
) -> Shape:
    """The shape of any lengths, with the phase that they belong to and a label that people can type."""
    even = len(set(zip(seqlens_q, seqlens_k, strict=True))) == 1
    return Shape(
        phase=_phase(seqlens_q, seqlens_k, even=even),
        label=label_of(seqlens_q, seqlens_k, page_size),
        seqlens_q=seqlens_q,
        seqlens_k=seqlens_k,
        page_size=page_size,
        where=where,
    )


def _phase(seqlens_q: tuple[int, ...], seqlens_k: tuple[int, ...], *, even: bool) -> Phase:
    if set(seqlens_q) == {1} and max(seqlens_k) > 1:
        return "decode"
    if seqlens_q != seqlens_k:
        return "chunked"
    return "prefill" if even else "varlen"
