"""What the functions of a script say of a result: where it is right, and where it is wrong, with both values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from subjects import make_call

from qualify.run.adapters.interface import AttentionCall, Prepared
from qualify.run.adapters.tiled_torch import TiledTorch
from qualify.run.repro import standalone

CALLS: dict[str, dict[str, Any]] = {
    "causal": {"seqlens_q": (9, 20), "seqlens_k": (9, 30)},
    "window": {"seqlens_q": (9, 20), "window": (4, 0)},
    "chunked": {"seqlens_q": (40,), "chunk": 16},
    "spans": {"seqlens_q": (40,), "spans": ((0, 5, 20),)},
    "softcap and sinks": {"seqlens_q": (20,), "softcap": 3.0, "sinks": True},
    "paged": {"seqlens_q": (3, 1), "seqlens_k": (33, 18), "page_size": 16},
    "fp8 cache": {"seqlens_q": (5, 2), "dtype": "bf16_kv_fp8_e4m3", "descale": "tensor"},
}
AT = {"sequence": 1, "query": 3, "head": 5}


def results(call: AttentionCall) -> tuple[Any, Any]:
    """Of the tiled kernel."""
    return standalone.run(TiledTorch().prepare, call)


@pytest.fixture
def call() -> AttentionCall:
    """Two sequences in float32."""
    made: AttentionCall = make_call(seqlens_q=(9, 20), seqlens_k=(9, 30), dtype="fp32")
    return made


@pytest.mark.parametrize("workload", CALLS.values(), ids=CALLS)
def test_exact_attention_is_what_a_correct_kernel_gives(workload) -> None:
    """Every layout, mask and feature, at the first and last query of the last sequence."""
    made = make_call(**workload)
    out, lse = results(made)
    sequence, bounds = len(made.cu_seqlens_q) - 2, made.cu_seqlens_q.tolist()
    for query in (0, bounds[-1] - bounds[-2] - 1):
        right = standalone.exact(made, sequence, query, 3)
        row = bounds[-2] + query
        torch.testing.assert_close(out[row, 3].double(), right.out, rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(lse[3, row].double(), right.lse, rtol=1e-5, atol=1e-4)


def test_a_right_element_is_right_and_a_wrong_one_names_its_place(call) -> None:
    """The allowed difference is the sum of its parts."""
    out, _ = results(call)
    assert not standalone.element_is_off(call, out, **AT, element=7, absolute=1e-5)[0]
    assert not standalone.element_is_off(call, out, **AT, element=7, of_weights=1e-5)[0]
    assert not standalone.element_is_off(call, out, **AT, element=7, of_value=1e-3)[0]
    assert not standalone.element_is_off(call, out, **AT, element=7, of_key=1e-3)[0]
    out[12, 5, 7] += 0.5
    wrong, text = standalone.element_is_off(call, out, **AT, element=7, absolute=0.1)
    assert wrong
    assert text.startswith("sequence 1, query 3, head 5, element 7: out is ")
    out[12, 5, 7] = torch.nan
    assert standalone.element_is_off(call, out, **AT, element=7, absolute=1e-2, of_value=1e-2)[0]


def test_an_lse_and_its_absence(call) -> None:
    """The limit is relative above 1; a card that claims an LSE wants one."""
    _, lse = results(call)
    assert not standalone.lse_is_off(call, lse, **AT, allowed=1e-5)[0]
    lse[5, 12] *= 1.01
    assert standalone.lse_is_off(call, lse, **AT, allowed=1e-5)[0]
    assert standalone.lse_is_off(call, None, **AT, allowed=1e-5)[0]


def test_a_row_and_all_rows(call) -> None:
    """The rms of a row, and the gain and rms of all of them."""
    out, _ = results(call)
    assert not standalone.row_is_off(call, out, **AT, allowed=1e-4)[0]
    for statistic in ("gain", "rms error"):
        assert not standalone.rows_are_off(call, out, statistic=statistic, allowed=1e-4)[0]
    off = out * 1.01
    assert standalone.row_is_off(call, off, **AT, allowed=1e-4)[0]
    wrong, text = standalone.rows_are_off(call, off, statistic="gain", allowed=5e-3)
    assert wrong
    assert text.startswith("gain over 232 rows: 0.01")
    assert standalone.rows_are_off(call, off, statistic="rms error", allowed=1e-4)[0]


@pytest.mark.parametrize("tensor", ["out", "lse"])
def test_two_results_that_should_agree(call, tensor) -> None:
    """To the bit, or within steps of the row's largest value."""
    before = results(call)
    near = (before[0].clone(), before[1].clone())
    values = {**AT, "element": 7, "tensor": tensor, "change": "the page changed"}
    assert not standalone.results_differ(call, before, near, **values, steps=0.0)[0]
    near[0][12, 5, 7] += 1e-6
    near[1][5, 12] += 1e-6
    wrong, text = standalone.results_differ(call, before, near, **values, steps=0.0)
    assert wrong
    assert " before the page changed; exact " in text
    assert not standalone.results_differ(call, before, near, **values, steps=64.0)[0]
    far = (near[0] + 1, near[1] + 1)
    assert standalone.results_differ(call, before, far, **values, steps=64.0)[0]


@pytest.mark.parametrize(
    ("out_policy", "lse_policy", "fill", "expected"),
    [
        ("0", "-inf", None, False),
        ("0", "inf", None, True),
        ("nan", "any", None, True),
        ("any", "any", 3.0, False),
        ("0", "any", 3.0, True),
        ("nan", "any", float("nan"), False),
    ],
)
def test_a_row_without_keys(out_policy, lse_policy, fill, expected) -> None:
    """It gives what the card says."""
    made = make_call(seqlens_q=(7,), seqlens_k=(3,), dtype="fp32")
    out, lse = results(made)
    if fill is not None:
        out[1] = fill
    place = {"sequence": 0, "query": 1, "head": 2}
    found = standalone.empty_row_is_off(made, out, lse, **place, out_policy=out_policy, lse_policy=lse_policy)
    assert expected == found[0]


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (lambda out, lse: (out, lse), False),
        (lambda out, lse: (out, None), False),
        (lambda out, lse: (out[1:], lse), True),
        (lambda out, lse: (out.double(), lse), True),
        (lambda out, lse: (out, lse.T), True),
        (lambda out, lse: (out, lse, lse), True),
        (lambda out, lse: None, True),
    ],
)
def test_what_a_kernel_returns(call, edit: Callable[..., Any], expected) -> None:
    """Shapes and dtypes of the contract, whatever else comes back."""
    native = results(call)

    def kernel(_: AttentionCall) -> Prepared:
        return Prepared(launch=lambda: edit(*native), result=lambda returned: returned)

    assert expected == standalone.breaks_contract(call, *standalone.run(kernel, call))[0]


def test_a_kernel_that_writes_around_its_inputs(call) -> None:
    """Also into bytes of the allocation that the tensor does not show."""
    pool = torch.zeros(len(call.k) + 4, *call.k.shape[1:])
    pool[2:-2] = call.k
    made = replace(call, k=pool[2:-2])

    def kernel(given: AttentionCall) -> Prepared:
        return Prepared(launch=lambda: pool[0].add_(1), result=lambda _: results(given))

    assert (False, "none") == _written(TiledTorch().prepare, made)
    assert (True, "['k']") == _written(kernel, made)


def _written(kernel: Callable[[AttentionCall], Prepared], made: AttentionCall) -> tuple[bool, str]:
    wrong, text = standalone.writes_inputs(kernel, made)
    return wrong, text.partition("wrote into: ")[2]


def test_a_kernel_that_returns_now(call) -> None:
    """It is launched three times, and the sentence says what it did before."""
    asked: list[AttentionCall] = []

    def kernel(given: AttentionCall) -> Prepared:
        asked.append(given)
        return TiledTorch().prepare(given)

    assert (False, "the kernel returned: Tensor; it hung when this script was written") == standalone.returns(
        kernel, call, what="hung"
    )
    assert [call] * 3 == asked


@pytest.mark.parametrize(("wrong", "word"), [(True, "WRONG"), (False, "right")])
def test_the_end(wrong, word, capsys: pytest.CaptureFixture[str]) -> None:
    """It prints the sentence and exits 1 while it is wrong."""
    with pytest.raises(SystemExit) as ended:
        standalone.finish(wrong, "as found")
    assert (int(wrong), f"as found\n{word}\n") == (ended.value.code, capsys.readouterr().out)
