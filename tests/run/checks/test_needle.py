"""needle: the output is the target's value bit for bit, or the path to some key is wrong."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from builders import make_workload, sees
from faults import Dense, Edited, changed
from subjects import CPU, make_subject
from torch import Tensor

from qualify.facts.dtypes import FORMATS
from qualify.facts.outcome import Finding
from qualify.report.causes import explain
from qualify.run.adapters.interface import AttentionCall
from qualify.run.adapters.tiled_torch import TiledTorch
from qualify.run.checks.needle import Needle, amplitudes, away_from_zero, choose_targets
from qualify.run.inputs.formats import TORCH_DTYPES

PAGED: dict[str, Any] = {"seqlens_q": (1, 1, 1), "seqlens_k": (40, 70, 33), "page_size": 16}


def needle(adapter: Any = None, level: str = "smoke", **workload: Any) -> Finding:
    """The one finding of the check."""
    subject = make_subject(adapter, level=level, **workload)
    assert "" == Needle().skips(subject)
    (finding,) = Needle().run(subject)
    return finding


def wrong_page(call: AttentionCall) -> AttentionCall:
    """The second sequence reads the first page of the first one."""
    assert call.block_table is not None
    table = call.block_table.clone()
    table[1, 0] = table[0, 0]
    return replace(call, block_table=table)


def swapped_pages(call: AttentionCall) -> AttentionCall:
    """Two pages of one sequence change places."""
    assert call.block_table is not None
    table = call.block_table.clone()
    table[0, [0, 1]] = table[0, [1, 0]]
    return replace(call, block_table=table)


def shifted_values(call: AttentionCall, index: int, first: int, last: int) -> tuple[Tensor, Tensor]:
    """The values of a tile are read one row too late."""
    return call.k[first:last], call.v[first:last].roll(1, dims=0)


def transposed_heads(call: AttentionCall) -> AttentionCall:
    """KV heads in reverse order, as a wrong stride gives."""
    return replace(call, k=call.k.flip(-2), v=call.v.flip(-2))


def one_bit(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """The last bit of one element, in float32 the fourth last: two units in the last place are allowed there."""
    if out.element_size() == 2:
        out.view(torch.int16)[11, 5, 3] ^= 1
    else:
        out.view(torch.int32)[11, 5, 3] ^= 8
    return out, lse


FAULTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "interleaved KV heads": (Dense(kv_head=lambda head, heads_q, heads_kv: head % heads_kv), {}),
    "KV heads in reverse": (Edited(call=transposed_heads), {}),
    "a wrong page": (Edited(call=wrong_page), PAGED),
    "two pages swapped": (Edited(call=swapped_pages), {**PAGED, "window": (20, 0)}),
    "values one row late": (Dense(keys=shifted_values), {}),
    "one bit of one element": (Edited(result=one_bit), {}),
    "the scale ignored": (changed(scale=0.001), {}),
}


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught(fault: str, dtype: str) -> None:
    """Heads, pages, rows, and a single bit, in every dtype."""
    adapter, workload = FAULTS[fault]
    assert "fail" == needle(adapter, dtype=dtype, **workload).verdict


def test_the_first_miss_is_described() -> None:
    """Sequence, query, head, key, element, both values, and how many queries miss."""
    finding = needle(Edited(result=one_bit), seqlens_q=(9, 40))
    wanted = {"sequence": 1, "query": 2, "head": 5, "element": 3, "rows": 1}
    assert wanted == {name: finding.values[name] for name in wanted}
    assert finding.values["actual"] != finding.values["expected"]
    assert abs(float(str(finding.values["share"])) - 1 / (49 * 8)) < 1e-9


def noisy(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Every element is a little wrong, as by atomic additions of too few bits."""
    return out * (1 + 0.05 * torch.randn(out.shape)).to(out.dtype), lse


def rounded(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """The output passes through eight bits."""
    return out.to(torch.float8_e4m3fn).to(out.dtype), lse


@pytest.mark.parametrize(
    ("result", "cause"),
    [
        (noisy, "a rounding to fewer bits, a softmax without its maximum, or a result that changes from call to call"),
        (rounded, "an output that is rounded to fp8_e4m3, which explains every row"),
    ],
    ids=["noise", "rounded"],
)
def test_the_right_value_with_an_error_is_no_missing_key(result: Any, cause: str) -> None:
    """Nobody looks for a lost split or page where every query returns nearly its value."""
    finding = needle(Edited(result=result))
    said = explain(finding).sentence
    assert said.startswith("A query returns the value of the right key, but not bit for bit: expected ")
    assert said.endswith(f"Likely cause: {cause}.")
    assert finding.detail.startswith("100.00% of the queries return their needle inexactly; first: ")


IN_TURN = "query heads that take the KV heads in turn (head % {}) and not in groups (head // {})"


@pytest.mark.parametrize("level", ["smoke", "full"])
@pytest.mark.parametrize(("heads_q", "heads_kv"), [(8, 2), (4, 2), (6, 3)])
def test_kv_heads_in_turn_are_recognised(heads_q: int, heads_kv: int, level: str) -> None:
    """Some heads are right under both orders; where exactly the others miss, verdict and report name the order."""
    adapter, _ = FAULTS["interleaved KV heads"]
    finding = needle(adapter, level=level, heads_q=heads_q, heads_kv=heads_kv)
    cause = IN_TURN.format(heads_kv, heads_q // heads_kv)
    assert finding.detail.endswith(f"; it looks like {cause}")
    assert explain(finding).sentence.endswith(f"Likely cause: {cause}.")


def first_heads_lost(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Two heads give nothing, and not those that the other order would move."""
    out[:, :2] = 0.0
    return out, lse


@pytest.mark.parametrize("adapter", [FAULTS["KV heads in reverse"][0], Edited(result=first_heads_lost)])
def test_other_wrong_heads_are_not_taken_for_that_order(adapter: Any) -> None:
    """The order is named only where it explains every query and head."""
    assert "in turn" not in needle(adapter, heads_q=8, heads_kv=2).detail


def test_the_value_of_another_key_is_recognised() -> None:
    """Where the output is the value of another row's target, the finding says so."""
    rolled = Edited(result=lambda call, out, lse: (out.roll(1, dims=0), lse))
    assert "it is the value of the key that query row" in needle(rolled).detail


@pytest.mark.parametrize(
    "workload",
    [
        {},
        PAGED,
        {"causal": False},
        {"window": (9, 0)},
        {"softcap": 50.0, "head_dim": 256},
        {"softcap": 30.0},
        {"sinks": True, "window": (15, 0)},
        {"head_dim": 32},
        {"head_dim_v": 8},
        {"seqlens_q": (9, 3), "seqlens_k": (4, 3)},
        {"seqlens_q": (1, 17, 100, 3, 0, 64)},
        {"seqlens_q": (1,), "seqlens_k": (5000,), "scale": 1.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_correct_kernels_pass(workload: dict[str, Any], dtype: str) -> None:
    """Two different correct kernels, at full level, under every feature: no tolerance is needed."""
    assert "pass" == needle(TiledTorch(tile_q=16, tile_k=32), "full", dtype=dtype, **workload).verdict
    assert "pass" == needle(Dense(), "full", dtype=dtype, **workload).verdict


def test_too_few_dimensions_are_skipped_with_the_reason() -> None:
    """Below 32 dimensions codes are not nearly orthogonal."""
    assert "head_dim 16 < 32: too few orthogonal codes" == Needle().skips(make_subject(head_dim=16))


@pytest.mark.parametrize(
    ("workload", "cause"),
    [
        ({"softcap": 5.0}, "under softcap 5"),
        ({"scale": 1e-3}, "at scale 0.001"),
        ({"scale": 1e-3, "softcap": 50.0}, "at scale 0.001"),
    ],
    ids=str,
)
def test_a_gap_that_cannot_be_opened_is_skipped_with_the_reason(workload: dict[str, Any], cause: str) -> None:
    """A softcap of 5 never opens one of 45, and no softcap is to blame where a tiny scale does not open it either."""
    assert f"no gap of 45 {cause} with 70 keys" == Needle().skips(make_subject(**workload))


def test_no_value_is_zero() -> None:
    """One in 2^24 random numbers is; FlashAttention-3 gave 1e-33 there on an H100, which is right."""
    noise = torch.tensor([0.0, -0.0, 1e-30, -1e-30, 2.0, -2.0])
    assert [0.25, 0.25, 0.25, -0.25, 2.25, -2.25] == away_from_zero(noise).tolist()


@pytest.mark.parametrize("head_dim", [32, 40, 64, 80, 96, 128, 192, 256])
@pytest.mark.parametrize("scale", [1.0, 0.3, None])
@pytest.mark.parametrize("softcap", [0.0, 30.0, 50.0])
def test_codes_are_exact_in_every_dtype(head_dim: int, scale: float | None, softcap: float) -> None:
    """Magnitudes are representable in bf16 and in fp16, whatever the dimension and the scale."""
    size = amplitudes(make_workload(head_dim=head_dim, softcap=softcap, scale=scale or head_dim**-0.5))
    assert size is not None
    for value in (size.code, size.offset_q, size.offset_k):
        for dtype in (torch.bfloat16, torch.float16):
            assert value == float(torch.tensor(value).to(dtype))


WIDTHS: list[dict[str, Any]] = [
    {},
    {"head_dim": 32},
    {"head_dim": 128, "seqlens_q": (1,), "seqlens_k": (5000,)},
    {"seqlens_q": (1,), "seqlens_k": (1,)},
    {"scale": 1.0},
    {"softcap": 23.0},
    {"softcap": 50.0, "head_dim": 256},
    {"dtype": "fp8_e4m3"},
    {"dtype": "bf16_kv_fp8_e4m3", "softcap": 30.0},
    {"heads_kv": 1, "head_dim": 96, "head_dim_v": 64, "latent": True},
]


@pytest.mark.parametrize("workload", WIDTHS, ids=str)
def test_the_target_stands_above_all_other_keys(workload: dict[str, Any]) -> None:
    """By 45 and more under the softcap, with the least code that opens the gap, and with zero in the middle."""
    made = make_workload(**workload)
    size = amplitudes(made)
    assert size is not None
    elements = made.head_dim - made.rope.start - 1
    pairs = max(2, sum(made.seqlens_q)) * max(2, max(made.seqlens_k)) * made.heads_q
    share = min(0.9, 1.1 * math.sqrt(2 * math.log(pairs) / elements))
    shift = size.offset_q * size.offset_k * made.scale

    def gap(code: float, below: float) -> float:
        target = elements * code**2 * made.scale
        first, second = target - below, target * share - below
        if made.softcap:
            first, second = (made.softcap * math.tanh(score / made.softcap) for score in (first, second))
        return first - second

    assert gap(size.code, shift) >= 45
    assert gap(size.code / 2, shift / 4) < 45
    assert shift == pytest.approx(elements * size.code**2 * made.scale * (1 + share) / 2, rel=2**-4)
    assert max(size.code, size.offset_q, size.offset_k) <= FORMATS[made.kv_format].largest
    assert 0.5 <= size.offset_k / size.offset_q <= 2
    for value in (size.code, size.offset_q, size.offset_k):
        assert value == float(torch.tensor(value).to(TORCH_DTYPES[made.kv_format]).float())
    for value in (size.code, size.offset_q):
        assert 0.5 == math.frexp(value)[0], "a power of two is exact in every format"


@pytest.mark.parametrize("workload", [{"softcap": 22.5}, {"scale": 1e-3}], ids=str)
def test_no_gap_is_opened_where_none_can_be(workload: dict[str, Any]) -> None:
    """A tanh keeps all scores within twice the softcap, and a tiny scale needs a constant beyond 2^15."""
    assert amplitudes(make_workload(**workload)) is None


@pytest.mark.parametrize(
    "workload",
    [
        {"seqlens_q": (300,)},
        {"seqlens_q": (300,), "window": (40, 0)},
        {"seqlens_q": (9, 3), "seqlens_k": (4, 30)},
        PAGED,
    ],
    ids=str,
)
def test_targets_are_visible_and_sweep_the_edges(workload: dict[str, Any]) -> None:
    """Every target is a key that its query sees; together they hit first and last keys and tile edges."""
    made = make_workload(**workload)
    targets, seen = choose_targets(made, CPU, 0)
    first_key, row, hit = 0, 0, set()
    for seqlen_q, seqlen_k in zip(made.seqlens_q, made.seqlens_k, strict=True):
        for query in range(seqlen_q):
            visible = [
                j for j in range(seqlen_k) if sees(query, j, seqlen_q, seqlen_k, made.mask.causal, made.mask.window)
            ]
            assert bool(visible) == bool(seen[row])
            for target in targets[row].tolist() if visible else []:
                assert target - first_key in visible
                hit |= {
                    name for name, key in (("first", visible[0]), ("last", visible[-1])) if target - first_key == key
                }
            row += 1
        first_key += seqlen_k
    assert {"first", "last"} == hit


def test_passes_choose_other_targets() -> None:
    """The three sweeps of the full level are not the same one three times."""
    made = make_workload(seqlens_q=(300,))
    sweeps = {tuple(choose_targets(made, CPU, number)[0].flatten().tolist()) for number in range(3)}
    assert 3 == len(sweeps)


@pytest.mark.parametrize(("page_size", "of_pages"), [(16, {335, 336}), (0, set())])
def test_targets_sweep_every_edge(page_size: int, of_pages: set[int]) -> None:
    """Of tiles of 64 and 128 keys, of pages and of the sequence; every fifth target is somewhere else."""
    made = make_workload(seqlens_q=(1,) * 40, seqlens_k=(350,) * 40, page_size=page_size)
    targets, seen = choose_targets(made, CPU, 0)
    found = Counter((targets - torch.arange(40)[:, None] * 350).flatten().tolist())
    edges = {0, 1, 255, 256, 319, 349} | of_pages
    assert bool(seen.all())
    assert edges == {key for key, count in found.items() if count > 20}
    others = [key for key in found if key not in edges]
    assert len(others) > 40
    assert {0, 1, 2} == {key // 117 for key in others}, "in every third of the sequence"


def test_a_hidden_row_has_no_target_and_one_key_is_one() -> None:
    """Key 0 of the call stands for none."""
    targets, seen = choose_targets(make_workload(seqlens_q=(2, 1), seqlens_k=(1, 1)), CPU, 0)
    assert ([False, True, True], [0, 0, 1]) == (seen.tolist(), targets.amax(1).tolist())


class Recorded(TiledTorch):
    """Keeps its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[AttentionCall] = []

    def prepare(self, call: AttentionCall) -> Any:
        self.calls.append(call)
        return super().prepare(call)


@pytest.mark.parametrize(
    ("level", "softcap", "signs"), [("smoke", 0.0, [-1]), ("full", 0.0, [-1, -1, 1]), ("full", 30.0, [-1, -1, -1])]
)
def test_the_last_pass_lifts_all_scores_over_a_thousand(level: str, softcap: float, signs: list[int]) -> None:
    """The constant lowers them in the others, and wherever there is a softcap."""
    kernel = Recorded()
    assert "pass" == needle(kernel, level, softcap=softcap, head_dim=128).verdict
    shifts = [float(call.q[0, 0, -1]) * float(call.k[0, 0, -1]) * call.scale for call in kernel.calls]
    assert signs == [math.copysign(1, shift) for shift in shifts]
    assert [sign > 0 for sign in signs] == [shift > 1000 for shift in shifts]
    codes = [call.k[..., :-1] for call in kernel.calls]
    assert [1] * len(codes) == [len(each.abs().unique()) for each in codes]
    assert len(codes) == len({tuple((each > 0).flatten().tolist()) for each in codes}), "each pass has its own codes"


@pytest.mark.parametrize(("bit", "verdict"), [(2, "pass"), (4, "fail")])
def test_float32_may_be_two_units_off(bit: int, verdict: str) -> None:
    """And no more: a kernel may give the largest weight 1 ± 2^-24."""

    def off(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        out.view(torch.int32)[11, 5, 3] ^= bit
        return out, lse

    assert verdict == needle(Edited(result=off), dtype="fp32").verdict


@pytest.mark.parametrize(("workload", "skipped"), [({"head_dim": 32}, False), ({"head_dim": 31}, True)])
def test_32_elements_are_enough(workload: dict[str, Any], skipped: bool) -> None:
    """One fewer is not."""
    assert skipped == bool(Needle().skips(make_subject(**workload)))
