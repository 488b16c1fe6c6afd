"""census: every wrong mask, length, page and sink shows in what each query sees."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from builders import make_card
from faults import Dense, Edited, changed
from hypothesis import given, settings
from hypothesis import strategies as st
from subjects import make_subject
from torch import Tensor

from qualify.facts.outcome import Finding
from qualify.report.causes import explain
from qualify.run.adapters.interface import AttentionCall, Prepared
from qualify.run.adapters.tiled_torch import TiledTorch
from qualify.run.checks.census import Census, Labelling, depth, labellings
from qualify.run.checks.rows import Visible

WINDOW: dict[str, Any] = {"window": (15, 0)}
PAGED: dict[str, Any] = {"seqlens_q": (1, 1, 1), "seqlens_k": (40, 70, 33), "page_size": 16, "head_dim": 32}


def census(adapter: Any = None, **workload: Any) -> Finding:
    """The one finding of the check."""
    (finding,) = Census().run(make_subject(adapter, **workload))
    return finding


def seen(low: int, high: int, step: int = 1) -> Visible:
    """What one row sees."""
    return Visible(low=torch.tensor([low]), high=torch.tensor([high]), step=step)


def shifted(by: int) -> Dense:
    """A kernel whose mask is off by some keys."""

    def mask(i: Tensor, j: Tensor, seqlen_q: int, seqlen_k: int, call: AttentionCall) -> Tensor:
        seen: Tensor = call.mask.visible(i + by, j, seqlen_q, seqlen_k)
        return seen

    return Dense(mask=mask)


def top_left(i: Tensor, j: Tensor, seqlen_q: int, seqlen_k: int, call: AttentionCall) -> Tensor:
    """The mask of an API that aligns it to the other corner."""
    mask: Tensor = call.mask.visible(i, j, seqlen_q, seqlen_q)
    return mask.expand(seqlen_q, seqlen_k)


MASKS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "one key to the right": (shifted(1), {}, "a mask shifted by one key to the right"),
    "one key to the left": (shifted(-1), WINDOW, "a mask shifted by one key to the left"),
    "window one longer": (changed(window=(16, 0)), WINDOW, "a window of one key more on the left"),
    "window one shorter": (changed(window=(14, 0)), WINDOW, "a window of one key less on the left"),
    "window ignored": (changed(window=(-1, -1)), WINDOW, "the window being ignored"),
    "chunks ignored": (changed(chunk=0), {"chunk": 16}, "the chunks being ignored"),
    "images ignored": (
        changed(bidirectional_spans=None),
        {"spans": ((0, 20, 40),)},
        "the image spans being ignored",
    ),
    "no mask at all": (changed(causal=False), {}, "no mask at all"),
    "causal though full": (changed(causal=True), {"causal": False}, "a causal mask"),
    "top left": (
        Dense(mask=top_left),
        {"seqlens_q": (20,), "seqlens_k": (50,)},
        "a mask aligned to the top left corner",
    ),
}


@pytest.mark.parametrize("fault", MASKS)
def test_a_wrong_mask_is_recognised(fault: str) -> None:
    """The finding fails and says in words which mask the rows look like."""
    adapter, workload, words = MASKS[fault]
    finding = census(adapter, **workload)
    assert "fail" == finding.verdict
    assert words == finding.values["looks_like"]
    assert finding.detail.endswith(f"; all rows look like {words}")


class Hidden(Dense):
    """Hidden keys have a score of their own, and row maxima begin somewhere."""

    def __init__(self, score: float, begin: float = -math.inf) -> None:
        super().__init__()
        self.score, self.begin = score, begin

    def prepare(self, call: AttentionCall) -> Prepared:
        native = super().prepare(call)

        def launch() -> Any:
            out, lse = native.launch()
            lost = (lse < self.begin - 104) | ((lse < self.score) & (call.cu_seqlens_q[1] > 1))
            return torch.where(lost.T.unsqueeze(-1), 0.0, out), lse

        return Prepared(launch=launch, result=lambda native: native)


@pytest.mark.parametrize("adapter", [Hidden(-1e4), Hidden(-math.inf, begin=-1e4)], ids=["hidden", "maximum"])
def test_a_finite_minus_infinity_is_caught(adapter: Any) -> None:
    """At full, where every score is below it."""
    assert "pass" == census(adapter).verdict
    finding = census(adapter, level="full")
    assert ("fail", True) == (finding.verdict, -24000 < finding.values["score"] <= -12000)
    assert finding.detail.startswith("with every score at -")


@pytest.mark.parametrize("workload", [{}, {"head_dim": 256}, {"head_dim": 40, "scale": 1.0}, PAGED, WINDOW], ids=str)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "fp8_e4m3", "bf16_kv_fp8_e4m3"])
def test_low_scores_are_asked_of_correct_kernels(workload: dict[str, Any], dtype: str) -> None:
    """Exactly the same for every key, in every dtype."""
    finding = census(level="full", dtype=dtype, **workload)
    assert ("pass", True) == (finding.verdict, "also with every score at -" in finding.detail)


@pytest.mark.parametrize(
    ("workload", "hidden"), [({"softcap": 30.0}, None), ({"sinks": True}, None), ({}, -5e4), ({"head_dim": 4}, None)]
)
def test_low_scores_are_not_asked_where_they_do_not_stay(workload: dict[str, Any], hidden: float | None) -> None:
    """Under a softcap, beside a sink, or where the card says what a hidden key scores."""
    finding = census(card=make_card(hidden_score=hidden), level="full", **workload)
    assert ("pass", False) == (finding.verdict, "every score at" in finding.detail)


def test_the_first_wrong_row_is_described() -> None:
    """Sequence, query, head, the keys that it must see, and how many it sees of which label."""
    finding = census(shifted(1), seqlens_q=(40, 70))
    assert {"sequence": 0, "query": 0, "head": 0, "visible_first": 0, "visible_last": 0} == {
        name: finding.values[name] for name in ("sequence", "query", "head", "visible_first", "visible_last")
    }
    # The last query of each sequence sees all keys under either mask.
    assert 108 == finding.values["rows"]


def one_row_sees_one_key_more(i: Tensor, j: Tensor, seqlen_q: int, seqlen_k: int, call: AttentionCall) -> Tensor:
    """A leak of one key of the future into query 31."""
    seen: Tensor = call.mask.visible(i, j, seqlen_q, seqlen_k)
    return seen | ((i == 31) & (j == 32 + seqlen_k - seqlen_q))


def loses_a_tile(i: Tensor, j: Tensor, seqlen_q: int, seqlen_k: int, call: AttentionCall) -> Tensor:
    """The second tile of 16 keys is skipped for queries from 50 on."""
    seen: Tensor = call.mask.visible(i, j, seqlen_q, seqlen_k)
    return seen & ~((i >= 50) & (j // 16 == 1))


def neighbours_key(call: AttentionCall, index: int, first: int, last: int) -> tuple[Tensor, Tensor]:
    """The first sequence of a packed batch starts one key late and ends one key late."""
    late = 1 if index == 0 else 0
    return call.k[first + late : last + late], call.v[first + late : last + late]


def swapped_page(call: AttentionCall) -> AttentionCall:
    """The second sequence reads another page of the first one; one at the same place carries the same labels."""
    assert call.block_table is not None
    table = call.block_table.clone()
    table[1, 0] = table[0, 1]
    return replace(call, block_table=table)


def one_key_too_many(call: AttentionCall) -> AttentionCall:
    """Lengths rounded up by one: the tail of the last page is read."""
    assert call.seqused_k is not None
    return replace(call, seqused_k=call.seqused_k + 1)


def scaled_row(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """One row of one head loses three of a hundred in weight."""
    out[17, 3] *= 0.5
    return out, lse


OTHERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "a leak of one key": (Dense(mask=one_row_sees_one_key_more), {}),
    "a lost tile": (Dense(mask=loses_a_tile), {}),
    "keys of the neighbour": (Dense(keys=neighbours_key), {"seqlens_q": (20, 20)}),
    "a wrong page": (Edited(call=swapped_page), PAGED),
    "past the last page's end": (Edited(call=one_key_too_many), PAGED),
    "the sink dropped": (changed(sinks=None), {"sinks": True}),
    "one wrong row": (Edited(result=scaled_row), {}),
    "an unwritten row": (
        Edited(result=lambda call, out, lse: (out.index_fill(0, torch.tensor([9]), math.nan), lse)),
        {},
    ),
    "LSE off by ln 2": (Edited(result=lambda call, out, lse: (out, lse + math.log(2))), {}),
    "LSE in base 2": (Edited(result=lambda call, out, lse: (out, lse / math.log(2))), {}),
    "LSE without the sink": (
        Edited(result=lambda call, out, lse: (out, TiledTorch().prepare(replace(call, sinks=None)).launch()[1])),
        {"sinks": True},
    ),
}


def test_the_first_wrong_count_is_described() -> None:
    """Its sequence, query and head, both LSE, and how many rows are wrong."""

    def doubled(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        lse[3, [29, 31]] += math.log(2)
        return out, lse

    finding = census(Edited(result=doubled), seqlens_q=(20, 30))
    place = {"sequence": 1, "query": 9, "head": 3, "rows": 2}
    assert ("fail", place) == (finding.verdict, {name: finding.values[name] for name in place})
    assert finding.detail.startswith(
        "the LSE is wrong in 2 rows; first: sequence 1, query 9, head 3: LSE 2.995732, expected 2.302585 for 10 keys"
    )


@pytest.mark.parametrize(
    ("left", "wrong"),
    [
        (math.nan, "Rows hold numbers that count no keys"),
        (1e30, "Rows hold numbers that count no keys"),
        (-3.0, "Rows hold numbers that count no keys"),
        (0.0, "Queries see none of their keys"),
    ],
)
def test_a_row_that_is_never_written_is_told_as_that(left: float, wrong: str) -> None:
    """What was in memory is no count of keys, so nobody looks for a wrong mask."""

    def unwritten(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        out[-1] = left
        return out, lse

    finding = census(Edited(result=unwritten), seqlens_q=(20, 30))
    said = explain(finding).sentence
    assert " of the rows are wrong; first: sequence 1, query 29, head 0 must see " in finding.detail
    assert "; perhaps a row that is never written" in finding.detail
    assert said.startswith(f"{wrong}: expected ")
    assert "Likely cause: a row that is never written" in said


@pytest.mark.parametrize(
    ("fault", "cause"),
    [("LSE in base 2", "an LSE in base 2, where the contract asks for the natural logarithm"), ("LSE off by ln 2", "")],
)
def test_a_wrong_lse_beside_right_results_is_told_as_that(fault: str, cause: str) -> None:
    """Nobody looks for a wrong mask; base 2 is named only where it explains every row."""
    finding = census(OTHERS[fault][0], seqlens_q=(20, 30))
    said = explain(finding).sentence
    assert said.startswith("The LSE is wrong beside results that are right: expected ")
    assert cause == finding.values.get("looks_like", "")
    assert f"Likely cause: {cause or 'a sum over other keys, another base, or too few bits.'}" in said
    assert finding.detail.endswith(f"; all rows look like {cause}") == bool(cause)


def test_ignored_sinks_are_told_as_that() -> None:
    """Where they change a count by half a key or more; nobody looks for a wrong mask."""
    finding = census(changed(sinks=None), sinks=True, seqlens_q=(20, 30))
    said = explain(finding).sentence
    assert " of the rows have another sink than the call's; first: " in finding.detail
    assert said.startswith("A head's sink is not the one of the call: expected ")
    assert said.endswith("Likely cause: the sinks being ignored, which explains every row.")


@pytest.mark.parametrize("edit", [lambda sinks: sinks + 1.0, lambda sinks: sinks.roll(1)], ids=["shifted", "rolled"])
def test_another_sink_is_told_as_that(edit: Any) -> None:
    """All counts of a row are off by one factor, so it sees the right keys."""
    other = Edited(call=lambda call: replace(call, sinks=edit(call.sinks)))
    finding = census(other, sinks=True, seqlens_q=(20, 30))
    said = explain(finding).sentence
    assert " of the rows have another sink than the call's; first: " in finding.detail
    assert said.startswith("A head's sink is not the one of the call: expected ")
    assert said.endswith("Likely cause: the sink of another head, or one that is shifted or counted more than once.")


def test_an_lse_without_the_sink_is_told_as_that() -> None:
    """A count is right to half a key, so beside a sink nobody says that the results are right."""

    def without(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        assert call.sinks is not None
        return out, (lse.double().exp() - call.sinks.double().exp().unsqueeze(1)).log().float()

    said = explain(census(Edited(result=without), sinks=True, dtype="fp32", seqlens_q=(20, 30))).sentence
    assert said.startswith("The LSE does not match the keys that the query sees: expected ")
    assert said.endswith("Likely cause: a sink that is left out of the sum, which explains every row.")


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("fault", OTHERS)
def test_a_fault_is_caught(fault: str, dtype: str) -> None:
    """Leaks, lost tiles, pages, lengths, sinks and a wrong LSE, in every dtype."""
    adapter, workload = OTHERS[fault]
    assert "fail" == census(adapter, dtype=dtype, **workload).verdict


@pytest.mark.parametrize("fault", ["a leak of one key", "a lost tile"])
def test_one_key_of_thousands_is_found(fault: str) -> None:
    """In a sequence far longer than head_dim each key still has a weight that rounding cannot hide."""
    adapter, _ = OTHERS[fault]
    assert "fail" == census(adapter, seqlens_q=(64,), seqlens_k=(2000,), heads_q=1, heads_kv=1, head_dim=32).verdict


@pytest.mark.parametrize(
    "workload",
    [
        {},
        WINDOW,
        PAGED,
        {"causal": False},
        {"window": (9, 5), "causal": False},
        {"sinks": True, "softcap": 50.0},
        {"seqlens_q": (9, 3), "seqlens_k": (4, 3)},
        {"seqlens_q": (1, 17, 100, 3, 0, 64)},
        {"seqlens_q": (3,), "seqlens_k": (4500,), "heads_q": 2, "heads_kv": 1, "head_dim": 64},
        {"head_dim_v": 8, "seqlens_q": (600,), "heads_q": 1, "heads_kv": 1, "head_dim": 8},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_a_correct_kernel_passes(workload: dict[str, Any], dtype: str) -> None:
    """Masks, pages, sinks, empty sequences, more queries than keys, and more keys than can be labelled at once."""
    assert "pass" == census(dtype=dtype, **workload).verdict


@pytest.mark.parametrize(
    "result",
    [
        lambda call, out, lse: out,
        lambda call, out, lse: (out.masked_fill((lse == -math.inf).T.unsqueeze(-1), math.nan), lse),
        lambda call, out, lse: (out, lse.masked_fill(lse == -math.inf, math.inf)),
    ],
    ids=["no LSE", "NaN in empty rows", "LSE inf in empty rows"],
)
def test_rows_without_keys_are_none_of_its_business(result: Any) -> None:
    """Whatever a kernel gives for rows that see no key, and whether it gives an LSE, the census does not judge."""
    assert "pass" == census(Edited(result=result), seqlens_q=(9, 3), seqlens_k=(4, 3)).verdict


def test_a_claimed_accuracy_of_the_lse_is_granted() -> None:
    """An LSE good to 1e-3 passes where the card claims 2e-3, and fails where it claims 1e-5."""
    sloppy = Edited(result=lambda call, out, lse: (out, lse * 1.001))
    claimed = make_card(lse={"rel": 2e-3})
    assert "pass" == Census().run(make_subject(sloppy, card=claimed))[0].verdict
    assert "fail" == Census().run(make_subject(sloppy))[0].verdict


@settings(deadline=None)
@given(
    start=st.integers(0, 20),
    size=st.integers(1, 40),
    dim=st.integers(1, 9),
    blocks=st.booleans(),
    low=st.integers(0, 70),
    length=st.integers(0, 70),
    step=st.integers(1, 6),
)
def test_label_counts_equal_counting(
    start: int, size: int, dim: int, blocks: bool, low: int, length: int, step: int
) -> None:
    """The closed form of both labellings, against one key at a time."""
    labelling = Labelling(start=start, size=size, block=-(-size // dim) if blocks else 0, dim=dim)
    expected = [0] * dim
    for key in range(low, low + length, step):
        if start <= key < start + size:
            expected[int(labelling.label(torch.tensor(key - start)))] += 1
    assert expected == labelling.counts(seen(low, low + length, step))[0].tolist()


@pytest.mark.parametrize(("seqlen", "dim"), [(5, 8), (100, 8), (513, 8), (4096, 128), (40_000, 64)])
def test_labellings_cover_both_ends(seqlen: int, dim: int) -> None:
    """The first and the last keys are labelled at either level, and at full level more of the middle."""
    subject = make_subject(seqlens_q=(1,), seqlens_k=(seqlen,), head_dim=dim)
    for level in ("smoke", "full"):
        found = list(labellings(subject.workload, level))  # type: ignore[arg-type]
        assert 0 == min(each.start for each in found)
        assert max(each.start + each.size for each in found) >= seqlen
    assert len(found) >= len(list(labellings(subject.workload, "smoke")))


def test_one_labelling_is_told_in_the_singular() -> None:
    """A decode step over a few keys needs no second one."""
    for keys, words in ((5, "(1 labelling)"), (513, "(2 labellings)")):
        (finding,) = Census().run(make_subject(seqlens_q=(1,), seqlens_k=(keys,)))
        assert finding.detail.endswith(words)


def test_two_labellings_tell_every_run_of_keys_apart() -> None:
    """Residues and blocks together give each run of keys [low, high) of a window counts of its own."""
    seqlen, dim = 40, 8
    found = list(labellings(make_subject(seqlens_q=(seqlen,), head_dim=dim).workload, "smoke"))
    prints = set()
    runs = [(low, high) for low in range(seqlen) for high in range(low + 1, seqlen + 1)]
    for low, high in runs:
        prints.add(tuple(tuple(each.counts(seen(low, high))[0].tolist()) for each in found))
    assert len(runs) == len(prints)


@pytest.mark.parametrize(
    ("seqlen", "dim", "windows"),
    [(5, 8, (1, 1)), (256, 8, (1, 1)), (257, 8, (2, 2)), (800, 8, (2, 4)), (40_000, 8, (2, 8)), (40_000, 64, (2, 8))],
)
def test_no_label_is_crowded(seqlen: int, dim: int, windows: tuple[int, int]) -> None:
    """At most 32 keys share one, in as many windows as the level has; one labelling does where each key has a label."""
    workload = make_subject(seqlens_q=(1,), seqlens_k=(seqlen,), head_dim=dim).workload
    for level, count in zip(("smoke", "full"), windows, strict=True):
        found = list(labellings(workload, level))  # type: ignore[arg-type]
        starts = sorted({each.start for each in found})
        assert (count, 0, True) == (len(starts), starts[0], starts[-1] + found[-1].size >= seqlen)
        for start in starts:
            of_window = [each for each in found if each.start == start]
            assert (2 if seqlen > dim else 1) == len(of_window)
            assert min(seqlen, 32 * dim) == of_window[0].size
            keys = torch.arange(of_window[0].size)
            labels = torch.stack([each.label(keys) for each in of_window])
            assert 0 <= int(labels.min()) <= int(labels.max()) < dim
            assert max(int(each.bincount().max()) for each in labels) <= 32


@pytest.mark.parametrize("scale", [1.0, 0.3, 0.125, 2.0**-20])
def test_low_scores_are_low_and_exact(scale: float) -> None:
    """Below -12,000 and no lower than twice that; the query that gives them is a power of two."""
    found = depth(make_subject(scale=scale))
    assert -24_000 < found <= -12_000
    assert (0.5, found) == (math.frexp(-found / scale)[0], depth(make_subject(scale=scale, head_dim=8)))
    assert 0.0 == depth(make_subject(scale=scale, head_dim=7)), "eight elements make the score"


def test_keys_that_share_a_label_are_told_without_a_formula() -> None:
    """Those that the call has."""
    every_64th = Labelling(start=4, size=256, block=0, dim=64)
    assert "keys 5, 69, 133 and so on" == every_64th.keys(1)
    assert "keys 4 and 68" == replace(every_64th, size=128).keys(0)
    assert "keys 4, 68 and 132" == replace(every_64th, size=129).keys(0)
    assert "key 7" == replace(every_64th, size=5).keys(3)
    assert "keys that the call does not have" == replace(every_64th, size=5).keys(6)
    assert "keys 12 to 15" == replace(every_64th, block=4).keys(2)
