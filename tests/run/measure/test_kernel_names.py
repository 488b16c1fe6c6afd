"""The table of kernel names against names that real cards launched, and names that nobody knows."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from qualify.run.measure.kernel_names import TABLE, UNKNOWN, Identity, identify

RECORDED = json.loads((Path(__file__).parent / "h100_kernel_names.json").read_text())["kernels"]
"""full names from runs on an H100 (the file names the versions), sorted by hand"""

PUBLISHED = [
    # SDPA: flash (FlashAttention-2 code), efficient, cuDNN on both engines, math
    (
        (
            "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, "
            "cutlass::bfloat16_t, Flash_kernel_traits<128, 128, 64, 4, cutlass::bfloat16_t> >, false, true, false>"
        ),
        ("sdpa-flash", "ampere", "attention"),
    ),
    (
        (
            "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t, "
            "cutlass::arch::Sm80, true, 64, 128, 128, true, true>::Params)"
        ),
        ("sdpa-efficient", "ampere", "attention"),
    ),
    (
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_cga1x1x1_kernel0_0",
        ("cudnn", "hopper", "attention"),
    ),
    (
        "cudnn_generated_fort_native_sdpa_sm80_flash_fprop_wmma_f16_knob_35_16x128x128_1x4x1_cga1x1x1_kernel0_0",
        ("cudnn", "ampere", "attention"),
    ),
    ("void cudnn::fusion::lean_reduction_kernel<float, 4>(float*)", ("cudnn", "", "auxiliary")),
    (
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4_execute",
        ("blas", "", "gemm"),
    ),
    ("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NNT", ("blas", "", "gemm")),
    (
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 8, false, false>(float*, float const*)",
        ("softmax", "", "softmax"),
    ),
    (
        "void at::native::(anonymous namespace)::cunn_SoftMaxForwardReg<float, float, float, long, 8>(float*)",
        ("softmax", "", "softmax"),
    ),
    # FlashAttention 2, 3, 4
    (
        "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::half_t> >",
        ("flash-attention-2", "ampere", "attention"),
    ),
    (
        "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, false> >",
        ("flash-attention-2", "ampere", "attention"),
    ),
    (
        "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, false> >",
        ("flash-attention-2", "ampere", "auxiliary"),
    ),
    (
        (
            "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<"
            "flash::CollectiveMainloopFwdSm90<2, cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> > > > > >"
        ),
        ("flash-attention-3", "hopper", "attention"),
    ),
    ("void flash::prepare_varlen_num_blocks_kernel<1, false>(int, int)", ("flash-attention-3", "", "auxiliary")),
    ("void cutlass::device_kernel<flash::FlashAttnFwdCombine<cute::C<8> > >", ("flash-attention-3", "", "auxiliary")),
    ("void flash::compute_attn_ws<Flash_fwd_kernel_traits<128> >", ("flash-attention-3", "hopper", "attention")),
    (
        "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm90FlashAttentionForwardSm90_object_at__tensorptrbf16gmem",
        ("flash-attention-4", "hopper", "attention"),
    ),
    (
        "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttentionForwardSm100_object_at__tensorptrbf16gmem",
        ("flash-attention-4", "blackwell", "attention"),
    ),
    (
        "kernel_cutlass_kernel_flash_attncuteflash_fwd_combineFlashAttentionForwardCombine_object_at__tensor",
        ("flash-attention-4", "", "auxiliary"),
    ),
    # FlexAttention
    ("triton_tem_fused_flex_attention_0", ("flex-attention", "", "attention")),
    # FlashInfer
    ("void flashinfer::SinglePrefillWithKVCacheKernel<flashinfer::K>", ("flashinfer-fa2", "ampere", "attention")),
    ("void flashinfer::BatchPrefillWithPagedKVCacheKernel<K>", ("flashinfer-fa2", "ampere", "attention")),
    ("void flashinfer::BatchPrefillWithRaggedKVCacheKernel<K>", ("flashinfer-fa2", "ampere", "attention")),
    ("void flashinfer::BatchDecodeWithPagedKVCacheKernel<K>", ("flashinfer-fa2", "ampere", "attention")),
    ("void flashinfer::SingleDecodeWithKVCacheKernel<(int)8>", ("flashinfer-fa2", "ampere", "attention")),
    ("void flashinfer::MergeStatesLargeNumIndexSetsKernel<(int)8>", ("flashinfer", "", "auxiliary")),
    ("void flashinfer::PersistentVariableLengthMergeStatesKernel<(int)8>", ("flashinfer", "", "auxiliary")),
    (
        "void flashinfer::PrefillWithKVCacheKernel<flashinfer::CollectiveMainloop<flashinfer::AttentionKernelTraits> >",
        ("flashinfer-fa3", "hopper", "attention"),
    ),
    ("void flashinfer::FP8PrefillWithKVCacheKernel<K>", ("flashinfer-fa3", "hopper", "attention")),
    ("void flashinfer::mla::hopper::BatchMLAPageAttentionHopperKernel<K>", ("flashinfer-fa3", "hopper", "attention")),
    ("void flashinfer::mla::BatchMLAPagedAttentionKernel<K>", ("flashinfer-fa2", "ampere", "attention")),
    # Others, from sources and public traces
    ("fmhaSm100aKernel_QkvE4m3OBfloat16H128PagedKvCausalVarSeqQ128Kv128", ("trtllm-gen", "blackwell", "attention")),
    ("fmhaSm90Kernel_QkvBfloat16OBfloat16H128PackedQkv", ("trtllm-gen", "hopper", "attention")),
    ("kernel_mha", ("trtllm-xqa", "", "attention")),
    (
        "void flash::flash_fwd_splitkv_mla_kernel<Flash_fwd_kernel_traits_mla<576> >",
        ("flashmla", "hopper", "attention"),
    ),
    ("kernel_unified_attention", ("triton-unified", "", "attention")),
    ("kernel_unified_attention_2d", ("triton-unified", "", "attention")),
    ("kernel_unified_attention_3d", ("triton-unified", "", "attention")),
    ("reduce_segments", ("triton-unified", "", "auxiliary")),
    ("void qk_int8_sv_f8_accum_f32_attn_kernel<128>", ("sageattention", "", "attention")),
    # FlashMLA, from the symbols of vLLM's binary
    (
        "void sm90::flash_fwd_splitkv_mla_kernel<Traits<cutlass::bfloat16_t>, TmaParams<cute::tuple<int, int> > >",
        ("flashmla", "hopper", "attention"),
    ),
    (
        "void sm90::decode::sparse_fp8::flash_fwd_splitkv_mla_fp8_sparse_kernel<sm90::KernelTemplate<128> >",
        ("flashmla", "hopper", "attention"),
    ),
    (
        "void smxx::decode::flash_fwd_mla_combine_kernel<cutlass::bfloat16_t, 512, 8, 32, 256>(CombineParams)",
        ("flashmla", "hopper", "auxiliary"),
    ),
    ("smxx::decode::get_mla_metadata_kernel(GetDecodeSchedMetaParams)", ("flashmla", "hopper", "auxiliary")),
    (
        "void cutlass::device_kernel<cutlass::fmha::kernel::Sm100FmhaFwdKernelTmaWarpspecialized<K> >",
        ("cutlass-fmha", "blackwell", "attention"),
    ),
    # The CPU
    ("aten::_scaled_dot_product_flash_attention_for_cpu", ("sdpa-cpu-flash", "cpu", "attention")),
    ("aten::_scaled_dot_product_attention_math", ("sdpa-math", "", "attention")),
    ("qualify::tiled_attention", ("tiled-torch", "", "attention")),
    ("aten::bmm", ("blas", "cpu", "gemm")),
    ("aten::_softmax", ("softmax", "", "softmax")),
    ("aten::copy_", ("elementwise", "", "auxiliary")),
    ("aten::transpose", ("aten", "cpu", "auxiliary")),
    ("detach", ("aten", "cpu", "auxiliary")),
    ("detach_kernel", ("", "", "unclassified")),
]

STRANGE = [
    "",
    "my_kernel",
    "void company::fused_magic<128>(float*)",
    "void company::new_flash_kernel<128>",
    "void company::attention_gemm_softmax<128>",
    "void company::sdpa_v5",
    "void company::sparse_attn_gemm",
    "void company::mega_prefill_kernel",
    "void company::batch_decode_gather_kernel",
    "fmha_v9_gemm",
    "triton_per_fused_flex_attention_mul_1",
]


@pytest.mark.parametrize(
    ("name", "expected"),
    [(name, (g["family"], g["generation"], g["role"])) for g in RECORDED for name in g["names"]],
)
def test_recorded_names_are_what_they_are(name: str, expected: tuple[str, str, str]) -> None:
    """Family, generation and role of every name that a real run launched."""
    found = identify(name)
    assert expected == (found.family, found.generation, found.role)


@pytest.mark.parametrize(("name", "expected"), PUBLISHED)
def test_published_names_are_what_they_are(name: str, expected: tuple[str, str, str]) -> None:
    """Names from earlier sessions, sources and public traces."""
    found = identify(name)
    assert expected == (found.family, found.generation, found.role)


@pytest.mark.parametrize("name", STRANGE)
def test_unknown_names_stay_unclassified(name: str) -> None:
    """Also when they contain "gemm", "fill", "gather" or "softmax": an attention-like name is never side work."""
    assert UNKNOWN == identify(name)


def test_the_corpus_covers_many_families() -> None:
    """Several attention families ran on the recorded card, and every role occurred."""
    families = {group["family"] for group in RECORDED if group["role"] == "attention"}
    assert {"sdpa-flash", "cudnn", "flash-attention-2", "flash-attention-3", "flex-attention"} <= families
    assert {"attention", "auxiliary", "gemm", "softmax", "unclassified"} == {group["role"] for group in RECORDED}


def test_every_row_of_the_table_is_reached() -> None:
    """A row that no known name reaches first is dead or shadowed."""
    names = [name for group in RECORDED for name in group["names"]]
    names += [name for name, _ in PUBLISHED] + STRANGE
    reached = {next((row[0] for row in TABLE if re.search(row[0], name)), "") for name in names}
    assert [] == [row[0] for row in TABLE if row[0] not in reached]


@pytest.mark.parametrize(
    ("sm", "generation"), [("80", "ampere"), ("90", "hopper"), ("100", "blackwell"), ("120", "blackwell")]
)
def test_the_architecture_in_a_name_tells_the_generation(sm: str, generation: str) -> None:
    """sm80 is Ampere even on a newer card."""
    expected = Identity(family="flash-attention-4", generation=generation, role="attention")
    assert expected == identify(f"kernel_FlashAttentionForwardSm{sm}_object")


@pytest.mark.parametrize("pattern", [row[0] for row in TABLE])
def test_a_long_name_takes_no_longer_than_it_is_long(pattern: str) -> None:
    """A kernel chooses its own name: what may repeat without end stands at the end of a pattern only."""
    assert not re.findall(r"[*+]\??(?!\)*(?:\||$))", pattern)
