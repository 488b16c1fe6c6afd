"""Families of decoders: which keys they have, and what the keys mean.

Where a key is missing, the value is the one that the family's own configuration class has (transformers 5.23), and
only for keys that published configs do leave out; every other missing key is an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from qualify.cards.config.keys import NOTHING, Keys
from qualify.cards.config.layers import (
    LAYER_TYPES,
    PROMPT,
    TOKENS,
    WHOLE,
    Layer,
    Masks,
    alternating,
    causal,
    group,
    heads,
    split,
    window_if_given,
    with_masks,
)
from qualify.cards.model import LayerGroup, LayerMask, Positions

Rope = Callable[[Keys, list[LayerMask]], list[bool]]
"""Which layers rotate q and k, by their masks."""


def rope_everywhere(_keys: Keys, masks: list[LayerMask]) -> list[bool]:
    """All layers."""
    return [True] * len(masks)


def rope_in_windows(_keys: Keys, masks: list[LayerMask]) -> list[bool]:
    """The layers with a window; the others have no positions at all."""
    return [mask == "window" for mask in masks]


def rope_listed(keys: Keys, masks: list[LayerMask]) -> list[bool]:
    """``no_rope_layers``, which holds 1 where a layer does rotate; left out, every fourth does not."""
    every = keys.count("no_rope_layer_interval", default=4)
    listed = keys.flags("no_rope_layers", len(masks))
    return listed or [bool((layer + 1) % every) for layer in range(len(masks))]


def qwen_windows(keys: Keys, count: int) -> list[LayerMask]:
    """With ``use_sliding_window``, the layers from ``max_window_layers`` on."""
    if not keys.flag("use_sliding_window", default=False):
        return ["causal"] * count
    first = keys.data.get("max_window_layers", 28)
    return ["window" if layer >= first else "causal" for layer in range(count)]


def qwen2_moe_windows(keys: Keys, count: int) -> list[LayerMask]:
    """With ``use_sliding_window``, every second layer below ``max_window_layers``, from layer 0 on."""
    if not keys.flag("use_sliding_window", default=False):
        return ["causal"] * count
    first = keys.data.get("max_window_layers", 28)
    return ["window" if layer % 2 == 0 and layer < first else "causal" for layer in range(count)]


def qwen3_moe_windows(keys: Keys, count: int) -> list[LayerMask]:
    """With ``use_sliding_window``, all layers."""
    return ["window" if keys.flag("use_sliding_window", default=False) else "causal"] * count


def chunks_where_rotated(keys: Keys, count: int) -> list[LayerMask]:
    """Chunked attention in the layers that rotate, causal in the others."""
    if not keys.maybe("attention_chunk_size", absent=8192):
        return ["causal"] * count
    return ["chunked" if rotated else "causal" for rotated in rope_listed(keys, ["causal"] * count)]


def smollm_windows(keys: Keys, count: int) -> list[LayerMask]:
    """With ``use_sliding_window``, the layers that do not rotate."""
    windows = keys.flag("use_sliding_window", default=False) and keys.has("sliding_window")
    return ["window" if windows and not rotated else "causal" for rotated in rope_listed(keys, ["causal"] * count)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoder:
    """One family of decoders; :meth:`read` turns its config into layer groups."""

    title: str
    """the models, for the documents"""
    model_types: tuple[str, ...]
    masks: Masks = causal
    convention: str = "causal in all layers"
    """which keys decide about the mask, for the documents"""
    rope: Rope = rope_everywhere
    positions: Positions = "rope"
    """of the layers that ``rope`` names"""
    head_dim: int | None = None
    """where the config has none; None = hidden_size / heads"""
    head_dim_key: bool = True
    """False where the family ignores the key ``head_dim``"""
    window: int | None = None
    """``sliding_window`` where the config has none; None = it must have one where a layer needs it"""
    scale_key: str = ""
    """key of the factor on q·k; empty = 1 / sqrt(head_dim)"""
    scale: Callable[[float], float] = lambda value: value
    """what its value means"""
    scale_default: float | None = None
    softcap: float | None = None
    """``attn_logit_softcapping`` where the config has none; None = the family has no such key"""
    sinks: bool = False
    bidirectional: bool = False
    """whether ``use_bidirectional_attention`` is known to make an encoder of it"""
    defaults: tuple[tuple[str, int], ...] = ()
    """counts that published configs leave out"""

    def read(self, keys: Keys) -> list[LayerGroup]:
        """The layer groups."""
        usual = dict(self.defaults)
        count = keys.count("num_hidden_layers", default=usual.get("num_hidden_layers"))
        layer = self._layer(keys, usual)
        masks = self._masks(keys, count)
        if keys.data.get("is_causal") is False:
            keys.wrong("is_causal", "is false, and this family is read as causal; give the geometry in a matrix")
        window = keys.maybe("sliding_window", absent=self.window) if "window" in masks else None
        chunk = keys.maybe("attention_chunk_size", absent=8192) if "chunked" in masks else None
        _note_idle(keys, window)
        layers = with_masks(keys, layer, masks, window, chunk)
        if keys.flag("use_bidirectional_attention", default=False):
            layers = self._both_sides(keys, layers)
        rotated = self.rope(keys, masks)
        numbered = enumerate(zip(layers, rotated, strict=True))
        return group((number, each if turns else replace(each, positions="none")) for number, (each, turns) in numbered)

    def _layer(self, keys: Keys, usual: dict[str, int]) -> Layer:
        count = keys.count("num_attention_heads", default=usual.get("num_attention_heads"))
        dim = keys.count("head_dim", default=self.head_dim or NOTHING) if self.head_dim_key else NOTHING
        if dim == NOTHING:
            dim = split(keys, keys.count("hidden_size"), count)
        scale = None
        if self.scale_key:
            scale = self.scale(keys.number(self.scale_key, default=self.scale_default or 1.0))
        layer = heads(keys, count, keys.count("num_key_value_heads", default=self._kv(keys, usual, count)), dim, scale)
        if self.softcap is not None and self._softcapped(keys):
            layer = replace(layer, softcap=keys.number("attn_logit_softcapping", default=self.softcap))
        return replace(layer, sinks=self.sinks, positions=self.positions)

    def _softcapped(self, keys: Keys) -> bool:
        """Null turns the cap off, and so does a default of 0."""
        return keys.has("attn_logit_softcapping") or ("attn_logit_softcapping" not in keys.data and bool(self.softcap))

    def _both_sides(self, keys: Keys, layers: list[Layer]) -> list[Layer]:
        """What an embedding model makes of them: half of the window on each side of a query."""
        if not self.bidirectional:
            keys.wrong("use_bidirectional_attention", "is true, which is known of Gemma and Gemma 3 only")
            return layers
        return [
            replace(each, mask="band", size=(each.size or 1) // 2 * 2 + 1, phases=WHOLE)
            if each.mask == "window"
            else replace(each, mask="full", phases=WHOLE)
            for each in layers
        ]

    def _kv(self, keys: Keys, usual: dict[str, int], count: int) -> int:
        """KV heads where the config has none: as many as query heads."""
        return count if "num_key_value_heads" in keys.data else usual.get("num_key_value_heads", count)

    def _masks(self, keys: Keys, count: int) -> list[LayerMask]:
        listed = keys.words("layer_types", count, LAYER_TYPES)
        return [LAYER_TYPES[word] for word in listed] if listed else self.masks(keys, count)


def _note_idle(keys: Keys, window: int | None) -> None:
    longest = keys.data.get("max_position_embeddings")
    if window is not None and isinstance(longest, int) and window >= longest:
        detail = f"a window of {window} keys hides none of max_position_embeddings = {longest}; engines may drop it"
        keys.note("no-effect", "sliding_window", detail)


def read_mla(keys: Keys) -> list[LayerGroup]:
    """Multi-head latent attention: per-head keys in a prompt, the latent as one shared KV head in decode."""
    count, layers = keys.count("num_attention_heads"), keys.count("num_hidden_layers")
    latent, rope = keys.count("kv_lora_rank"), keys.count("qk_rope_head_dim")
    dim, dim_v = keys.count("qk_nope_head_dim") + rope, keys.count("v_head_dim")
    if keys.has("index_topk"):
        keys.wrong("index_topk", "selects keys for each query; a sparse mask cannot be expressed here")
    scale = dim**-0.5 * _yarn_factor(keys)
    prompt = replace(heads(keys, count, count, dim, scale), head_dim_v=dim_v, phases=PROMPT)
    token = replace(heads(keys, count, 1, latent + rope, scale), head_dim_v=latent, latent=True, phases=TOKENS)
    return [*group((layer, prompt) for layer in range(layers)), *group((layer, token) for layer in range(layers))]


def _yarn_factor(keys: Keys) -> float:
    """What YaRN multiplies the scale with, where ``mscale_all_dim`` asks for it."""
    scaling = keys.inner("rope_scaling") or keys.inner("rope_parameters")
    kind = scaling and (scaling.text("rope_type") or scaling.text("type"))
    if scaling is None or kind in {"", "default"} or not scaling.data.get("mscale_all_dim"):
        return 1.0
    factor, dims = scaling.number("factor", default=1.0), scaling.number("mscale_all_dim", default=1.0)
    return (0.1 * dims * math.log(factor) + 1.0) ** 2 if factor > 1 else 1.0


def read_falcon(keys: Keys) -> list[LayerGroup]:
    """Falcon: one KV head, or groups in the new decoder architecture; ``n_head`` and so on in its first configs."""
    count = keys.count("num_attention_heads", "n_head")
    layers = keys.count("num_hidden_layers", "n_layer")
    dim = split(keys, keys.count("hidden_size", "n_embed"), count)
    grouped = keys.flag("new_decoder_architecture", default=keys.has("n_head_kv"))
    shared = keys.flag("multi_query", default=True)
    count_kv = keys.count("num_kv_heads", "n_head_kv", default=count) if grouped or not shared else 1
    layer = heads(keys, count, count_kv, dim)
    if keys.flag("alibi", default=False):
        layer = replace(layer, positions="alibi")
    return group((number, layer) for number in range(layers))


def read_gpt_bigcode(keys: Keys) -> list[LayerGroup]:
    """StarCoder: one KV head with ``multi_query``."""
    count, layers = keys.count("n_head", "num_attention_heads"), keys.count("n_layer", "num_hidden_layers")
    dim = split(keys, keys.count("n_embd", "hidden_size"), count, "n_embd")
    count_kv = 1 if keys.flag("multi_query", default=True) else count
    scale = None if keys.flag("scale_attn_weights", default=True) else 1.0
    layer = replace(heads(keys, count, count_kv, dim, scale), positions="none")
    return group((number, layer) for number in range(layers))


def read_chatglm(keys: Keys) -> list[LayerGroup]:
    """ChatGLM and the first GLM-4: ``multi_query_group_num`` KV heads of ``kv_channels`` elements."""
    count, layers = keys.count("num_attention_heads"), keys.count("num_layers")
    shared = keys.flag("multi_query_attention", default=False)
    count_kv = keys.count("multi_query_group_num") if shared else count
    layer = heads(keys, count, count_kv, keys.count("kv_channels"))
    return group((number, layer) for number in range(layers))


def _inverse_root(value: float) -> float:
    return 1.0 / math.sqrt(value)


WINDOW_KEYS = "`sliding_window` in all layers, null = causal"
QWEN_KEYS = "`sliding_window` from layer `max_window_layers` on, only with `use_sliding_window`"

DECODERS: tuple[Decoder, ...] = (
    Decoder(title="Llama 1 to 3", model_types=("llama",)),
    Decoder(
        title="Llama 4",
        model_types=("llama4_text",),
        head_dim=128,
        masks=chunks_where_rotated,
        rope=rope_listed,
        convention="chunks of `attention_chunk_size` in the layers with rope (`no_rope_layers` holds 1), else causal",
    ),
    Decoder(
        title="Mistral",
        model_types=("mistral", "ministral"),
        masks=window_if_given(4096),
        window=4096,
        convention=WINDOW_KEYS,
    ),
    Decoder(
        title="Ministral 3, Mixtral, Phi-3 and 4, Phi-3.5-MoE, StarCoder2",
        model_types=("ministral3", "mixtral", "phi3", "phimoe", "starcoder2"),
        masks=window_if_given(),
        convention=WINDOW_KEYS,
    ),
    Decoder(title="Phi-1 and 2", model_types=("phi",)),
    Decoder(title="Qwen2, Qwen2.5", model_types=("qwen2",), masks=qwen_windows, window=4096, convention=QWEN_KEYS),
    Decoder(
        title="Qwen3",
        model_types=("qwen3",),
        masks=qwen_windows,
        window=4096,
        head_dim=128,
        convention=QWEN_KEYS,
    ),
    Decoder(
        title="Qwen1.5-MoE, Qwen2-MoE",
        model_types=("qwen2_moe",),
        masks=qwen2_moe_windows,
        window=4096,
        convention="`sliding_window` in even layers below `max_window_layers`, only with `use_sliding_window`",
    ),
    Decoder(
        title="Qwen3-MoE",
        model_types=("qwen3_moe",),
        masks=qwen3_moe_windows,
        window=4096,
        convention="`sliding_window` in all layers, only with `use_sliding_window`",
    ),
    Decoder(
        title="Qwen2-VL, Qwen2.5-VL",
        model_types=("qwen2_vl_text", "qwen2_5_vl_text"),
        masks=qwen_windows,
        window=4096,
        positions="mrope",
        convention=QWEN_KEYS,
    ),
    Decoder(title="Qwen3-VL", model_types=("qwen3_vl_text",), head_dim=128, positions="mrope"),
    Decoder(title="Qwen3-VL-MoE", model_types=("qwen3_vl_moe_text",), positions="mrope"),
    Decoder(title="Gemma", model_types=("gemma",), head_dim=256, bidirectional=True),
    Decoder(
        title="Gemma 2",
        model_types=("gemma2",),
        head_dim=256,
        masks=alternating(2),
        window=4096,
        scale_key="query_pre_attn_scalar",
        scale=_inverse_root,
        scale_default=256,
        softcap=50.0,
        convention="`sliding_window` in even layers, causal in odd ones",
    ),
    Decoder(
        title="Gemma 3",
        model_types=("gemma3_text",),
        head_dim=256,
        masks=alternating(6, "sliding_window_pattern"),
        window=4096,
        scale_key="query_pre_attn_scalar",
        scale=_inverse_root,
        scale_default=256,
        softcap=0.0,
        bidirectional=True,
        defaults=(("num_attention_heads", 8), ("num_key_value_heads", 4), ("num_hidden_layers", 26)),
        convention="`sliding_window`, and causal in every `sliding_window_pattern`-th layer (6)",
    ),
    Decoder(
        title="gpt-oss",
        model_types=("gpt_oss",),
        head_dim=64,
        masks=alternating(2),
        window=128,
        sinks=True,
        convention="`sliding_window` in even layers, causal in odd ones",
    ),
    Decoder(title="GLM-4", model_types=("glm", "glm4"), head_dim=128),
    Decoder(title="GLM-4.5", model_types=("glm4_moe",)),
    Decoder(title="GLM-4.1V", model_types=("glm4v_text",), positions="mrope"),
    Decoder(
        title="Granite",
        model_types=("granite", "granitemoe", "granitemoeshared"),
        scale_key="attention_multiplier",
        scale_default=1.0,
    ),
    Decoder(title="Cohere Command R", model_types=("cohere",)),
    Decoder(
        title="Cohere Command R7B and A",
        model_types=("cohere2",),
        head_dim_key=False,
        masks=alternating(4, "sliding_window_pattern"),
        window=4096,
        rope=rope_in_windows,
        convention="`sliding_window`, and causal without rope in every `sliding_window_pattern`-th layer (4)",
    ),
    Decoder(title="OLMo, OLMo 2, OLMoE", model_types=("olmo", "olmo2", "olmoe")),
    Decoder(
        title="OLMo 3",
        model_types=("olmo3",),
        masks=alternating(4),
        window=4096,
        convention="`sliding_window`, and causal in every fourth layer",
    ),
    Decoder(
        title="SmolLM3",
        model_types=("smollm3",),
        masks=smollm_windows,
        rope=rope_listed,
        convention="`sliding_window` in the layers without rope, only with `use_sliding_window`",
    ),
    Decoder(title="GPT-NeoX, Pythia", model_types=("gpt_neox",), head_dim_key=False),
)
