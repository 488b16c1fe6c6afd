"""Every family: a config as its publisher writes it, against the geometry worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hand import PROMPT, WHOLE, Row, expect, facts, shape

from qualify.cards.config.families import FAMILIES
from qualify.cards.config.wrappers import WRAPPERS
from qualify.errors import CardError

TOKENS = ("decode", "verify")
YARN = {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096}
MLA = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
DEEPSEEK_SCALE = 192**-0.5 * (0.1 * math.log(40) + 1) ** 2
QWEN_VISION = {"depth": 32, "num_heads": 16, "hidden_size": 1280, "patch_size": 14}
GEMMA_VISION = {"model_type": "siglip_vision_model"} | shape(27, 1152, 16, image_size=896, patch_size=14)

CONFIGS: list[Row] = [
    ("Llama 2 7B", {"model_type": "llama"} | shape(32, 4096, 32), [expect(range(32), (32, 32), 128, "causal")]),
    ("Llama 2 70B", {"model_type": "llama"} | shape(80, 8192, 64, kv=8), [expect(range(80), (64, 8), 128, "causal")]),
    (
        "Llama 3.2 1B",
        {"model_type": "llama", "head_dim": 64} | shape(16, 2048, 32, kv=8),
        [expect(range(16), (32, 8), 64, "causal")],
    ),
    (
        "Llama 4 Scout",
        {
            "model_type": "llama4",
            "text_config": {"model_type": "llama4_text", "attention_chunk_size": 8192, "head_dim": 128}
            | {"no_rope_layers": []}
            | shape(48, 5120, 40, kv=8),
            "vision_config": {"model_type": "llama4_vision_model"} | shape(34, 1408, 16),
        },
        [
            expect([i for i in range(48) if i % 4 != 3], (40, 8), 128, "chunked", chunk=8192),
            expect(range(3, 48, 4), (40, 8), 128, "causal", positions="none"),
            expect(range(34), (16, 16), 88, "full", stack="vision", phases=WHOLE),
        ],
    ),
    (
        "Llama 4 with a list of its own",
        {"model_type": "llama4_text", "attention_chunk_size": 64, "no_rope_layers": [1, 0, 0]}
        | shape(3, 5120, 40, kv=8),
        [
            expect([0], (40, 8), 128, "chunked", chunk=64),
            expect([1, 2], (40, 8), 128, "causal", positions="none"),
        ],
    ),
    (
        "Mistral 7B v0.1",
        {"model_type": "mistral", "sliding_window": 4096} | shape(32, 4096, 32, kv=8),
        [expect(range(32), (32, 8), 128, "window", window=4096)],
    ),
    (
        "Mistral 7B v0.3",
        {"model_type": "mistral", "sliding_window": None} | shape(32, 4096, 32, kv=8),
        [expect(range(32), (32, 8), 128, "causal")],
    ),
    (
        "Mistral Nemo, whose head_dim is not hidden / heads",
        {"model_type": "mistral", "sliding_window": None, "head_dim": 128} | shape(40, 5120, 32, kv=8),
        [expect(range(40), (32, 8), 128, "causal")],
    ),
    (
        "Mistral Small 3.1",
        {
            "model_type": "mistral3",
            "text_config": {"model_type": "mistral", "sliding_window": None, "head_dim": 128}
            | shape(40, 5120, 32, kv=8),
            "vision_config": {"model_type": "pixtral", "head_dim": 64} | shape(24, 1024, 16),
        },
        [
            expect(range(40), (32, 8), 128, "causal"),
            expect(range(24), (16, 16), 64, "full", stack="vision", phases=WHOLE),
        ],
    ),
    (
        "Pixtral 12B, which leaves out what is its classes' default",
        {
            "model_type": "llava",
            "text_config": {"model_type": "mistral", "head_dim": 128, "hidden_size": 5120, "num_hidden_layers": 40}
            | {"num_key_value_heads": 8, "sliding_window": None},
            "vision_config": {"model_type": "pixtral", "head_dim": 64, "image_size": 1024, "patch_size": 16},
        },
        [
            expect(range(40), (32, 8), 128, "causal"),
            expect(range(24), (16, 16), 64, "full", stack="vision", phases=WHOLE),
        ],
    ),
    (
        "LLaVA 1.5 7B, likewise",
        {
            "model_type": "llava",
            "text_config": {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064},
            "vision_config": {"model_type": "clip_vision_model"} | shape(24, 1024, 16),
        },
        [
            expect(range(32), (32, 32), 128, "causal"),
            expect(range(24), (16, 16), 64, "full", positions="none", stack="vision", phases=WHOLE),
        ],
    ),
    (
        "LLaVA 1.6 with Mistral 7B, likewise",
        {
            "model_type": "llava_next",
            "text_config": {"model_type": "mistral", "num_key_value_heads": 8, "sliding_window": None},
        },
        [expect(range(32), (32, 8), 128, "causal")],
    ),
    (
        "LLaVA-NeXT with Granite 2B, likewise",
        {
            "model_type": "llava_next",
            "text_config": {"model_type": "granite", "attention_multiplier": 0.015625, "hidden_size": 2048}
            | {"num_hidden_layers": 40, "num_key_value_heads": 8},
        },
        [expect(range(40), (32, 8), 64, "causal", scale=1 / 64)],
    ),
    (
        "Idefics 3 with SmolLM2 1.7B, likewise",
        {
            "model_type": "idefics3",
            "text_config": {"model_type": "llama", "head_dim": 64, "hidden_size": 2048, "num_hidden_layers": 24},
        },
        [expect(range(24), (32, 32), 64, "causal")],
    ),
    (
        "Aya Vision, likewise",
        {
            "model_type": "aya_vision",
            "text_config": {"model_type": "cohere2", "num_key_value_heads": 8, "sliding_window": 4096},
        },
        [
            expect([i for i in range(40) if i % 4 != 3], (64, 8), 128, "window", window=4096),
            expect(range(3, 40, 4), (64, 8), 128, "causal", positions="none"),
        ],
    ),
    (
        "Mixtral 8x7B",
        {"model_type": "mixtral", "sliding_window": None} | shape(32, 4096, 32, kv=8),
        [expect(range(32), (32, 8), 128, "causal")],
    ),
    (
        "Qwen2.5 7B, whose window is switched off",
        {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 131072, "max_window_layers": 28}
        | shape(28, 3584, 28, kv=4),
        [expect(range(28), (28, 4), 128, "causal")],
    ),
    (
        "Qwen2 with its window switched on",
        {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 21}
        | shape(28, 3584, 28, kv=4),
        [expect(range(21), (28, 4), 128, "causal"), expect(range(21, 28), (28, 4), 128, "window", window=4096)],
    ),
    (
        "Qwen2 with layer_types",
        {"model_type": "qwen2", "sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"]}
        | {"use_sliding_window": True}
        | shape(2, 128, 2, kv=1),
        [expect([0], (2, 1), 64, "causal"), expect([1], (2, 1), 64, "window", window=8)],
    ),
    (
        "Qwen1.5-MoE",
        {"model_type": "qwen2_moe", "use_sliding_window": False, "sliding_window": 32768, "max_window_layers": 21}
        | shape(24, 2048, 16, kv=16),
        [expect(range(24), (16, 16), 128, "causal")],
    ),
    (
        "Qwen3 0.6B, whose head_dim is not hidden / heads",
        {"model_type": "qwen3", "head_dim": 128, "sliding_window": None} | shape(28, 1024, 16, kv=8),
        [expect(range(28), (16, 8), 128, "causal")],
    ),
    (
        "Qwen3 30B-A3B",
        {"model_type": "qwen3_moe", "head_dim": 128, "sliding_window": None} | shape(48, 2048, 32, kv=4),
        [expect(range(48), (32, 4), 128, "causal")],
    ),
    (
        "Qwen2-VL 7B, with the text model's keys at the top",
        {
            "model_type": "qwen2_vl",
            "use_sliding_window": False,
            "vision_config": {"depth": 32, "embed_dim": 1280, "num_heads": 16, "hidden_size": 3584},
        }
        | shape(28, 3584, 28, kv=4),
        [
            expect(range(28), (28, 4), 128, "causal", positions="mrope"),
            expect(range(32), (16, 16), 80, "full", stack="vision", phases=WHOLE),
        ],
    ),
    (
        "Qwen2.5-VL 7B, nested",
        {
            "model_type": "qwen2_5_vl",
            "text_config": {"model_type": "qwen2_5_vl_text"} | shape(28, 3584, 28, kv=4),
            "vision_config": {"model_type": "qwen2_5_vl"} | QWEN_VISION,
        },
        [
            expect(range(28), (28, 4), 128, "causal", positions="mrope"),
            expect(range(32), (16, 16), 80, "full", stack="vision", phases=WHOLE),
        ],
    ),
    (
        "Qwen2-VL 2B as transformers 4.46 saves it",
        {
            "model_type": "qwen2_vl",
            "vision_config": {"model_type": "qwen2_vl", "hidden_size": 1536, "in_chans": 3, "spatial_patch_size": 14},
        }
        | shape(28, 1536, 12, kv=2),
        [
            expect(range(28), (12, 2), 128, "causal", positions="mrope"),
            expect(range(32), (16, 16), 80, "full", stack="vision", phases=WHOLE),
        ],
    ),
    (
        "Qwen2.5-VL 3B, likewise",
        {
            "model_type": "qwen2_5_vl",
            "vision_config": {"model_type": "qwen2_5_vl", "hidden_size": 1280, "out_hidden_size": 2048},
        }
        | shape(36, 2048, 16, kv=2),
        [
            expect(range(36), (16, 2), 128, "causal", positions="mrope"),
            expect(range(32), (16, 16), 80, "full", stack="vision", phases=WHOLE),
        ],
    ),
    (
        "GLM-4.5V as transformers 4.57 saves it",
        {"model_type": "glm4v_moe", "text_config": {"model_type": "Glm4vMoe_text"} | shape(46, 4096, 32, kv=8)},
        [expect(range(46), (32, 8), 128, "causal", positions="mrope")],
    ),
    (
        "Qwen3-VL 8B",
        {
            "model_type": "qwen3_vl",
            "text_config": {"model_type": "qwen3_vl_text", "head_dim": 128} | shape(36, 4096, 32, kv=8),
            "vision_config": {"model_type": "qwen3_vl", "depth": 27, "num_heads": 16, "hidden_size": 1152},
        },
        [
            expect(range(36), (32, 8), 128, "causal", positions="mrope"),
            expect(range(27), (16, 16), 72, "full", stack="vision", phases=WHOLE),
        ],
    ),
    (
        "Gemma 2B (MQA)",
        {"model_type": "gemma", "head_dim": 256} | shape(18, 2048, 8, kv=1),
        [expect(range(18), (8, 1), 256, "causal")],
    ),
    (
        "Gemma 2 27B",
        {"model_type": "gemma2", "head_dim": 128, "query_pre_attn_scalar": 144, "sliding_window": 4096}
        | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
        | shape(46, 4608, 32, kv=16),
        [
            expect(range(0, 46, 2), (32, 16), 128, "window", window=4096, softcap=50.0, scale=1 / 12),
            expect(range(1, 46, 2), (32, 16), 128, "causal", softcap=50.0, scale=1 / 12),
        ],
    ),
    (
        "Gemma 3 1B",
        {"model_type": "gemma3_text", "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 512}
        | {"sliding_window_pattern": 6, "attn_logit_softcapping": None}
        | shape(26, 1152, 4, kv=1),
        [
            expect([i for i in range(26) if i % 6 != 5], (4, 1), 256, "window", window=512, scale=1 / 16),
            expect([5, 11, 17, 23], (4, 1), 256, "causal", scale=1 / 16),
        ],
    ),
    (
        "Gemma 3 27B, with images",
        {
            "model_type": "gemma3",
            "mm_tokens_per_image": 256,
            "text_config": {"model_type": "gemma3_text", "head_dim": 128, "query_pre_attn_scalar": 168}
            | {"sliding_window": 1024}
            | shape(62, 5376, 32, kv=16),
            "vision_config": GEMMA_VISION,
        },
        [
            expect(
                [i for i in range(62) if i % 6 != 5], (32, 16), 128, "window",
                window=1024, image_tokens=256, scale=168**-0.5,
            ),
            expect(range(5, 62, 6), (32, 16), 128, "causal", image_tokens=256, scale=168**-0.5),
            expect(range(27), (16, 16), 72, "full", stack="vision", phases=WHOLE, positions="none"),
        ],
    ),
    (
        "Gemma 3 4B, whose config leaves the heads out",
        {
            "model_type": "gemma3",
            "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34}
            | {"sliding_window": 1024},
            "vision_config": GEMMA_VISION,
        },
        [
            expect(
                [i for i in range(34) if i % 6 != 5], (8, 4), 256, "window",
                window=1024, image_tokens=256, scale=1 / 16,
            ),
            expect([5, 11, 17, 23, 29], (8, 4), 256, "causal", image_tokens=256, scale=1 / 16),
            expect(range(27), (16, 16), 72, "full", stack="vision", phases=WHOLE, positions="none"),
        ],
    ),
    (
        "EmbeddingGemma: 256 keys on each side",
        {"model_type": "gemma3_text", "use_bidirectional_attention": True, "sliding_window": 512, "head_dim": 256}
        | {"query_pre_attn_scalar": 256}
        | shape(24, 768, 3, kv=1),
        [
            expect([i for i in range(24) if i % 6 != 5], (3, 1), 256, "band", window=513, scale=1 / 16, phases=WHOLE),
            expect([5, 11, 17, 23], (3, 1), 256, "full", scale=1 / 16, phases=WHOLE),
        ],
    ),
    ("Phi-2", {"model_type": "phi"} | shape(32, 2560, 32, kv=32), [expect(range(32), (32, 32), 80, "causal")]),
    (
        "Phi-3 mini 4k",
        {"model_type": "phi3", "sliding_window": 2047} | shape(32, 3072, 32, kv=32),
        [expect(range(32), (32, 32), 96, "window", window=2047)],
    ),
    (
        "Phi-4",
        {"model_type": "phi3", "sliding_window": None} | shape(40, 5120, 40, kv=10),
        [expect(range(40), (40, 10), 128, "causal")],
    ),
    (
        "gpt-oss 20B",
        {"model_type": "gpt_oss", "head_dim": 64, "sliding_window": 128}
        | {"layer_types": ["sliding_attention", "full_attention"] * 12}
        | shape(24, 2880, 64, kv=8),
        [
            expect(range(0, 24, 2), (64, 8), 64, "window", window=128, sinks=True),
            expect(range(1, 24, 2), (64, 8), 64, "causal", sinks=True),
        ],
    ),
    (
        "DeepSeek V3",
        {"model_type": "deepseek_v3", "num_hidden_layers": 61, "num_attention_heads": 128, "rope_scaling": YARN} | MLA,
        [
            expect(range(61), (128, 128), 192, "causal", dim_v=128, scale=DEEPSEEK_SCALE, phases=PROMPT),
            expect(range(61), (128, 1), 576, "causal", dim_v=512, scale=DEEPSEEK_SCALE, phases=TOKENS, latent=True),
        ],
    ),
    (
        "DeepSeek V2 Lite without a change of the scale",
        {"model_type": "deepseek_v2", "num_hidden_layers": 27, "num_attention_heads": 16, "rope_scaling": None} | MLA,
        [
            expect(range(27), (16, 16), 192, "causal", dim_v=128, phases=PROMPT),
            expect(range(27), (16, 1), 576, "causal", dim_v=512, scale=192**-0.5, phases=TOKENS, latent=True),
        ],
    ),
    (
        "GLM-4 9B 0414",
        {"model_type": "glm4", "head_dim": 128} | shape(40, 4096, 32, kv=2),
        [expect(range(40), (32, 2), 128, "causal")],
    ),
    (
        "GLM-4 9B in its first format",
        {"model_type": "chatglm", "num_layers": 40, "num_attention_heads": 32, "kv_channels": 128}
        | {"multi_query_attention": True, "multi_query_group_num": 2, "hidden_size": 4096},
        [expect(range(40), (32, 2), 128, "causal")],
    ),
    (
        "Granite 3.1 8B",
        {"model_type": "granite", "attention_multiplier": 0.0078125} | shape(40, 4096, 32, kv=8),
        [expect(range(40), (32, 8), 128, "causal", scale=1 / 128)],
    ),
    (
        "Command R",
        {"model_type": "cohere"} | shape(40, 8192, 64, kv=64),
        [expect(range(40), (64, 64), 128, "causal")],
    ),
    (
        "Command R7B",
        {"model_type": "cohere2", "sliding_window": 4096, "sliding_window_pattern": 4, "head_dim": 128}
        | shape(32, 4096, 32, kv=8),
        [
            expect([i for i in range(32) if i % 4 != 3], (32, 8), 128, "window", window=4096),
            expect(range(3, 32, 4), (32, 8), 128, "causal", positions="none"),
        ],
    ),
    ("OLMo 7B", {"model_type": "olmo"} | shape(32, 4096, 32, kv=32), [expect(range(32), (32, 32), 128, "causal")]),
    ("OLMo 2 13B", {"model_type": "olmo2"} | shape(40, 5120, 40, kv=40), [expect(range(40), (40, 40), 128, "causal")]),
    (
        "OLMo 3 7B",
        {"model_type": "olmo3", "sliding_window": 4096} | shape(32, 4096, 32, kv=32),
        [
            expect([i for i in range(32) if i % 4 != 3], (32, 32), 128, "window", window=4096),
            expect(range(3, 32, 4), (32, 32), 128, "causal"),
        ],
    ),
    (
        "Falcon 7B (MQA, 71 heads)",
        {"model_type": "falcon", "multi_query": True, "new_decoder_architecture": False, "alibi": False}
        | shape(32, 4544, 71),
        [expect(range(32), (71, 1), 64, "causal")],
    ),
    (
        "Falcon 40B in its first format",
        {"model_type": "RefinedWeb", "n_layer": 60, "n_head": 128, "n_head_kv": 8, "hidden_size": 8192},
        [expect(range(60), (128, 8), 64, "causal")],
    ),
    (
        "Falcon 40B",
        {"model_type": "falcon", "num_kv_heads": 8, "multi_query": True, "new_decoder_architecture": True}
        | shape(60, 8192, 128),
        [expect(range(60), (128, 8), 64, "causal")],
    ),
    (
        "Falcon RW 1B: neither, and ALiBi",
        {"model_type": "falcon", "multi_query": False, "new_decoder_architecture": False, "alibi": True}
        | shape(24, 2048, 32),
        [expect(range(24), (32, 32), 64, "causal", positions="alibi")],
    ),
    (
        "StarCoder2 7B",
        {"model_type": "starcoder2", "sliding_window": 4096} | shape(32, 4608, 36, kv=4),
        [expect(range(32), (36, 4), 128, "window", window=4096)],
    ),
    (
        "StarCoder",
        {"model_type": "gpt_bigcode", "n_layer": 40, "n_head": 48, "n_embd": 6144, "multi_query": True},
        [expect(range(40), (48, 1), 128, "causal", positions="none")],
    ),
    (
        "SantaCoder, saved as GPT-2",
        {"model_type": "gpt2", "n_layer": 24, "n_head": 16, "n_embd": 2048, "attention_head_type": "multiquery"},
        [expect(range(24), (16, 1), 128, "causal", positions="none")],
    ),
    (
        "GPT-NeoX 20B",
        {"model_type": "gpt_neox"} | shape(44, 6144, 64),
        [expect(range(44), (64, 64), 96, "causal")],
    ),
    (
        "SmolLM3 3B",
        {"model_type": "smollm3", "no_rope_layer_interval": 4, "use_sliding_window": False} | shape(36, 2048, 16, kv=4),
        [
            expect([i for i in range(36) if i % 4 != 3], (16, 4), 128, "causal"),
            expect(range(3, 36, 4), (16, 4), 128, "causal", positions="none"),
        ],
    ),
    (
        "BERT base",
        {"model_type": "bert", "position_embedding_type": "absolute"} | shape(12, 768, 12),
        [expect(range(12), (12, 12), 64, "full", positions="none", phases=WHOLE)],
    ),
    (
        "BERT as a decoder",
        {"model_type": "bert", "is_decoder": True} | shape(12, 768, 12),
        [expect(range(12), (12, 12), 64, "causal", positions="none")],
    ),
    (
        "DistilBERT",
        {"model_type": "distilbert", "n_layers": 6, "n_heads": 12, "dim": 768},
        [expect(range(6), (12, 12), 64, "full", positions="none", phases=WHOLE)],
    ),
    (
        "ModernBERT base: 64 keys on each side",
        {"model_type": "modernbert", "local_attention": 128, "global_attn_every_n_layers": 3} | shape(22, 768, 12),
        [
            expect(range(0, 22, 3), (12, 12), 64, "full", phases=WHOLE),
            expect([i for i in range(22) if i % 3], (12, 12), 64, "band", window=129, phases=WHOLE),
        ],
    ),
    (
        "Whisper large v3",
        {"model_type": "whisper", "d_model": 1280, "encoder_layers": 32, "decoder_layers": 32}
        | {"encoder_attention_heads": 20, "decoder_attention_heads": 20, "max_source_positions": 1500},
        [
            expect(range(32), (20, 20), 64, "causal", positions="none"),
            expect(range(32), (20, 20), 64, "cross", positions="none", cross_keys=1500),
            expect(range(32), (20, 20), 64, "full", positions="none", stack="encoder", phases=WHOLE),
        ],
    ),
    (
        "Llama 3.2 11B Vision: 4 tiles of 40 x 40 patches and a class token",
        {
            "model_type": "mllama",
            "text_config": {"model_type": "mllama_text_model", "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38]}
            | shape(40, 4096, 32, kv=8),
            "vision_config": {"model_type": "mllama_vision_model", "attention_heads": 16, "hidden_size": 1280}
            | {"num_hidden_layers": 32, "num_global_layers": 8, "image_size": 560, "patch_size": 14}
            | {"max_num_tiles": 4},
        },
        [
            expect([i for i in range(40) if i % 5 != 3], (32, 8), 128, "causal"),
            expect(range(3, 40, 5), (32, 8), 128, "cross", positions="none", cross_keys=6404),
            expect(range(40), (16, 16), 80, "full", positions="none", stack="vision", phases=WHOLE),
        ],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("config", "groups"), [row[1:] for row in CONFIGS], ids=[row[0] for row in CONFIGS])
def test_family(read: Any, config: dict[str, Any], groups: list[dict[str, Any]]) -> None:
    """Layers, heads, dimensions, masks, scales and positions."""
    found = [facts(group) for group in read(config).card.groups]
    for one, other in zip(groups, found, strict=True):
        assert one | {"scale": pytest.approx(one["scale"], rel=1e-12)} == other


OWN_KV_HEADS = [
    ("llama", 32, 32), ("phi3", 32, 32), ("granite", 32, 32), ("cohere", 32, 32), ("olmo2", 32, 32), ("phi", 32, 32),
    ("mistral", 32, 8), ("ministral", 32, 8), ("ministral3", 32, 8), ("mixtral", 32, 8), ("phimoe", 32, 8),
    ("phi4_multimodal", 24, 8), ("starcoder2", 24, 2), ("qwen2", 64, 32), ("qwen3", 64, 32), ("qwen2_moe", 16, 16),
    ("qwen3_moe", 32, 4), ("qwen2_vl_text", 64, 8), ("qwen2_5_vl_text", 64, 8), ("qwen3_vl_text", 64, 32),
    ("qwen3_vl_moe_text", 16, 16), ("gemma", 16, 16), ("gemma2", 8, 4), ("gemma3_text", 8, 4), ("gemma3n_text", 8, 2),
    ("gpt_oss", 64, 8), ("glm", 32, 2), ("glm4", 32, 2), ("glm4_moe", 96, 8), ("glm4v_text", 32, 2),
    ("glm4v_moe_text", 96, 8), ("llama4_text", 40, 8), ("smollm3", 16, 4), ("exaone4", 32, 32), ("qwen3_next", 16, 2),
    ("qwen3_5_text", 16, 4), ("qwen3_5_moe_text", 16, 2), ("jamba", 32, 8), ("falcon_h1", 32, 8), ("stablelm", 32, 32),
    ("internlm3", 32, 2), ("ernie4_5", 16, 2), ("ernie4_5_moe", 20, 4), ("seed_oss", 80, 8), ("minimax_m2", 48, 8),
]  # fmt: skip


@pytest.mark.parametrize(("model_type", "heads", "heads_kv"), OWN_KV_HEADS, ids=[row[0] for row in OWN_KV_HEADS])
def test_kv_heads_that_are_left_out(read: Any, model_type: str, heads: int, heads_kv: int) -> None:
    """The number is that of the class in transformers, where it has one; with null, that of the query heads."""
    config = {"model_type": model_type} | shape(8, 128 * heads, heads)
    assert {(heads, heads_kv)} == {(each.heads_q, each.heads_kv) for each in read(config).card.groups}
    config["num_key_value_heads"] = None
    assert {(heads, heads)} == {(each.heads_q, each.heads_kv) for each in read(config).card.groups}


def test_kv_heads_that_are_left_out_and_do_not_divide(read: Any) -> None:
    """Qwen2 has 32 unless told otherwise, which is no number for 28 query heads; it is not guessed."""
    with pytest.raises(CardError) as caught:
        read({"model_type": "qwen2"} | shape(28, 3584, 28))
    own = "the family's own default is 32, which does not divide 28 query heads; write the one meant"
    assert str(caught.value).endswith(f"num_key_value_heads: is missing: {own}")


@pytest.mark.parametrize("model_type", ["ministral3", "minimax_m2"])
def test_a_head_dim_that_is_left_out(read: Any, model_type: str) -> None:
    """These two have 128, whatever hidden / heads is."""
    assert {128} == {each.head_dim for each in read({"model_type": model_type} | shape(2, 1024, 16)).card.groups}


def test_families_are_named_once_and_described() -> None:
    """No model_type belongs to two families, and each family says what decides about its mask."""
    every = [name for each in (*FAMILIES, *WRAPPERS) for name in each.model_types]
    assert len(every) == len(set(every))
    assert all(each.title and each.convention for each in (*FAMILIES, *WRAPPERS))
