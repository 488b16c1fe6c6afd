"""The attention backends of transformers, vLLM and SGLang as data: names, kernel cards, and what is refused.

``python docs/check_engines.py`` compares every quote with the newest wheels on PyPI, and the families with the flags
of transformers' model classes.
"""

from __future__ import annotations

from qualify.facts.engines import Backend, CardFor, Engine, EngineName, Quote, Rule

HALF = ("bf16", "fp16")

# vLLM -----------------------------------------------------------------------------------------------------------------
V = "vllm/v1/attention/backends"
VLLM_MIXED = Quote(file="vllm/v1/attention/backend.py", text='invalid_reasons.append("MLA not supported")')
VLLM_ONLY = Quote(file="vllm/v1/attention/backend.py", text='invalid_reasons.append("non-MLA not supported")')
VLLM_DTYPE = Quote(file="vllm/v1/attention/backend.py", text='invalid_reasons.append("dtype not supported")')
NO_LATENT = Rule(about="latent", most=0, says="MLA not supported", quote=VLLM_MIXED)
ONLY_LATENT = Rule(about="latent", least=1, says="non-MLA not supported", quote=VLLM_ONLY)
DTYPE = Rule(about="dtype", among=HALF, says="dtype not supported", quote=VLLM_DTYPE)


def _vllm(name: str, place: str) -> Quote:
    return Quote(file=f"{V}/registry.py", text=f"{name} = {place}")


VLLM = Engine(
    name="vllm",
    title="vLLM",
    version="0.33.0",
    option="--attention-backend",
    backends=(
        Backend(
            name="FLASH_ATTN",
            named=_vllm("FLASH_ATTN", '"vllm.v1.attention.backends.flash_attn.FlashAttentionBackend"'),
            served=(
                CardFor(card="flash-attn-3", majors=(9,)),
                CardFor(card="vllm-flash-attn-2", majors=(8,)),
            ),
            rules=(
                Rule(
                    about="capability",
                    least=80,
                    says="compute capability not supported",
                    quote=Quote(file=f"{V}/flash_attn.py", text="return capability >= DeviceCapability(8, 0)"),
                ),
                Rule(
                    about="head_dim",
                    multiple_of=8,
                    says="head_size not supported",
                    quote=Quote(file=f"{V}/flash_attn.py", text="if head_size % 8 != 0: return False"),
                ),
                Rule(
                    about="head_dim",
                    most=512,
                    says="head_size not supported",
                    quote=Quote(
                        file=f"{V}/flash_attn.py",
                        text="if is_fa_version_supported(4): return head_size <= 512",
                    ),
                ),
                Rule(
                    about="capability",
                    least=90,
                    with_sinks=True,
                    says="sink not supported on compute capability < 9.0",
                    quote=Quote(
                        file=f"{V}/flash_attn.py", text='return "sink not supported on compute capability < 9.0"'
                    ),
                ),
                DTYPE,
                NO_LATENT,
            ),
            note="FlashAttention-3 on Hopper, FlashAttention-2 on Ampere and Ada",
        ),
        Backend(
            name="FLASHINFER",
            named=_vllm("FLASHINFER", '"vllm.v1.attention.backends.flashinfer.FlashInferBackend"'),
            served=(
                CardFor(card="flashinfer-fa3", majors=(9,)),
                CardFor(card="flashinfer-fa2", majors=(8, 9)),
            ),
            rules=(
                Rule(
                    about="capability",
                    least=80,
                    most=121,
                    says="compute capability not supported",
                    quote=Quote(
                        file=f"{V}/flashinfer.py",
                        text="return capability >= DeviceCapability(8, 0) and capability <= DeviceCapability( 12, 1 )",
                    ),
                ),
                Rule(
                    about="head_dim",
                    among=(64, 128, 256, 512),
                    says="head_size not supported",
                    quote=Quote(file=f"{V}/flashinfer.py", text="return [64, 128, 256, 512]"),
                ),
                DTYPE,
                NO_LATENT,
            ),
            note="FlashInfer chooses between its fa2 and fa3 kernels itself on Hopper, so both are checked",
        ),
        Backend(
            name="TRITON_ATTN",
            named=_vllm("TRITON_ATTN", '"vllm.v1.attention.backends.triton_attn.TritonAttentionBackend"'),
            served=(CardFor(card="vllm-triton"),),
            rules=(
                Rule(
                    about="head_dim",
                    least=32,
                    says="head_size not supported",
                    quote=Quote(file=f"{V}/triton_attn.py", text="return head_size >= 32"),
                ),
                Rule(about="dtype", among=(*HALF, "fp32"), says="dtype not supported", quote=VLLM_DTYPE),
                NO_LATENT,
            ),
        ),
        Backend(
            name="FLEX_ATTENTION",
            named=_vllm("FLEX_ATTENTION", '"vllm.v1.attention.backends.flex_attention.FlexAttentionBackend"'),
            served=(CardFor(card="flex-attention", build="other"),),
            rules=(
                Rule(
                    about="sinks",
                    most=0,
                    says="attention sinks not supported",
                    quote=Quote(
                        file="vllm/v1/attention/backend.py",
                        text="if has_sink and not cls.supports_sink(): "
                        'invalid_reasons.append("attention sinks not supported")',
                    ),
                ),
                Rule(about="dtype", among=(*HALF, "fp32"), says="dtype not supported", quote=VLLM_DTYPE),
                NO_LATENT,
            ),
            note="the card compiles torch's FlexAttention as a model does; vLLM wraps it for its paged cache",
        ),
        Backend(
            name="FLASHMLA",
            named=_vllm("FLASHMLA", '"vllm.v1.attention.backends.mla.flashmla.FlashMLABackend"'),
            served=(CardFor(card="flashmla", majors=(9,), latent=True),),
            rules=(
                Rule(
                    about="capability",
                    least=90,
                    most=109,
                    says="compute capability not supported",
                    quote=Quote(file=f"{V}/mla/flashmla.py", text="return capability.major in [9, 10]"),
                ),
                DTYPE,
                ONLY_LATENT,
            ),
            phases=("decode", "verify"),
            note="decode of latent attention (DeepSeek, Kimi); prompts go through another backend",
        ),
        Backend(
            name="FLASH_ATTN_MLA",
            named=_vllm("FLASH_ATTN_MLA", '"vllm.v1.attention.backends.mla.flashattn_mla.FlashAttnMLABackend"'),
        ),
        Backend(
            name="TRITON_MLA",
            named=_vllm("TRITON_MLA", '"vllm.v1.attention.backends.mla.triton_mla.TritonMLABackend"'),
        ),
        Backend(name="CPU_ATTN", named=_vllm("CPU_ATTN", '"vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend"')),
    ),
)

# SGLang ---------------------------------------------------------------------------------------------------------------
S = "sglang/srt/layers/attention/attention_registry.py"


def _sglang(name: str) -> Quote:
    return Quote(file=S, text=f'@register_attention_backend("{name}")')


SGLANG = Engine(
    name="sglang",
    title="SGLang",
    version="0.5.23",
    option="--attention-backend",
    backends=(
        Backend(
            name="fa3",
            named=_sglang("fa3"),
            served=(CardFor(card="flash-attn-3", build="other", majors=(9,)),),
            rules=(
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
            note="scaled_dot_product_attention, one sequence after the other; PyTorch chooses the kernel",
        ),
        Backend(
            name="flex_attention",
            named=_sglang("flex_attention"),
            served=(CardFor(card="flex-attention", build="other"),),
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
