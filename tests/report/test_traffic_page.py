"""What the traffic makes of evidence of known content."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from qualify.facts.outcome import Refused
from qualify.report.context import report_context
from qualify.report.document import to_json
from qualify.report.page import render_html
from qualify.report.traffic import TrafficStep, quantile

MATRIX = "{matrix: t, models: [llama-3.1-8b], dtypes: bf16, kernels: ['*'], traffic: t.yaml%s}"
EXPECT = ", expect: [{select: '*/decode/*', kernel: flash-attn-2}]"
MODEL = "llama-3.1-8b.tp1"


@pytest.fixture
def weighed(facts: Any, build: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """The traffic part of report.json for one prompt and one decode shape of a model."""

    def make(weights: Sequence[float] = (1, 3), expect: str = "", refuse: str = "") -> dict[str, Any]:
        records = [record for record in facts.records if record.case.model == MODEL]
        buckets, kept = [], []
        for phase, weight in zip(("prefill", "decode"), weights, strict=True):
            shape = next(record.case for record in records if record.case.phase == phase)
            lengths = shape.workload
            key = "seqlen" if phase == "prefill" else "context"
            pages = f", page_size: {lengths.page_size}" if lengths.page_size else ""
            buckets.append(
                f"{{phase: {phase}, {key}: {lengths.seqlens_k[0]}, batch: {lengths.batch}, weight: {weight}{pages}}}"
            )
            kept += [record for record in records if record.case.cell == shape.cell]
        kept = [
            replace(record, outcome=Refused(by="plan", reasons=("head_dim",)))
            if record.case.phase == "decode" and refuse in ("*", record.case.kernel)
            else record
            for record in kept
        ]
        made = build(kept)
        traffic = f"traffic: t\nsource: made up for a test\nbuckets: [{', '.join(buckets)}]\n"
        run = replace(facts.run, traffic_source=traffic, matrix_source=MATRIX % expect)
        context = report_context(run, made.records, made.conclusion)
        assert "Under the traffic" in render_html(context)
        found: dict[str, Any] = json.loads(to_json(context))["traffic"]
        return found

    return make


def test_the_fastest_proven_kernel_serves(weighed: Callable[..., dict[str, Any]]) -> None:
    """Prompts and tokens are counted apart; layers by calls; attention time by what was measured."""
    found = weighed()
    by_kernel = {row["kernel"]: row for row in found["served"]}
    assert ["prompts", "tokens"] == [row["part"] for row in found["times"]]
    assert pytest.approx(1.0) == sum(row["layers_share"] for row in found["served"])
    assert pytest.approx(1.0) == sum(row["time_share"] for row in found["served"])
    assert (1.0, 0.25) == (by_kernel["flash-attn-3"]["requests_share"], by_kernel["flash-attn-3"]["layers_share"])
    assert [0.0, 0.0] == [row["fallback_share"] for row in found["times"]]


def test_the_expected_kernel_serves_although_another_is_faster(weighed: Callable[..., dict[str, Any]]) -> None:
    """What the matrix expects is what production calls; it serves three of four calls here."""
    by_kernel = {row["kernel"]: row for row in weighed(expect=EXPECT)["served"]}
    assert (0.75, 0.0, 1.0) == tuple(
        by_kernel["flash-attn-2"][key] for key in ("layers_share", "requests_share", "tokens_share")
    )


def test_another_than_the_expected_kernel_is_a_fallback(weighed: Callable[..., dict[str, Any]]) -> None:
    """Where the expected kernel proved nothing, whatever serves is a fallback, all of the tokens."""
    times = {row["part"]: row for row in weighed(expect=EXPECT, refuse="flash-attn-2")["times"]}
    assert (0.0, 1.0) == (times["prompts"]["fallback_share"], times["tokens"]["fallback_share"])


def test_what_nothing_serves_takes_for_ever(weighed: Callable[..., dict[str, Any]]) -> None:
    """An unserved shape is in no average: its share is stated, and the times are unknown."""
    found = weighed(refuse="*")
    times = {row["part"]: row for row in found["times"]}
    assert (0.0, 1.0) == (times["prompts"]["unserved_share"], times["tokens"]["unserved_share"])
    assert (None, None) == (times["tokens"]["p50_us"], times["tokens"]["p99_us"])
    assert {"no proven path": 0.75, "flash-attn-3": 0.25} == {
        row["kernel"]: row["layers_share"] for row in found["served"]
    }
    assert {None} == {row["time_share"] for row in found["served"]}


class Timed(TrafficStep):
    """A step of a given time."""

    @property
    def us(self) -> float:
        """As many microseconds as it is called."""
        return self.calls


def test_quantiles_are_of_sequences() -> None:
    """The step at which that share of the sequences is reached, not of the calls."""
    steps = [
        Timed(part="tokens", calls=us, sequences=many, cells=()) for us, many in ((3.0, 98.0), (1.0, 1.0), (2.0, 1.0))
    ]
    assert [1.0, 2.0, 3.0, 3.0] == [quantile(steps, share).us for share in (0.01, 0.02, 0.5, 0.99)]


def test_a_quantile_does_not_depend_on_the_order_of_its_steps() -> None:
    """The three faster steps are half of the sequences, in whichever order their weights are added."""
    for order in ((0.1, 0.05, 0.35, 0.5), (0.1, 0.35, 0.05, 0.5)):
        steps = [Timed(part="tokens", calls=us, sequences=many, cells=()) for us, many in enumerate(order)]
        assert 2.0 == quantile(steps, 0.5).us
