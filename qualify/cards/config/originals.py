"""Families of decoders whose configs have keys of their own."""

from __future__ import annotations

import re
from dataclasses import replace

from qualify.cards.config.keys import Keys
from qualify.cards.config.layers import LAYER_TYPES, Layer, group, heads, split
from qualify.cards.config.patterns import alternating
from qualify.cards.model import LayerGroup


def read_falcon(keys: Keys) -> list[LayerGroup]:
    """Falcon: one KV head, or groups in the new decoder architecture; ``n_head`` and so on in its first configs."""
    count = keys.count("num_attention_heads", "n_head")
    layers = keys.layers("num_hidden_layers", "n_layer")
    dim = split(keys, keys.count("hidden_size", "n_embed"), count)
    grouped = keys.flag("new_decoder_architecture", default=keys.has("n_head_kv"))
    shared = keys.flag("multi_query", default=True)
    given = keys.count("num_kv_heads", "n_head_kv", default=count)
    count_kv = given if grouped or not shared else 1
    layer = heads(keys, count, count_kv, dim)
    if keys.flag("alibi", default=False):
        layer = replace(layer, positions="alibi")
    return group((number, layer) for number in range(layers))


HEAD_TYPES = ("multihead", "multiquery")
"""values of ``attention_head_type``"""


def read_gpt2(keys: Keys) -> list[LayerGroup]:
    """StarCoder has one KV head with ``multi_query``; the scale may be 1, and in GPT-2 shrink with the layer's number.

    SantaCoder is saved as GPT-2, and says ``attention_head_type: multiquery`` (its own configuration_gpt2_mq.py).
    """
    count, layers = keys.count("n_head", "num_attention_heads"), keys.layers("n_layer", "num_hidden_layers")
    dim = split(keys, keys.count("n_embd", "hidden_size"), count, "n_embd")
    kind = keys.text("attention_head_type")
    if kind not in {"", *HEAD_TYPES}:
        keys.wrong("attention_head_type", f"is {kind}, which is not read here; known are {', '.join(HEAD_TYPES)}")
    starcoder = keys.text("model_type") == "gpt_bigcode"
    shared = kind == "multiquery" or (starcoder and keys.flag("multi_query", default=True))
    scale = None if keys.flag("scale_attn_weights", default=True) else 1.0
    layer = replace(heads(keys, count, 1 if shared else count, dim, scale), positions="none")
    if starcoder or not keys.flag("scale_attn_by_inverse_layer_idx", default=False):
        return group((number, layer) for number in range(layers))
    return group((number, replace(layer, scale=layer.scale / (number + 1))) for number in range(layers))


def read_olmo(keys: Keys) -> list[LayerGroup]:
    """OLMo as its own package (ai2-olmo) saves it: ``n_kv_heads``, or one KV head with ``multi_query_attention``."""
    count, layers = keys.count("n_heads"), keys.layers("n_layers")
    shared = keys.flag("multi_query_attention", default=False)
    count_kv = keys.count("n_kv_heads", default=1 if shared else count)
    if shared and count_kv != 1:
        keys.wrong("n_kv_heads", f"is {count_kv}, but multi_query_attention is true, which is one KV head")
    layer = heads(keys, count, count_kv, split(keys, keys.count("d_model"), count, "d_model"))
    keys.value("alibi_bias_max")
    if keys.flag("alibi", default=False):
        layer = replace(layer, positions="alibi")
    elif not keys.flag("rope", default=False):
        layer = replace(layer, positions="none")
    return group((number, layer) for number in range(layers))


def read_bloom(keys: Keys) -> list[LayerGroup]:
    """BLOOM: ALiBi in all layers."""
    count, layers = keys.count("n_head", "num_attention_heads"), keys.layers("n_layer", "num_hidden_layers")
    dim = split(keys, keys.count("hidden_size", "n_embed"), count)
    layer = replace(heads(keys, count, count, dim), positions="alibi")
    return group((number, layer) for number in range(layers))


def read_mosaic(keys: Keys) -> list[LayerGroup]:
    """MPT and DBRX: ``attn_config`` holds the KV heads, and for MPT whether positions are ALiBi, RoPE or learned."""
    count, layers = keys.count("n_heads"), keys.layers("n_layers")
    dim = split(keys, keys.count("d_model"), count, "d_model")
    inner = keys.inner("attn_config")
    if inner is None:
        keys.needed("attn_config")
        return []
    if keys.text("model_type") == "dbrx":
        layer = heads(inner, count, inner.count("kv_n_heads"), dim)
    else:
        layer = _mpt_layer(inner, count, dim)
    return group((number, layer) for number in range(layers))


def _mpt_layer(keys: Keys, count: int, dim: int) -> Layer:
    kind = keys.text("attn_type") or "multihead_attention"
    shared = {"multihead_attention": count, "multiquery_attention": 1}
    if kind == "grouped_query_attention":
        shared[kind] = keys.count("kv_n_heads")
    if kind not in shared:
        keys.wrong("attn_type", f"is {kind}, which is not read here; known are {', '.join(shared)}")
    if keys.flag("prefix_lm", default=False):
        keys.wrong("prefix_lm", "is true: the prompt is seen in both directions, which is not read here")
    window = keys.value("sliding_window_size")
    if window not in (None, -1):
        keys.wrong("sliding_window_size", f"is {window}, and MPT is read without a window")
    scale = keys.number("softmax_scale", default=0.0) or None
    layer = heads(keys, count, shared.get(kind, count), dim, scale)
    if keys.flag("alibi", default=keys.text("model_type") != "dbrx"):
        return replace(layer, positions="alibi")
    return layer if keys.flag("rope", default=False) else replace(layer, positions="none")


ROPE_BAICHUAN, ALIBI_BAICHUAN = 4096, 5120
"""``hidden_size`` of the 7B and of the 13B models: nothing else in their configs tells RoPE from ALiBi"""


def read_baichuan(keys: Keys) -> list[LayerGroup]:
    """Baichuan and Baichuan 2: RoPE with 7B parameters, ALiBi with 13B."""
    count, layers = keys.count("num_attention_heads"), keys.layers("num_hidden_layers")
    hidden = keys.count("hidden_size")
    layer = heads(keys, count, count, split(keys, hidden, count))
    if hidden not in {ROPE_BAICHUAN, ALIBI_BAICHUAN}:
        sizes = f"{ROPE_BAICHUAN} (7B, RoPE) and {ALIBI_BAICHUAN} (13B, ALiBi)"
        only = "Only hidden_size tells whether a Baichuan model uses RoPE or ALiBi"
        keys.wrong("hidden_size", f"is {hidden}; known are {sizes}. {only}")
    if hidden == ALIBI_BAICHUAN:
        layer = replace(layer, positions="alibi")
    return group((number, layer) for number in range(layers))


def read_qwen(keys: Keys) -> list[LayerGroup]:
    """The first Qwen: ``kv_channels`` elements a head."""
    count, layers = keys.count("num_attention_heads"), keys.layers("num_hidden_layers")
    layer = heads(keys, count, count, keys.count("kv_channels"))
    return group((number, layer) for number in range(layers))


def read_chatglm(keys: Keys) -> list[LayerGroup]:
    """ChatGLM and the first GLM-4: ``multi_query_group_num`` KV heads of ``kv_channels`` elements."""
    count, layers = keys.count("num_attention_heads"), keys.layers("num_layers")
    if keys.value("position_encoding_2d"):
        keys.wrong("position_encoding_2d", "is true: the first ChatGLM sees prompts in both directions; not read here")
    shared = keys.flag("multi_query_attention", default=False)
    count_kv = keys.count("multi_query_group_num") if shared else count
    layer = heads(keys, count, count_kv, keys.count("kv_channels"))
    return group((number, layer) for number in range(layers))


def read_gemma4(keys: Keys) -> list[LayerGroup]:
    """Gemma 4: windows of ``head_dim``, and causal layers of ``global_head_dim`` with KV heads of their own.

    Newer configs give these KV heads for each layer in ``per_layer_config``. The scale is 1, as q and k are normed.
    """
    count, layers = keys.count("num_attention_heads"), keys.layers("num_hidden_layers")
    listed = keys.words("layer_types", layers, LAYER_TYPES)
    masks = [LAYER_TYPES[word] for word in listed] if listed else alternating(6)(keys, layers)
    local = {"head_dim": keys.count("head_dim", default=256), "num_key_value_heads": keys.count("num_key_value_heads")}
    wide = {"head_dim": keys.count("global_head_dim", default=512)}
    given = keys.count("num_global_key_value_heads", default=local["num_key_value_heads"])
    if keys.flag("attention_k_eq_v", default=False):
        wide["num_key_value_heads"] = given
    window = keys.count("sliding_window", default=512)
    if keys.value("use_bidirectional_attention") not in (None, False, "vision"):
        keys.wrong("use_bidirectional_attention", "must be null or vision: an encoder made of Gemma 4 is not read")
    if masks[-1] != "causal":
        keys.wrong("layer_types", "must end with full_attention, as the last layer of Gemma 4 sees all keys")
    each = _numbered(keys.inner("per_layer_config"), layers)
    numbered = []
    for number, mask in enumerate(masks):
        own = each.get(number)
        sizes = local if mask == "window" or each else local | wide
        dim, count_kv = (own.count(name, default=size) if own else size for name, size in sizes.items())
        layer = heads(keys, count, count_kv, dim, 1.0)
        if mask not in {"window", "causal"}:
            keys.wrong("layer_types", "holds chunked_attention, which Gemma 4 does not have")
        numbered.append((number, replace(layer, mask="window", size=window) if mask == "window" else layer))
    return group(numbered)


def _numbered(keys: Keys | None, layers: int) -> dict[int, Keys]:
    """Mappings by the number of their layer, which transformers writes with leading zeros."""
    found: dict[int, Keys] = {}
    if keys is None:
        return found
    for name in keys.data:
        inner = keys.inner(name)
        if inner is None or not re.fullmatch("[0-9]{1,5}", name) or int(name) >= layers or int(name) in found:
            keys.wrong(name, f"must be the number of a layer, below {layers}, with a mapping")
        else:
            found[int(name)] = inner
    return found
