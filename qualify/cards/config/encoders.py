"""Encoders, and models with one: BERT and its relatives, ModernBERT, ViT, SigLIP, CLIP, Whisper, Llama 3.2 Vision."""

from __future__ import annotations

from dataclasses import replace

from qualify.cards.config.keys import Keys
from qualify.cards.config.layers import WHOLE, group, heads, split
from qualify.cards.model import LayerGroup, LayerMask, Positions

SIGLIP_BASE = {"num_attention_heads": 12, "num_hidden_layers": 12, "hidden_size": 768}
"""what the configs of SigLIP base leave out"""
PATCHES_PER_CLASS_TOKEN = 1
"""Llama 3.2 Vision puts one class token before the patches of each tile"""


def read_bert(keys: Keys) -> list[LayerGroup]:
    """BERT, RoBERTa, ELECTRA: every token sees every other; with ``is_decoder`` only the earlier ones."""
    count, layers = keys.count("num_attention_heads"), keys.layers("num_hidden_layers")
    layer = heads(keys, count, count, split(keys, keys.count("hidden_size"), count))
    kind = keys.text("position_embedding_type") or "absolute"
    positions: Positions = "none"
    if kind in {"alibi", "rope", "rotary"}:  # Jina and Alibaba saved their own code as BERT
        positions = "alibi" if kind == "alibi" else "rope"
    elif kind != "absolute":
        keys.wrong("position_embedding_type", f"is {kind}, which adds to the scores; such a call cannot be expressed")
    if keys.flag("is_decoder", default=False):
        return group((number, replace(layer, positions=positions)) for number in range(layers))
    layer = replace(layer, mask="full", positions=positions, phases=WHOLE)
    return group((number, layer) for number in range(layers))


def read_rotary_encoder(keys: Keys) -> list[LayerGroup]:
    """NomicBERT, EuroBERT and GTE (``new`` in its own code): rotated queries and keys, every token sees every other.

    Only EuroBERT has KV heads of a number of their own.
    """
    count, layers = keys.count("num_attention_heads", "n_head"), keys.layers("num_hidden_layers", "n_layer")
    dim = keys.count("head_dim", default=split(keys, keys.count("hidden_size", "n_embd"), count))
    grouped = keys.text("model_type") == "eurobert"
    layer = heads(keys, count, keys.count("num_key_value_heads", default=count) if grouped else count, dim)
    kind = keys.text("position_embedding_type")
    if kind not in {"", "rope", "rotary"}:
        keys.wrong("position_embedding_type", f"is {kind}, and this family is read with rotated queries and keys")
    if keys.flag("causal", default=False):
        keys.wrong("causal", "is true, and this family is read as an encoder")
    rotated = keys.value("rotary_emb_fraction") != 0
    layer = replace(layer, mask="full", positions="rope" if rotated else "none", phases=WHOLE)
    return group((number, layer) for number in range(layers))


def read_vit(keys: Keys) -> list[LayerGroup]:
    """ViT and its relatives, and the two halves of SigLIP: every patch or token sees every other."""
    usual = SIGLIP_BASE if keys.text("model_type").startswith("siglip") else {}
    count = keys.count("num_attention_heads", default=usual.get("num_attention_heads"))
    layers = keys.layers("num_hidden_layers", default=usual.get("num_hidden_layers"))
    dim = split(keys, keys.count("hidden_size", default=usual.get("hidden_size")), count)
    layer = replace(heads(keys, count, count, dim), mask="full", positions="none", phases=WHOLE)
    return group((number, layer) for number in range(layers))


def read_clip_text(keys: Keys) -> list[LayerGroup]:
    """The text half of CLIP, which is causal."""
    count, layers = keys.count("num_attention_heads"), keys.layers("num_hidden_layers")
    dim = split(keys, keys.count("hidden_size"), count)
    layer = replace(heads(keys, count, count, dim), positions="none", phases=WHOLE)
    return group((number, layer) for number in range(layers))


def read_distilbert(keys: Keys) -> list[LayerGroup]:
    """DistilBERT: ``n_layers``, ``n_heads`` and ``dim``, which have the usual names too."""
    count, layers = keys.count("n_heads", "num_attention_heads"), keys.layers("n_layers", "num_hidden_layers")
    layer = heads(keys, count, count, split(keys, keys.count("dim", "hidden_size"), count, "dim"))
    layer = replace(layer, mask="full", positions="none", phases=WHOLE)
    return group((number, layer) for number in range(layers))


def read_modernbert(keys: Keys) -> list[LayerGroup]:
    """ModernBERT: ``local_attention`` // 2 keys on each side, and full in every third layer from layer 0 on.

    ``sliding_window`` is another name of that half.
    """
    count, layers = keys.count("num_attention_heads"), keys.layers("num_hidden_layers")
    layer = heads(keys, count, count, split(keys, keys.count("hidden_size"), count))
    layer = replace(layer, mask="full", phases=WHOLE)
    side = keys.count("local_attention", default=128) // 2
    other = keys.count("sliding_window", default=side)
    if other != side and not keys.has("local_attention"):
        side = other
    elif other != side:
        half = f"local_attention is {keys.value('local_attention')}, which is {side}"
        keys.wrong("sliding_window", f"is {other} keys on each side, but {half}; make them agree")
    band = replace(layer, mask="band", size=2 * side + 1)
    every = keys.count("global_attn_every_n_layers", default=3)
    kinds = {"full_attention": layer, "sliding_attention": band}
    listed = keys.words("layer_types", layers, kinds)
    usual = ["sliding_attention" if number % every else "full_attention" for number in range(layers)]
    return group((number, kinds[word]) for number, word in enumerate(listed or usual))


def read_whisper(keys: Keys) -> list[LayerGroup]:
    """Whisper: a decoder that also attends to the ``max_source_positions`` frames of its encoder."""
    hidden = keys.count("d_model")
    count, count_encoder = keys.count("decoder_attention_heads"), keys.count("encoder_attention_heads")
    layers, layers_encoder = keys.layers("decoder_layers"), keys.layers("encoder_layers")
    frames = keys.count("max_source_positions")
    keys.value("is_encoder_decoder")
    own = replace(heads(keys, count, count, split(keys, hidden, count, "d_model")), positions="none")
    encoder = heads(keys, count_encoder, count_encoder, split(keys, hidden, count_encoder, "d_model"))
    encoder = replace(encoder, mask="full", positions="none", stack="encoder", phases=WHOLE)
    cross = replace(own, mask="cross", size=frames)
    return [
        *group((number, own) for number in range(layers)),
        *group((number, cross) for number in range(layers)),
        *group((number, encoder) for number in range(layers_encoder)),
    ]


def read_mllama(keys: Keys, vision: Keys | None) -> list[LayerGroup]:
    """Llama 3.2 Vision: ``cross_attention_layers`` attend to the patches of ``max_num_tiles`` image tiles alone."""
    count, layers = keys.count("num_attention_heads"), keys.layers("num_hidden_layers")
    own = heads(keys, count, keys.count("num_key_value_heads"), split(keys, keys.count("hidden_size"), count))
    crossing = keys.numbers("cross_attention_layers", below=layers)
    if crossing is None:
        keys.count("cross_attention_layers")
    if vision is None:
        keys.wrong("cross_attention_layers", "needs vision_config, which says how many keys an image has")
        return []
    side = vision.count("image_size") // vision.count("patch_size")
    tiles = vision.count("max_num_tiles") * (side * side + PATCHES_PER_CLASS_TOKEN)
    patches = vision.within("image_size", tiles, "keys of an image")
    cross = replace(own, mask="cross", size=patches, positions="none")
    masks: list[LayerMask] = ["cross" if number in (crossing or []) else "causal" for number in range(layers)]
    return group((number, cross if mask == "cross" else own) for number, mask in enumerate(masks))
