"""From a config to the family that can read it, and through wrappers to the text model inside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from qualify.cards.config.catalogue import DECODERS
from qualify.cards.config.encoders import (
    read_bert,
    read_clip_text,
    read_distilbert,
    read_mllama,
    read_modernbert,
    read_rotary_encoder,
    read_vit,
    read_whisper,
)
from qualify.cards.config.keys import Keys
from qualify.cards.config.latent import read_mla
from qualify.cards.config.layers import TOKENS, WHOLE
from qualify.cards.config.originals import (
    read_baichuan,
    read_bloom,
    read_chatglm,
    read_falcon,
    read_gemma4,
    read_gpt2,
    read_mosaic,
    read_olmo,
    read_qwen,
)
from qualify.cards.config.refusals import refuse_leftovers, why_unexpressed
from qualify.cards.config.towers import read_tower
from qualify.cards.model import LayerGroup, LayerMask
from qualify.cards.problems import meant, shown

LOOKED_FOR = (
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_size",
    "layer_types",
    "sliding_window",
)
"""keys of a geometry that most families have"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """Configs of some model types, and how they are read."""

    title: str
    """the models, for the documents"""
    model_types: tuple[str, ...]
    read: Callable[[Keys], list[LayerGroup]]
    convention: str
    """which keys decide about the mask, for the documents"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wrapper:
    """A model of several parts, with the text model under a key of its own."""

    title: str
    model_types: tuple[str, ...]
    text: str
    """model_type of the text model where ``text_config`` does not name it; empty = it must"""
    flat: bool = False
    """whether the text model's keys may stand at the top"""
    under: str = "text_config"
    """key that holds the text model"""
    prefix: bool = False
    """whether all tokens of a prompt see each other"""
    image_tokens: str = ""
    """key of the number of tokens of an image, where they see each other"""
    image_size: int = 256
    """that number where the config has none"""
    image_masks: tuple[LayerMask, ...] = ("causal", "window")
    """under which masks they do"""
    image_key: str = ""
    """key of the text model that must say ``vision`` for it; empty = they always do"""
    left_out: bool = False
    """whether published configs leave counts out that are the default of the text model's own class"""
    convention: str = "that of the text model"


LLAMA_7B = {"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096}
CLASS_DEFAULTS = {
    **dict.fromkeys(("llama", "mistral", "granite", "qwen2"), LLAMA_7B),
    "cohere2": {"num_hidden_layers": 40, "num_attention_heads": 64, "hidden_size": 8192},
}
"""Counts of LlamaConfig and the like (transformers 5.23), which a saved ``text_config`` need not repeat.

transformers leaves out what a nested config has in common with the defaults; llava-hf's 7B models have no counts.
"""

FAMILIES: tuple[Family, ...] = (
    *(
        Family(title=each.title, model_types=each.model_types, read=each.read, convention=each.convention)
        for each in DECODERS
    ),
    Family(
        title="DeepSeek V2 and V3, R1, Kimi K2, GLM-4.7-Flash, MiniCPM3",
        model_types=("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite", "minicpm3"),
        read=read_mla,
        convention="causal; prompts with per-head keys, decode on the latent with one KV head",
    ),
    Family(
        title="Falcon",
        model_types=("falcon", "RefinedWeb", "RefinedWebModel"),
        read=read_falcon,
        convention="causal in all layers",
    ),
    Family(
        title="GPT-2, StarCoder",
        model_types=("gpt2", "gpt_bigcode"),
        read=read_gpt2,
        convention="causal in all layers",
    ),
    Family(title="OLMo (first format)", model_types=("hf_olmo",), read=read_olmo, convention="causal in all layers"),
    Family(title="BLOOM (ALiBi)", model_types=("bloom",), read=read_bloom, convention="causal in all layers"),
    Family(
        title="MPT (ALiBi with `attn_config.alibi`), DBRX",
        model_types=("mpt", "dbrx"),
        read=read_mosaic,
        convention="causal in all layers",
    ),
    Family(
        title="Baichuan (ALiBi with 13B)",
        model_types=("baichuan",),
        read=read_baichuan,
        convention="causal in all layers",
    ),
    Family(
        title="Gemma 4",
        model_types=("gemma4_text",),
        read=read_gemma4,
        convention="`sliding_window`, and causal in every sixth layer, with `global_head_dim`",
    ),
    Family(title="Qwen (first)", model_types=("qwen",), read=read_qwen, convention="causal in all layers"),
    Family(
        title="ChatGLM, GLM-4 (first configs)",
        model_types=("chatglm",),
        read=read_chatglm,
        convention="causal in all layers",
    ),
    Family(
        title="BERT, RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA, ALBERT, ERNIE (first), RemBERT, ESM and the like",
        model_types=(
            "bert",
            "roberta",
            "roberta-prelayernorm",
            "xlm-roberta",
            "xlm-roberta-xl",
            "xmod",
            "camembert",
            "electra",
            "albert",
            "data2vec-text",
            "ernie",
            "esm",
            "layoutlm",
            "megatron-bert",
            "rembert",
            "splinter",
        ),
        read=read_bert,
        convention="full; causal with `is_decoder`",
    ),
    Family(title="DistilBERT", model_types=("distilbert",), read=read_distilbert, convention="full"),
    Family(
        title="NomicBERT, EuroBERT, GTE",
        model_types=("nomic_bert", "eurobert", "gte", "new"),
        read=read_rotary_encoder,
        convention="full",
    ),
    Family(
        title="ViT, DeiT, DINOv2, SigLIP, CLIP's images",
        model_types=("vit", "deit", "dinov2", "siglip_vision_model", "siglip_text_model", "clip_vision_model"),
        read=read_vit,
        convention="full",
    ),
    Family(title="CLIP's text", model_types=("clip_text_model",), read=read_clip_text, convention="causal"),
    Family(
        title="ModernBERT",
        model_types=("modernbert",),
        read=read_modernbert,
        convention="`local_attention` // 2 keys on each side, and full in every `global_attn_every_n_layers`-th layer",
    ),
    Family(
        title="Whisper",
        model_types=("whisper",),
        read=read_whisper,
        convention="causal decoder, cross-attention on `max_source_positions` keys, full encoder",
    ),
)

WRAPPERS: tuple[Wrapper, ...] = (
    Wrapper(
        title="Gemma 3 with images",
        model_types=("gemma3",),
        text="gemma3_text",
        image_tokens="mm_tokens_per_image",
        convention="that of the text model; the `mm_tokens_per_image` tokens of an image (256) see each other",
    ),
    Wrapper(
        title="Gemma 4 with images",
        model_types=("gemma4",),
        text="gemma4_text",
        image_tokens="vision_soft_tokens_per_image",
        image_size=280,
        image_masks=("window",),
        image_key="use_bidirectional_attention",
        convention="that of the text model; with `use_bidirectional_attention: vision` an image's tokens (280) see "
        "each other in windows",
    ),
    Wrapper(title="Llama 4 with images", model_types=("llama4",), text="llama4_text"),
    Wrapper(title="Mistral 3", model_types=("mistral3",), text=""),
    Wrapper(title="Qwen2-VL", model_types=("qwen2_vl",), text="qwen2_vl_text", flat=True),
    Wrapper(title="Qwen2.5-VL", model_types=("qwen2_5_vl",), text="qwen2_5_vl_text", flat=True),
    Wrapper(title="Qwen3-VL", model_types=("qwen3_vl",), text="qwen3_vl_text"),
    Wrapper(title="Qwen3-VL-MoE", model_types=("qwen3_vl_moe",), text="qwen3_vl_moe_text"),
    Wrapper(title="Qwen3.5", model_types=("qwen3_5",), text="qwen3_5_text"),
    Wrapper(title="Qwen3.5-MoE", model_types=("qwen3_5_moe",), text="qwen3_5_moe_text"),
    Wrapper(title="GLM-4.1V", model_types=("glm4v",), text="glm4v_text"),
    Wrapper(title="GLM-4.5V", model_types=("glm4v_moe",), text="glm4v_moe_text"),
    Wrapper(title="Gemma 3n with images and sound", model_types=("gemma3n",), text="gemma3n_text"),
    Wrapper(
        title="PaliGemma",
        model_types=("paligemma",),
        text="gemma",
        prefix=True,
        convention="every token of a prompt sees the whole prompt, later tokens are causal",
    ),
    Wrapper(
        title="InternVL, Kimi-VL, LFM2-VL, Voxtral",
        model_types=("internvl", "kimi_vl", "kimi_k25", "lfm2_vl", "lfm2-vl", "voxtral"),
        text="",
    ),
    Wrapper(
        title="Aya Vision, Command A Vision, Idefics 3, LLaVA, Pixtral, Qwen2-Audio, SmolVLM",
        model_types=(
            "aya_vision",
            "cohere2_vision",
            "idefics3",
            "llava",
            "llava_next",
            "llava_next_video",
            "llava_onevision",
            "qwen2_audio",
            "smolvlm",
            "video_llava",
            "vipllava",
        ),
        text="",
        left_out=True,
    ),
    Wrapper(title="EXAONE 4.5 with images", model_types=("exaone4_5",), text="exaone4_5_text"),
    Wrapper(title="InternVL (first format)", model_types=("internvl_chat",), text="", under="llm_config"),
    Wrapper(title="SigLIP", model_types=("siglip",), text="siglip_text_model", convention="full"),
    Wrapper(title="CLIP", model_types=("clip",), text="clip_text_model", convention="causal text, full images"),
    Wrapper(
        title="Llama 3.2 Vision",
        model_types=("mllama",),
        text="mllama_text_model",
        convention="causal; the layers of `cross_attention_layers` see the patches of an image",
    ),
)
WAY_OUT = (
    "Describe the layers that can be measured in a matrix of your own, models: [{model: NAME, geometry: {groups: "
    "[{layers: [0, 1, …], heads_q: …, heads_kv: …, head_dim: …, mask: causal}]}}] (docs/models.md)"
)
"""of a config that is not read"""


def read_groups(keys: Keys) -> list[LayerGroup]:
    """The layer groups of a config; problems and findings are remembered in ``keys``."""
    kind = keys.text("model_type")
    if keys.problems:
        return []
    wrapper = next((wrapper for wrapper in WRAPPERS if kind in wrapper.model_types), None)
    if wrapper is None:
        return _read_family(keys, kind)
    under, vision = keys.inner(wrapper.under), keys.inner("vision_config")
    text, inner = _text_model(keys, under, wrapper, kind)
    if text is None:
        return []
    if inner == "mllama_text_model":
        return [*read_mllama(text, vision), *read_tower(vision, "mllama_vision_model")]
    if wrapper.prefix:
        text = _of_prompts(text)
    groups = _read_family(text, inner)
    if wrapper.prefix:
        groups = _see_prompts(text, groups)
    seen = not wrapper.image_key or text.value(wrapper.image_key) == "vision"
    if wrapper.image_tokens and vision is not None and seen:
        size = {"image_tokens": keys.count(wrapper.image_tokens, default=wrapper.image_size)}
        groups = [each.model_copy(update=size) if each.mask in wrapper.image_masks else each for each in groups]
    if text is not keys:
        keys.asked.update(name for name in keys.data if name in text.data and keys.data[name] == text.data[name])
        refuse_leftovers(keys, kind)
    return [*groups, *read_tower(vision, kind)]


def _text_model(keys: Keys, under: Keys | None, wrapper: Wrapper, kind: str) -> tuple[Keys | None, str]:
    """The keys of a wrapper's text model, and its family; None where a key is wrong or missing.

    Args:
        under: what stands where the wrapper has its text model; None where nothing does.
    """
    text = keys if under is None and wrapper.flat else under
    if keys.problems:
        return None, ""
    if text is None:
        keys.wrong(wrapper.under, f"is missing, and {kind} has the keys of its text model there")
        return None, ""
    inner = (text.text("model_type") if text is not keys else "") or wrapper.text
    if keys.problems:
        return None, ""
    if inner in wrapper.model_types and wrapper.text:  # Qwen names the wrapper inside as well
        inner = wrapper.text
    if wrapper.left_out:
        text = replace(text, data={**CLASS_DEFAULTS.get(inner, {}), **text.data})
    return text, inner


def _of_prompts(keys: Keys) -> Keys:
    """The text model of a prefix model: what transformers 5 writes about both directions means the prompts."""
    name = "use_bidirectional_attention"
    if not keys.flag(name, default=True):
        keys.wrong(name, "is false, but the prompts of this model are read as seen whole")
    return replace(keys, data={**keys.data, name: None})


def _see_prompts(keys: Keys, groups: list[LayerGroup]) -> list[LayerGroup]:
    """Prompts in which every token sees every other; what follows is causal, as the groups are."""
    if any(each.mask != "causal" for each in groups):
        keys.wrong("model_type", f"is {keys.text('model_type')}: a prompt seen whole through a window is not read")
        return []
    return [
        *(each.model_copy(update={"mask": "full", "phases": WHOLE}) for each in groups),
        *(each.model_copy(update={"phases": TOKENS}) for each in groups),
    ]


def _read_family(keys: Keys, kind: str) -> list[LayerGroup]:
    family = next((family for family in FAMILIES if kind in family.model_types), None)
    if family is None and any(kind in wrapper.model_types for wrapper in WRAPPERS):
        nested = "a model of several parts, inside another one, which is not read"
        keys.wrong("model_type", f"is {kind}, {nested}. {WAY_OUT}")
        return []
    if family is None:
        keys.wrong("model_type", _unknown(keys, kind))
        return []
    groups = family.read(keys)
    refuse_leftovers(keys, kind, [] if keys.problems else groups)
    return groups


def known_types() -> list[str]:
    """Every model_type that can be read, sorted."""
    types = (*(each.model_types for each in FAMILIES), *(each.model_types for each in WRAPPERS))
    return sorted(name for names in types for name in names)


def _unknown(keys: Keys, kind: str) -> str:
    """What was looked for, what was found of it, and the way out."""
    known = known_types()
    reason = why_unexpressed(kind)
    if reason:
        return f"is {kind}, a model that {reason}. {WAY_OUT}"
    what = f"is {shown(kind)}, a family that qualify does not know{meant(kind, known)}" if kind else "is missing"
    inner = keys.inner("text_config")
    hint = inner.text("model_type") if inner else ""
    found = [f"{name} = {shown(keys.data[name])}" for name in LOOKED_FOR if keys.has(name)]
    return (
        f"{what}. Of the keys that most families have ({', '.join(LOOKED_FOR)}) the file has "
        f"{', '.join(found) or 'none'}{', and qualify does not guess what they mean' if found else ''}"
        + (f"; its text_config is {shown(hint)}" if hint else "")
        + f". docs/models.md lists the {len(known)} families. {WAY_OUT}"
    )
