"""The attention geometries of a matrix: models, divided by tensor parallelism, under the asked masks."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from qualify.cards.matrix import MatrixCard
from qualify.cards.model import PHASES, LayerGroup, ModelCard
from qualify.facts.case import Phase
from qualify.masks import Mask, parse

PROMPT: tuple[Phase, ...] = ("prefill", "chunked", "varlen")
"""phases that read a prompt, in which an image may be"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Geometry:
    """One kind of attention call that a model makes, on one of the GPUs that share it."""

    model: str
    """with tensor parallelism, for example ``llama-3.1-8b.tp1``"""
    label: str
    """the mask for the id, for example ``window4096``, and how the call differs from others under that mask"""
    mask: Mask
    layers: int
    heads_q: int
    heads_kv: int
    head_dim: int
    head_dim_v: int
    softcap: float
    sinks: bool
    scale: float
    refusals: tuple[str, ...]
    """why the heads cannot be divided so, or the call cannot be made at all"""
    cross_keys: int = 0
    """keys of each sequence in cross-attention; 0 = those of the shape"""
    image_tokens: int = 0
    """tokens of the image in each sequence; 0 = text alone"""
    phases: tuple[Phase, ...] = ()
    """phases in which the call is made; empty = all"""
    latent: bool = False
    """whether values are the first ``head_dim_v`` elements of the keys, stored once"""

    @property
    def canonical(self) -> str:
        """What matters to a kernel, as canonical JSON, for the content hash."""
        usual: list[object] = [
            self.heads_q,
            self.heads_kv,
            self.head_dim,
            self.head_dim_v,
            self.mask.causal,
            self.mask.window,
            self.softcap,
            self.sinks,
            self.scale,
        ]
        # Hashes are compared with those of earlier releases, which knew chunks alone and wrote their size only.
        mask = self.mask
        pattern = mask.size if mask.pattern in {"", "chunked"} else f"{mask.pattern}{mask.size}"
        if self.latent:
            return json.dumps([*usual, pattern, "latent"])
        return json.dumps([*usual, pattern] if pattern else usual)

    def has(self, phase: Phase) -> bool:
        """Whether the call is made in a phase."""
        return not self.phases or phase in self.phases


def expand_geometries(card: MatrixCard, models: Mapping[str, ModelCard]) -> Iterator[Geometry]:
    """Every distinct attention call of every model, tensor parallelism and mask."""
    for entry in card.models:
        model = models[entry.model]
        for parallel in entry.tensor_parallel:
            found = [
                each
                for group in model.groups
                for label in dict.fromkeys(_label(group, asked) for asked in card.masks)
                for each in _prompts(divide(group, f"{model.model}.tp{parallel}", label, parallel), group)
            ]
            yield from _distinct_labels(_merged(found))


def divide(group: LayerGroup, model: str, label: str, parallel: int) -> Geometry:
    """One layer group under the mask of a label, as one of ``parallel`` GPUs sees it.

    Query heads are divided; KV heads too, or replicated where there are fewer than GPUs, as serving engines do.
    """
    refusals = []
    if group.heads_q % parallel:
        refusals.append(f"tensor_parallel={parallel} does not divide heads_q={group.heads_q}")
    if group.heads_kv % parallel and parallel % group.heads_kv:
        refusals.append(f"tensor_parallel={parallel} neither divides nor is divided by heads_kv={group.heads_kv}")
    if group.positions == "alibi":
        refusals.append("positions=alibi: a bias on the scores of each head, which the attention call cannot carry")
    label = _label(group, label)
    return Geometry(
        model=model,
        label=label,
        mask=_own_mask(group) if label == _own(group) else parse(label),
        layers=len(group.layers),
        heads_q=group.heads_q if refusals else group.heads_q // parallel,
        heads_kv=group.heads_kv if refusals else max(1, group.heads_kv // parallel),
        head_dim=group.head_dim,
        head_dim_v=group.head_dim_v,
        softcap=group.softcap,
        sinks=group.sinks,
        scale=group.scale,
        refusals=tuple(refusals),
        cross_keys=group.cross_keys or 0,
        phases=group.phases,
        latent=group.latent,
    )


def _own(group: LayerGroup) -> str:
    """The label of the layers' own mask, with its size. The stack stands before it, unless it is the main one."""
    size = group.window or group.chunk or ""
    return f"{'' if group.stack == 'main' else f'{group.stack}.'}{group.mask}{size}"


def _label(group: LayerGroup, asked: str) -> str:
    """The mask that is meant: ``model`` is the layers' own, which the matrix may name a second time.

    A mask other than the model's own applies to layers of the main stack on their own sequence. All other layers keep
    their own mask.
    """
    only_own = asked == "model" or group.mask == "cross" or group.stack != "main"
    return _own(group) if only_own else asked


def _own_mask(group: LayerGroup) -> Mask:
    """The layers' own mask. A window of W keys is the diagonal and W - 1 keys left of it; a band, W // 2 each way."""
    match group.mask:
        case "band":
            side = (group.window or 1) // 2
            return Mask(window=(side, side))
        case "cross":
            return Mask()
        case kind:
            return parse(f"{kind}{group.window or group.chunk or ''}")


def _prompts(geometry: Geometry, group: LayerGroup) -> Iterator[Geometry]:
    """The call on text, and on prompts with an image where its tokens see each other."""
    yield geometry
    phases: tuple[Phase, ...] = tuple(phase for phase in PROMPT if geometry.has(phase))
    if group.image_tokens and phases and geometry.label == _own(group):
        label = f"{geometry.label}.image{group.image_tokens}"
        yield replace(geometry, label=label, image_tokens=group.image_tokens, phases=phases)


def _merged(found: list[Geometry]) -> list[Geometry]:
    """Groups that make the same call become one; their layers add up, and one refusal refuses them all."""
    merged: dict[tuple[object, ...], Geometry] = {}
    for geometry in found:
        key = (geometry.label, geometry.canonical, geometry.cross_keys, geometry.image_tokens, geometry.phases)
        known = merged.get(key)
        if known is None:
            merged[key] = geometry
        else:
            refusals = tuple(dict.fromkeys((*known.refusals, *geometry.refusals)))
            merged[key] = replace(known, layers=known.layers + geometry.layers, refusals=refusals)
    return list(merged.values())


def _distinct_labels(found: list[Geometry]) -> Iterator[Geometry]:
    """Groups that differ under one mask label get what differs appended, so that ids stay unique."""
    labels = _labels(found)
    named = [replace(each, label=f"{each.label}.{_detail(each)}") if _shared(each, labels) else each for each in found]
    labels = _labels(named)
    for geometry in named:
        if _shared(geometry, labels):  # they differ in digits that the label does not print
            digest = digest_of(f"{geometry.canonical}{geometry.cross_keys}{geometry.phases}")
            yield replace(geometry, label=f"{geometry.label}.x{digest}")
        else:
            yield geometry


def digest_of(text: str) -> str:
    """What a label ends with where its words are not enough."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _labels(found: list[Geometry]) -> Counter[tuple[str, Phase]]:
    """How many geometries have a label in a phase; ids name both."""
    return Counter((each.label, phase) for each in found for phase in each.phases or PHASES)


def _shared(geometry: Geometry, labels: Counter[tuple[str, Phase]]) -> bool:
    return any(labels[geometry.label, phase] > 1 for phase in geometry.phases or PHASES)


def _detail(geometry: Geometry) -> str:
    """Heads, dimensions, softcap, scale and sinks, short enough to type."""
    heads = f"h{geometry.heads_q}x{geometry.heads_kv}.d{geometry.head_dim}x{geometry.head_dim_v}"
    return f"{heads}.c{geometry.softcap:g}.s{geometry.scale:g}" + (".sinks" if geometry.sinks else "")
