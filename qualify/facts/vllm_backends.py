"""The attention backends of vLLM as data: names, kernel cards, and what is refused."""

from __future__ import annotations

from qualify.facts.engines import HALF, Backend, CardFor, Engine, PerHead, Quote, Rule, Wider

V = "vllm/v1/attention/backends"
VLLM_MIXED = Quote(file="vllm/v1/attention/backend.py", text='invalid_reasons.append("MLA not supported")')
VLLM_ONLY = Quote(file="vllm/v1/attention/backend.py", text='invalid_reasons.append("non-MLA not supported")')
VLLM_DTYPE = Quote(file="vllm/v1/attention/backend.py", text='invalid_reasons.append("dtype not supported")')
NO_LATENT = Rule(about="latent", most=0, says="MLA not supported", quote=VLLM_MIXED)
ONLY_LATENT = Rule(about="latent", least=1, says="non-MLA not supported", quote=VLLM_ONLY)
NO_IMAGES = Rule(
    about="images",
    most=0,
    says="partial multimodal token full attention not supported",
    quote=Quote(
        file="vllm/v1/attention/backend.py",
        text='invalid_reasons.append( "partial multimodal token full attention not supported" )',
    ),
)
PREFIX_MODELS = ("gemma3", "paligemma")
"""models of vLLM's MM_PREFIX_LM_MODELS that qualify reads"""
DTYPE = Rule(about="dtype", among=HALF, says="dtype not supported", quote=VLLM_DTYPE)


def _attention_types(among: tuple[str, ...], file: str, text: str) -> Rule:
    return Rule(
        about="attention_type",
        among=among,
        says="attention type not supported",
        quote=Quote(file=file, text=text),
    )


DECODERS = _attention_types(("decoder",), "vllm/v1/attention/backend.py", "return attn_type == AttentionType.DECODER")


def _vllm(name: str, place: str) -> Quote:
    return Quote(file=f"{V}/registry.py", text=f"{name} = {place}")


VLLM = Engine(
    name="vllm",
    title="vLLM",
    version="0.33.0",
    option="--attention-backend",
    per_head=(
        PerHead(
            model_type="minicpm3",
            quote=Quote(
                file="vllm/model_executor/models/minicpm3.py",
                text="self.attn = Attention( self.num_local_heads, self.qk_head_dim, self.scaling, "
                "num_kv_heads=self.num_local_heads,",
            ),
        ),
    ),
    wider=(
        Wider(
            model_types=("cohere2", "cohere2_vision"),
            quote=Quote(
                file="vllm/model_executor/models/commandr.py",
                text="self.sliding_window = config.sliding_window + 1",
            ),
        ),
    ),
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
                Rule(
                    about="model_type",
                    never=PREFIX_MODELS,
                    says="mm_prefix (PrefixLM bidirectional attention) requires FlashAttention v4, which does not "
                    "resolve for this head_size",
                    quote=Quote(
                        file=f"{V}/flash_attn.py",
                        text='"mm_prefix (PrefixLM bidirectional attention) requires " "FlashAttention v4, which does '
                        'not resolve for this " "head_size"',
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
                NO_IMAGES,
                DECODERS,
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
                _attention_types(
                    ("decoder", "encoder_only"),
                    f"{V}/flex_attention.py",
                    "return attn_type in (AttentionType.DECODER, AttentionType.ENCODER_ONLY)",
                ),
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
