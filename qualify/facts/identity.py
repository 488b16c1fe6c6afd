"""Tells whether a card's patterns name its kernel, or accept anything.

What counts is what the patterns match, not how they are written. They are tried on names of kernels that were seen or
are published, and on names that nobody gave to a kernel.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache

UNMATCHED = "no launched kernel matches must_match"
"""how a witness begins its reason where no pattern of the card has the name of a launched kernel"""
ATTENTION = (
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, cutlass::bfloat16_t> >",
    "void pytorch_flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, false, false> >",
    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::half_t> >",
    "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<64, 64, 256, 4, false, false> >",
    "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t>)",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_cga1x1x1_kernel0_0",
    "cudnn_generated_fort_native_sdpa_sm80_flash_fprop_wmma_f16_knob_35_16x128x128_1x4x1_cga1x1x1_kernel0_0",
    "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::Mainloop> > >",
    "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm90FlashAttentionForwardSm90_object_at__tensor000",
    "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttentionForwardSm100_object_at__tensor000",
    "triton_tem_fused_flex_attention_0",
    "void flashinfer::SinglePrefillWithKVCacheKernel<flashinfer::KernelTraits<(flashinfer::MaskMode)1, 128> >",
    "void flashinfer::PrefillWithKVCacheKernel<flashinfer::CollectiveMainloop<flashinfer::AttentionKernelTraits> >",
    "void flashinfer::FP8PrefillWithKVCacheKernel<flashinfer::FP8CollectiveMainloop<flashinfer::Traits> >",
    "void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0, 2u, 4u, 8u>",
    "void flashinfer::mla::BatchMLAPagedAttentionKernel<flashinfer::mla::KernelTraits<true, 2u> >",
    "void flashinfer::mla::hopper::BatchMLAPageAttentionHopperKernel<flashinfer::mla::HopperKernelTraits>",
    "void sm90::flash_fwd_splitkv_mla_kernel<Flash_fwd_mla_traits<cutlass::bfloat16_t> >",
    "fmhaSm100aKernel_QkvBfloat16OBfloat16H128PagedKvCausalVarSeqQ128Kv128PersistentContext",
    "kernel_mha(unsigned int, float, void*, void const*)",
    "kernel_unified_attention_2d",
    "_fwd_grouped_kernel_stage1",
    "qk_int8_sv_f8_accum_f32_attn_inst_buf_kernel",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_attention_math",
    "qualify::tiled_attention",
)
"""attention kernels of many libraries; no card is all of them"""
OTHERS = (
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl>",
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 8, false, false>",
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma",
    "nvjet_tst_128x64_64x6_2x1_v_bz_TNT",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float>",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp>",
    "Memcpy DtoD (Device -> Device)",
    "triton_poi_fused_mul_1",
    "void vllm::rms_norm_kernel<c10::BFloat16>",
    "aten::bmm",
    "aten::softmax",
    "aten::copy_",
)
"""kernels and operators that are no attention"""
SIDE_WORK = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl<at::native::CUDAFunctor_add<float> > >",
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>",
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<bool>, std::array<char*, 1ul> >",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MaxNanFunctor<float> > >",
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::(anonymous namespace)::OpaqueType<2u> >",
    "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel>",
    "void vllm::rms_norm_kernel<c10::BFloat16>",
    "triton_poi_fused_mul_1",
    "triton_red_fused_sum_0",
    "Memcpy DtoD (Device -> Device)",
    "Memset (Device)",
    "aten::copy_",
    "aten::fill_",
    "aten::add",
    "aten::sum",
    "aten::cat",
)
"""kernels and operators that compute no part of attention; products and softmaxes are parts of an unfused one"""
STRANGE = (
    "xqzvw",
    "Lorem",
    "K7",
    "_Z3fooPfS_i",
    "weather_forecast_v2",
    "0b1e5c",
    "void ns::thing<int>()",
    "mjolnir::hammer_time",
    "UPPERCASE_THING",
    "a",
)
"""names that nobody gave to a kernel"""
MOST = 0.75
"""share of one of these lists that a card may match"""


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns is found in a name. A damaged one, which is no regular expression, finds nothing."""
    with suppress(re.error, OverflowError, RecursionError):
        return any(re.search(pattern, name) for pattern in patterns)
    return False


@lru_cache(maxsize=1024)
def side_work_among(patterns: Sequence[str]) -> str:
    """A kernel that cannot be attention and that one of the patterns matches; empty where none is known.

    Such a kernel runs beside nearly every other one. So the patterns also fit where the card's kernel did not run.
    """
    return next((name for name in SIDE_WORK if matches(name, patterns)), "")


@lru_cache(maxsize=1024)
def accepts_anything(patterns: Sequence[str]) -> bool:
    """Whether the patterns, regular expressions, match most kernels, or most names that belong to no kernel."""
    return any(
        sum(matches(name, patterns) for name in names) >= MOST * len(names) for names in (ATTENTION, OTHERS, STRANGE)
    )
