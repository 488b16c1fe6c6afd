"""Dilated masks: checks count every n-th key as the mask does, accuse no correct kernel and catch the wrong ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from builders import alter, make_card, make_workload, sees
from faults import Dense, changed
from subjects import CPU, answers, make_subject, verdicts
from torch import Tensor

from qualify.facts.case import Workload
from qualify.run.adapters.interface import AttentionCall
from qualify.run.adapters.tiled_torch import TiledTorch
from qualify.run.checks.history import History
from qualify.run.checks.needle import choose_targets
from qualify.run.checks.other_workloads import differing
from qualify.run.checks.poison import unseen_keys
from qualify.run.checks.rows import rows_of
from qualify.run.checks.two_scores import make_probe
from qualify.run.inputs.kinds import _period
from qualify.run.measure.timing import work_of

CARD = make_card(masks=["full", "causal", "window", "band", "chunked", "dilated", "spans"])
PAGED: dict[str, Any] = {"seqlens_q": (1, 1, 1), "seqlens_k": (130, 64, 129), "page_size": 16}
WORKLOADS: list[dict[str, Any]] = [
    {"seqlens_q": (150,), "window": (63, 0), "dilation": 2},
    {"seqlens_q": (40, 33), "seqlens_k": (140, 33), "window": (30, 0), "dilation": 3},
    {**PAGED, "window": (62, 0), "dilation": 2},
    {"seqlens_q": (90,), "dilation": 4, "sinks": True},
    {"seqlens_q": (60,), "seqlens_k": (100,), "causal": False, "dilation": 3},
    {"seqlens_q": (9, 3), "seqlens_k": (4, 3), "window": (5, 0), "dilation": 2},
    {"seqlens_q": (70,), "causal": False, "window": (9, 8), "dilation": 2},
]
SMALL: dict[str, Any] = {"heads_q": 4, "heads_kv": 2, "head_dim": 32}
"""at the full level, which has many calls and some long ones"""


def keys_of_rows(workload: Workload) -> list[list[int]]:
    """The keys that each packed query sees, one comparison at a time."""
    mask = workload.mask
    return [
        [j for j in range(seqlen_k) if sees(i, j, seqlen_q, seqlen_k, mask.causal, mask.window, dilation=mask.size)]
        for seqlen_q, seqlen_k in zip(workload.seqlens_q, workload.seqlens_k, strict=True)
        for i in range(seqlen_q)
    ]


@pytest.mark.parametrize("given", WORKLOADS, ids=str)
def test_what_the_checks_take_for_granted_agrees_with_counting(given: dict[str, Any]) -> None:
    """Keys of each row, keys that nobody sees, targets of needles, halves of the keys, and the work of a call."""
    workload = make_workload(**given)
    rows, expected = rows_of(workload, CPU), keys_of_rows(workload)
    visible = rows.visible()
    found = [
        list(range(low, high, visible.step))
        for low, high in zip(visible.low.tolist(), visible.high.tolist(), strict=True)
    ]
    assert expected == found
    assert [len(keys) for keys in expected] == visible.count.tolist()
    first = rows.first_key.tolist()
    seen = {start + key for start, keys in zip(first, expected, strict=True) for key in keys}
    assert [key not in seen for key in range(sum(workload.seqlens_k))] == unseen_keys(workload, CPU).tolist()
    targets, some = choose_targets(workload, CPU, 0)
    assert [bool(keys) for keys in expected] == some.tolist()
    aimed = [
        {target - start for target in row} if keys else set()
        for row, start, keys in zip(targets.tolist(), first, expected, strict=True)
    ]
    assert all(row <= set(keys) for row, keys in zip(aimed, expected, strict=True))
    probe = make_probe(make_subject(card=CARD, **given), 0.0)
    marked = probe.inputs.call.k if workload.page_size == 0 else None
    if marked is not None:
        ones = [
            sum(bool(marked[start + key, 0, 0]) for key in keys) for start, keys in zip(first, expected, strict=True)
        ]
        assert ones == probe.ones.tolist()
    assert all(abs(one - zero) <= 1 for one, zero in zip(probe.ones.tolist(), probe.zeros.tolist(), strict=True))
    assert workload.heads_q * sum(map(len, expected)) == work_of(workload).exps
    bytes_ = 2 * (workload.head_dim + workload.head_dim_v)
    read = work_of(workload).compulsory_bytes - sum(workload.seqlens_q) * workload.heads_q * bytes_
    assert len(seen) * workload.heads_kv * bytes_ == read


@pytest.mark.parametrize("given", [{"window": (63, 0), "dilation": 2}, {"window": (29, 0), "dilation": 3}], ids=str)
def test_every_query_meets_a_sink_of_the_inputs(given: dict[str, Any]) -> None:
    """Those that have as many keys before them as the window holds."""
    workload = make_workload(seqlens_q=(200,), **given)
    period = _period(workload)
    assert all(any(key % period == 0 for key in keys) for keys in keys_of_rows(workload)[workload.mask.window[0] :])


@pytest.mark.parametrize("given", WORKLOADS, ids=str)
@pytest.mark.parametrize("adapter", [TiledTorch(tile_q=48, tile_k=32), Dense()], ids=["tiled", "dense"])
def test_correct_kernels_pass_every_check(adapter: Any, given: dict[str, Any]) -> None:
    """No false alarm; what is not a pass is a note about NaN in keys that nobody sees."""
    for check, verdict, detail in verdicts(adapter=adapter, card=CARD, **given):
        assert verdict == "pass" or (verdict == "note" and check == "poison"), (check, detail)


@pytest.mark.parametrize("given", WORKLOADS, ids=str)
def test_correct_kernels_pass_at_full_level(given: dict[str, Any]) -> None:
    """More inputs, sweeps and histories find nothing either; a machine may have no room for the largest tensors."""
    asked = answers(f"dilation {given['dilation']}", SMALL | given)
    for check, verdict, detail in verdicts(level="full", card=CARD, asked=asked, **SMALL, **given):
        no_room = check == "size_limits" and "not run: no room for" in detail
        allowed = check in {"layout", "poison"} or detail.startswith("passed before") or no_room
        assert verdict == "pass" or (verdict == "note" and allowed), (check, detail)


def phase(by: int) -> Dense:
    """A kernel whose dilation begins some keys beside the query's own position."""

    def mask(i: Tensor, j: Tensor, seqlen_q: int, seqlen_k: int, call: AttentionCall) -> Tensor:
        interval: Tensor = alter(call, dilation=0).mask.visible(i, j, seqlen_q, seqlen_k)
        return interval & ((j - i - (seqlen_k - seqlen_q) - by) % call.mask.size == 0)

    return Dense(mask=mask)


def from_key_0(i: Tensor, j: Tensor, seqlen_q: int, seqlen_k: int, call: AttentionCall) -> Tensor:
    """The dilation is counted from the first key."""
    interval: Tensor = alter(call, dilation=0).mask.visible(i, j, seqlen_q, seqlen_k)
    return interval & (j % call.mask.size == 0)


def narrow_tiles(i: Tensor, j: Tensor, seqlen_q: int, seqlen_k: int, call: AttentionCall) -> Tensor:
    """The loop over the keys ends at the last one that the last query of a tile of 16 sees."""
    seen: Tensor = call.mask.visible(i, j, seqlen_q, seqlen_k)
    last = (i // 16 * 16 + 15).clamp(max=seqlen_q - 1)
    return seen & (j < call.mask.key_range(last, seqlen_q, seqlen_k)[1])


FAULTS: dict[str, tuple[Any, str]] = {
    "ignored": (changed(dilation=0), "the dilation being ignored"),
    "off by one": (phase(1), ""),
    "from key 0": (Dense(mask=from_key_0), ""),
    "of three": (changed(dilation=3), ""),
    "in keys seen": (changed(window=(125, 0)), ""),
    "one key to the left": (
        Dense(mask=lambda i, j, q, k, call: call.mask.visible(i - 1, j, q, k)),
        "a mask shifted by",
    ),
}
UNSEEN = {"ignored", "off by one", "from key 0", "of three", "one key to the left"}
"""faults that show keys between those of a query"""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_dilation_is_caught(fault: str) -> None:
    """By the census and the golden result; by bits too, where a query sees what lies between its keys."""
    adapter, words = FAULTS[fault]
    found = verdicts(adapter=adapter, card=CARD, seqlens_q=(150,), window=(62, 0), dilation=2)
    failed = {check for check, verdict, _ in found if verdict == "fail"}
    assert failed >= {"census", "budget", *(["suffix"] if fault in UNSEEN else [])}
    (detail,) = (detail for check, _, detail in found if check == "census")
    assert all(text in detail for text in (", every 2 keys; it sees ", words)), detail


def test_a_loop_that_ends_at_the_last_querys_keys_is_caught() -> None:
    """Without a causal mask a query of another phase sees a later key than the last one of its tile."""
    found = verdicts(
        card=CARD, adapter=Dense(mask=narrow_tiles), seqlens_q=(60,), seqlens_k=(101,), causal=False, dilation=3
    )
    assert "fail" in {verdict for check, verdict, _ in found if check == "census"}


def test_keys_that_only_a_wrong_kernel_reads_tell_on_one_query() -> None:
    """Decode: what the dilation leaves out is poisoned."""
    found = verdicts(card=CARD, adapter=changed(dilation=0), **PAGED, window=(62, 0), dilation=2)
    assert {"census", "poison", "suffix"} <= {check for check, verdict, _ in found if verdict == "fail"}


class KeepsSize(TiledTorch):
    """Keeps the mask of the first call of a kind."""

    def __init__(self) -> None:
        super().__init__()
        self.masks: dict[Any, Any] = {}

    def prepare(self, call: AttentionCall) -> Any:
        key = (call.causal, call.window, call.mask.pattern, call.q.shape, call.k.shape)
        return super().prepare(alter(call, mask=self.masks.setdefault(key, call.mask)))


def test_history_asks_for_another_dilation() -> None:
    """Of a workload that has one, and of a causal one; a plan that is kept whatever the size is caught."""
    given: dict[str, Any] = {"seqlens_q": (70,), "window": (30, 0), "dilation": 2}
    for asked in (given, {"seqlens_q": (70,)}):
        names = {name for name, _ in differing(make_subject(card=CARD, level="full", **asked))}
        assert {"dilated mask", "dilated mask (its size)", "dilated mask and sinks"} <= names
        assert "dilated mask and image" not in names
    (finding,) = History().run(make_subject(KeepsSize(), card=CARD, level="full", **given))
    assert ("fail", "dilated mask") == (finding.verdict, finding.values["differs_in"])


def test_images_under_a_dilated_mask_are_no_workload() -> None:
    """What a query sees would be no range with one step, which the checks count with."""
    with pytest.raises(ValueError, match=r"dilated8x2, which leaves out keys between others"):
        make_workload(window=(7, 0), dilation=2, spans=((0, 5, 9),))


def test_the_suspects_of_a_census_have_steps_of_their_own() -> None:
    """The mask without its dilation shows every key."""
    rows = rows_of(make_workload(seqlens_q=(9,), dilation=2), CPU)
    plain = rows.visible(alter(make_workload(), dilation=0).mask)
    assert (2, 1, [1, 1, 2]) == (rows.visible().step, plain.step, rows.visible().count[:3].tolist())
    assert torch.equal(torch.arange(9) + 1, plain.count)
