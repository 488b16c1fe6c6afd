"""What vLLM's Triton kernel is given for a call, and what its import leaves behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from subjects import make_call
from torch import Tensor

from qualify.run.adapters.interface import LibraryRefusal
from qualify.run.adapters.vllm_import import import_vllm
from qualify.run.adapters.vllm_triton import PAGE_SIZE, TABLE_MARGIN, VllmTriton, arguments_of, create

OPS = "v1/attention/ops/triton_unified_attention.py"


def read_back(pages: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
    """The keys of all sequences, found through the block table."""
    found = [pages[row].flatten(0, 1)[:length] for row, length in zip(table.long(), lengths.tolist(), strict=True)]
    return torch.cat(found)


@pytest.mark.parametrize("seqlens_k", [(16, 16), (3, 0, 40, 17), (0, 1), (33,)])
def test_packed_keys_are_found_through_the_block_table(seqlens_k: tuple[int, ...]) -> None:
    """Every key and value of every sequence, bit for bit; what no sequence owns is 0."""
    call = make_call(seqlens_q=(1,) * len(seqlens_k), seqlens_k=seqlens_k)
    given = arguments_of(call)
    assert list(seqlens_k) == given["seqused_k"].tolist()
    assert {torch.int32} == {given["seqused_k"].dtype, given["block_table"].dtype}
    for packed, pages in ((call.k, given["k"]), (call.v, given["v"])):
        assert torch.equal(packed, read_back(pages, given["block_table"], given["seqused_k"]))
        assert packed.float().abs().sum() == pages.float().abs().sum()


def test_pages_are_passed_as_they_are() -> None:
    """The call's own cache, without a copy."""
    call = make_call(seqlens_q=(1, 1), seqlens_k=(70, 33), page_size=64)
    given = arguments_of(call)
    assert (call.k.data_ptr(), call.v.data_ptr()) == (given["k"].data_ptr(), given["v"].data_ptr())
    assert given["seqused_k"] is call.seqused_k


@pytest.mark.parametrize("page_size", [0, 1, 16, 256])
def test_the_block_table_has_entries_beyond_the_longest_sequence(page_size: int) -> None:
    """The kernel reads them before it masks; they name page 0."""
    call = make_call(seqlens_q=(1, 1), seqlens_k=(70, 512), page_size=page_size)
    table, size = arguments_of(call)["block_table"], page_size or PAGE_SIZE
    used = -(-512 // size)
    assert table.shape[1] * size >= 512 + TABLE_MARGIN
    assert not table[:, used:].any()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"causal": True}, (True, (-1, -1), -1)),
        ({"causal": False}, (False, (-1, -1), -1)),
        ({"window": (9, 0)}, (True, (9, 0), -1)),
        ({"causal": False, "window": (9, 0)}, (True, (9, 0), -1)),
        ({"causal": False, "window": (9, 9)}, (False, (9, 9), -1)),
        ({"chunk": 32}, (True, (31, 0), 0)),
    ],
)
def test_masks_in_the_words_of_the_kernel(
    changes: dict[str, object], expected: tuple[bool, tuple[int, int], int]
) -> None:
    """A chunk of N positions is a window of N under a lookback of no chunk."""
    given = arguments_of(make_call(**{"seqlens_q": (70,), "causal": True, **changes}))
    assert expected == (given["causal"], given["window_size"], given["chunk_lookback"])


def test_spans_are_ranges_that_include_their_last_key() -> None:
    """Rows are sequences; a sequence with fewer spans is filled with ranges of nothing."""
    call = make_call(seqlens_q=(50, 20, 30), spans=((0, 4, 10), (2, 0, 3), (2, 7, 20)))
    ranges = arguments_of(call)["mm_prefix_range"]
    assert [[[4, 9], [0, 0]], [[0, 0], [0, 0]], [[0, 2], [7, 19]]] == ranges.tolist()
    assert torch.int32 == ranges.dtype


def test_split_keys_have_the_buffers_of_the_engine() -> None:
    """Up to 128 blocks, sequences times KV heads; head dimensions are padded to powers of two."""
    given = arguments_of(make_call(seqlens_q=(1,), seqlens_k=(70,), heads_q=8, heads_kv=2, head_dim=96))
    assert (64, 16) == (given["seq_threshold_3D"], given["num_par_softmax_segments"])
    assert (64, 8, 16, 128) == tuple(given["softmax_segm_output"].shape)
    assert {(64, 8, 16)} == {tuple(given[f"softmax_segm_{name}"].shape) for name in ("max", "expsum")}


def test_parameters_are_passed_on() -> None:
    """Scale, softcap and sinks as the call has them."""
    call = replace(make_call(seqlens_q=(70,), softcap=4.0, sinks=True), scale=0.3)
    given = arguments_of(call)
    assert (0.3, 4.0) == (given["softmax_scale"], given["softcap"])
    assert given["sinks"] is call.sinks


@pytest.mark.parametrize("page_size", [0, 16])
@pytest.mark.parametrize(("dtype", "with_q"), [("fp8_e4m3", True), ("bf16_kv_fp8_e4m3", False)])
def test_an_fp8_cache_comes_with_its_factors(dtype: str, with_q: bool, page_size: int) -> None:
    """The kernel is told of the format; without a factor for the queries it multiplies the keys by theirs."""
    call = make_call(dtype=dtype, descale="tensor", seqlens_q=(1, 1), seqlens_k=(70, 33), page_size=page_size)
    given = arguments_of(call)
    assert 1 == given["kv_quant_mode"]
    assert (with_q, True) == (given["q_descale"] is not None, given["k_descale"] is call.k_descale)
    assert {torch.float8_e4m3fn} == {given["k"].dtype, given["v"].dtype}
    if not page_size:
        keys = read_back(given["k"].view(torch.uint8), given["block_table"], given["seqused_k"])
        assert torch.equal(call.k.view(torch.uint8), keys)


@pytest.mark.parametrize("name", ["q_descale", "k_descale", "v_descale"])
def test_several_factors_of_a_tensor_are_refused(name: str) -> None:
    """The kernel would read the first."""
    call = make_call(dtype="fp8_e4m3", descale="tensor", seqlens_q=(9, 5))
    factors = getattr(call, name).clone()
    factors[1, 1] *= 2
    with pytest.raises(LibraryRefusal, match=f"one {name} for the whole tensor, not 2 different ones"):
        VllmTriton(library=None).prepare(replace(call, **{name: factors}))


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty package ``vllm`` on the path, instead of any that is installed; gone afterwards."""
    monkeypatch.setenv("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "vllm" / OPS).parent.mkdir(parents=True)
    (tmp_path / "vllm" / "__init__.py").touch()
    yield tmp_path / "vllm"
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]


@pytest.mark.parametrize("before", [True, False])
def test_importing_vllm_leaves_sdpa_as_it_was(before: bool, vllm: Path) -> None:
    """The CUDA platform of vLLM switches cuDNN off in SDPA, which other kernels of the same worker measure."""
    (vllm / "__init__.py").write_text("import torch\n\ntorch.backends.cuda.enable_cudnn_sdp(False)\n")
    was = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(before)
    try:
        assert "vllm" == import_vllm("vllm").__name__
        assert before == torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(was)


def test_a_part_of_vllm_without_the_kernel_is_named(vllm: Path) -> None:
    """The import's own words reach whoever asked for the kernel."""
    with pytest.raises(ImportError, match=r"No module named 'vllm\.v1\.attention\.ops\.triton_unified_attention'"):
        create({})


def test_a_missing_need_of_vllm_is_named(vllm: Path) -> None:
    """The kernel's file is there, what it imports is not."""
    (vllm / OPS).write_text("import regex_of_vllm\n")
    with pytest.raises(ImportError, match="No module named 'regex_of_vllm'"):
        create({})


def test_vllm_without_triton_is_refused(vllm: Path) -> None:
    """Where vLLM switched Triton off, the kernel is a plain function that nothing can launch."""
    (vllm / OPS).write_text("def unified_attention():\n    pass\n")
    (vllm / "triton_utils.py").write_text("HAS_TRITON = False\n")
    with pytest.raises(ImportError, match="switched Triton off"):
        create({})


def test_there_are_no_options() -> None:
    """A typo on the card is named."""
    with pytest.raises(ValueError, match="pages"):
        create({"pages": 16})
