"""The attention geometries of a matrix: models, divided by tensor parallelism, under the asked masks."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from qualify.cards.matrix import MatrixCard
from qualify.cards.model import LayerGroup, ModelCard


@dataclass(frozen=True, kw_only=True, slots=True)
class Geometry:
    """One kind of attention call that a model makes, on one of the GPUs that share it."""

    model: str
    """with tensor parallelism, for example ``llama-3.1-8b.tp1``"""
    mask: str
    """label for the id, for example ``window4096``"""
    layers: int
    heads_q: int
    heads_kv: int
    head_dim: int
    head_dim_v: int
    causal: bool
    window: tuple[int, int]
    softcap: float
    sinks: bool
    scale: float
    refusals: tuple[str, ...]
    """why the heads cannot be divided so"""

    @property
    def canonical(self) -> str:
        """What matters to a kernel, as canonical JSON, for the content hash."""
        return json.dumps(
            [
                self.heads_q,
                self.heads_kv,
                self.head_dim,
                self.head_dim_v,
                self.causal,
                self.window,
                self.softcap,
                self.sinks,
                self.scale,
            ]
        )


def expand_geometries(card: MatrixCard, models: Mapping[str, ModelCard]) -> Iterator[Geometry]:
    """Every distinct attention call of every model, tensor parallelism and mask."""
    for entry in card.models:
        model = models[entry.model]
        for parallel in entry.tensor_parallel:
            found = [
                divide(group, f"{model.model}.tp{parallel}", mask, parallel)
                for group in model.groups
                for mask in dict.fromkeys(_label(group, asked) for asked in card.masks)
            ]
            yield from _distinct_labels(_merged(found))


def divide(group: LayerGroup, model: str, mask: str, parallel: int) -> Geometry:
    """One layer group under a mask, as one of ``parallel`` GPUs sees it.

    Query heads are divided; KV heads too, or replicated where there are fewer than GPUs, as serving engines do.
    """
    refusals = []
    if group.heads_q % parallel:
        refusals.append(f"tensor_parallel={parallel} does not divide heads_q={group.heads_q}")
    if group.heads_kv % parallel and parallel % group.heads_kv:
        refusals.append(f"tensor_parallel={parallel} neither divides nor is divided by heads_kv={group.heads_kv}")
    label, causal, window = _mask(group, mask)
    return Geometry(
        model=model,
        mask=label,
        layers=len(group.layers),
        heads_q=group.heads_q if refusals else group.heads_q // parallel,
        heads_kv=group.heads_kv if refusals else max(1, group.heads_kv // parallel),
        head_dim=group.head_dim,
        head_dim_v=group.head_dim_v,
        causal=causal,
        window=window,
        softcap=group.softcap,
        sinks=group.sinks,
        scale=group.scale,
        refusals=tuple(refusals),
    )


def _label(group: LayerGroup, asked: str) -> str:
    """The mask that is meant: ``model`` is the layers' own, which the matrix may name a second time."""
    if asked != "model":
        return asked
    return f"window{group.window}" if group.mask == "window" else group.mask


def _mask(group: LayerGroup, asked: str) -> tuple[str, bool, tuple[int, int]]:
    """(label, causal, window) of a mask; W keys including the diagonal are W - 1 to the left."""
    label = _label(group, asked)
    if label.startswith("window"):
        return label, True, (int(label.removeprefix("window")) - 1, 0)
    return label, label == "causal", (-1, -1)


def _merged(found: list[Geometry]) -> list[Geometry]:
    """Groups that make the same call become one; their layers add up, and one refusal refuses them all."""
    merged: dict[tuple[str, str], Geometry] = {}
    for geometry in found:
        key = (geometry.mask, geometry.canonical)
        known = merged.get(key)
        if known is None:
            merged[key] = geometry
        else:
            refusals = tuple(dict.fromkeys((*known.refusals, *geometry.refusals)))
            merged[key] = replace(known, layers=known.layers + geometry.layers, refusals=refusals)
    return list(merged.values())


def _distinct_labels(found: list[Geometry]) -> Iterator[Geometry]:
    """Groups that differ under one mask label get what differs appended, so that ids stay unique."""
    labels = Counter(geometry.mask for geometry in found)
    named = [
        replace(geometry, mask=f"{geometry.mask}.{_detail(geometry)}") if labels[geometry.mask] > 1 else geometry
        for geometry in found
    ]
    labels = Counter(geometry.mask for geometry in named)
    for geometry in named:
        if labels[geometry.mask] == 1:
            yield geometry
        else:  # they differ in digits that the label does not print
            digest = hashlib.sha256(geometry.canonical.encode()).hexdigest()[:8]
            yield replace(geometry, mask=f"{geometry.mask}.x{digest}")


def _detail(geometry: Geometry) -> str:
    """Heads, dimensions, softcap, scale and sinks, short enough to type."""
    heads = f"h{geometry.heads_q}x{geometry.heads_kv}.d{geometry.head_dim}x{geometry.head_dim_v}"
    return f"{heads}.c{geometry.softcap:g}.s{geometry.scale:g}" + (".sinks" if geometry.sinks else "")
