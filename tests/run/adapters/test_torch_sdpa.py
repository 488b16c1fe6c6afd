"""SDPA on the CPU against attention written out row by row in float64."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
import torch
from builders import make_mask
from cli_process import server
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from qualify.run.adapters import torch_sdpa
from qualify.run.adapters.interface import AttentionCall, LibraryRefusal

FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"
MATH = "aten::_scaled_dot_product_attention_math"
SHAPES = {
    "prefill": ((5, 5), (5, 5)),
    "chunked": ((3, 3), (9, 9)),
    "decode": ((1, 1, 1), (6, 6, 6)),
    "ragged decode": ((1, 1, 1), (5, 9, 2)),
    "ragged": ((3, 7, 1), (9, 7, 4)),
    "empty": ((0, 4, 3, 2), (3, 4, 0, 8)),
    "equal around an empty one": ((2, 3, 2), (4, 0, 4)),
    "more queries than keys": ((7,), (3,)),
    "only empty": ((0, 2), (4, 0)),
}


def make_call(
    seqlens_q: tuple[int, ...], seqlens_k: tuple[int, ...], *, dtype: torch.dtype = torch.float32, **changes: Any
) -> AttentionCall:
    """Random inputs with four query heads on two KV heads."""
    generator = torch.Generator().manual_seed(0)

    def draw(total: int, heads: int) -> Tensor:
        return torch.randn(total, heads, 32, generator=generator).to(dtype)

    parameters = {
        "q": draw(sum(seqlens_q), 4),
        "k": draw(sum(seqlens_k), 2),
        "v": draw(sum(seqlens_k), 2),
        "cu_seqlens_q": torch.tensor([0, *accumulate(seqlens_q)], dtype=torch.int32),
        "cu_seqlens_k": torch.tensor([0, *accumulate(seqlens_k)], dtype=torch.int32),
        "seqused_k": None,
        "block_table": None,
        "max_seqlen_q": max(seqlens_q),
        "max_seqlen_k": max(seqlens_k),
        "scale": 0.3,
        "mask": make_mask(**{name: changes.pop(name) for name in ("causal", "window", "chunk") if name in changes}),
        "out_dtype": dtype,
    }
    return AttentionCall(**{**parameters, **changes})


def sees(i: int, j: int, offset: int, call: AttentionCall) -> bool:
    """Whether query i sees key j, from the words of the contract."""
    distance = j - (i + offset)
    left, right = call.window
    if call.chunk and (i + offset) // call.chunk != j // call.chunk:
        return False
    return (not call.causal or distance <= 0) and (left < 0 or distance >= -left) and (right < 0 or distance <= right)


def naive(call: AttentionCall) -> Tensor:
    """Attention in float64, one row at a time; rows without a key are 0."""
    heads = call.q.shape[1]
    out = torch.zeros(*call.q.shape[:2], call.v.shape[-1], dtype=torch.float64)
    assert call.cu_seqlens_k is not None
    bounds_q, bounds_k = call.cu_seqlens_q.tolist(), call.cu_seqlens_k.tolist()
    for q0, q1, k0, k1 in zip(bounds_q, bounds_q[1:], bounds_k, bounds_k[1:], strict=False):
        for i in range(q1 - q0):
            keys = [k0 + j for j in range(k1 - k0) if sees(i, j, (k1 - k0) - (q1 - q0), call)]
            for head in range(heads if keys else 0):
                kv = head * call.k.shape[1] // heads
                scores = call.scale * (call.k[keys, kv].double() @ call.q[q0 + i, head].double())
                out[q0 + i, head] = torch.softmax(scores, 0) @ call.v[keys, kv].double()
    return out


def run(options: dict[str, Any], call: AttentionCall) -> Tensor:
    """The output of one launch; SDPA gives no LSE."""
    prepared = torch_sdpa.create(options).prepare(call)
    out, lse = prepared.result(prepared.launch())
    assert lse is None
    return out


@pytest.mark.parametrize("backend", ["flash", "math", "auto"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "mask", [{}, {"causal": False}, {"window": (2, 0)}, {"causal": False, "window": (2, 1)}, {"chunk": 4}], ids=str
)
def test_output_equals_attention_row_by_row(backend: str, shape: str, mask: dict[str, Any]) -> None:
    """Every shape and mask, with GQA, in float32; rows without a key give 0."""
    call = make_call(*SHAPES[shape], **mask)
    torch.testing.assert_close(run({"backend": backend}, call).double(), naive(call), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_dtype_and_value(dtype: torch.dtype) -> None:
    """Sixteen-bit inputs give sixteen-bit outputs within a few steps."""
    call = make_call((3, 7), (9, 7), dtype=dtype)
    out = run({"backend": "flash"}, call)
    assert dtype == out.dtype
    torch.testing.assert_close(out.double(), naive(call), rtol=2e-2, atol=2e-2)


def test_value_vectors_may_be_shorter_on_the_math_path() -> None:
    """head_dim_v differs from head_dim: out has the length of the values."""
    call = make_call((4,), (6,), v=torch.randn(6, 2, 8))
    torch.testing.assert_close(run({"backend": "math"}, call).double(), naive(call), rtol=1e-5, atol=1e-5)


def test_is_causal_is_aligned_top_left() -> None:
    """With is_causal=True the first of two queries sees key 0 only, of five."""
    call = make_call((2,), (5,))
    out = run({"causal": "is_causal"}, call)
    torch.testing.assert_close(out[0], call.v[0].repeat_interleave(2, dim=0))
    lower_right = run({}, call)
    assert not torch.allclose(out, lower_right, atol=1e-2)


@pytest.mark.parametrize(("backend", "operator"), [("flash", FLASH), ("math", MATH), ("auto", FLASH)])
@pytest.mark.parametrize("shape", ["prefill", "chunked", "ragged"])
def test_the_pinned_backend_runs(backend: str, operator: str, shape: str) -> None:
    """The profiler sees the operator that the cards name, and no other attention operator."""
    prepared = torch_sdpa.create({"backend": backend}).prepare(make_call(*SHAPES[shape]))
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        prepared.launch()
    seen = {event.key for event in trace.key_averages() if event.key.startswith("aten::_scaled_dot_product")}
    assert {operator} == seen


def test_launching_twice_gives_the_same_and_changes_no_input() -> None:
    """A prepared call can be launched again and again."""
    call = make_call((3, 7), (9, 7))
    before = [tensor.clone() for tensor in (call.q, call.k, call.v)]
    prepared = torch_sdpa.create({"backend": "flash"}).prepare(call)
    first, second = (prepared.result(prepared.launch())[0] for _ in range(2))
    assert torch.equal(first, second)
    assert all(torch.equal(old, new) for old, new in zip(before, (call.q, call.k, call.v), strict=True))


def test_a_refusal_carries_the_reasons_of_pytorch() -> None:
    """The text of the warnings that PyTorch gives only once becomes the reason, every time."""
    call = make_call((4,), (4,), v=torch.randn(4, 2, 8))
    for _ in range(2):
        with pytest.raises(LibraryRefusal, match=r"same last dimension.*Value\.size\(-1\): 8"):
            torch_sdpa.create({"backend": "flash"}).prepare(call)
    assert not torch.is_warn_always_enabled()


@pytest.mark.parametrize("backend", ["efficient", "cudnn"])
def test_a_backend_of_another_device_refuses(backend: str) -> None:
    """CUDA backends have no kernel for CPU tensors."""
    with pytest.raises(LibraryRefusal, match=f"torch sdpa {backend}"):
        torch_sdpa.create({"backend": backend}).prepare(make_call((4,), (4,)))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"softcap": 20.0}, "softcap=20.0"),
        ({"sinks": torch.zeros(4)}, "no sinks"),
        ({"bidirectional_spans": torch.zeros(1, 3, dtype=torch.int32)}, "bidirectional spans"),
        ({"k_descale": torch.ones(1, 2)}, "k_descale"),
    ],
)
def test_a_parameter_without_a_word_is_refused(changes: dict[str, Any], reason: str) -> None:
    """Nothing that SDPA has no argument for is dropped."""
    with pytest.raises(LibraryRefusal, match=reason):
        torch_sdpa.create({}).prepare(make_call((4,), (4,), **changes))


def test_pages_are_refused() -> None:
    """SDPA has no paged cache."""
    pool = torch.zeros(3, 16, 2, 32)
    table = torch.tensor([[1]], dtype=torch.int32)
    used = torch.tensor([4], dtype=torch.int32)
    call = replace(make_call((1,), (4,)), k=pool, v=pool, cu_seqlens_k=None, seqused_k=used, block_table=table)
    with pytest.raises(LibraryRefusal, match="page_size=16"):
        torch_sdpa.create({}).prepare(call)


@pytest.mark.parametrize("changes", [{"window": (2, 0)}, {"seqlens_k": (4, 6)}])
def test_is_causal_refuses_what_needs_a_mask(changes: dict[str, Any]) -> None:
    """is_causal and a boolean mask exclude each other."""
    seqlens_k = changes.pop("seqlens_k", (4, 4))
    with pytest.raises(LibraryRefusal, match="is_causal excludes"):
        torch_sdpa.create({"causal": "is_causal"}).prepare(make_call((4, 4), seqlens_k, **changes))


@pytest.mark.parametrize("options", [{"backend": "fastest"}, {"causal": "maybe"}, {"window": 3}])
def test_unknown_options_are_an_error(options: dict[str, Any]) -> None:
    """A card with a wrong option fails when the adapter is made."""
    with pytest.raises(ValueError, match="torch_sdpa: options"):
        torch_sdpa.create(options)


def test_scale_reaches_the_kernel() -> None:
    """Two keys give the logistic function of scale times their difference."""
    q, k = torch.zeros(1, 1, 32), torch.zeros(2, 1, 32)
    q[0, 0, 0], k[1, 0, 0] = 1.0, 2.0
    v = torch.tensor([0.0, 1.0])[:, None, None].expand(2, 1, 32).contiguous()
    call = make_call((1,), (2,), q=q, k=k, v=v, scale=0.7)
    assert 1 / (1 + math.exp(-1.4)) == pytest.approx(run({"backend": "flash"}, call)[0, 0, 0].item(), rel=1e-6)


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What of the compiler and of the bias a Python with torch and qualify has imported, after each step."""
    program = tmp_path_factory.mktemp("imported") / "program.py"
    program.write_text(
        "import json, sys; from qualify.run.adapters.torch_sdpa import create\n"
        "def told(): return [name for name in ('torch._dynamo', 'torch.nn.attention.bias') if name in sys.modules]\n"
        "create({'backend': 'flash'}); found = {'created': told()}; adapter = create({})\n"
        "import torch; adapter.warm_up(torch.device('cpu')); found['on a CPU'] = told()\n"
        "adapter.warm_up(torch.device('cuda')); print(json.dumps(found | {'on a GPU': told()}))"
    )
    ended = server().run([], program.parent, 300, script=str(program))
    assert 0 == ended.code, ended.err
    found: dict[str, list[str]] = ended.data
    return found


def test_no_compiler_is_imported(imported: dict[str, list[str]]) -> None:
    """torch.nn.attention.bias imports torch._dynamo, which cost every host more than a second."""
    assert "torch._dynamo" not in imported["created"]


def test_a_call_like_one_that_pytorch_took_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch is asked by one more call whether it takes a shape, and not again for other values of the same shape."""
    made: list[tuple[int, ...]] = []
    real = torch_sdpa.F.scaled_dot_product_attention

    def counted(q: Tensor, *others: Any, **named: Any) -> Tensor:
        made.append(tuple(q.shape))
        return real(q, *others, **named)

    monkeypatch.setattr(torch_sdpa.F, "scaled_dot_product_attention", counted)
    adapter = torch_sdpa.create({"backend": "math"})
    call = make_call((5, 5), (5, 5), causal=True)
    masked = replace(call, mask=make_mask(causal=False))
    for each in (call, call, masked, make_call((4, 4), (5, 5))):
        each.k.add_(1)  # in place, because memory that is aligned otherwise is another form
        prepared = adapter.prepare(each)
        out, _ = prepared.result(prepared.launch())
        assert torch.allclose(naive(each), out.double(), atol=1e-5)
    assert 7 == len(made)


def test_a_form_that_was_refused_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what PyTorch took is remembered: a refusal says its reasons each time."""

    def refuses(*_: Any, **__: Any) -> Tensor:
        raise RuntimeError("no kernel for this")

    adapter, call = torch_sdpa.create({"backend": "math"}), make_call((5, 5), (5, 5))
    monkeypatch.setattr(torch_sdpa.F, "scaled_dot_product_attention", refuses)
    for _ in range(2):
        with pytest.raises(LibraryRefusal, match="no kernel for this"):
            adapter.prepare(call)
    monkeypatch.undo()
    adapter.prepare(call)


def test_no_bias_is_imported_ahead_on_a_cpu(imported: dict[str, list[str]]) -> None:
    """There the adapter needs none, and the compiler takes seconds to import."""
    assert "torch._dynamo" not in imported["on a CPU"]
    assert "torch.nn.attention.bias" in imported["on a GPU"]
