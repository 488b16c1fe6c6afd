"""Models of several parts, as data: where each has its text model, and what its images or prompts see."""

from __future__ import annotations

from dataclasses import dataclass

from qualify.cards.model import LayerMask


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
    """tokens of an image where the config has no number"""
    image_masks: tuple[LayerMask, ...] = ("causal", "window")
    """masks under which the tokens of an image see each other"""
    image_key: str = ""
    """key of the text model that must be ``vision`` for this; empty = the tokens of an image always see each other"""
    left_out: bool = False
    """whether published configs leave out those counts that equal the default of the text model's own class"""
    convention: str = "that of the text model"


LLAMA_7B = {"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096}
CLASS_DEFAULTS = {
    **dict.fromkeys(("llama", "mistral", "granite", "qwen2"), LLAMA_7B),
    "cohere2": {"num_hidden_layers": 40, "num_attention_heads": 64, "hidden_size": 8192},
}
"""Counts of LlamaConfig and the like (transformers 5.23), which a saved ``text_config`` need not repeat.

transformers leaves out what a nested config has in common with the defaults; llava-hf's 7B models have no counts.
"""
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
