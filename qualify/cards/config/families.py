"""Every family of models whose configs can be read, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from qualify.cards.config.catalogue import DECODERS
from qualify.cards.config.encoders import (
    read_bert,
    read_clip_text,
    read_distilbert,
    read_modernbert,
    read_rotary_encoder,
    read_vit,
    read_whisper,
)
from qualify.cards.config.keys import Keys
from qualify.cards.config.latent import read_mla
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
from qualify.cards.model import LayerGroup


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """Configs of some model types, and how they are read."""

    title: str
    """the models, for the documents"""
    model_types: tuple[str, ...]
    read: Callable[[Keys], list[LayerGroup]]
    convention: str
    """which keys decide about the mask, for the documents"""


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
