"""What a kernel's name gives away: family, generation, role. One ordered table; unknown stays unknown.

Attention comes first, because a fused kernel's name may contain "gemm" or "softmax" as well. A name that
matches nothing is ``unclassified`` and stays visible: it is never dropped and never put into a default bucket.
``tests/run/test_kernel_names.py`` holds the table against names recorded on real cards.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, lru_cache

from qualify.facts.outcome import Role


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """What is known of a kernel by its name."""

    family: str
    generation: str
    """``ampere``, ``hopper``, ``blackwell``, ``cpu`` or empty"""
    role: Role


UNKNOWN = Identity(family="", generation="", role="unclassified")

GENERATIONS = {"8": "ampere", "9": "hopper", "10": "blackwell", "12": "blackwell"}

# (pattern, family, generation, role). A group named ``sm`` in the pattern tells the generation. A kernel
# chooses its own name, so what may repeat in the middle of a pattern is bounded: a long name must not take as long as
# its length squared.
TABLE: tuple[tuple[str, str, str, Role], ...] = (
    (r"FlashAttnFwdCombine|prepare_varlen_num_blocks", "flash-attention-3", "", "auxiliary"),
    (r"FlashAttnFwdSm(?P<sm>\d+)|flash3?::compute_attn_ws", "flash-attention-3", "hopper", "attention"),
    (r"FlashAttentionForwardCombine", "flash-attention-4", "", "auxiliary"),
    (r"(?i)FlashAttentionForward\w{0,200}?Sm(?P<sm>\d+)", "flash-attention-4", "", "attention"),
    (r"flash_fwd_splitkv_mla_(fp8_sparse_)?kernel|sparse_attn_fwd", "flashmla", "hopper", "attention"),
    (r"flash_fwd_(splitkv_)?mla_combine|get_mla_metadata", "flashmla", "hopper", "auxiliary"),
    (r"pytorch_flash::flash_fwd_splitkv_combine_kernel", "sdpa-flash", "ampere", "auxiliary"),
    (r"flash_fwd_splitkv_combine_kernel", "flash-attention-2", "ampere", "auxiliary"),
    (r"pytorch_flash::flash_fwd", "sdpa-flash", "ampere", "attention"),
    (r"flash::flash_fwd(_splitkv)?_kernel", "flash-attention-2", "ampere", "attention"),
    (r"fmha_cutlassF_\w{1,200}_sm(?P<sm>\d+)|PyTorchMemEffAttention", "sdpa-efficient", "ampere", "attention"),
    (r"cudnn_generated_\w{0,200}sdpa_sm(?P<sm>\d+)", "cudnn", "", "attention"),
    (r"cudnn::fusion::|cudnn_generated", "cudnn", "", "auxiliary"),
    (r"flashinfer::.{0,400}(MergeState|VariableLengthMerge)", "flashinfer", "", "auxiliary"),
    (
        r"flashinfer::(FP8)?PrefillWithKVCacheKernel|BatchMLAPageAttentionHopper",
        "flashinfer-fa3",
        "hopper",
        "attention",
    ),
    (r"flashinfer::\w{0,200}(Prefill|Decode)With\w{0,200}KVCacheKernel", "flashinfer-fa2", "ampere", "attention"),
    (
        r"flashinfer::(mla::)?\w{0,200}(BatchMLAPaged|PersistentKernelTemplate|PODWith)",
        "flashinfer-fa2",
        "ampere",
        "attention",
    ),
    (r"Sm(?P<sm>\d{3})Fmha|BlackwellFusedMultiHead", "cutlass-fmha", "blackwell", "attention"),
    (r"fmhaSm(?P<sm>\d{1,4})\w{0,200}Kernel", "trtllm-gen", "", "attention"),
    (r"kernel_mha|fmha_v2_flash_attention", "trtllm-xqa", "", "attention"),
    (r"triton_tem_fused\w{0,200}flex_attention", "flex-attention", "", "attention"),
    (r"kernel_unified_attention|_fwd_(grouped_)?kernel_stage1", "triton-unified", "", "attention"),
    (r"reduce_segments|_fwd_kernel_stage2", "triton-unified", "", "auxiliary"),
    (r"qk_int8_sv_f8_accum_f32_attn", "sageattention", "", "attention"),
    (r"_scaled_dot_product_flash_attention_for_cpu", "sdpa-cpu-flash", "cpu", "attention"),
    (r"qualify::tiled_attention", "tiled-torch", "", "attention"),
    (r"_scaled_dot_product_attention_math", "sdpa-math", "", "attention"),
    (r"(?i)flash|fmha|attention|_attn|sdpa|prefill|decode", "", "", "unclassified"),
    (
        r"(?i)gemm|gemv|nvjet|cutlass_80_tensorop|ampere_\w{0,200}(gemm|1688|16816)|splitKreduce|dot_kernel",
        "blas",
        "",
        "gemm",
    ),
    (r"^aten::(bmm|mm|addmm|baddbmm|matmul|dot)$", "blas", "cpu", "gemm"),
    (r"(?i)softmax", "softmax", "", "softmax"),
    (r"elementwise_kernel|copy_|fill|Memcpy|Memset|memset|memcpy", "elementwise", "", "auxiliary"),
    (
        r"reduce_kernel|CatArrayBatched|index_|gather|scatter|arange|triu_tril|distribution_",
        "elementwise",
        "",
        "auxiliary",
    ),
    (r"^triton_(poi|red|per)_fused", "inductor", "", "auxiliary"),
    (r"^(aten::|detach$)", "aten", "cpu", "auxiliary"),  # autograd records a detach of its own, without a namespace
)


FUSED_OPERATORS = {"sdpa-cpu-flash"}
"""families of operators on a CPU that compute products and softmax themselves, without operators for them"""


@lru_cache(maxsize=4096)
def identify(name: str) -> Identity:
    """What the first matching row of the table says of a demangled kernel or operator name."""
    for pattern, family, generation, role in _compiled():
        match = pattern.search(name)
        if match:
            sm = match.groupdict().get("sm") or ""
            told = GENERATIONS.get(sm[:-1], "") if sm else ""
            return Identity(family=family, generation=told or generation, role=role)
    return UNKNOWN


@cache
def _compiled() -> list[tuple[re.Pattern[str], str, str, Role]]:
    """The table with its patterns compiled: to look each of them up for each name takes longer than the search."""
    return [(re.compile(pattern), family, generation, role) for pattern, family, generation, role in TABLE]
