"""Patterns that say which kernel it is, and patterns that accept anything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from builders import make_witness

from qualify.cards.load import load_kernels
from qualify.facts.identity import SIDE_WORK, accepts_anything, matches, side_work_among
from qualify.run.measure.kernel_names import identify


@pytest.mark.parametrize(
    "patterns",
    [
        (".+",),
        (".*",),
        ("",),
        ("[a-z]",),
        (r"\w{3,}",),
        ("^(?!aten::mm$)",),
        ("kernel", "aten::", "flash|fmha|sdpa|attn|attention"),
        ("[A-M]|[a-m]", "[N-Z]|[n-z]"),
        ("^void|^aten|elementwise", "gemm|nvjet|Mem|triton"),
    ],
)
def test_patterns_that_match_most_names_say_nothing(patterns: tuple[str, ...]) -> None:
    """However they are written."""
    assert accepts_anything(patterns)


@pytest.mark.parametrize(
    "patterns", [(), ("FlashAttnFwdSm90",), ("flash_fwd",), ("^my_company_",), ("^aten::(?!_scaled_dot_product)",)]
)
def test_patterns_of_some_names_say_which(patterns: tuple[str, ...]) -> None:
    """Of one library, of one's own kernels, of PyTorch's side work; none at all accepts nothing."""
    assert not accepts_anything(patterns)


@pytest.mark.parametrize(
    "patterns",
    [
        ("kernel",), ("_kernel<",), ("at::native::",), ("^aten::(?!_scaled_dot_product)",), ("triton_",), ("^Mem",),
        ("flash_fwd", "reduce_kernel"), ("[Ff]ill",), ("(?i)copy",), ("elementwise|attention",), ("device|Device",),
    ],
)  # fmt: skip
def test_patterns_of_side_work_do_not_say_which_kernel_ran(patterns: tuple[str, ...]) -> None:
    """A copy, a fill or a reduction is no attention, and runs beside nearly every kernel."""
    assert side_work_among(patterns)
    assert not replace(make_witness("proven", "flash_fwd"), expected=patterns).identity_asserted


@pytest.mark.parametrize(
    "patterns",
    [("FlashAttnFwdSm90",), ("^my_company_",), ("softmax_warp_forward",), ("(?i)gemm|nvjet",), ("attention",)],
)
def test_patterns_of_attention_and_its_parts_match_no_side_work(patterns: tuple[str, ...]) -> None:
    """An unfused kernel is products and softmaxes."""
    assert not side_work_among(patterns)
    assert replace(make_witness("proven", "flash_fwd"), expected=patterns).identity_asserted


def test_side_work_is_side_work_for_the_witness() -> None:
    """The table of names agrees, and no shipped card takes a copy or a sum that was traced on an H100 for its own."""
    assert set() == {name for name in SIDE_WORK if identify(name).role != "auxiliary" and "rms_norm" not in name}
    recorded = json.loads((Path(__file__).parents[1] / "run/measure/h100_kernel_names.json").read_text())
    seen = [name for name in _texts(recorded) if identify(name).family in ("elementwise", "inductor")]
    assert len(seen) > 10
    for name, kernel in load_kernels().items():
        patterns = kernel.card.witness.must_match
        assert "" == side_work_among(patterns), name
        assert [] == [other for other in seen if matches(other, patterns)], name


def _texts(data: object) -> Iterator[str]:
    """All texts within recorded data."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict | list):
        for part in (*data, *(data.values() if isinstance(data, dict) else ())):
            yield from _texts(part)


def test_every_shipped_card_says_which_kernel_it_is() -> None:
    """Both by what must match and by what may."""
    rules = {name: kernel.card.witness for name, kernel in load_kernels().items()}
    loose = [name for name, it in rules.items() if accepts_anything(it.must_match) or accepts_anything(it.may_match)]
    assert [] == loose
    assert len(rules) > 20


def test_stored_evidence_of_an_older_qualify_is_read_rightly() -> None:
    """It has the card's patterns, and no reason."""
    proven = make_witness("proven", "flash_fwd")
    assert proven.identity_asserted
    assert not replace(proven, expected=(".+",)).identity_asserted
    assert not replace(proven, reason="identity is not asserted: may_match .* accepts").identity_asserted
    assert not make_witness("unproven", "k", reason="lost").identity_asserted
