"""16-bit queries beside an fp8 cache: quantised inputs, exact probes, and faults that only this mixture knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from builders import make_card, make_workload
from faults import Edited, changed
from subjects import CPU, answers, make_call, make_subject
from torch import Tensor

from qualify.cards.load import load_kernels
from qualify.facts.case import Workload
from qualify.plan.workloads import descaled, workload_refusals
from qualify.run.adapters import flashinfer
from qualify.run.adapters.interface import AttentionCall, LibraryRefusal, Prepared
from qualify.run.adapters.tiled_torch import TiledTorch
from qualify.run.adapters.torch_sdpa import create as create_sdpa
from qualify.run.checks.budget import Budget
from qualify.run.checks.interface import Check
from qualify.run.checks.registry import CHECKS
from qualify.run.golden.accuracy import declared_class
from qualify.run.golden.reference import golden
from qualify.run.inputs.formats import TORCH_DTYPES
from qualify.run.inputs.tensors import make_inputs, poison_outside
from qualify.run.measure.timing import work_of

FP8 = TORCH_DTYPES["fp8_e4m3"]
SHAPES: dict[str, dict[str, Any]] = {
    "prefill": {"seqlens_q": (130,)},
    "ragged": {"seqlens_q": (1, 17, 100, 3, 0, 64)},
    "paged": {"seqlens_q": (1,) * 4, "seqlens_k": (130, 64, 17, 1), "page_size": 16},
    "paged window": {"seqlens_q": (4, 4), "seqlens_k": (150, 90), "page_size": 16, "window": (31, 0)},
    "softcap": {"seqlens_q": (100,), "softcap": 30.0, "sinks": True},
}
SMALL: dict[str, Any] = {"heads_q": 4, "heads_kv": 2, "head_dim": 32}
"""at the full level, which has many calls and some long ones"""
every_shape = pytest.mark.parametrize("shape", SHAPES)
every_dtype = pytest.mark.parametrize("dtype", ["bf16_kv_fp8_e4m3", "fp16_kv_fp8_e4m3"])
every_descale = pytest.mark.parametrize("descale", ["sequence", "head", "tensor"])


def failed(
    adapter: Any,
    *,
    level: str = "smoke",
    dtype: str = "bf16_kv_fp8_e4m3",
    checks: Sequence[Check] = CHECKS,
    answered: dict[str, str] | None = None,
    **subject: Any,
) -> set[str]:
    """Names of the level's checks that fail; checks that run once do not repeat what they have answered."""
    made = make_subject(adapter, level=level, dtype=dtype, **subject)
    made = replace(made, asked={} if answered is None else answered)
    asked = [check for check in checks if level in check.levels and not check.skips(made)]
    found = [finding for check in asked for finding in check.run(made)]
    return {finding.check for finding in found if finding.verdict == "fail"}


@every_descale
@every_dtype
def test_the_cache_is_fp8_and_the_queries_are_not(dtype: str, descale: str) -> None:
    """K and V come with factors and fill e4m3's range; q has none, and gives the output its type."""
    workload = make_workload(dtype=dtype, descale=descale, seqlens_q=(100, 40))
    call = make_inputs(workload, kind="outliers", seed=1, device=CPU, descaled=True).call
    half = {"b": torch.bfloat16, "f": torch.float16}[dtype[0]]
    assert (half, FP8, FP8, half) == (call.q.dtype, call.k.dtype, call.v.dtype, call.out_dtype)
    assert call.q_descale is None
    assert call.k_descale is not None
    assert call.v_descale is not None
    shape = (workload.batch, workload.heads_kv)
    count = {"sequence": shape[0] * shape[1], "head": shape[1], "tensor": 1}[descale]
    for factors, tensor in ((call.k_descale, call.k), (call.v_descale, call.v)):
        assert (shape, count) == (factors.shape, len(factors.unique()))
        assert 224 <= float(tensor.float().abs().max()) <= 448
    assert not bool((call.k_descale == call.v_descale).any())
    one, other = float(call.k_descale[0, 0]), float(call.v_descale[0, 0])
    if descale == "tensor":
        assert abs(one / other - 1) > 0.1


def test_the_golden_result_dequantises_the_same_bytes() -> None:
    """It equals attention over k and v times their factors, in float64."""
    call = make_call(dtype="fp16_kv_fp8_e4m3", seqlens_q=(40,), heads_q=2, heads_kv=2, causal=False, descale="tensor")
    assert call.k_descale is not None
    assert call.v_descale is not None
    q, k, v = call.q.double(), call.k.double() * call.k_descale[0, 0], call.v.double() * call.v_descale[0, 0]
    weights = torch.softmax(torch.einsum("qhd,khd->hqk", q, k) * call.scale, -1)
    assert torch.allclose(torch.einsum("hqk,khd->qhd", weights, v), golden(call).out, rtol=1e-12, atol=1e-12)


@every_dtype
@every_shape
def test_a_correct_kernel_passes(shape: str, dtype: str) -> None:
    """Every probe, with one factor for each tensor."""
    assert set() == failed(None, dtype=dtype, descale="tensor", **SHAPES[shape])


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [("paged window", "bf16_kv_fp8_e4m3"), *((shape, "fp16_kv_fp8_e4m3") for shape in SHAPES)],
)
def test_a_correct_kernel_passes_at_full(shape: str, dtype: str) -> None:
    """Every input kind and the long probes, whose written values e4m3 must hold exactly."""
    made = {"descale": "tensor"} | SMALL | SHAPES[shape]
    answered = answers(f"{dtype}, one factor for each tensor", made)
    assert set() == failed(None, level="full", dtype=dtype, answered=answered, **made)


class Rescaled(TiledTorch):
    """Multiplies the output by the values' factor after it was rounded, as FlashInfer's ``run(v_scale=...)`` does."""

    def prepare(self, call: AttentionCall) -> Prepared:
        """The kernel without the factor, and the product."""
        if call.v_descale is None:
            return super().prepare(call)
        factor = float(call.v_descale[0, 0])
        prepared = super().prepare(replace(call, v_descale=torch.ones_like(call.v_descale)))

        def result(native: Any) -> Any:
            out, lse = prepared.result(native)
            return out * factor, lse

        return replace(prepared, result=result)


class Rounded(TiledTorch):
    """Multiplies keys and values by their factors and rounds that to 16 bits, as vLLM's Triton kernel does."""

    def prepare(self, call: AttentionCall) -> Prepared:
        """The kernel on a 16-bit cache."""
        if call.k_descale is None or call.v_descale is None:
            return super().prepare(call)
        k, v = (
            (tensor.float() * factors[0, 0]).to(call.q.dtype)
            for tensor, factors in ((call.k, call.k_descale), (call.v, call.v_descale))
        )
        return super().prepare(replace(call, k=k, v=v, k_descale=None, v_descale=None))


ONE_GROUP: dict[str, Any] = {"heads_q": 2, "heads_kv": 1}
LONG_CALLS = {"size_limits", "long_context"}
MANY_CALLS = {"degenerate", "heads", "history", "surroundings"}
"""checks that judge many short calls as the budget does its own, so need no wide heads, where roundings add up"""
ROUNDED: dict[str, Any] = {"fp8": {"cache": "rounded"}, "lse": {"rel": 5e-2}}


@every_dtype
@pytest.mark.parametrize(
    ("kernel", "claims", "shape"),
    [
        (Rescaled(), {"fp8": {"value_factor": "after_rounding"}}, {"seqlens_q": (129,), "causal": False} | ONE_GROUP),
        (Rounded(), ROUNDED, {"seqlens_q": (129,), "softcap": 50.0, "head_dim": 256, "heads_q": 4}),
        (Rounded(), ROUNDED, {"seqlens_q": (2,) * 9, "causal": False, "head_dim": 256} | ONE_GROUP),
    ],
    ids=["rescaled", "rounded prefill", "rounded decode"],
)
def test_what_is_rounded_twice_is_declared(
    dtype: str, kernel: TiledTorch, claims: dict[str, Any], shape: dict[str, Any]
) -> None:
    """Without the word on the card a correct kernel is accused; with it no input kind does so, and a fault is seen."""
    declared = claims | {"fp8": claims["fp8"] | {"descale": "tensor"}}
    card = make_card(dtypes=[dtype], accuracy={dtype: "fp8kv"}, **declared)
    asked = shape | {"descale": "tensor", "level": "full", "dtype": dtype}
    budget, some = [Budget()], [check for check in CHECKS if check.name not in LONG_CALLS | MANY_CALLS]
    many = [check for check in CHECKS if check.name in MANY_CALLS]
    assert "budget" in failed(kernel, checks=budget, **asked)
    assert set() == failed(kernel, card=card, checks=some, **asked)
    assert set() == failed(kernel, card=card, checks=many, **asked | {"head_dim": 32})
    assert "budget" in failed(FAULTS["queries in fp8"], card=card, checks=budget, **asked)


@every_dtype
def test_poison_is_what_each_tensor_can_hold(dtype: str) -> None:
    """1e4 around the queries, and the largest e4m3 around the cache: not the NaN that an overflow would be."""
    workload = make_workload(dtype=dtype, page_size=16)
    inputs = poison_outside(make_inputs(workload, kind="normal", seed=1, device=CPU), workload, 1e4)
    assert abs(float(inputs.q_whole[0, 0, 0]) - 1e4) < 20
    assert 448 == float(inputs.k_whole[0, 0, 0, 0]) == float(inputs.v_whole[0, 0, 0, 0])


def edited(edit: Callable[[AttentionCall], AttentionCall]) -> Edited:
    """The portable kernel on a call that was tampered with."""
    return Edited(call=edit)


def as_e5m2(tensor: Tensor) -> Tensor:
    """The bytes taken for the other format; what is no number there stays away."""
    return tensor.view(torch.float8_e5m2).float().nan_to_num(0, 57344, -57344).clamp(-448, 448).to(FP8)


FAULTS: dict[str, Any] = {
    "k_descale dropped": changed(k_descale=None),
    "v_descale dropped": changed(v_descale=None),
    "v_descale on k": edited(lambda call: replace(call, k_descale=call.v_descale)),
    "exchanged": edited(lambda call: replace(call, k_descale=call.v_descale, v_descale=call.k_descale)),
    "keys as e5m2": edited(lambda call: replace(call, k=as_e5m2(call.k))),
    "values as e5m2": edited(lambda call: replace(call, v=as_e5m2(call.v))),
    "queries in fp8": edited(lambda call: replace(call, q=call.q.to(FP8).to(call.q.dtype))),
}


@pytest.mark.parametrize("descale", ["sequence", "tensor"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_reading_of_the_cache_fails(fault: str, descale: str) -> None:
    """Factors dropped or exchanged, bytes of another format, and queries that lose their bits."""
    made = make_subject(
        FAULTS[fault],
        dtype="bf16_kv_fp8_e4m3",
        descale=descale,
        seqlens_q=(1,) * 2,
        seqlens_k=(100, 40),
        page_size=16,
    )
    assert "fail" in {finding.verdict for finding in Budget().run(made) if finding.check == "budget"}


def test_fp16_queries_are_granted_what_fp16_is() -> None:
    """``fp8kv`` is about the cache: the arithmetic is that of the queries' type."""
    card = load_kernels()["tiled-torch"].card
    loose, tight = (declared_class(card, dtype) for dtype in ("bf16_kv_fp8_e4m3", "fp16_kv_fp8_e4m3"))
    assert ("fp8kv", 2.0**-8, 0.0) == (loose.name, loose.roundoff, loose.underflow)
    assert ("fp8kv", 2.0**-11, 2.0**-15) == (tight.name, tight.roundoff, tight.underflow)


def test_bytes_are_counted_by_tensor() -> None:
    """A decode reads a cache of one byte per element; queries and output have two."""
    shape = {"seqlens_q": (1,), "seqlens_k": (1000,), "heads_q": 8, "heads_kv": 2, "head_dim": 64, "head_dim_v": 64}
    whole, mixed, narrow = (
        work_of(make_workload(dtype=dtype, **shape)).compulsory_bytes
        for dtype in ("bf16", "bf16_kv_fp8_e4m3", "fp8_e4m3")
    )
    assert whole - 2 * 1000 * 64 * 2 == mixed
    assert mixed - 8 * 64 == narrow


def asked(**changes: Any) -> Workload:
    """A paged decode beside an fp8 cache."""
    usual = {"dtype": "bf16_kv_fp8_e4m3", "seqlens_q": (1,), "seqlens_k": (64,), "page_size": 16, "head_dim": 128}
    return make_workload(**usual | {"head_dim_v": 128} | changes)


def test_the_plan_refuses_who_does_not_claim_it() -> None:
    """With both types of the mixture in the reason; who claims it gets the factors that it takes."""
    cards = {name: loaded.card for name, loaded in load_kernels().items()}
    claiming = {name for name, card in cards.items() if not workload_refusals(card, asked())}
    assert {"flashinfer-fa2-fp8kv", "tiled-torch", "vllm-triton-fp8"} == claiming
    (reason,) = workload_refusals(cards["flash-attn-3"], asked())
    assert reason == ("dtype=bf16_kv_fp8_e4m3: bf16 queries beside an fp8_e4m3 cache (flash-attn-3 claims bf16, fp16)")
    assert any("layout=packed" in text for text in workload_refusals(cards["flashinfer-fa2-fp8kv"], asked(page_size=0)))
    found = [descaled(asked(), cards[name]).descale for name in sorted(claiming)]
    assert ["tensor", "sequence", "tensor"] == found
    assert "" == descaled(asked(dtype="bf16"), cards["tiled-torch"]).descale


@pytest.mark.parametrize("page_size", [0, 16])
def test_libraries_of_one_dtype_refuse(page_size: int) -> None:
    """Where the plan is told to ignore the claims, the adapter says why it cannot."""
    call = make_call(dtype="bf16_kv_fp8_e4m3", page_size=page_size)
    for adapter in (
        create_sdpa({}),
        flashinfer.FlashInfer(library=None, backend="fa3", use_tensor_cores=False),
    ):
        with pytest.raises(LibraryRefusal, match=r"dtype bf16_kv_fp8_e4m3 is none of bf16, fp16"):
            adapter.prepare(call)


@pytest.fixture(autouse=True)
def small_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's own buffer is a gigabyte, of which nothing here uses a byte."""
    monkeypatch.setattr(flashinfer, "WORKSPACE_BYTES", 16)


class Wrapper:
    """Stands where FlashInfer's wrapper does: takes its arguments, and answers with the portable kernel."""

    def __init__(self, call: AttentionCall) -> None:
        self.call = call
        self.given: dict[str, Any] = {}

    def plan(self, *_positional: Any, **_keywords: Any) -> None:
        """Nothing to plan."""

    def run(self, _q: Tensor, _cache: tuple[Tensor, Tensor], **given: Any) -> tuple[Tensor, Tensor]:
        """The pair (total_q, heads_q, dim) and (total_q, heads_q) in base 2, with scales as the library takes them."""
        self.given = given
        factors = {f"{name}_descale": torch.full_like(self.call.k_descale, given[f"{name}_scale"]) for name in "kv"}
        prepared = TiledTorch().prepare(replace(self.call, **factors))
        out, lse = prepared.result(prepared.launch())
        assert lse is not None
        return out, lse.T / torch.log(torch.tensor(2.0))


@pytest.mark.parametrize("queries", [1, 4])
def test_flashinfer_gets_one_number_for_each_tensor(queries: int) -> None:
    """Plain floats, as ``run`` multiplies the softmax scale and the output with them; several factors are refused."""
    shape = {"seqlens_q": (queries,) * 2, "seqlens_k": (64, 40), "page_size": 16, "dtype": "bf16_kv_fp8_e4m3"}
    call = make_call(descale="tensor", **shape)
    wrapper = Wrapper(call)
    library = SimpleNamespace(
        BatchDecodeWithPagedKVCacheWrapper=lambda *_, **__: wrapper,
        BatchPrefillWithPagedKVCacheWrapper=lambda *_, **__: wrapper,
    )
    adapter = flashinfer.FlashInfer(library=library, backend="fa2", use_tensor_cores=False)
    prepared = adapter.prepare(call)
    out, _ = prepared.result(prepared.launch())
    assert call.k_descale is not None
    assert call.v_descale is not None
    expected = {"k_scale": float(call.k_descale[0, 0]), "v_scale": float(call.v_descale[0, 0]), "return_lse": True}
    assert expected == wrapper.given
    assert all(type(value) is float for name, value in wrapper.given.items() if name != "return_lse")
    plain = TiledTorch().prepare(call)
    assert torch.equal(plain.result(plain.launch())[0], out)
    with pytest.raises(LibraryRefusal, match="one k_descale for the whole tensor, not 4 different ones"):
        adapter.prepare(make_call(descale="sequence", **shape))
    with pytest.raises(LibraryRefusal, match=r"dtype bf16_kv_fp8_e4m3 is none of bf16, fp16$"):
        adapter.prepare(make_call(descale="tensor", **shape | {"page_size": 0}))


@pytest.mark.parametrize(("heads_q", "tensor_cores"), [(4, False), (8, False), (10, True), (14, True)])
def test_flashinfer_decodes_groups_without_a_kernel_of_their_own_on_tensor_cores(
    heads_q: int, tensor_cores: bool
) -> None:
    """Five or seven query heads on a KV head are an error in its other decode kernel; engines choose so too."""
    shape = {"seqlens_q": (1, 1), "seqlens_k": (64, 40), "page_size": 16, "dtype": "bf16_kv_fp8_e4m3"}
    call = make_call(heads_q=heads_q, heads_kv=2, descale="tensor", **shape)
    asked: list[Any] = []

    def decode(*_: Any, use_tensor_cores: bool) -> Wrapper:
        asked.append(use_tensor_cores)
        return Wrapper(call)

    library = SimpleNamespace(BatchDecodeWithPagedKVCacheWrapper=decode)
    flashinfer.FlashInfer(library=library, backend="fa2", use_tensor_cores=False).prepare(call)
    assert [tensor_cores] == asked
