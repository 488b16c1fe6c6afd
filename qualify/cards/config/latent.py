"""Multi-head latent attention: DeepSeek V2 and V3, Kimi K2, MiniCPM3."""

from __future__ import annotations

import math
from dataclasses import replace

from qualify.cards.config.keys import Keys
from qualify.cards.config.layers import PROMPT, TOKENS, group, heads, split
from qualify.cards.model import LayerGroup

MOST_GROWTH = 1e6
"""published models have 1.4; with more, the scale would soon be no finite number"""
ROPE = ("rope_scaling", "rope_parameters")
"""keys that say how positions are rotated"""


def read_mla(keys: Keys) -> list[LayerGroup]:
    """Multi-head latent attention: per-head keys in a prompt, the latent as one shared KV head in decode."""
    count, layers = keys.count("num_attention_heads"), keys.layers("num_hidden_layers")
    latent, rope = keys.count("kv_lora_rank"), keys.count("qk_rope_head_dim")
    dim = keys.within("qk_nope_head_dim", keys.count("qk_nope_head_dim") + rope, "elements of a key")
    wide = keys.within("kv_lora_rank", latent + rope, "elements of a latent key")
    equal = split(keys, keys.count("hidden_size"), count) if keys.text("model_type") == "minicpm3" else None
    dim_v = keys.count("v_head_dim", default=equal)
    if not keys.flag("use_mla", default=True):
        keys.wrong("use_mla", "is false, and this family is read as multi-head latent attention")
    keys.value("num_key_value_heads")  # transformers writes the query heads
    rotated = keys.count("head_dim", default=rope)  # and the rotated part, or what it computes from hidden_size
    if rotated != rope and keys.text("model_type") == "glm4_moe_lite":
        keys.wrong("head_dim", f"is {rotated}: in this family another name of qk_rope_head_dim, which is {rope}")
    scale = _yarn_factor(keys) ** 2 / math.sqrt(dim)
    if keys.problems:  # what stands for a wrong number makes no layer
        return []
    prompt = replace(heads(keys, count, count, dim, scale), head_dim_v=dim_v, phases=PROMPT)
    token = replace(heads(keys, count, 1, wide, scale), head_dim_v=latent, latent=True, phases=TOKENS)
    return [*group((layer, prompt) for layer in range(layers)), *group((layer, token) for layer in range(layers))]


def _yarn_factor(keys: Keys) -> float:
    """What YaRN multiplies queries and keys with: ``rope_scaling`` says it, or transformers 5's ``rope_parameters``.

    An empty mapping says nothing. Where both say something they must agree, as not all engines read the same one.
    """
    found = {name: _grown(inner) for name in ROPE if (inner := keys.inner(name)) and inner.data}
    if not found:
        return 1.0
    factor, *others = found.values()
    for other in others:
        if other != factor and not keys.problems:
            told = f"multiplies queries and keys by {other:.6g} for the scale, but {ROPE[0]} by {factor:.6g}"
            keys.wrong(ROPE[1], f"{told}; make them agree")
    return factor


def _grown(scaling: Keys) -> float:
    """The factor of one of the mappings, where ``mscale_all_dim`` asks for it."""
    kind = scaling.text("rope_type") or scaling.text("type")
    if kind in {"", "default"} or not scaling.value("mscale_all_dim"):
        return 1.0
    if not scaling.has("factor"):
        scaling.needed("factor")
    factor, dims = scaling.number("factor", default=1.0), scaling.number("mscale_all_dim", default=1.0)
    grown = 0.1 * dims * math.log(factor) + 1.0 if factor > 1 else 1.0
    if grown > MOST_GROWTH:
        asked = f"is {dims:g} with factor {factor:g}"
        scaling.wrong("mscale_all_dim", f"{asked}: queries and keys would grow {grown:.3g} times; check both numbers")
        return 1.0
    return grown
