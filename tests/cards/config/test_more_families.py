"""Families with layers that have no attention, ALiBi, keys of their own, or towers; and those that are refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hand import PROMPT, WHOLE, Row, expect, facts, shape

from qualify.cards.config.groups import known_types
from qualify.cards.config.refusals import UNEXPRESSED
from qualify.cards.config.writing import matrix_text, to_data, to_lines
from qualify.cards.load import load_matrix
from qualify.cards.model import ModelCard
from qualify.errors import CardError

TOKENS = ("decode", "verify")
SLIDING, FULL, LINEAR, CONV = "sliding_attention", "full_attention", "linear_attention", "conv"
NEMOTRON_H_8B = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
KIMI_YARN = {"type": "yarn", "factor": 32.0, "mscale_all_dim": 1.0}
KIMI_SCALE = 192**-0.5 * (0.1 * math.log(32) + 1) ** 2
KIMI_K2 = {
    "model_type": "kimi_k2",
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
} | shape(61, 7168, 64, kv=64)
KIMI_GROUPS = [
    expect(range(61), (64, 64), 192, "causal", dim_v=128, phases=PROMPT, scale=KIMI_SCALE),
    expect(range(61), (64, 1), 576, "causal", dim_v=512, phases=TOKENS, latent=True, scale=KIMI_SCALE),
]
SIGLIP = {"model_type": "siglip_vision_model"} | shape(27, 1152, 16)
SIGLIP_GROUP = expect(range(27), (16, 16), 72, "full", stack="vision", phases=WHOLE, positions="none")


def others(count: int, *attend: int) -> tuple[int, ...]:
    """All layers but those."""
    return tuple(layer for layer in range(count) if layer not in attend)


HYBRIDS: list[tuple[str, dict[str, Any], list[dict[str, Any]], tuple[int, ...]]] = [
    (
        "Qwen3-Next 80B: every fourth layer attends",
        {"model_type": "qwen3_next", "head_dim": 256, "full_attention_interval": 4, "linear_num_key_heads": 16}
        | {"linear_key_head_dim": 128}
        | shape(48, 2048, 16, kv=2),
        [expect(range(3, 48, 4), (16, 2), 256, "causal")],
        others(48, *range(3, 48, 4)),
    ),
    (
        "Qwen3.5 27B, with images",
        {
            "model_type": "qwen3_5",
            "text_config": {"model_type": "qwen3_5_text", "head_dim": 256, "full_attention_interval": 4}
            | {"layer_types": [LINEAR, LINEAR, LINEAR, FULL] * 16, "attn_output_gate": True}
            | shape(64, 5120, 24, kv=4),
            "vision_config": {"model_type": "qwen3_5", "depth": 27, "num_heads": 16, "hidden_size": 1152},
        },
        [
            expect(range(3, 64, 4), (24, 4), 256, "causal", positions="mrope"),
            expect(range(27), (16, 16), 72, "full", stack="vision", phases=WHOLE),
        ],
        others(64, *range(3, 64, 4)),
    ),
    (
        "Granite 4.0 H Small: four layers attend, without rope",
        {"model_type": "granitemoehybrid", "attention_multiplier": 0.0078125, "position_embedding_type": "nope"}
        | {"layer_types": ["attention" if layer % 10 == 5 else "mamba" for layer in range(40)], "mamba_n_heads": 128}
        | shape(40, 4096, 32, kv=8),
        [expect([5, 15, 25, 35], (32, 8), 128, "causal", positions="none", scale=1 / 128)],
        others(40, 5, 15, 25, 35),
    ),
    (
        "Granite 4.0 1B, which has no Mamba layer",
        {"model_type": "granitemoehybrid", "attention_multiplier": 0.0078125, "position_embedding_type": "rope"}
        | {"layer_types": ["attention"] * 40, "mamba_n_heads": 128, "mamba_d_state": 256}
        | shape(40, 2048, 16, kv=4),
        [expect(range(40), (16, 4), 128, "causal", scale=1 / 128)],
        (),
    ),
    (
        "Jamba v0.1: layer 4 of every 8, without rope",
        {"model_type": "jamba", "attn_layer_period": 8, "attn_layer_offset": 4, "mamba_d_state": 16}
        | {"sliding_window": None}
        | shape(32, 4096, 32, kv=8),
        [expect([4, 12, 20, 28], (32, 8), 128, "causal", positions="none")],
        others(32, 4, 12, 20, 28),
    ),
    (
        "Bamba 9B",
        {"model_type": "bamba", "attn_layer_indices": [9, 18, 27], "mamba_d_state": 128, "attn_rotary_emb": 64}
        | shape(32, 4096, 32, kv=8),
        [expect([9, 18, 27], (32, 8), 128, "causal")],
        others(32, 9, 18, 27),
    ),
    (
        "Nemotron-H 8B, whose config has a number that JSON does not know",
        {"model_type": "nemotron_h", "hybrid_override_pattern": NEMOTRON_H_8B, "attention_head_dim": 128}
        | {"mamba_head_dim": 64, "ssm_state_size": 128, "time_step_limit": [0.0, math.inf]}
        | shape(52, 4096, 32, kv=8),
        [expect([7, 18, 29, 40], (32, 8), 128, "causal", positions="none")],
        others(52, 7, 18, 29, 40),
    ),
    (
        "Nemotron-H with a list, and without a number of layers",
        {"model_type": "nemotron_h", "layers_block_type": ["mamba", "moe", "attention", "mlp"], "head_dim": 128}
        | {"hidden_size": 2688, "num_attention_heads": 32, "num_key_value_heads": 2},
        [expect([2], (32, 2), 128, "causal", positions="none")],
        (0, 1, 3),
    ),
    (
        "LFM2-VL 1.6B",
        {
            "model_type": "lfm2-vl",
            "text_config": {"model_type": "lfm2", "layer_types": [*[CONV, CONV, FULL] * 3, *[CONV, FULL] * 3, CONV]}
            | shape(16, 2048, 32, kv=8),
            "vision_config": SIGLIP | {"model_type": "siglip2_vision_model"},
        },
        [expect([2, 5, 8, 10, 12, 14], (32, 8), 64, "causal"), SIGLIP_GROUP],
        others(16, 2, 5, 8, 10, 12, 14),
    ),
    (
        "LFM2 with the numbers of its layers",
        {"model_type": "lfm2", "full_attn_idxs": [0, 2]} | shape(3, 2048, 32, kv=8),
        [expect([0, 2], (32, 8), 64, "causal")],
        (1,),
    ),
]

CONFIGS: list[Row] = [
    (
        "Falcon-H1 7B: every layer attends beside its Mamba mixer",
        {"model_type": "falcon_h1", "head_dim": 128, "mamba_d_ssm": 3072, "attn_layer_indices": None}
        | shape(44, 3072, 12, kv=2),
        [expect(range(44), (12, 2), 128, "causal")],
    ),
    (
        "Falcon 3 7B",
        {"model_type": "llama", "head_dim": 256} | shape(28, 3072, 12, kv=4),
        [expect(range(28), (12, 4), 256, "causal")],
    ),
    (
        "Falcon 180B",
        {"model_type": "falcon", "num_kv_heads": 8, "multi_query": True, "new_decoder_architecture": True}
        | {"alibi": False}
        | shape(80, 14848, 232),
        [expect(range(80), (232, 8), 64, "causal")],
    ),
    ("Yi 34B", {"model_type": "Yi"} | shape(60, 7168, 56, kv=8), [expect(range(60), (56, 8), 128, "causal")]),
    (
        "EXAONE 3.5 7.8B",
        {"model_type": "exaone", "num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32}
        | {"num_key_value_heads": 8, "head_dim": 128},
        [expect(range(32), (32, 8), 128, "causal")],
    ),
    (
        "EXAONE 4.0 32B: rope in the windows alone",
        {"model_type": "exaone4", "head_dim": 128, "sliding_window": 4096, "sliding_window_pattern": "LLLG"}
        | {"layer_types": [SLIDING, SLIDING, SLIDING, FULL] * 16}
        | shape(64, 5120, 40, kv=8),
        [
            expect([i for i in range(64) if i % 4 != 3], (40, 8), 128, "window", window=4096),
            expect(range(3, 64, 4), (40, 8), 128, "causal", positions="none"),
        ],
    ),
    (
        "EXAONE 4.0 32B in letters; the last of five layers sees all keys",
        {"model_type": "exaone4", "head_dim": 128, "sliding_window": 4096, "sliding_window_pattern": "LLLG"}
        | shape(5, 5120, 40, kv=8),
        [
            expect([0, 1, 2], (40, 8), 128, "window", window=4096),
            expect([3, 4], (40, 8), 128, "causal", positions="none"),
        ],
    ),
    (
        "EXAONE 4 without sliding_window, which is then 4096, and with null the whole sequence",
        {"model_type": "exaone4"} | shape(4, 4096, 32, kv=8),
        [
            expect([0, 1, 2], (32, 8), 128, "window", window=4096),
            expect([3], (32, 8), 128, "causal", positions="none"),
        ],
    ),
    (
        "EXAONE 4.0 1.2B: no window, so rope everywhere",
        {"model_type": "exaone4", "head_dim": 64, "sliding_window": None, "sliding_window_pattern": None}
        | {"layer_types": [FULL] * 30}
        | shape(30, 2048, 32, kv=8),
        [expect(range(30), (32, 8), 64, "causal")],
    ),
    (
        "EXAONE 4.5 33B, whose tower has fewer KV heads and is left out",
        {
            "model_type": "exaone4_5",
            "text_config": {"model_type": "exaone4_5_text", "sliding_window": 4096, "sliding_window_pattern": "LLLG"}
            | {"layer_types": [SLIDING, SLIDING, SLIDING, FULL] * 16}
            | shape(64, 5120, 40, kv=8),
            "vision_config": {"model_type": "exaone4_5_vision", "depth": 28, "num_heads": 32, "num_key_value_heads": 8},
        },
        [
            expect([i for i in range(64) if i % 4 != 3], (40, 8), 128, "window", window=4096),
            expect(range(3, 64, 4), (40, 8), 128, "causal", positions="none"),
        ],
    ),
    (
        "Apertus 8B",
        {"model_type": "apertus", "qk_norm": True} | shape(32, 4096, 32, kv=8),
        [expect(range(32), (32, 8), 128, "causal")],
    ),
    (
        "AFM 4.5B",
        {"model_type": "arcee", "head_dim": 128} | shape(36, 2560, 20, kv=4),
        [expect(range(36), (20, 4), 128, "causal")],
    ),
    (
        "CWM: the first layer of four sees all keys",
        {"model_type": "cwm", "head_dim": 128, "sliding_window": 8192} | shape(64, 6144, 48, kv=8),
        [
            expect(range(0, 64, 4), (48, 8), 128, "causal"),
            expect([i for i in range(64) if i % 4], (48, 8), 128, "window", window=8192),
        ],
    ),
    (
        "dots.llm1, whose window is switched off",
        {"model_type": "dots1", "sliding_window": None, "use_sliding_window": False, "max_window_layers": 62}
        | shape(62, 4096, 32, kv=32),
        [expect(range(62), (32, 32), 128, "causal")],
    ),
    (
        "dots.llm1 with windows in the last layer",
        {"model_type": "dots1", "sliding_window": 64, "max_window_layers": 3} | shape(4, 4096, 32, kv=32),
        [expect(range(3), (32, 32), 128, "causal"), expect([3], (32, 32), 128, "window", window=64)],
    ),
    (
        "OLMo 7B in its first format",
        {"model_type": "hf_olmo", "d_model": 4096, "n_heads": 32, "n_layers": 32, "rope": True, "alibi": False}
        | {"alibi_bias_max": 8.0, "multi_query_attention": False, "n_kv_heads": None},
        [expect(range(32), (32, 32), 128, "causal")],
    ),
    (
        "OLMo in its first format, with one KV head and ALiBi",
        {"model_type": "hf_olmo", "d_model": 512, "n_heads": 4, "n_layers": 2, "alibi": True}
        | {"multi_query_attention": True},
        [expect(range(2), (4, 1), 128, "causal", positions="alibi")],
    ),
    (
        "ESM-2 650M, with rotated queries and keys",
        {"model_type": "esm", "position_embedding_type": "rotary"} | shape(33, 1280, 20),
        [expect(range(33), (20, 20), 64, "full", phases=WHOLE)],
    ),
    (
        "RemBERT",
        {"model_type": "rembert", "is_decoder": False} | shape(32, 1152, 18),
        [expect(range(32), (18, 18), 64, "full", positions="none", phases=WHOLE)],
    ),
    (
        "GTE base v1.5",
        {"model_type": "new", "position_embedding_type": "rope", "logn_attention_scale": False}
        | shape(12, 768, 12),
        [expect(range(12), (12, 12), 64, "full", phases=WHOLE)],
    ),
    (
        "Qwen2-Audio, whose text model leaves out what is its class's default",
        {
            "model_type": "qwen2_audio",
            "text_config": {"model_type": "qwen2", "sliding_window": 32768, "use_mrope": False},
            "audio_config": {"model_type": "qwen2_audio_encoder"},
        },
        [expect(range(32), (32, 32), 128, "causal")],
    ),
    (
        "InternLM2.5 7B",
        {"model_type": "internlm2"} | shape(32, 4096, 32, kv=8),
        [expect(range(32), (32, 8), 128, "causal")],
    ),
    (
        "Minitron 4B, whose head_dim is hidden / heads",
        {"model_type": "nemotron", "head_dim": 128} | shape(32, 3072, 24, kv=8),
        [expect(range(32), (24, 8), 128, "causal")],
    ),
    (
        "StableLM 2 12B",
        {"model_type": "stablelm", "use_qkv_bias": False, "qk_layernorm": True} | shape(40, 5120, 32, kv=8),
        [expect(range(40), (32, 8), 160, "causal")],
    ),
    (
        "Seed-OSS 36B, whose heads have more than hidden elements together",
        {"model_type": "seed_oss", "head_dim": 128} | shape(64, 5120, 80, kv=8),
        [expect(range(64), (80, 8), 128, "causal")],
    ),
    (
        "ERNIE 4.5 with head_dim null, which is hidden / heads there and not its default of 128",
        {"model_type": "ernie4_5", "head_dim": None} | shape(18, 1024, 16, kv=2),
        [expect(range(18), (16, 2), 64, "causal")],
    ),
    (
        "ERNIE 4.5 0.3B without head_dim",
        {"model_type": "ernie4_5"} | shape(18, 1024, 16, kv=2),
        [expect(range(18), (16, 2), 128, "causal")],
    ),
    (
        "ERNIE 4.5 21B",
        {"model_type": "ernie4_5_moe"} | shape(28, 2560, 20, kv=4),
        [expect(range(28), (20, 4), 128, "causal")],
    ),
    (
        "Hunyuan A13B",
        {"model_type": "hunyuan_v1_moe", "attention_head_dim": 128, "use_cla": False} | shape(32, 4096, 32, kv=8),
        [expect(range(32), (32, 8), 128, "causal")],
    ),
    (
        "MiniMax M2, whose list says that all layers attend",
        {"model_type": "minimax_m2", "head_dim": 128, "attn_type_list": [1, 1], "sliding_window": None}
        | shape(2, 3072, 48, kv=8),
        [expect(range(2), (48, 8), 128, "causal")],
    ),
    (
        "GLM-4.5",
        {"model_type": "glm4_moe", "head_dim": 128} | shape(92, 5120, 96, kv=8),
        [expect(range(92), (96, 8), 128, "causal")],
    ),
    (
        "GLM-4.7-Flash: latent attention with 192 + 64 and 256 elements",
        {"model_type": "glm4_moe_lite", "num_hidden_layers": 47, "num_attention_heads": 20, "num_key_value_heads": 20}
        | {"kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256},
        [
            expect(range(47), (20, 20), 256, "causal", phases=PROMPT),
            expect(range(47), (20, 1), 576, "causal", dim_v=512, scale=1 / 16, phases=TOKENS, latent=True),
        ],
    ),
    (
        "MiniCPM3 4B, which leaves v_head_dim out: 2560 / 40",
        {"model_type": "minicpm3", "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32}
        | {"rope_scaling": {"type": "longrope"}}
        | shape(62, 2560, 40, kv=40),
        [
            expect(range(62), (40, 40), 96, "causal", dim_v=64, phases=PROMPT),
            expect(range(62), (40, 1), 288, "causal", dim_v=256, scale=96**-0.5, phases=TOKENS, latent=True),
        ],
    ),
    ("Kimi K2: YaRN with a factor of 32", KIMI_K2 | {"rope_scaling": KIMI_YARN}, KIMI_GROUPS),
    (
        "Kimi K2 with an empty rope_scaling beside transformers 5's key, which then counts",
        KIMI_K2 | {"rope_scaling": {}, "rope_parameters": KIMI_YARN},
        KIMI_GROUPS,
    ),
    (
        "Qwen2.5-VL saved with the text model's keys twice",
        {"model_type": "qwen2_5_vl", "layer_types": [FULL] * 28, "use_sliding_window": False, "sliding_window": 32768}
        | {"text_config": {"model_type": "qwen2_5_vl_text", "layer_types": [FULL] * 28, "use_sliding_window": False}
            | shape(28, 3584, 28, kv=4)},
        [expect(range(28), (28, 4), 128, "causal", positions="mrope")],
    ),
    (
        "Kimi-VL: the text model alone",
        {
            "model_type": "kimi_vl",
            "text_config": {"model_type": "deepseek_v3", "kv_lora_rank": 512, "q_lora_rank": None}
            | {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "rope_scaling": None}
            | shape(27, 2048, 16, kv=16),
        },
        [
            expect(range(27), (16, 16), 192, "causal", dim_v=128, phases=PROMPT),
            expect(range(27), (16, 1), 576, "causal", dim_v=512, scale=192**-0.5, phases=TOKENS, latent=True),
        ],
    ),
    (
        "Gemma 3n E4B: scale 1, every fifth layer sees all keys",
        {
            "model_type": "gemma3n",
            "audio_config": {"model_type": "gemma3n_audio", "conf_attention_chunk_size": 12},
            "text_config": {"model_type": "gemma3n_text", "head_dim": 256, "sliding_window": 512}
            | {"layer_types": [SLIDING, SLIDING, SLIDING, SLIDING, FULL] * 7, "num_kv_shared_layers": 15}
            | shape(35, 2048, 8, kv=2),
        },
        [
            expect([i for i in range(35) if i % 5 != 4], (8, 2), 256, "window", window=512, scale=1.0),
            expect(range(4, 35, 5), (8, 2), 256, "causal", scale=1.0),
        ],
    ),
    (
        "Gemma 4 31B: wider heads in the causal layers; images see themselves in windows",
        {
            "model_type": "gemma4",
            "audio_config": None,
            "vision_soft_tokens_per_image": 280,
            "text_config": {"model_type": "gemma4_text", "head_dim": 256, "global_head_dim": 512}
            | {"attention_k_eq_v": True, "num_global_key_value_heads": 4, "sliding_window": 1024}
            | {"layer_types": [*[SLIDING] * 5, FULL] * 10, "use_bidirectional_attention": "vision"}
            | shape(60, 5376, 32, kv=16),
            "vision_config": {"model_type": "gemma4_vision"},
        },
        [
            expect([i for i in range(60) if i % 6 != 5], (32, 16), 256, "window", window=1024, scale=1.0,
                image_tokens=280),
            expect(range(5, 60, 6), (32, 4), 512, "causal", scale=1.0),
        ],
    ),
    (
        "Gemma 4 E2B: one KV head, and no images that see themselves",
        {
            "model_type": "gemma4",
            "text_config": {"model_type": "gemma4_text", "head_dim": 256, "global_head_dim": 512}
            | {"attention_k_eq_v": False, "num_global_key_value_heads": None, "sliding_window": 512}
            | {"layer_types": [*[SLIDING] * 4, FULL] * 7, "use_bidirectional_attention": None}
            | shape(35, 1536, 8, kv=1),
            "vision_config": {"model_type": "gemma4_vision"},
        },
        [
            expect([i for i in range(35) if i % 5 != 4], (8, 1), 256, "window", window=512, scale=1.0),
            expect(range(4, 35, 5), (8, 1), 512, "causal", scale=1.0),
        ],
    ),
    (
        "Gemma 4 with a mapping for each layer that differs",
        {"model_type": "gemma4_text", "head_dim": 256, "sliding_window": 512, "layer_types": [SLIDING, FULL]}
        | {"per_layer_config": {"01": {"head_dim": 512, "num_key_value_heads": 2}}}
        | shape(2, 2048, 8, kv=4),
        [
            expect([0], (8, 4), 256, "window", window=512, scale=1.0),
            expect([1], (8, 2), 512, "causal", scale=1.0),
        ],
    ),
    (
        "PaliGemma 3B as transformers 5 saves it",
        {
            "model_type": "paligemma",
            "text_config": {"model_type": "gemma", "use_bidirectional_attention": True} | shape(18, 2048, 8, kv=1),
        },
        [
            expect(range(18), (8, 1), 256, "full", phases=WHOLE),
            expect(range(18), (8, 1), 256, "causal", phases=TOKENS),
        ],
    ),
    (
        "PaliGemma 3B: a prompt is seen whole",
        {
            "model_type": "paligemma",
            "text_config": {"model_type": "gemma", "num_image_tokens": 256} | shape(18, 2048, 8, kv=1),
            "vision_config": SIGLIP,
        },
        [
            expect(range(18), (8, 1), 256, "full", phases=WHOLE),
            expect(range(18), (8, 1), 256, "causal", phases=TOKENS),
            SIGLIP_GROUP,
        ],
    ),
    (
        "Aya Vision 8B",
        {
            "model_type": "aya_vision",
            "text_config": {"model_type": "cohere2", "head_dim": 128, "sliding_window": 4096}
            | {"sliding_window_pattern": 4, "position_embedding_type": "rope_gptj"}
            | shape(32, 4096, 32, kv=8),
            "vision_config": SIGLIP,
        },
        [
            expect([i for i in range(32) if i % 4 != 3], (32, 8), 128, "window", window=4096),
            expect(range(3, 32, 4), (32, 8), 128, "causal", positions="none"),
            SIGLIP_GROUP,
        ],
    ),
    (
        "InternVL 2 in its first format",
        {"model_type": "internvl_chat", "llm_config": {"model_type": "internlm2"} | shape(32, 4096, 32, kv=8)},
        [expect(range(32), (32, 8), 128, "causal")],
    ),
    (
        "GPT-2 XL",
        {"model_type": "gpt2", "n_layer": 48, "n_head": 25, "n_embd": 1600, "n_ctx": 1024},
        [expect(range(48), (25, 25), 64, "causal", positions="none")],
    ),
    (
        "GPT-2 whose scale shrinks with the layer's number",
        {"model_type": "gpt2", "n_layer": 2, "n_head": 12, "n_embd": 768, "scale_attn_by_inverse_layer_idx": True},
        [
            expect([0], (12, 12), 64, "causal", positions="none", scale=1 / 8),
            expect([1], (12, 12), 64, "causal", positions="none", scale=1 / 16),
        ],
    ),
    (
        "GPT-J 6B",
        {"model_type": "gptj", "n_layer": 28, "n_head": 16, "n_embd": 4096, "rotary_dim": 64},
        [expect(range(28), (16, 16), 256, "causal")],
    ),
    (
        "GPT-Neo 1.3B: scale 1, and 256 keys in every second layer",
        {"model_type": "gpt_neo", "num_layers": 24, "num_heads": 16, "hidden_size": 2048, "window_size": 256}
        | {"attention_types": [[["global", "local"], 12]], "attention_layers": ["global", "local"] * 12},
        [
            expect(range(0, 24, 2), (16, 16), 128, "causal", positions="none", scale=1.0),
            expect(range(1, 24, 2), (16, 16), 128, "window", window=256, positions="none", scale=1.0),
        ],
    ),
    (
        "GPT-Neo with pairs alone",
        {"model_type": "gpt_neo", "num_layers": 3, "num_heads": 16, "hidden_size": 2048, "window_size": 256}
        | {"attention_types": [[["global", "local"], 1], [["global"], 1]]},
        [
            expect([0, 2], (16, 16), 128, "causal", positions="none", scale=1.0),
            expect([1], (16, 16), 128, "window", window=256, positions="none", scale=1.0),
        ],
    ),
    (
        "OPT 350M, whose embedding is narrower",
        {"model_type": "opt", "word_embed_proj_dim": 512} | shape(24, 1024, 16),
        [expect(range(24), (16, 16), 64, "causal", positions="none")],
    ),
    (
        "BLOOM 176B",
        {"model_type": "bloom", "n_layer": 70, "num_attention_heads": 112, "n_embed": 14336, "offset_alibi": 100},
        [expect(range(70), (112, 112), 128, "causal", positions="alibi")],
    ),
    (
        "MPT 7B",
        {"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32}
        | {"attn_config": {"alibi": True, "attn_type": "multihead_attention", "softmax_scale": None}},
        [expect(range(32), (32, 32), 128, "causal", positions="alibi")],
    ),
    (
        "MPT with learned positions, groups, and a scale of its own",
        {"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 1, "attn_config": {"alibi": False}
            | {"attn_type": "grouped_query_attention", "kv_n_heads": 8, "softmax_scale": 1}},
        [expect(range(1), (32, 8), 128, "causal", positions="none", scale=1.0)],
    ),
    (
        "DBRX",
        {"model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40}
        | {"attn_config": {"clip_qkv": 8, "kv_n_heads": 8, "rope_theta": 500000}},
        [expect(range(40), (48, 8), 128, "causal")],
    ),
    ("Baichuan 2 7B", {"model_type": "baichuan"} | shape(32, 4096, 32), [expect(range(32), (32, 32), 128, "causal")]),
    (
        "Baichuan 2 13B, which has the same keys and ALiBi",
        {"model_type": "baichuan"} | shape(40, 5120, 40),
        [expect(range(40), (40, 40), 128, "causal", positions="alibi")],
    ),
    (
        "Qwen 7B",
        {"model_type": "qwen", "kv_channels": 128, "use_logn_attn": True} | shape(32, 4096, 32),
        [expect(range(32), (32, 32), 128, "causal")],
    ),
    (
        "Jina embeddings v2, saved as BERT with ALiBi",
        {"model_type": "bert", "position_embedding_type": "alibi"} | shape(12, 768, 12),
        [expect(range(12), (12, 12), 64, "full", positions="alibi", phases=WHOLE)],
    ),
    (
        "BGE-M3",
        {"model_type": "xlm-roberta", "position_embedding_type": "absolute"} | shape(24, 1024, 16),
        [expect(range(24), (16, 16), 64, "full", positions="none", phases=WHOLE)],
    ),
    (
        "Nomic Embed v1.5",
        {"model_type": "nomic_bert", "n_layer": 12, "n_head": 12, "n_embd": 768, "rotary_emb_fraction": 1.0}
        | {"causal": False},
        [expect(range(12), (12, 12), 64, "full", phases=WHOLE)],
    ),
    (
        "EuroBERT 2.1B, whose queries share KV heads",
        {"model_type": "eurobert", "head_dim": 128} | shape(32, 2304, 18, kv=6),
        [expect(range(32), (18, 6), 128, "full", phases=WHOLE)],
    ),
    (
        "ViT-L/16",
        {"model_type": "vit", "image_size": 224, "patch_size": 16} | shape(24, 1024, 16),
        [expect(range(24), (16, 16), 64, "full", positions="none", phases=WHOLE)],
    ),
    (
        "SigLIP base, whose config has no counts",
        {
            "model_type": "siglip",
            "text_config": {"model_type": "siglip_text_model"},
            "vision_config": {"model_type": "siglip_vision_model"},
        },
        [
            expect(range(12), (12, 12), 64, "full", positions="none", phases=WHOLE),
            expect(range(12), (12, 12), 64, "full", positions="none", phases=WHOLE, stack="vision"),
        ],
    ),
    (
        "CLIP ViT-L/14: causal text",
        {
            "model_type": "clip",
            "text_config": {"model_type": "clip_text_model"} | shape(12, 768, 12),
            "vision_config": {"model_type": "clip_vision_model"} | shape(24, 1024, 16),
        },
        [
            expect(range(12), (12, 12), 64, "causal", positions="none", phases=WHOLE),
            expect(range(24), (16, 16), 64, "full", positions="none", phases=WHOLE, stack="vision"),
        ],
    ),
    (
        "Whisper tiny, with the keys that transformers adds",
        {"model_type": "whisper", "d_model": 384, "encoder_layers": 4, "decoder_layers": 4, "is_encoder_decoder": True}
        | {"encoder_attention_heads": 6, "decoder_attention_heads": 6, "max_source_positions": 1500}
        | {"num_hidden_layers": 4},
        [
            expect(range(4), (6, 6), 64, "causal", positions="none"),
            expect(range(4), (6, 6), 64, "cross", positions="none", cross_keys=1500),
            expect(range(4), (6, 6), 64, "full", positions="none", stack="encoder", phases=WHOLE),
        ],
    ),
]  # fmt: skip


def same(expected: list[dict[str, Any]], card: ModelCard) -> bool:
    """Whether the groups are those, with a scale that may differ in its last digit."""
    found = [facts(group) for group in card.groups]
    return [one | {"scale": pytest.approx(one["scale"], rel=1e-12)} for one in expected] == found


@pytest.mark.parametrize(("config", "groups"), [row[1:] for row in CONFIGS], ids=[row[0] for row in CONFIGS])
def test_family(read: Any, config: dict[str, Any], groups: list[dict[str, Any]]) -> None:
    """Layers, heads, dimensions, masks, scales and positions; every layer attends."""
    card = read(config).card
    assert same(groups, card)
    assert () == card.without_attention


@pytest.mark.parametrize(("config", "groups", "without"), [row[1:] for row in HYBRIDS], ids=[row[0] for row in HYBRIDS])
def test_layers_without_attention_are_not_counted_as_attention(
    read: Any, tmp_path: Any, config: dict[str, Any], groups: list[dict[str, Any]], without: tuple[int, ...]
) -> None:
    """They are named beside the groups, in JSON, in words and in the written matrix, which loads with them."""
    found = read(config)
    card = found.card
    assert same(groups, card)
    assert without == card.without_attention
    assert len(without) + len(groups[0]["layers"]) == card.layers
    assert list(without) == to_data(found)["without_attention"]
    assert bool(without) == any(line.endswith("no attention") for line in to_lines(found))
    path = tmp_path / "matrix.yaml"
    path.write_text(matrix_text(found))
    (loaded,) = load_matrix(str(path)).models.values()
    assert (card.layers, card.groups, without) == (loaded.layers, loaded.groups, loaded.without_attention)


@pytest.mark.parametrize("kind", ["qwen3_5_vision", "qwen3_5_moe_vision"])
def test_a_tower_as_transformers_saves_it(read: Any, kind: str) -> None:
    """The publisher's vision_config has the name of the whole model, a saved one a name of its own."""
    config = HYBRIDS[1][1]
    saved = config | {"vision_config": config["vision_config"] | {"model_type": kind}}
    assert read(config).card.groups == read(saved).card.groups


def test_a_bias_that_no_call_can_carry_is_said(read: Any) -> None:
    """With ALiBi every kernel refuses every call: whoever starts a project with such a model has to know it."""
    found = read({"model_type": "bloom", "n_embed": 512, "num_attention_heads": 8, "n_layer": 2})
    assert [("unread", "model_type")] == [(each.kind, each.where) for each in found.findings]
    assert "every kernel refuses them" in found.findings[0].detail


def test_parts_that_are_left_out_are_said(read: Any) -> None:
    """A Mamba mixer beside the attention, images and sound."""
    mixed = read({"model_type": "falcon_h1", "head_dim": 64, "mamba_d_ssm": 768} | shape(24, 512, 8, kv=2))
    assert [("unread", "model_type")] == [(each.kind, each.where) for each in mixed.findings]
    text = {"model_type": "llama", "head_dim": 128, "sliding_window": None} | shape(30, 3072, 32, kv=8)
    heard = read({"model_type": "voxtral", "audio_config": {"model_type": "voxtral_encoder"}, "text_config": text})
    assert [("unread", "audio_config")] == [(each.kind, each.where) for each in heard.findings]
    seen = read({"model_type": "phi3_v", "img_processor": {"name": "clip"}} | shape(32, 3072, 32))
    assert [("unread", "img_processor")] == [(each.kind, each.where) for each in seen.findings]


@pytest.mark.parametrize("tower", ["visual", "audio", "mm_vision_tower"])
def test_a_tower_under_a_name_of_its_own_is_said(read: Any, tower: str) -> None:
    """Qwen-VL, Qwen-Audio and the first LLaVA models: an answer about the text says nothing about the tower."""
    qwen = {"model_type": "qwen", "kv_channels": 128} | shape(32, 4096, 32)
    found = read(qwen | {tower: {"heads": 16, "layers": 48, "width": 1664}})
    assert [("unread", tower)] == [(each.kind, each.where) for each in found.findings]
    assert () == read(qwen).findings


LLAMA = {"model_type": "llama"} | shape(2, 512, 8, kv=2)
MLLAMA = {"model_type": "mllama_text_model", "cross_attention_layers": [1]} | shape(2, 512, 8, kv=2)
TILES = {"model_type": "mllama_vision_model", "image_size": 560, "patch_size": 14, "max_num_tiles": 4}
DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3", "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128
} | shape(2, 2048, 16)  # fmt: skip
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "phi3small", "blocksparse_block_size": 64}, "is phi3small, a model that chooses the keys"),
    ({"model_type": "deepseek_v32", "index_topk": 2048}, "is deepseek_v32, a model that chooses the keys or blocks"),
    ({"model_type": "t5", "relative_attention_num_buckets": 32}, "is t5, a model that adds a bias"),
    ({"model_type": "mpnet"}, "is mpnet, a model that adds a bias"),
    ({"model_type": "bart"}, "is bart, a model that attends from its decoder to an encoder"),
    ({"model_type": "t5gemma"}, "is t5gemma, a model that attends from its decoder to an encoder"),
    ({"model_type": "minimax_m1"}, "is minimax_m1, a model that mixes attention with linear or recurrent layers"),
    ({"model_type": "zamba2"}, "is zamba2, a model that shares attention layers"),
    ({"model_type": "mamba2"}, "is mamba2, a model that has no softmax attention at all; there is nothing to test"),
    ({"model_type": "nemotron-nas", "block_configs": []}, "is nemotron-nas, a model that changes heads"),
    (LLAMA | {"sliding_window": 4096}, "sliding_window: is 4096 and changes the mask, but llama is read without it"),
    ({"model_type": "opt"} | shape(2, 768, 12, kv=2), "num_key_value_heads: is 2, but opt is read without it"),
    ({"model_type": "gpt_neox"} | shape(2, 768, 12, kv=2), "num_key_value_heads: is 2, but gpt_neox is read without"),
    *(
        (LLAMA | {name: 128}, f"{name}: is 128, but llama is read without it, with 64 elements per head")
        for name in ("attention_head_size", "attn_head_dim", "d_head", "dim_head", "size_per_head")
    ),
    *(
        (LLAMA | {name: 4}, f"{name}: is 4, but llama is read without it, with 2 KV heads")
        for name in ("num_attention_kv_heads", "num_kv_attention_heads", "n_kv_head", "kv_heads")
    ),
    ({"model_type": "gte"} | shape(2, 768, 12, kv=2), "num_key_value_heads: is 2, but gte is read without it"),
    (
        {"model_type": "gpt2", "n_layer": 2, "n_head": 12, "n_embd": 768, "multi_query": True},
        "multi_query: is true and changes the KV heads, but gpt2 is read without it",
    ),
    (
        {"model_type": "gpt_bigcode", "scale_attn_by_inverse_layer_idx": True, "n_layer": 2, "n_head": 2, "n_embd": 64},
        "scale_attn_by_inverse_layer_idx: is true and changes the scale, but gpt_bigcode is read without it",
    ),
    (
        {"model_type": "modernbert", "local_attention": 128, "sliding_window": 128} | shape(3, 768, 12),
        "sliding_window: is 128 keys on each side, but local_attention is 128, which is 64; make them agree",
    ),
    (
        {"model_type": "gemma2", "sliding_window": 4096, "window_size": 512, "layer_types": [SLIDING, FULL]}
        | shape(2, 2304, 8, kv=4),
        "window_size: is 512 and changes the mask, but gemma2 is read without it",
    ),
    (
        {"model_type": "glm4_moe_lite", "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64}
        | {"v_head_dim": 256, "head_dim": 128}
        | shape(2, 2048, 20),
        "head_dim: is 128: in this family another name of qk_rope_head_dim, which is 64",
    ),
    (LLAMA | {"interleaved_sliding_window": 4096}, "interleaved_sliding_window: is 4096 and changes the mask"),
    (
        {"model_type": "nemotron_h", "hybrid_override_pattern": "M*", "head_dim": 128, "sliding_window": 4096}
        | shape(2, 4096, 32, kv=8),
        "sliding_window: is 4096 and changes the mask, but nemotron_h is read without it",
    ),
    *(
        (hybrid | {"sliding_window": 64}, f"sliding_window: is 64 and changes the mask, but {hybrid['model_type']} is")
        for hybrid in (
            {"model_type": "jamba", "attn_layer_period": 2, "attn_layer_offset": 1} | shape(2, 4096, 32, kv=8),
            {"model_type": "bamba", "attn_layer_indices": [1]} | shape(2, 4096, 32, kv=8),
            {"model_type": "lfm2", "full_attn_idxs": [1]} | shape(2, 2048, 32, kv=8),
            {"model_type": "qwen3_next", "full_attention_interval": 2} | shape(2, 2048, 16, kv=2),
            {"model_type": "nemotron_h", "layers_block_type": ["mamba", "attention"]} | shape(2, 4096, 32, kv=8),
        )
    ),
    (
        {"model_type": "minimax_m2", "attn_window_size": 4096, "head_dim": 128} | shape(2, 3072, 48, kv=8),
        "attn_window_size: is 4096 and changes the mask, but minimax_m2 is read without it",
    ),
    *(
        (LLAMA | {name: 512}, f"{name}: is 512 and changes the mask, but llama is read without it")
        for name in ("rswa_window", "swa_window_size", "local_window", "window")
    ),
    (
        {"model_type": "gemma2", "sliding_window": 4096, "attn_window_size": 512, "layer_types": [SLIDING, FULL]}
        | shape(2, 2304, 8, kv=4),
        "attn_window_size: is 512 and changes the mask, but gemma2 is read without it",
    ),
    ({"model_type": "roberta", "attention_window": [512] * 2} | shape(2, 768, 12), "attention_window: is a list of 2"),
    (LLAMA | {"global_attn_every_n_layers": 4}, "global_attn_every_n_layers: is 4 and changes which layers attend"),
    (LLAMA | {"hybrid_layer_pattern": [0, 1]}, "hybrid_layer_pattern: is a list of 2 and changes which layers attend"),
    (LLAMA | {"swa_num_key_value_heads": 4}, "swa_num_key_value_heads: is 4 and changes the heads of some layers"),
    (LLAMA | {"logits_soft_cap": 30.0}, "logits_soft_cap: is 30.0 and changes the scores"),
    (LLAMA | {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping: is 50.0 and changes the scores"),
    (LLAMA | {"query_pre_attn_scalar": 144}, "query_pre_attn_scalar: is 144 and changes the scale"),
    (LLAMA | {"alibi": True}, "alibi: is true and changes the scores"),
    (LLAMA | {"position_embedding_type": "alibi"}, 'position_embedding_type: is "alibi" and changes positions'),
    (LLAMA | {"mamba_d_state": 128}, "mamba_d_state: is 128 and changes which layers attend"),
    (LLAMA | {"attn_type_list": [1, 0]}, "attn_type_list: is a list of 2 and changes which layers attend"),
    (LLAMA | {"no_rope_layers": [1, 0]}, "no_rope_layers: is a list of 2 and changes positions"),
    (LLAMA | {"v_head_dim": 128}, "v_head_dim: is 128 and changes the keys and values"),
    (LLAMA | {"global_head_dim": 512}, "global_head_dim: is 512 and changes the heads of some layers"),
    (LLAMA | {"swa_num_attention_heads": 4}, "swa_num_attention_heads: is 4 and changes the heads of some layers"),
    (LLAMA | {"indexer_n_heads": 4}, "indexer_n_heads: is 4 and changes which keys a query sees"),
    (LLAMA | {"kv_lora_rank": 512}, "kv_lora_rank: is 512 and changes the keys and values"),
    ({"model_type": "gptj", "n_layer": 2, "n_head": 4, "n_embd": 512, "num_key_value_heads": 2},
        "num_key_value_heads: is 2, but gptj is read without it, with 4 KV heads"),
    (LLAMA | {"kv_channels": 128}, "kv_channels: is 128, but llama is read without it, with 64 elements per head"),
    ({"model_type": "cohere2", "head_dim": 128} | shape(4, 512, 8),
        "head_dim: is 128, but cohere2 is read without it, with 64 elements per head"),
    ({"model_type": "qwen3", "head_dim": None} | shape(28, 1024, 16, kv=8),
        "head_dim: is null: the family's own default is 128, hidden / heads 64; write the one meant"),
    (LLAMA | {"multi_query": True}, "multi_query: is true and changes the KV heads, but llama is read without it"),
    (LLAMA | {"attention_head_type": "multiquery"}, 'attention_head_type: is "multiquery" and changes the KV heads'),
    ({"model_type": "gpt2", "n_layer": 2, "n_head": 4, "n_embd": 512, "attention_head_type": "grouped"},
        "attention_head_type: is grouped, which is not read here; known are multihead, multiquery"),
    (LLAMA | {"attention_sink": True}, "attention_sink: is true and changes the denominator"),
    (
        {"model_type": "qwen2", "dual_chunk_attention_config": {"chunk_size": 262144}} | shape(28, 3584, 28, kv=4),
        "dual_chunk_attention_config: is a mapping of 1 keys and changes which keys a query sees",
    ),
    ({"model_type": "minicpm", "sparse_config": {"topk": 64}} | shape(32, 4096, 32), "sparse_config: is a mapping"),
    (
        {"model_type": "qwen3_vl", "text_config": {"model_type": "qwen3_vl_text", "use_sliding_window": True}
            | shape(36, 4096, 32, kv=8)},
        "text_config.use_sliding_window: is true and changes the mask, but qwen3_vl_text is read without it",
    ),
    (
        {"model_type": "bert", "is_decoder": True, "add_cross_attention": True} | shape(12, 768, 12),
        "add_cross_attention: is true and changes what is attended to",
    ),
    (
        {"model_type": "paligemma", "text_config": {"model_type": "gemma2", "sliding_window": 4096}
            | shape(26, 2304, 8, kv=4)},
        "text_config.model_type: is gemma2: a prompt seen whole through a window is not read",
    ),
    (
        {"model_type": "paligemma", "text_config": {"model_type": "gemma", "use_bidirectional_attention": False}
            | shape(18, 2048, 8, kv=1)},
        "text_config.use_bidirectional_attention: is false, but the prompts of this model are read as seen whole",
    ),
    (
        {"model_type": "gemma4_text", "use_bidirectional_attention": "all"} | shape(6, 2048, 8, kv=4),
        "use_bidirectional_attention: must be null or vision",
    ),
    (
        {"model_type": "gemma4_text", "per_layer_config": {"7": {"head_dim": 512}}} | shape(6, 2048, 8, kv=4),
        "per_layer_config.7: must be the number of a layer, below 6, with a mapping",
    ),
    (
        {"model_type": "gemma4_text"} | shape(5, 2048, 8, kv=4),
        "layer_types: must end with full_attention",
    ),
    *(
        (
            {"model_type": kind, "sliding_window": 64, "layer_types": [FULL, SLIDING]} | shape(2, 512, 8),
            "layer_types: holds sliding_attention, but use_sliding_window is missing, which is false: make them agree",
        )
        for kind in ("qwen2", "qwen3", "qwen2_5_vl_text", "smollm3")
    ),
    (
        {"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": False, "layer_types": [FULL, SLIDING]}
        | shape(2, 512, 8),
        "layer_types: holds sliding_attention, but use_sliding_window is false",
    ),
    ({"model_type": "granitemoehybrid"} | shape(40, 4096, 32, kv=8), "layer_types: is missing"),
    (
        {"model_type": "mistral", "sliding_window": 4096, "layer_types": [SLIDING, FULL]} | shape(2, 4096, 32, kv=8),
        "layer_types: makes layer 1 causal, but mistral is read without such a list, and layer 1 is window",
    ),
    (
        LLAMA | {"sliding_window": 64, "layer_types": [SLIDING, FULL]},
        "layer_types: makes layer 0 window, but llama is read without such a list, and layer 0 is causal",
    ),
    (LLAMA | {"sliding_window": 64, "layer_types": [FULL, FULL]}, "sliding_window: is 64 and changes the mask"),
    ({"model_type": "bamba"} | shape(32, 4096, 32, kv=8), "attn_layer_indices: is missing"),
    ({"model_type": "nemotron_h"} | shape(52, 4096, 32, kv=8), "hybrid_override_pattern: is missing"),
    (
        {"model_type": "nemotron_h", "hybrid_override_pattern": "M*X"} | shape(3, 4096, 32, kv=8),
        "hybrid_override_pattern: must have a letter for each layer",
    ),
    (
        {"model_type": "nemotron_h", "hybrid_override_pattern": "M*"} | shape(3, 4096, 32, kv=8),
        "hybrid_override_pattern: has 2 letters for 3 layers",
    ),
    (
        {"model_type": "qwen3_next", "full_attention_interval": 8} | shape(4, 2048, 16, kv=2),
        "num_hidden_layers: is 4, and none of the layers has attention",
    ),
    ({"model_type": "baichuan"} | shape(40, 2048, 16), "hidden_size: is 2048; known are 4096 (7B, RoPE) and 5120"),
    ({"model_type": "gpt_neo", "num_layers": 3, "num_heads": 16, "hidden_size": 2048}, "attention_types: must be"),
    (
        {"model_type": "exaone4", "sliding_window": 4096, "sliding_window_pattern": "LXG"} | shape(4, 4096, 32, kv=8),
        "sliding_window_pattern: must be a number, or letters L (window) and G",
    ),
    ({"model_type": "mpt", "d_model": 64, "n_heads": 2, "n_layers": 1}, "attn_config: is missing"),
    (
        {"model_type": "mpt", "d_model": 64, "n_heads": 2, "n_layers": 1, "attn_config": {"prefix_lm": True}},
        "attn_config.prefix_lm: is true",
    ),
    (
        {"model_type": "mpt", "d_model": 64, "n_heads": 2, "n_layers": 1, "attn_config": {"sliding_window_size": [9]}},
        "attn_config.sliding_window_size: is",
    ),
    (
        {"model_type": "mpt", "d_model": 64, "n_heads": 2, "n_layers": 1, "attn_config": {"attn_type": "new"}},
        "attn_config.attn_type: is new, which is not read here",
    ),
    (
        {"model_type": "granitemoehybrid", "layer_types": ["attention"] * 2, "position_embedding_type": "alibi"}
        | shape(2, 4096, 32, kv=8),
        "position_embedding_type: is alibi, which is not read here",
    ),
    ({"model_type": "deepseek_v2", "use_mla": False} | shape(12, 1280, 10, kv=10), "use_mla: is false"),
    (
        {"model_type": "chatglm", "num_layers": 28, "position_encoding_2d": True} | shape(28, 4096, 32),
        "position_encoding_2d: is true: the first ChatGLM sees prompts in both directions",
    ),
    (
        {"model_type": "hf_olmo", "d_model": 512, "n_heads": 4, "n_layers": 2, "n_kv_heads": 2}
        | {"multi_query_attention": True},
        "n_kv_heads: is 2, but multi_query_attention is true, which is one KV head",
    ),
    (
        {"model_type": "new", "position_embedding_type": "absolute"} | shape(12, 768, 12),
        "position_embedding_type: is absolute, and this family is read with rotated queries and keys",
    ),
    ({"model_type": "nomic_bert", "causal": True} | shape(12, 768, 12), "causal: is true"),
    (LLAMA | {"num_hidden_layers": 2**31 - 1}, "num_hidden_layers: is 2147483647 layers; no more than 10000 are read"),
    (
        LLAMA | {"num_attention_heads": 2**31 - 1, "num_key_value_heads": 2**31 - 1, "head_dim": 128},
        "config.json:5:25: num_attention_heads: gives 2147483647 query heads; no more than 65536 are read. Check the",
    ),
    (LLAMA | {"head_dim": 65537}, "head_dim: gives 65537 elements of a head; no more than 65536 are read"),
    (
        LLAMA | {"hidden_size": 2**30, "head_dim": None},
        f"the config: gives {2**30 // LLAMA['num_attention_heads']} elements of a head; no more than 65536 are read",
    ),
    (
        {"model_type": "granite", "attention_multiplier": 10**400} | shape(2, 512, 8),
        "attention_multiplier: must be a number above 0",
    ),
    (
        {"model_type": "granite", "attention_multiplier": math.nan} | shape(2, 512, 8),
        "attention_multiplier: must be a number above 0, but is NaN",
    ),
    ({"model_type": "bert", "pruned_heads": {"1": [0, 3]}} | shape(2, 768, 12), "pruned_heads: is a mapping of 1"),
    (LLAMA | {"num_sink_tokens": 4}, "num_sink_tokens: is 4 and changes the denominator, but llama is read without it"),
    (
        {"model_type": "gemma3_text", "_sliding_window_pattern": 2} | shape(6, 2304, 8, kv=4),
        "_sliding_window_pattern: is 2 and changes the mask, but gemma3_text is read without it",
    ),
    (
        {"model_type": "mllama", "text_config": MLLAMA | {"sliding_window": 64}, "vision_config": TILES},
        "text_config.sliding_window: is 64 and changes the mask, but mllama_text_model is read without it",
    ),
    (
        {"model_type": "mllama", "text_config": MLLAMA | {"head_dim": 32}, "vision_config": TILES},
        "text_config.head_dim: is 32, but mllama_text_model is read without it, with 64 elements per head",
    ),
    (
        {"model_type": "mistral3", "text_config": {"model_type": "mistral"} | shape(2, 512, 8)}
        | {"vision_config": {"model_type": "pixtral", "head_dim": 80}},
        "vision_config.head_dim: is 80, but pixtral is read without it, with 64 elements per head",
    ),
    (
        LLAMA | {"architectures": ["LlamaBidirectionalModel"]},
        "architectures: holds LlamaBidirectionalModel, whose tokens all see each other, but llama is read as causal",
    ),
    (LLAMA | {"architectures": ["LlamaEncoderModel"]}, "architectures: holds LlamaEncoderModel, whose tokens all see"),
    (
        DEEPSEEK | {"rope_scaling": {"type": "yarn", "mscale_all_dim": 1.0}},
        "rope_scaling.factor: is missing. Add it",
    ),
    (
        DEEPSEEK | {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": KIMI_YARN},
        "rope_parameters: multiplies queries and keys by 1.34657 for the scale, but rope_scaling by 1; make them agree",
    ),
    (
        DEEPSEEK | {"architectures": ["DeepseekV32ForCausalLM"]},
        "architectures: holds DeepseekV32ForCausalLM, which is deepseek_v32, a model that chooses the keys or blocks",
    ),
    (
        {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": "28"} | shape(2, 512, 8),
        'max_window_layers: must be a whole number of at least 0, but is "28"',
    ),
]  # fmt: skip


@pytest.mark.parametrize(("config", "message"), REFUSED, ids=[message[:60] for _, message in REFUSED])
def test_what_cannot_be_said_is_refused(read: Any, config: dict[str, Any], message: str) -> None:
    """With the key, its value and the reason, at its place; never read as if it were not there."""
    with pytest.raises(CardError) as caught:
        read(config)
    assert message in str(caught.value)
    assert "config.json:" in str(caught.value)


SECOND_NAMES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"model_type": "gemma2", "sliding_window": 4096} | shape(4, 2048, 8, kv=4), {"sliding_window_size": 4096}),
    ({"model_type": "llama4_text"} | shape(8, 5120, 40, kv=8), {"nope_layer_interval": 4}),
    (
        {"model_type": "llama4_text", "no_rope_layers": [1, 1, 1, 0] * 2} | shape(8, 5120, 40, kv=8),
        {"nope_layer_interval": 4},
    ),
    (
        {"model_type": "smollm3", "no_rope_layers": [1, 1, 1, 0] * 2} | shape(8, 2048, 16, kv=4),
        {"no_rope_layer_interval": 4},
    ),
    ({"model_type": "gemma3n_text"} | shape(5, 2048, 8, kv=2), {"query_pre_attn_scalar": 256}),
    ({"model_type": "gemma3_text"} | shape(6, 2304, 8, kv=4), {"attn_logit_softcapping": 50.0}),
    ({"model_type": "mistral"} | shape(2, 4096, 32, kv=8), {"layer_types": [SLIDING, SLIDING]}),
    ({"model_type": "modernbert", "local_attention": 64} | shape(3, 768, 12), {"sliding_window": 32}),
    ({"model_type": "gemma3_text"} | shape(12, 2304, 8, kv=4), {"_sliding_window_pattern": 6}),
    (
        {"model_type": "gemma3_text", "layer_types": [SLIDING, FULL]} | shape(2, 2304, 8, kv=4),
        {"_sliding_window_pattern": 6},
    ),
]
"""configs, and what the publisher of such a model writes into it besides"""
SECOND_IDS = [
    "gemma2", "llama4", "llama4-listed", "smollm3", "gemma3n", "gemma3", "mistral", "modernbert", "_pattern",
    "_pattern-listed",
]  # fmt: skip


@pytest.mark.parametrize(("config", "more"), SECOND_NAMES, ids=SECOND_IDS)
def test_published_keys_that_agree_or_are_not_read(read: Any, config: dict[str, Any], more: dict[str, Any]) -> None:
    """Gemma 2 9B, the first Llama 4 Maverick, Gemma 3n: such a key is no reason to refuse the model."""
    assert read(config).card.groups == read(config | more).card.groups


@pytest.mark.parametrize(("config", "more"), SECOND_NAMES[:3], ids=SECOND_IDS[:3])
def test_a_second_name_with_another_number_is_refused(read: Any, config: dict[str, Any], more: dict[str, Any]) -> None:
    """It may be the one that an engine follows."""
    ((name, value),) = more.items()
    with pytest.raises(CardError, match=f"{name}: is {value + 1} and changes"):
        read(config | {name: value + 1})


@pytest.mark.parametrize(("config", "more"), SECOND_NAMES[4:6], ids=SECOND_IDS[4:6])
def test_a_key_that_the_family_does_not_read_is_said(read: Any, config: dict[str, Any], more: dict[str, Any]) -> None:
    """Gemma 3n has a scale of 1 and Gemma 3 no softcap, in transformers, vLLM and SGLang, whatever the keys say."""
    (name,) = more
    assert [("no-effect", name)] == [(each.kind, each.where) for each in read(config | more).findings]


HARMLESS: list[dict[str, Any]] = [
    {"sliding_window": None, "attn_logit_softcapping": None, "alibi": False, "layer_types": [FULL, FULL]},
    {"use_sliding_window": False, "sliding_window": 4096, "sliding_window_pattern": 4},
    {"position_embedding_type": "rope", "is_encoder_decoder": False, "add_cross_attention": False},
    {"use_mla": False, "kv_lora_rank": 512, "v_head_dim": 128, "qk_nope_head_dim": 128},
    {"kv_channels": 64, "num_kv_heads": 2, "head_size": None, "attention_head_size": 64, "kv_heads": 2},
    {"multi_query": False, "attention_head_type": "multihead"},
    {"pruned_heads": {}, "architectures": ["LlamaForCausalLM", "LlamaForCausalLMEagle3"]},
    {"architectures": None},
    {"architectures": "MistralModel"},
    {"attn_type_list": [1, 1], "mamba_d_state": None, "index_topk": 0, "no_rope_layers": []},
    {"sliding_window": -1, "is_causal": True, "scale_attn_weights": True, "topk_group": 4, "qk_layernorm": True},
]


@pytest.mark.parametrize("more", HARMLESS, ids=str)
def test_keys_that_are_switched_off_change_nothing(read: Any, more: dict[str, Any]) -> None:
    """Many configs hold such keys of another family with null or false."""
    assert read(LLAMA).card.groups == read(LLAMA | more).card.groups


def test_a_family_is_either_read_or_refused() -> None:
    """No model_type is both, and none is refused twice."""
    refused = [name for each in UNEXPRESSED for name in each.model_types]
    assert len(refused) == len(set(refused))
    assert not set(refused) & set(known_types())
