"""Words for a config as its publisher writes it, and for the geometry that was worked out by hand."""

from __future__ import annotations

import math
from typing import Any

from qualify.cards.model import LayerGroup

Row = tuple[str, dict[str, Any], list[dict[str, Any]]]
"""title, config, and its layer groups"""
PROMPT = ("prefill", "chunked", "varlen")
WHOLE = ("prefill", "varlen")
USUAL: dict[str, Any] = {
    "window": None, "chunk": None, "cross_keys": None, "image_tokens": None, "softcap": 0.0, "sinks": False,
    "positions": "rope", "stack": "main", "phases": (), "latent": False,
}  # fmt: skip


def shape(layers: int, hidden: int, heads: int, **more: Any) -> dict[str, Any]:
    """The keys that most configs have."""
    usual = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads}
    return usual | ({"num_key_value_heads": more.pop("kv")} if "kv" in more else {}) | more


def expect(layers: Any, heads: tuple[int, int], dim: int, mask: str, **more: Any) -> dict[str, Any]:
    """All that a layer group holds."""
    dims = {"head_dim": dim, "head_dim_v": more.pop("dim_v", dim), "scale": more.pop("scale", 1 / math.sqrt(dim))}
    found = {"layers": tuple(layers), "heads_q": heads[0], "heads_kv": heads[1], "mask": mask, **dims}
    return USUAL | found | more


def facts(group: LayerGroup) -> dict[str, Any]:
    """All that a layer group holds, as a dictionary."""
    return dict(group)
