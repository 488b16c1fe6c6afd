"""Formats and dtypes: the tables are whole and agree with torch."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from qualify.facts.accuracy import ORDER
from qualify.facts.dtypes import DTYPES, FORMATS, Dtype, Format
from qualify.run.inputs.tensors import TORCH_DTYPES


def test_every_word_has_a_row() -> None:
    """In the order of the words, which schemas and ceilings keep."""
    assert list(get_args(Dtype)) == list(DTYPES)
    assert list(get_args(Format)) == list(FORMATS) == list(TORCH_DTYPES)


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_what_torch_says(name: Format) -> None:
    """Bytes, and whether the smallest normal number is so large that weights fall below it."""
    assert TORCH_DTYPES[name].itemsize == FORMATS[name].bytes
    assert FORMATS[name].underflows == (torch.finfo(TORCH_DTYPES[name]).smallest_normal > 2.0**-30)


def test_the_usual_class_is_one() -> None:
    """A card's message names it."""
    assert {facts.usual_class for facts in DTYPES.values()} <= set(ORDER)
