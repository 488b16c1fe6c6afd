"""The attention backends of vLLM as data: names, kernel cards, and what is refused."""

from __future__ import annotations

from qualify.facts.engines import (
    FP8,
    HALF,
    HALF_ON_FP8,
    LONG_HEAD,
    ON_CACHE,
    PROMPTS,
    Backend,
    CardFor,
    Engine,
    PerHead,
    Quote,
    Rule,
    Wider,
)
from qualify.facts.vllm_rules import (
    DECODERS,
    DROPPED,
    DTYPE,
    FA4,
    FA4_ALL,
    NO_IMAGES,
    NO_LATENT,
    ONLY_LATENT,
    PREFIX_MODELS,
    VLLM_DTYPE,
    XQA,
    V,
    attention_types,
    fp8_queries,
    no_encoders_in_fp8,
    registered,
)

VLLM = Engine(
    name="vllm",
    title="vLLM",
    version="0.33.0",
    option="--attention-backend",
    dropped=DROPPED,
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
            named=registered("FLASH_ATTN", '"vllm.v1.attention.backends.flash_attn.FlashAttentionBackend"'),
            served=(
                CardFor(card="flash-attn-3", majors=(9,), long_heads=False),
                CardFor(card="flash-attn-4", build="other", majors=(9,), long_heads=True, quotes=(FA4, FA4_ALL)),
                CardFor(card="flash-attn-3-fp8", majors=(9,), dtypes=FP8),
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
                    about="capability",
                    least=90,
                    most=109,
                    with_fp8=True,
                    says="FP8 KV cache requires FA3 on SM90, FA4 with head_size=512 on SM90, or FA4 on SM100",
                    quote=Quote(
                        file=f"{V}/flash_attn.py",
                        text='"FP8 KV cache requires FA3 on SM90, FA4 with head_size=512 " "on SM90, or FA4 on SM100"',
                    ),
                ),
                Rule(
                    about="head_dim",
                    most=LONG_HEAD,
                    majors=(8,),
                    says="head_size not supported",
                    quote=Quote(file=f"{V}/flash_attn.py", text="if head_size <= 256: return True"),
                ),
                Rule(
                    about="head_dim",
                    most=LONG_HEAD,
                    with_fp8=True,
                    says="vLLM leaves the queries of such heads in the model's dtype beside its cache in fp8, and "
                    "qualify has no kernel card for FlashAttention-4 with that",
                    quote=Quote(
                        file=f"{V}/flash_attn.py",
                        text="# FA4's SM90 FP8-KV path consumes native FP16/BF16 Q and dequantizes",
                    ),
                ),
                fp8_queries(
                    f"{V}/flash_attn.py",
                    "self.supports_quant_query_input = flash_attn_supports_quant_query_input() and ( "
                    "not uses_sm90_fa4_fp8_kv_dequant )",
                ),
                no_encoders_in_fp8(f"{V}/flash_attn.py", "quantization is not supported for encoder attention"),
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
            note="FlashAttention-3 on Hopper, and FlashAttention-4 for a model with heads above 256, in all of its "
            "layers; FlashAttention-2 on Ampere and Ada",
        ),
        Backend(
            name="FLASHINFER",
            named=registered("FLASHINFER", '"vllm.v1.attention.backends.flashinfer.FlashInferBackend"'),
            served=(
                CardFor(card="flashinfer-fa3", majors=(9,), phases=PROMPTS, quotes=(XQA,)),
                CardFor(card="flashinfer-fa2", majors=(9,), phases=PROMPTS),
                CardFor(card="flashinfer-fa2", majors=(8,)),
                CardFor(card="flashinfer-fa3-fp8", majors=(9,), phases=PROMPTS, dtypes=FP8),
                CardFor(card="flashinfer-fa2-fp8kv", majors=(8,), phases=ON_CACHE, dtypes=HALF_ON_FP8),
            ),
            rules=(
                Rule(
                    about="queries",
                    among=FP8,
                    majors=(9,),
                    says="vLLM quantizes the queries of prompts too where its cache is in fp8: ask for --dtype "
                    "fp8_e4m3. It decodes with XQA, and qualify has no kernel card for that",
                    quote=Quote(
                        file=f"{V}/flashinfer.py",
                        text="# FP8-Q requires an fp8 tensor-core attention path. SM90 uses # native FA3 for prefill; "
                        "XQA decode on SM90/SM12x is handled # above with model-dtype Q",
                    ),
                ),
                Rule(
                    about="queries",
                    among=HALF,
                    majors=(8,),
                    says="vLLM leaves the queries in the model's dtype here: ask for --dtype bf16_kv_fp8_e4m3",
                    quote=Quote(
                        file=f"{V}/flashinfer.py",
                        text="# Architectures with only fa2 (e.g. SM89, SM120) cannot # consume FP8 queries, so keep "
                        "the model dtype for Q there.",
                    ),
                ),
                Rule(
                    about="capability",
                    least=90,
                    with_sinks=True,
                    says="attention sinks not supported",
                    quote=Quote(
                        file=f"{V}/flashinfer.py",
                        text="if not current_platform.is_device_capability_family(100): return False return "
                        "supports_trtllm_attention( is_prefill=False ) and",
                    ),
                ),
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
            note="on Hopper FlashInfer chooses between its fa2 and fa3 kernels itself, so both are checked; "
            "vLLM decodes with its XQA there, if the host reaches NVIDIA's store of kernels",
        ),
        Backend(
            name="TRITON_ATTN",
            named=registered("TRITON_ATTN", '"vllm.v1.attention.backends.triton_attn.TritonAttentionBackend"'),
            served=(CardFor(card="vllm-triton"), CardFor(card="vllm-triton-fp8", dtypes=FP8)),
            rules=(
                fp8_queries(f"{V}/triton_attn.py", "self.supports_quant_query_input = current_platform.is_cuda()"),
                Rule(
                    about="capability",
                    least=89,
                    with_fp8=True,
                    says="FP8 KV cache is not supported by the Triton attention backend; native FP8 requires SM89+",
                    quote=Quote(
                        file=f"{V}/triton_attn.py",
                        text='f"FP8 KV cache is not supported by the Triton attention backend " f"on {dev} (compute '
                        'capability {cap_str}); native FP8 (fp8e4nv) " f"requires SM89+.',
                    ),
                ),
                no_encoders_in_fp8(f"{V}/triton_attn.py", "quantized KV cache is not supported for encoder attention"),
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
            named=registered("FLEX_ATTENTION", '"vllm.v1.attention.backends.flex_attention.FlexAttentionBackend"'),
            served=(CardFor(card="flex-attention", build="other"),),
            rules=(
                Rule(
                    about="cache",
                    never=FP8,
                    says="kv_cache_dtype not supported",
                    quote=Quote(
                        file=f"{V}/flex_attention.py",
                        text="supported_kv_cache_dtypes: ClassVar[list[CacheDType]] = "
                        '[ "auto", "float16", "bfloat16", ]',
                    ),
                ),
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
                attention_types(
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
            named=registered("FLASHMLA", '"vllm.v1.attention.backends.mla.flashmla.FlashMLABackend"'),
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
            named=registered("FLASH_ATTN_MLA", '"vllm.v1.attention.backends.mla.flashattn_mla.FlashAttnMLABackend"'),
        ),
        Backend(
            name="TRITON_MLA",
            named=registered("TRITON_MLA", '"vllm.v1.attention.backends.mla.triton_mla.TritonMLABackend"'),
        ),
        Backend(
            name="TRITON_FLASH_ATTN",
            named=registered(
                "TRITON_FLASH_ATTN", '( "vllm.v1.attention.backends.triton_flash_attn.TritonFlashAttentionBackend" )'
            ),
            note="the kernels of TRITON_ATTN where an image's tokens see each other, else those of FLASH_ATTN",
        ),
        Backend(
            name="CPU_ATTN", named=registered("CPU_ATTN", '"vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend"')
        ),
    ),
)
