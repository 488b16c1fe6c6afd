"""degenerate: what kernels do wrong at empty sequences, empty rows and lengths beside a tile's edge."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from builders import make_card
from faults import Edited, changed
from subjects import make_subject, verdicts
from torch import Tensor

from qualify.facts.outcome import Finding
from qualify.run.adapters.interface import AttentionCall, LibraryRefusal
from qualify.run.adapters.tiled_torch import TiledTorch
from qualify.run.checks.degenerate import Degenerate, judge_lengths, shapes

SMALL: dict[str, Any] = {"heads_q": 4, "heads_kv": 2, "head_dim": 16}


def findings(adapter: Any = None, card: Any = None, **workload: Any) -> list[Finding]:
    """What the check finds."""
    subject = make_subject(adapter, level="full", card=card, **SMALL | workload)
    assert "" == Degenerate().skips(subject)
    return Degenerate().run(subject)


def empty_rows(call: AttentionCall, lse: Tensor) -> Tensor:
    """Rows whose LSE says that they saw nothing."""
    return (lse == -math.inf).T


def uniform(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Rows that see nothing get the mean of V."""
    mean = call.v.float().mean() if call.v.numel() else torch.tensor(1.0)
    return torch.where(empty_rows(call, lse).unsqueeze(-1), mean.to(out.dtype), out), lse


def positive(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Rows that see nothing get an LSE of +inf."""
    return out, torch.where(lse == -math.inf, math.inf, lse)


def unwritten(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Rows past the last whole tile of 64 are left as they were."""
    for first, last in zip(call.cu_seqlens_q.tolist(), call.cu_seqlens_q.tolist()[1:], strict=False):
        if last - first > 64:
            out[first + (last - first) // 64 * 64 : last] = math.nan
    return out, lse


def drops_one_key(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """The last tile of 32 keys is dropped where it holds one key."""
    if call.cu_seqlens_k is not None:
        for index, length in enumerate(call.cu_seqlens_k.diff().tolist()):
            if length % 32 == 1 and length > 1:
                out[call.cu_seqlens_q[index] : call.cu_seqlens_q[index + 1]] *= 0.9
    return out, lse


def bounds_of_queries(call: AttentionCall) -> AttentionCall:
    """Keys get the bounds of the queries where there are as many."""
    same = call.cu_seqlens_k is not None and call.cu_seqlens_k[-1] == call.cu_seqlens_q[-1]
    return replace(call, cu_seqlens_k=call.cu_seqlens_q) if same else call


def test_bounds_of_queries_are_caught() -> None:
    """Totals are equal, lengths are not."""
    finding = findings(Edited(call=bounds_of_queries))[0]
    assert ("fail", "equal totals, unequal lengths") == (finding.verdict, finding.values["what"])


@pytest.mark.parametrize("edit", [uniform, positive, unwritten, drops_one_key], ids=lambda edit: edit.__name__)
def test_faults_at_the_edges_are_caught(edit: Any) -> None:
    """None of them shows on the case's own lengths."""
    (finding,) = findings(Edited(result=edit), seqlens_q=(64,))
    assert "fail" == finding.verdict


def without_keys(call: AttentionCall) -> Tensor:
    """(total_q, 1) rows of sequences that have no key."""
    assert call.seqused_k is not None or call.cu_seqlens_k is not None
    lengths = call.seqused_k if call.cu_seqlens_k is None else call.cu_seqlens_k.diff()
    assert lengths is not None
    return (lengths == 0).repeat_interleave(call.cu_seqlens_q.diff()).unsqueeze(-1)


def of_empty_sequences(call: AttentionCall, lse: Tensor) -> Tensor:
    """Rows of sequences without keys."""
    return empty_rows(call, lse) & without_keys(call)


def above_the_mask(call: AttentionCall, lse: Tensor) -> Tensor:
    """Rows from which the mask hides all keys of their sequence."""
    return empty_rows(call, lse) & ~without_keys(call)


def of_a_whole_tile(call: AttentionCall, lse: Tensor) -> Tensor:
    """The same in tiles of 128 queries of which none sees a key."""
    rows = above_the_mask(call, lse)
    for first, last in itertools.pairwise(call.cu_seqlens_q.tolist()):
        for begin in range(first, last, 128):
            tile = slice(begin, min(begin + 128, last))
            rows[tile] &= bool(rows[tile].all())
    return rows


PAGES: dict[str, Any] = {"seqlens_q": (1,) * 2, "seqlens_k": (90, 64), "page_size": 16}


@pytest.mark.parametrize(
    ("rows", "workload"),
    [(of_empty_sequences, {}), (above_the_mask, {}), (of_a_whole_tile, {}), (of_empty_sequences, PAGES)],
    ids=["sequences", "rows", "tile", "decode"],
)
@pytest.mark.parametrize("left", ["out", "lse"])
def test_rows_without_keys_that_are_never_written_are_caught_at_smoke(rows: Any, workload: Any, left: str) -> None:
    """What lies in uninitialised memory is no result of theirs, and the gate asks for smoke alone."""

    def unwritten(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        never = rows(call, lse)
        stale = (torch.where(never.unsqueeze(-1), 3.0, out), torch.where(never.T, 3.0, lse))
        return (stale[0], lse) if left == "out" else (out, stale[1])

    failed = [found for found in verdicts(adapter=Edited(result=unwritten), **SMALL | workload) if found[1] == "fail"]
    assert ["degenerate"] == [check for check, _, _ in failed]
    assert "the card claims" in failed[0][2]


@pytest.mark.parametrize(("name", "workload"), [("q", {}), ("k", {}), ("v", {}), ("q", PAGES)], ids=str)
def test_a_write_beyond_the_tensors_where_a_sequence_has_no_key_is_caught(name: str, workload: dict[str, Any]) -> None:
    """The case's own call has keys, and its memory stays as it was."""

    def behind(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        if bool(without_keys(call).any()):
            tensor = getattr(call, name)
            end = tensor.storage_offset() + tensor.numel()
            tensor.as_strided((4,), (1,), end).fill_(3.0)
        return out, lse

    found = verdicts(adapter=Edited(result=behind), **SMALL | workload)
    failed = [(check, detail) for check, verdict, detail in found if verdict == "fail"]
    assert ["degenerate"] == [check for check, _ in failed]
    assert f"the kernel wrote into its inputs (or their guard bands): {name}" in failed[0][1]


def test_smoke_asks_one_call_once() -> None:
    """Another case with the same heads, mask and pages is not asked again; the rest is asked at full."""
    calls: list[AttentionCall] = []
    subject = make_subject(Edited(call=lambda call: calls.append(call) or call), **SMALL)
    verdicts_of = [Degenerate().run(replace(subject, seed=seed)) for seed in (1, 2)]
    assert ["pass", "note"] == [finding.verdict for (finding,) in verdicts_of]
    assert 1 == len(calls)


@pytest.mark.parametrize(
    ("features", "workload", "asked"),
    [
        (["gqa", "ragged", "empty"], {}, "sequences without keys"),
        (["gqa", "empty", "empty_batch"], {}, "no keys at all"),
        (["gqa", "ragged"], {}, ""),
        (["gqa"], {}, ""),
        (["gqa"], PAGES, ""),
    ],
    ids=str,
)
def test_smoke_asks_for_what_the_card_claims(features: list[str], workload: dict[str, Any], asked: str) -> None:
    """A kernel that claims no row without keys gets no such call."""
    found = Degenerate().run(make_subject(card=make_card(features=features), **SMALL | workload))
    assert ([f"right with {asked}"] if asked else []) == [finding.detail for finding in found]


def of_the_mean(call: AttentionCall) -> AttentionCall:
    """Keys beyond six times the mean of more than eight sequences are dropped, as if splits were planned for it."""
    used = call.seqused_k
    if used is None or len(used) <= 8:
        return call
    return replace(call, seqused_k=used.clamp(max=6 * int(used.sum()) // len(used)))


@pytest.mark.parametrize("queries", [1, 40])
def test_one_long_sequence_among_short_ones_is_asked(queries: int) -> None:
    """Serving batches are like that, and the long one is what a plan for the mean length cuts off."""
    (finding,) = findings(Edited(call=of_the_mean), seqlens_q=(queries,) * 2, seqlens_k=(90, 64), page_size=16)
    assert "fail" == finding.verdict


def decode_by_total(call: AttentionCall) -> AttentionCall:
    """As many queries as sequences are taken for one of each."""
    batch = len(call.cu_seqlens_q) - 1
    own = torch.arange(batch + 1, dtype=torch.int32)
    return replace(call, cu_seqlens_q=own, max_seqlen_q=1) if len(call.q) == batch else call


def test_as_many_queries_as_sequences_are_no_decode() -> None:
    """A sequence may have two and another none."""
    (finding,) = findings(Edited(call=decode_by_total))
    assert ("fail", "sequences without queries") == (finding.verdict, finding.values["what"])


def test_an_alignment_to_the_top_left_is_caught() -> None:
    """It shows where queries and keys differ in number."""
    (finding,) = findings(changed(causal=True, window=(-1, 3)), seqlens_q=(64,), causal=False)
    assert "fail" == finding.verdict


@pytest.mark.parametrize("workload", [{}, {"window": (31, 0)}, {"sinks": True}, {"dtype": "fp16"}], ids=str)
def test_a_correct_kernel_passes(workload: dict[str, Any]) -> None:
    """Everything is asked."""
    (finding,) = findings(**workload)
    assert "pass" == finding.verdict
    assert "sequences without keys" in finding.detail
    assert "more queries than keys" in finding.detail


def test_a_correct_decode_kernel_passes() -> None:
    """With pages."""
    (finding,) = findings(seqlens_q=(1,) * 2, seqlens_k=(90, 64), page_size=16)
    assert "pass" == finding.verdict


def test_what_the_card_does_not_claim_is_not_asked() -> None:
    """Neither ragged batches nor empty sequences, and any value in empty rows."""
    card = make_card(features=["gqa"], empty_row={"out": "any", "lse": "any"})
    (finding,) = findings(Edited(result=uniform), card=card)
    assert ("pass", False) == (finding.verdict, "without" in finding.detail)


def test_a_mask_aligned_to_the_top_left_is_not_asked_for_unequal_lengths() -> None:
    """The contract's mask is another one there."""
    (finding,) = findings(changed(causal=False, window=(-1, -1)), card=make_card(alignment="top_left"), causal=False)
    assert ("pass", False) == (finding.verdict, "more queries than keys" in finding.detail)


def test_more_queries_than_keys_are_asked_where_the_card_claims_them() -> None:
    """Under another mask it does not."""
    mean = Edited(result=uniform)
    assert "more queries than keys" == findings(mean, card=make_card(features=["gqa"]))[0].values["what"]
    (finding,) = findings(mean, card=make_card(features=["gqa"], longer_queries=["full"]))
    assert ("pass", False) == (finding.verdict, "more queries than keys" in finding.detail)
    assert finding.detail.endswith(", one query, many keys"), "what follows is asked all the same"


def test_what_another_case_asked_does_not_end_the_questions() -> None:
    """The lengths after it are asked all the same."""
    first = make_subject(level="full", card=make_card(features=["gqa"]), **SMALL)
    (every,) = Degenerate().run(first)
    (question, *_) = first.asked
    finding, note = Degenerate().run(replace(first, asked={question: "right"}))
    assert ("pass", "passed before, in another case: length 1") == (finding.verdict, note.detail)
    assert every.detail == finding.detail.replace("right with", "right with length 1,")


def test_the_sink_alone_is_an_lse() -> None:
    """Rows that see no key may return it."""

    def sink(call: AttentionCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        assert call.sinks is not None
        return out, torch.where(lse == -math.inf, call.sinks.view(-1, 1), lse)

    (finding,) = findings(Edited(result=sink), sinks=True)
    assert "pass" == finding.verdict


@pytest.mark.parametrize("value", [1e4, math.inf, math.nan, 0.0])
def test_another_lse_of_rows_without_keys_is_none_beside_sinks(value: float) -> None:
    """It is -inf or the sink."""
    wrong = Edited(result=lambda call, out, lse: (out, torch.where(lse == -math.inf, value, lse)))
    finding = findings(wrong, sinks=True)[0]
    assert "fail" == finding.verdict
    assert f"the card claims -inf (or the sink) for their LSE, but one is {value}" in finding.detail


@pytest.mark.parametrize(("name", "part"), [("no keys at all", "k"), ("no queries at all", "q")])
def test_a_call_of_nothing_is_asked_where_the_card_claims_it(name: str, part: str) -> None:
    """A library that fails to launch an empty grid is refused such calls, or ends its case."""

    class Grid(TiledTorch):
        def prepare(self, call: AttentionCall) -> Any:
            if not len(getattr(call, part)):
                raise RuntimeError("invalid configuration argument")
            return super().prepare(call)

    with pytest.raises(RuntimeError, match="invalid configuration"):
        findings(Grid())
    (finding,) = findings(Grid(), card=make_card(features=["gqa", "lse", "ragged", "empty"]))
    assert ("pass", False) == (finding.verdict, name in finding.detail)
    assert name in findings()[0].detail


def test_a_refusal_is_told() -> None:
    """The library says no to more queries than keys."""

    class Choosy(TiledTorch):
        def prepare(self, call: AttentionCall) -> Any:
            if call.max_seqlen_q > call.max_seqlen_k:
                raise LibraryRefusal("seqlen_q > seqlen_k")
            return super().prepare(call)

    verdicts = [(finding.verdict, "seqlen_q > seqlen_k" in finding.detail) for finding in findings(Choosy())]
    assert [("pass", False), *[("note", True)] * 3] == verdicts


def images_of_all(call: AttentionCall) -> AttentionCall:
    """Each image in every sequence."""
    spans = call.bidirectional_spans
    if spans is None:
        return call
    every = [(at, start, end) for at in range(len(call.cu_seqlens_q) - 1) for _, start, end in spans.tolist()]
    return replace(call, bidirectional_spans=torch.tensor(every, dtype=torch.int32))


def first_image(call: AttentionCall) -> AttentionCall:
    """No image but the first one."""
    return call if call.bidirectional_spans is None else replace(call, bidirectional_spans=call.bidirectional_spans[:1])


@pytest.mark.parametrize("edit", [images_of_all, first_image, None], ids=lambda edit: getattr(edit, "__name__", "none"))
def test_several_images_are_told_apart(edit: Any) -> None:
    """One image in one sequence, as the case has it, does not show whose it is."""
    found = findings(Edited(call=edit) if edit else None, seqlens_q=(70,), seqlens_k=(129,), spans=((0, 110, 129),))
    expected = ("pass", None) if edit is None else ("fail", "several images")
    assert expected == (found[0].verdict, found[0].values.get("what"))


@pytest.mark.parametrize("tile", [16, 32, 64, 128])
def test_a_short_image_over_the_edge_of_a_tile_is_caught(tile: int) -> None:
    """A kernel that does not look beyond the query's own tile for an image of a few tokens."""

    def cut(call: AttentionCall) -> AttentionCall:
        if call.bidirectional_spans is None:
            return call
        spans = []
        for sequence, start, end in call.bidirectional_spans.tolist():
            edge = -(-(start + 1) // tile) * tile
            short = end - start <= 10 and edge < end
            spans += [(sequence, start, edge), (sequence, edge, end)] if short else [(sequence, start, end)]
        return replace(call, bidirectional_spans=torch.tensor(spans, dtype=torch.int32))

    finding, *_ = findings(Edited(call=cut), seqlens_q=(30,), spans=((0, 2, 14),))
    assert ("fail", "several images") == (finding.verdict, finding.values["what"])


Lengths = tuple[tuple[int, ...], tuple[int, ...]]
RAGGED = ["tile edges", "full tiles"]
PROMPTS = [
    "queries after a context",
    "equal totals, unequal lengths",
    "drafts of unequal lengths",
    "a prompt among single queries",
]
EMPTY = ["sequences without keys", "sequences without queries", "sequences without either"]
NOTHING = ["no keys at all", "no queries at all"]
LONGER = ["more queries than keys", "one key for many queries"]
LAST = ["one query, many keys"]
EVEN = [f"length {length}" for length in (1, 33, 65, 129)]


@pytest.mark.parametrize(
    ("features", "prefill", "decode"),
    [
        (
            ["ragged", "empty", "empty_batch"],
            EMPTY + RAGGED + PROMPTS + NOTHING + LONGER + LAST,
            EMPTY + RAGGED + NOTHING + LAST,
        ),
        (["ragged"], RAGGED + PROMPTS + LONGER + LAST, RAGGED + LAST),
        (["empty"], EVEN + LONGER + LAST, EVEN + LAST),
        (["empty", "empty_batch"], EVEN + NOTHING + LONGER + LAST, EVEN + NOTHING + LAST),
    ],
    ids=str,
)
def test_lengths_keep_to_the_claims(features: list[str], prefill: list[str], decode: list[str]) -> None:
    """Ragged batches, sequences and batches of nothing are claims; a decode call has one query at most."""
    card = make_card(features=features)
    asked = [dict(shapes(make_subject(card=card, seqlens_q=(rows,), seqlens_k=(40,)))) for rows in (2, 1)]
    assert [prefill, decode] == [list(each) for each in asked]
    assert {0, 1} >= {query for queries, _ in asked[1].values() for query in queries}
    assert all(
        max(queries) > 1 for name, (queries, _) in asked[0].items() if name not in {*LAST, "length 1", NOTHING[1]}
    )
    if "ragged" not in features:
        assert all(len({*zip(*lengths, strict=True)}) == 1 for each in asked for lengths in each.values())


def test_lengths_are_what_their_names_say() -> None:
    """Edges of every usual tile, places of empty sequences, and both orders of more and fewer."""
    asked: dict[str, Lengths] = dict(shapes(make_subject()))
    edges = set(asked["tile edges"][0])
    assert {1} | {tile + by for tile in (32, 64, 128) for by in (-1, 1)} <= edges
    assert {64, 128, 192} <= set(asked["full tiles"][1])
    assert all(queries == keys for queries, keys in (asked[name] for name in RAGGED))
    queries, keys = asked["queries after a context"]
    assert all(query <= key for query, key in zip(queries, keys, strict=True))
    queries, keys = asked["equal totals, unequal lengths"]
    assert (sum(queries), True) == (sum(keys), queries != keys)
    queries, keys = asked["a prompt among single queries"]
    assert (1, 9) == (sum(query > 100 for query in queries), queries.count(1))
    for name in LONGER:
        assert all(query > key > 0 for query, key in zip(*asked[name], strict=True))
    assert (0, True, True, 0) == (
        *(max(asked["no keys at all"][1]), min(asked["no keys at all"][0]) > 0),
        *(min(asked["no queries at all"][1]) > 0, max(asked["no queries at all"][0])),
    )
    empty = [[[at for at, length in enumerate(lengths) if not length] for lengths in asked[name]] for name in EMPTY]
    assert [[[], [0, 2, 4]], [[0, 2, 4], []], [[0, 2, 4], [0, 2, 4]]] == empty
    assert ((1,), True) == (asked[LAST[0]][0], asked[LAST[0]][1][0] > 2048)


@pytest.mark.parametrize(("keys", "planned"), [((40,), 48), ((40, 33), 40)])
def test_one_sequence_alone_is_planned_for_all_its_pages(keys: tuple[int, ...], planned: int) -> None:
    """An engine plans for what the block table has room for; in a batch the longest sequence says it."""
    found: list[int] = []

    def kept(call: AttentionCall) -> AttentionCall:
        found.append(call.max_seqlen_k)
        return call

    subject = make_subject(Edited(call=kept), seqlens_q=(1,) * len(keys), seqlens_k=keys, page_size=16)
    assert judge_lengths(subject, ("negative", "peaked8")) is None
    assert [planned] * 2 == found
