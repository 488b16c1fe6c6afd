"""Records to JSON and back."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
from builders import make_case, make_evidence, make_finding, make_launch, make_witness, make_workload
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from qualify.facts.case import Case, Workload
from qualify.facts.codec import from_data, strict, to_data, to_pieces
from qualify.facts.outcome import (
    OUTCOMES,
    Crashed,
    Finding,
    Measured,
    NotRun,
    Outcome,
    Refused,
    Statistics,
    Substituted,
    TimedOut,
    evidence_of,
    findings_of,
)

EXAMPLES: list[Outcome] = [
    Measured(evidence=make_evidence(make_finding("fail", "row 3, µ and β"))),
    Refused(by="plan", reasons=("head_dim=320 > 256",)),
    Substituted(evidence=make_evidence(witness=make_witness("substituted", "pytorch_flash", reason="another"))),
    Crashed(stage="call", error="SIGSEGV", log="…", attempt=2, findings=(make_finding(),)),
    TimedOut(stage="witness", limit_s=60.0, attempt=1),
    NotRun(reason="interrupted"),
]

LENGTHS = st.lists(st.integers(0, 9), min_size=1, max_size=4).map(tuple)
WORKLOADS = st.builds(
    make_workload,
    dtype=st.sampled_from(["bf16", "fp16", "fp32"]),
    causal=st.booleans(),
    window=st.tuples(st.integers(-1, 9), st.integers(-1, 9)),
    softcap=st.floats(0, 100),
    scale=st.floats(1e-6, 1e6),
    seqlens_q=LENGTHS,
    page_size=st.sampled_from([0, 16]),
)


@pytest.mark.parametrize("outcome", EXAMPLES, ids=lambda outcome: outcome.outcome)
def test_an_outcome_survives_json(outcome: Outcome) -> None:
    """Every kind of outcome comes back equal, of its own class."""
    text = json.dumps(to_data(outcome, Outcome))
    back = from_data(Outcome, json.loads(text))
    assert outcome == back
    assert type(outcome) is type(back)


def test_examples_cover_every_outcome() -> None:
    """A new kind of outcome needs an example here."""
    assert sorted(OUTCOMES) == sorted(example.outcome for example in EXAMPLES)


@settings(deadline=None)
@given(workload=WORKLOADS)
def test_a_case_survives_json(workload: Workload) -> None:
    """Tuples come back as tuples and floats to the last bit."""
    case = make_case(workload=workload)
    assert case == from_data(Case, json.loads(json.dumps(to_data(case))))


@pytest.mark.parametrize("value", [math.inf, -math.inf, 0.1 + 0.2, 5e-324, -0.0])
def test_floats_keep_their_bits(value: float) -> None:
    """Infinities and the last bit survive."""
    finding = Finding(check="budget", verdict="fail", detail="", values={"E": value})
    back = from_data(Finding, json.loads(json.dumps(to_data(finding)))).values["E"]
    assert math.copysign(1, value) == math.copysign(1, back)
    assert value == back


def test_not_a_number_survives() -> None:
    """A NaN stays a NaN and never becomes 0 or None."""
    names = {field.name: 0.0 for field in fields(Statistics)}
    words: dict[str, Any] = {
        "inputs": "normal",
        "reference": "fp64",
        "declared_class": "bf16",
        "measured_class": "",
        "lse_base": "",
        "seed": 1,
        "rows": 1,
        "worst_sequence": None,
    }
    statistics = Statistics(**{**names, **words, "E": math.nan})
    back = from_data(Statistics, json.loads(json.dumps(to_data(statistics))))
    assert math.isnan(back.E)
    assert replace(statistics, E=0.0) == replace(back, E=0.0)


@pytest.mark.parametrize("value", [True, False, 1, "1", None])
def test_kinds_of_values_stay_apart(value: object) -> None:
    """True is not 1, and "1" is not 1."""
    finding = Finding(check="budget", verdict="note", detail="", values={"x": value})  # type: ignore[dict-item]
    back = from_data(Finding, json.loads(json.dumps(to_data(finding)))).values["x"]
    assert (type(value), value) == (type(back), back)


@pytest.mark.parametrize(
    "change",
    [{"outcome": "lucky"}, {"by": "nobody"}, {"reasons": 3}, {"outcome": "measured"}],
    ids=str,
)
def test_wrong_data_is_refused(change: dict[str, object]) -> None:
    """Data that is no such record raises instead of becoming half a record."""
    data = to_data(Refused(by="plan", reasons=("no",)), Outcome) | change
    with pytest.raises(ValidationError):
        from_data(Outcome, data)


def test_a_missing_field_is_refused() -> None:
    """A record is whole or not at all."""
    data = to_data(make_launch("kernel"))
    del data["name"]
    with pytest.raises(ValidationError, match="name"):
        from_data(type(make_launch("kernel")), data)


def test_strict_replaces_what_json_does_not_know() -> None:
    """NaN and infinities become None at any depth; everything else stays."""
    data = {"a": [1.5, math.nan, {"b": math.inf}], "c": (-math.inf, "inf", True), "d": None}
    assert {"a": [1.5, None, {"b": None}], "c": [None, "inf", True], "d": None} == strict(data)
    json.dumps(strict(data), allow_nan=False)


def test_an_iterator_is_written_piece_by_piece() -> None:
    """What it gives is never in memory together: its last items are made after the first were written."""
    made: list[int] = []

    def items() -> Iterator[dict[str, float]]:
        for number in range(1000):
            made.append(number)
            yield {"n": math.nan if number == 1 else float(number)}

    pieces = to_pieces({"a": items(), "b": iter(()), "c": [1, 2]})
    text = next(pieces) + next(pieces)
    assert 0 < len(made) < 1000
    data = json.loads(text + "".join(pieces))
    assert {"a": [{"n": None if number == 1 else number} for number in range(1000)], "b": [], "c": [1, 2]} == data


def test_strict_writes_half_a_character_out() -> None:
    """As text, in keys and values; whole characters beyond ASCII, and the text of an escape, stay."""
    data = {"k\udcff": ["a\ud800b", "µ \N{SNOWMAN} \U0001f600", "\\udcff"]}
    assert {"k\\udcff": ["a\\ud800b", "µ \N{SNOWMAN} \U0001f600", "\\udcff"]} == strict(data)


def test_findings_and_evidence_of_every_outcome() -> None:
    """Crashes keep what was found before them; refusals have nothing."""
    assert [1, 0, 1, 1, 0, 0] == [len(findings_of(example)) for example in EXAMPLES]
    assert [True, False, True, False, False, False] == [evidence_of(example) is not None for example in EXAMPLES]
