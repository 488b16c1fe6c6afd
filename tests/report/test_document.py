"""The JSON twin of the page."""

from __future__ import annotations

import json
from typing import Any

import pytest

from qualify.report.context import report_context
from qualify.report.document import to_json


@pytest.fixture
def document(facts: Any) -> dict[str, Any]:
    """The JSON of the run with everything in it, read by a strict reader."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    text = to_json(report_context(facts.run, facts.records, facts.conclusion))
    loaded: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return loaded


def test_document_names_its_schema_and_verdict(facts: Any, document: dict[str, Any]) -> None:
    """One object says what it is, for which run, and what the gate said."""
    assert ("qualify.report/1", facts.run.id, "hopper-serving", "FAIL", 1) == tuple(
        document[key] for key in ("schema", "run", "matrix", "verdict", "exit_code")
    )


def test_no_number_becomes_null(document: dict[str, Any]) -> None:
    """NaN is null in strict JSON, in statistics, in findings and in answers."""
    case = next(entry for entry in document["cases"] if entry["id"].endswith("q1024.k1024/bf16/causal/flash-attn-2"))
    tolerance = document["models"][0]["answers"][4]

    assert None is case["details"]["statistics"][0]["E"]
    assert None is case["findings"][0]["values"]["E"]
    assert None is tolerance["tables"][0]["rows"][0]["E"]["value"]


def test_every_case_is_there_with_what_was_launched(facts: Any, document: dict[str, Any]) -> None:
    """All cases, in the order of the records, with verdict, launched kernels and findings."""
    cases = document["cases"]
    hostile = next(case for case in cases if case["outcome"] == "substituted")

    assert [record.case.id for record in facts.records] == [case["id"] for case in cases]
    assert ['void <script>alert(1)</script>"&(int)'] == hostile["kernel_launched"]
    keys = {"id", "outcome", "verdict", "reasons", "environment", "kernel_launched", "identity_asserted"}
    keys |= {"findings", "details", "case"}
    assert keys == set(hostile)


def test_refusals_keep_their_reasons(document: dict[str, Any]) -> None:
    """A refusal carries who refused and why."""
    refused = next(case for case in document["cases"] if case["outcome"] == "refused")

    why = "layout=paged not in claims.layouts (packed)"
    assert {"by": "plan", "reasons": [why], "ended_at": None} == refused["details"]


def test_samples_stay_numbers(document: dict[str, Any]) -> None:
    """All samples of a time are there, as numbers."""
    timing = document["cases"][0]["details"]["timing"]

    assert 21 == len(timing["samples_us"])
    assert {float} == {type(sample) for sample in timing["samples_us"]}


def test_answers_are_those_of_the_page(facts: Any, document: dict[str, Any]) -> None:
    """Each model has the five answers with the headlines of the page."""
    context = report_context(facts.run, facts.records, facts.conclusion)

    assert [[answer.headline for answer in model.answers] for model in context.models] == [
        [answer["headline"] for answer in model["answers"]] for model in document["models"]
    ]
    assert ["kernels", "fallback", "packing", "gains", "tolerance"] == [
        answer["question"] for answer in document["models"][0]["answers"]
    ]
