"""Formats and dtypes: the tables are whole and agree with torch."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
import torch
from subjects import make_call

from qualify.facts.accuracy import ORDER
from qualify.facts.dtypes import DTYPES, FORMATS, Dtype, Format
from qualify.run.inputs.formats import TORCH_DTYPES, call_dtype, fitted, format_of


def test_every_word_has_a_row() -> None:
    """In the order of the words, which schemas and ceilings keep."""
    assert list(get_args(Dtype)) == list(DTYPES)
    assert list(get_args(Format)) == list(FORMATS) == list(TORCH_DTYPES)


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_what_torch_says(name: Format) -> None:
    """Bytes, unit roundoff and both ends of the normal range."""
    told, known = torch.finfo(TORCH_DTYPES[name]), FORMATS[name]
    assert (TORCH_DTYPES[name].itemsize, name) == (known.bytes, format_of(TORCH_DTYPES[name]))
    assert (told.eps / 2, told.max, told.smallest_normal) == (known.roundoff, known.largest, known.smallest_normal)


def test_weights_fall_below_the_normal_range_of_formats_with_few_exponents() -> None:
    """A row's weight may be a millionth of its largest, and not 2^-126 of it."""
    assert {"fp16", "fp8_e4m3"} == {name for name, known in FORMATS.items() if known.underflows}


@pytest.mark.parametrize("name", DTYPES)
def test_a_call_of_a_dtype_is_known_as_such(name: Dtype) -> None:
    """What inputs are made in, adapters recognise; another output is another dtype, or none."""
    call = make_call(dtype=name)
    assert name == call_dtype(call)
    assert None is call_dtype(replace(call, out_dtype=torch.float64))
    other = torch.float16 if call.out_dtype == torch.bfloat16 else torch.bfloat16
    assert name != call_dtype(replace(call, out_dtype=other))


@pytest.mark.parametrize("name", FORMATS)
def test_what_a_descaled_format_cannot_hold_becomes_its_largest_number(name: Format) -> None:
    """Other formats have an infinity."""
    values = torch.tensor([1e6, -1e6, 3.0])
    known = FORMATS[name]
    expected = [known.largest, -known.largest, 3.0] if known.descaled else values.to(TORCH_DTYPES[name]).tolist()
    assert expected == fitted(values, TORCH_DTYPES[name]).tolist()


def test_the_usual_class_is_one() -> None:
    """A card's message names it."""
    assert {facts.usual_class for facts in DTYPES.values()} <= set(ORDER)
