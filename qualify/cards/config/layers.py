"""Layers to layer groups: what each layer of a stack computes, gathered into groups of equal calls."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from qualify.cards.config.keys import Keys
from qualify.cards.model import LayerGroup, LayerMask, Positions, Stack
from qualify.facts.case import Phase

PROMPT: tuple[Phase, ...] = ("prefill", "chunked", "varlen")
"""phases that read a prompt"""
TOKENS: tuple[Phase, ...] = ("decode", "verify")
"""phases that make tokens"""
WHOLE: tuple[Phase, ...] = ("prefill", "varlen")
"""phases of an encoder, which has no cache"""
LAYER_TYPES: dict[str, LayerMask] = {
    "full_attention": "causal",
    "sliding_attention": "window",
    "chunked_attention": "chunked",
}
"""words of ``layer_types`` in a decoder"""
MIXED_TYPES: dict[str, LayerMask | None] = {
    **LAYER_TYPES,
    "attention": "causal",
    **dict.fromkeys(("linear_attention", "mamba", "conv", "mlp", "moe")),
}
"""words of ``layer_types`` and ``layers_block_type`` in a decoder where some layers have no attention"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """What one layer computes; the fields are those of a layer group."""

    heads_q: int
    heads_kv: int
    head_dim: int
    head_dim_v: int
    scale: float
    mask: LayerMask = "causal"
    size: int | None = None
    """size of the window, the chunk or the other sequence, where the mask has one"""
    image_tokens: int | None = None
    softcap: float = 0.0
    sinks: bool = False
    positions: Positions = "rope"
    stack: Stack = "main"
    phases: tuple[Phase, ...] = ()
    latent: bool = False


KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads", "kv_n_heads", "multi_query_group_num")
"""what families call the number of KV heads"""
HIDDEN = ("hidden_size", "n_embd", "n_embed", "d_model")
"""what families call the elements of all heads together"""


def _found(keys: Keys, names: tuple[str, ...]) -> str:
    """The name that the config has, for a message; the first where it has none."""
    return next((name for name in names if keys.data.get(name) is not None), names[0])


def heads(keys: Keys, count: int, count_kv: int, dim: int, scale: float | None = None) -> Layer:
    """A layer of some heads, with the usual scale unless another is given."""
    if count % count_kv:
        if not keys.problems:  # else one of the two is what stands for a value that is wrong
            keys.wrong(_found(keys, KV_HEADS), f"{count_kv} KV heads do not divide {count} query heads")
        count_kv = count
    return Layer(heads_q=count, heads_kv=count_kv, head_dim=dim, head_dim_v=dim, scale=scale or 1.0 / math.sqrt(dim))


def split(keys: Keys, hidden: int, count: int, name: str = "hidden_size") -> int:
    """The head dimension that is not written down: hidden / heads. It must be a whole number."""
    if hidden % count and not keys.problems:
        name = _found(keys, (name, *HIDDEN))
        keys.wrong(name, f"is {hidden}, which {count} heads do not divide, and no head_dim is given")
    return max(1, hidden // count)


def group(numbered: Iterable[tuple[int, Layer]]) -> list[LayerGroup]:
    """Layers that compute the same, together, in the order of their first."""
    gathered: dict[Layer, list[int]] = {}
    for number, layer in numbered:
        gathered.setdefault(layer, []).append(number)
    return [_group(layer, numbers) for layer, numbers in gathered.items()]


def _group(layer: Layer, numbers: list[int]) -> LayerGroup:
    return LayerGroup(
        layers=tuple(numbers),
        heads_q=layer.heads_q,
        heads_kv=layer.heads_kv,
        head_dim=layer.head_dim,
        head_dim_v=layer.head_dim_v,
        mask=layer.mask,
        window=layer.size if layer.mask in {"window", "band"} else None,
        chunk=layer.size if layer.mask == "chunked" else None,
        cross_keys=layer.size if layer.mask == "cross" else None,
        image_tokens=layer.image_tokens,
        softcap=layer.softcap,
        sinks=layer.sinks,
        scale=layer.scale,
        positions=layer.positions,
        stack=layer.stack,
        phases=layer.phases,
        latent=layer.latent,
    )


def with_mask(keys: Keys, layer: Layer, mask: LayerMask, window: int | None, chunk: int | None) -> Layer:
    """The layer under a mask, with the size that the mask needs."""
    name, size = {"window": ("sliding_window", window), "chunked": ("attention_chunk_size", chunk)}.get(
        mask, ("", None)
    )
    if name and size is None:
        keys.count(name)
    return replace(layer, mask=mask, size=size or (1 if name else None))
