"""Patterns that say which kernel it is, and patterns that accept anything."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import make_witness

from qualify.cards.load import load_kernels
from qualify.facts.identity import accepts_anything


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


def test_every_shipped_card_says_which_kernel_it_is() -> None:
    """Both by what must match and by what may."""
    rules = {name: kernel.card.witness for name, kernel in load_kernels().items()}
    loose = [name for name, it in rules.items() if accepts_anything(it.must_match) or accepts_anything(it.may_match)]
    assert [] == loose
    assert len(rules) > 20


def test_stored_evidence_of_an_older_qualify_is_read_rightly() -> None:
    """It has the card's patterns, and no reason."""
    proven = make_witness("proven", "k")
    assert proven.identity_asserted
    assert not replace(proven, expected=(".+",)).identity_asserted
    assert not replace(proven, reason="identity is not asserted: may_match .* accepts").identity_asserted
    assert not make_witness("unproven", "k", reason="lost").identity_asserted
