"""The attention backends of transformers and SGLang as data: names, kernel cards, and what is refused.

Those of vLLM are in :mod:`qualify.facts.vllm_backends`.

``python docs/check_engines.py`` compares every quote with the newest wheels on PyPI, and the families with the flags
of transformers' model classes.
"""

from __future__ import annotations

from qualify.facts.engines import (
    FP8,
    HALF,
    HALF_ON_FP8,
    ON_CACHE,
    Backend,
    CardFor,
    Engine,
    EngineName,
    Quote,
    Rule,
    Wider,
)
from qualify.facts.vllm_backends import VLLM

# SGLang ---------------------------------------------------------------------------------------------------------------
A = "sglang/srt/layers/attention"
S = f"{A}/attention_registry.py"


GEMMA4 = Rule(
    about="model_type",
    never=("gemma4", "gemma4_text"),
    says="Gemma4 only supports trtllm_mha, triton, fa4, ascend, intel_xpu, intel_amx, or aiter attention backend",
    quote=Quote(
        file="sglang/srt/arg_groups/model_hook.py",
        text='"Gemma4 only supports trtllm_mha, triton, fa4, ascend, intel_xpu, intel_amx, or " f"aiter attention',
    ),
)


def _sglang(name: str) -> Quote:
    return Quote(file=S, text=f'@register_attention_backend("{name}")')


SGLANG = Engine(
    name="sglang",
    title="SGLang",
    version="0.5.23",
    option="--attention-backend",
    wider=(
        Wider(
            model_types=("cohere2",),
            quote=Quote(
                file="sglang/srt/models/commandr.py", text="self.sliding_window_size = config.sliding_window else:"
            ),
        ),
        Wider(
            model_types=("cohere2_vision",),
            quote=Quote(
                file="sglang/srt/models/cohere2_moe.py",
                text="sliding_window if (self.is_sliding and sliding_window is not None) else -1",
            ),
        ),
        Wider(
            model_types=("cohere2", "cohere2_vision"),
            quote=Quote(
                file=f"{A}/flashattention_backend.py",
                text="(layer.sliding_window_size, 0 if causal else layer.sliding_window_size)",
            ),
        ),
    ),
    backends=(
        Backend(
            name="fa3",
            named=_sglang("fa3"),
            served=(
                CardFor(card="flash-attn-3", build="other", majors=(9,)),
                CardFor(card="flash-attn-3-fp8", build="other", majors=(9,), latent=False, dtypes=FP8),
            ),
            rules=(
                GEMMA4,
                Rule(
                    about="queries",
                    among=FP8,
                    says="SGLang casts the queries too where its cache is in fp8: ask for --dtype fp8_e4m3",
                    quote=Quote(file=f"{A}/flashattention_backend.py", text="q = q.to(self.kv_cache_dtype)"),
                ),
                Rule(
                    about="capability",
                    least=80,
                    most=99,
                    says="FlashAttention v3 Backend requires SM>=80 and SM<=90. "
                    "Please use `--attention-backend flashinfer`.",
                    quote=Quote(
                        file=S,
                        text='"FlashAttention v3 Backend requires SM>=80 and SM<=90. " '
                        '"Please use `--attention-backend flashinfer`."',
                    ),
                ),
            ),
            note="SGLang brings its own build in sglang-kernel; the card runs that of vLLM or flash-attn-3",
        ),
        Backend(
            name="flashinfer",
            named=_sglang("flashinfer"),
            served=(
                CardFor(card="flashinfer-fa2", majors=(8, 9), latent=False),
                CardFor(card="flashinfer-mla-fa3", majors=(9,), latent=True),
                CardFor(card="flashinfer-mla-fa2", majors=(8, 9), latent=True),
                CardFor(card="flashinfer-fa2-fp8kv", majors=(8, 9), latent=False, phases=ON_CACHE, dtypes=HALF_ON_FP8),
            ),
            rules=(
                GEMMA4,
                Rule(
                    about="model_type",
                    never=("cohere2", "cohere2_vision"),
                    says="SGLang plans no windows of this family with FlashInfer, so a decode sees every key; qualify "
                    "does not plan that",
                    quote=Quote(
                        file="sglang/srt/model_executor/model_runner_components/load_model_utils.py",
                        text="elif model_config.is_hybrid_swa and model_config.sliding_window_size is not None:",
                    ),
                ),
                Rule(
                    about="queries",
                    among=HALF,
                    says="SGLang leaves the queries in the model's dtype with FlashInfer: ask for "
                    "--dtype bf16_kv_fp8_e4m3",
                    quote=Quote(file=f"{A}/flashinfer_backend.py", text="self.q_data_type = model_runner.dtype"),
                ),
            ),
            note="SGLang asks FlashInfer for its fa2 kernels",
        ),
        Backend(
            name="flashmla",
            named=_sglang("flashmla"),
            served=(CardFor(card="flashmla", build="other", majors=(9,), latent=True),),
            phases=("decode", "verify"),
            note="SGLang brings its own build in sgl-flash-mla; the card runs that of vLLM",
        ),
        Backend(
            name="fa4",
            named=_sglang("fa4"),
            served=(CardFor(card="flash-attn-4"),),
        ),
        Backend(
            name="torch_native",
            named=_sglang("torch_native"),
            served=(
                CardFor(card="torch-sdpa"),
                CardFor(card="torch-cpu-flash", device="cpu"),
                CardFor(card="torch-cpu-math", device="cpu"),
            ),
            rules=(
                GEMMA4,
                Rule(
                    about="cache",
                    never=FP8,
                    says="SGLang casts the cache to the type of the queries before the kernel: ask for --dtype bf16",
                    quote=Quote(
                        file=f"{A}/torch_native_backend.py",
                        text="per_req_key = per_req_key.to(per_req_query.dtype)",
                    ),
                ),
            ),
            note="scaled_dot_product_attention, one sequence after the other; PyTorch chooses the kernel",
        ),
        Backend(
            name="flex_attention",
            named=_sglang("flex_attention"),
            served=(CardFor(card="flex-attention", build="other"),),
            rules=(
                GEMMA4,
                Rule(
                    about="windows",
                    most=0,
                    says="SGLang tells FlexAttention of no window, so each layer sees every key; qualify does not plan "
                    "that",
                    quote=Quote(
                        file=f"{A}/torch_flex_backend.py",
                        text="def _causal_mask(b, h, q_idx, kv_idx): return q_idx >= kv_idx",
                    ),
                ),
            ),
        ),
        Backend(
            name="triton",
            named=_sglang("triton"),
            note="SGLang's own Triton kernels",
        ),
        Backend(name="intel_amx", named=_sglang("intel_amx")),
    ),
)

# transformers ---------------------------------------------------------------------------------------------------------
M = "transformers/modeling_utils.py"
NO_SDPA = ("gemma2", "gpt_oss", "gpt_neo", "mpt")
NO_FLASH = ("llama4", "llama4_text", "mpt")
NO_FLEX = (
    *("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "qwen3_vl", "qwen3_vl_text"),
    *("glm4v", "glm4v_text", "olmoe", "stablelm", "gpt_neo", "mpt", "gpt2", "gpt_bigcode"),
    *("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
    *("jamba", "bamba", "falcon_h1", "falcon"),
)
FLASH_RULES = (
    Rule(about="model_type", never=NO_FLASH, says="the model class does not support Flash Attention yet"),
    Rule(
        about="dtype",
        among=HALF,
        says="Flash Attention only supports torch.float16 and torch.bfloat16 dtypes",
        quote=Quote(file=M, text="only supports torch.float16 and torch.bfloat16 dtypes, but"),
    ),
    Rule(
        about="model_type",
        never=("gpt_oss",),
        says="the model is compatible with other flash attention implementations, and transformers falls back to one",
        quote=Quote(file=M, text="This model is compatible with the following flash attention implementations:"),
    ),
)


def _transformers(name: str) -> Quote:
    return Quote(file=M, text=f'"{name}":')


TRANSFORMERS = Engine(
    name="transformers",
    title="transformers",
    version="5.24.0",
    option="attn_implementation",
    on_latent=False,
    backends=(
        Backend(
            name="sdpa",
            named=_transformers("sdpa"),
            served=(
                CardFor(card="torch-sdpa"),
                CardFor(card="torch-cpu-flash", device="cpu"),
                CardFor(card="torch-cpu-math", device="cpu"),
            ),
            rules=(
                Rule(
                    about="model_type",
                    never=NO_SDPA,
                    says="the model class does not support an attention implementation through "
                    "torch.nn.functional.scaled_dot_product_attention yet",
                ),
            ),
            note="PyTorch chooses the kernel: the answer names the one that ran",
        ),
        Backend(
            name="flash_attention_2",
            named=_transformers("flash_attention_2"),
            served=(CardFor(card="flash-attn-2"),),
            rules=FLASH_RULES,
            note="the model's code pads values that are shorter than keys (DeepSeek, Kimi); qualify does not",
        ),
        Backend(
            name="flash_attention_3",
            named=_transformers("flash_attention_3"),
            served=(CardFor(card="flash-attn-3", build="other", majors=(9,)),),
            rules=FLASH_RULES,
            note="the package flash-attn-3; the card prefers vLLM's build where both are installed",
        ),
        Backend(
            name="flash_attention_4",
            named=_transformers("flash_attention_4"),
            served=(CardFor(card="flash-attn-4"),),
            rules=FLASH_RULES,
        ),
        Backend(
            name="flex_attention",
            named=_transformers("flex_attention"),
            served=(CardFor(card="flex-attention"),),
            rules=(
                Rule(
                    about="model_type",
                    never=NO_FLEX,
                    says="the model class does not support an attention implementation through torch's flex_attention",
                ),
            ),
        ),
        Backend(
            name="eager",
            named=Quote(file=M, text='["eager"]'),
            note="plain matrix products in the model's own code",
        ),
    ),
)

ENGINES: tuple[Engine, ...] = (TRANSFORMERS, VLLM, SGLANG)


def engine_named(name: EngineName) -> Engine:
    """The engine of that name."""
    return next(engine for engine in ENGINES if engine.name == name)
