"""From a config to the family that can read it, and through wrappers to the text model inside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from qualify.cards.config.decoders import DECODERS, read_chatglm, read_falcon, read_gpt_bigcode, read_mla
from qualify.cards.config.encoders import read_bert, read_distilbert, read_mllama, read_modernbert, read_whisper
from qualify.cards.config.keys import Keys
from qualify.cards.config.towers import read_tower
from qualify.cards.model import LayerGroup
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
    """A model of several parts, with the text model under ``text_config``."""

    title: str
    model_types: tuple[str, ...]
    text: str
    """model_type of the text model where ``text_config`` does not name it; empty = it must"""
    flat: bool = False
    """whether the text model's keys may stand at the top"""
    image_tokens: str = ""
    """key of the number of tokens of an image, where they see each other"""
    convention: str = "that of the text model"


FAMILIES: tuple[Family, ...] = (
    *(
        Family(title=each.title, model_types=each.model_types, read=each.read, convention=each.convention)
        for each in DECODERS
    ),
    Family(
        title="DeepSeek V2 and V3, Kimi K2",
        model_types=("deepseek_v2", "deepseek_v3", "kimi_k2"),
        read=read_mla,
        convention="causal; prompts with per-head keys, decode on the latent with one KV head",
    ),
    Family(
        title="Falcon",
        model_types=("falcon", "RefinedWeb", "RefinedWebModel"),
        read=read_falcon,
        convention="causal in all layers",
    ),
    Family(title="StarCoder", model_types=("gpt_bigcode",), read=read_gpt_bigcode, convention="causal in all layers"),
    Family(
        title="ChatGLM, GLM-4 (first configs)",
        model_types=("chatglm",),
        read=read_chatglm,
        convention="causal in all layers",
    ),
    Family(
        title="BERT, RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA",
        model_types=("bert", "roberta", "xlm-roberta", "camembert", "electra"),
        read=read_bert,
        convention="full; causal with `is_decoder`",
    ),
    Family(title="DistilBERT", model_types=("distilbert",), read=read_distilbert, convention="full"),
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
    Wrapper(title="Llama 4 with images", model_types=("llama4",), text="llama4_text"),
    Wrapper(title="Mistral 3", model_types=("mistral3",), text=""),
    Wrapper(title="Qwen2-VL", model_types=("qwen2_vl",), text="qwen2_vl_text", flat=True),
    Wrapper(title="Qwen2.5-VL", model_types=("qwen2_5_vl",), text="qwen2_5_vl_text", flat=True),
    Wrapper(title="Qwen3-VL", model_types=("qwen3_vl",), text="qwen3_vl_text"),
    Wrapper(title="Qwen3-VL-MoE", model_types=("qwen3_vl_moe",), text="qwen3_vl_moe_text"),
    Wrapper(title="GLM-4.1V", model_types=("glm4v",), text="glm4v_text"),
    Wrapper(
        title="Llama 3.2 Vision",
        model_types=("mllama",),
        text="mllama_text_model",
        convention="causal; the layers of `cross_attention_layers` see the patches of an image",
    ),
)
IMAGE_TOKENS = 256
"""of Gemma 3, where the config does not say"""


def read_groups(keys: Keys) -> list[LayerGroup]:
    """The layer groups of a config; problems and findings are remembered in ``keys``."""
    kind = keys.text("model_type")
    wrapper = next((wrapper for wrapper in WRAPPERS if kind in wrapper.model_types), None)
    if wrapper is None:
        return _read_family(keys, kind)
    text, vision = keys.inner("text_config"), keys.inner("vision_config")
    if text is None and wrapper.flat:
        text = keys
    if text is None:
        keys.wrong("text_config", f"is missing, and {kind} has the keys of its text model there")
        return []
    inner = (text.text("model_type") if text is not keys else "") or wrapper.text
    if inner in wrapper.model_types:  # Qwen names the wrapper inside as well
        inner = wrapper.text
    if inner == "mllama_text_model":
        return [*read_mllama(text, vision), *read_tower(vision, "mllama_vision_model")]
    groups = _read_family(text, inner)
    if wrapper.image_tokens and vision is not None:
        size = keys.count(wrapper.image_tokens, default=IMAGE_TOKENS)
        groups = [each.model_copy(update={"image_tokens": size}) for each in groups]
    return [*groups, *read_tower(vision, kind)]


def _read_family(keys: Keys, kind: str) -> list[LayerGroup]:
    family = next((family for family in FAMILIES if kind in family.model_types), None)
    if family is None:
        keys.wrong("model_type", _unknown(keys, kind))
        return []
    return family.read(keys)


def known_types() -> list[str]:
    """Every model_type that can be read, sorted."""
    types = (*(each.model_types for each in FAMILIES), *(each.model_types for each in WRAPPERS))
    return sorted(name for names in types for name in names)


def _unknown(keys: Keys, kind: str) -> str:
    """What was looked for, what was found of it, and the way out."""
    known = known_types()
    what = f"is {shown(kind)}, a family that is not known{meant(kind, known)}" if kind else "is missing"
    inner = keys.inner("text_config")
    hint = inner.text("model_type") if inner else ""
    found = [f"{name} = {shown(keys.data[name])}" for name in LOOKED_FOR if keys.has(name)]
    return (
        f"{what}. Looked for model_type, then for the keys of its family ({', '.join(LOOKED_FOR)}); found "
        f"{', '.join(found) or 'none of them'}"
        + (f"; text_config is {shown(hint)}" if hint else "")
        + ". It is not guessed what they mean: write the geometry into a matrix, models: [{model: NAME, geometry: "
        "{groups: [{layers: [0, 1, …], heads_q: …, heads_kv: …, head_dim: …, mask: causal}]}}] (docs/models.md). "
        f"Known families: {', '.join(known)}"
    )
