"""How fast a card was in each run: the median of the other cases, computed without looking at each case anew."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest
from builders import make_case, make_evidence, make_timing
from hypothesis import given
from hypothesis import strategies as st
from stored_runs import make_run

from qualify.facts.outcome import Measured, NotRun, Outcome
from qualify.facts.run import Record
from qualify.judge.anchored import Anchors, CaseTime, case_times
from qualify.verdict.origin import taken_over

CASES = "abcdefg"
TIMES = st.dictionaries(st.sampled_from(CASES), st.sampled_from([50.0, 100.0, 100.0, 110.0, 300.0]), min_size=1)


@given(timed=st.dictionaries(st.sampled_from("123"), TIMES, min_size=1), case=st.sampled_from(CASES))
def test_an_anchor_is_the_median_of_the_other_cases(timed: dict[str, dict[str, float]], case: str) -> None:
    """Of those that all runs have timed: their usual time, times the median of what each took over its usual time."""
    runs = list(timed)
    others = set.intersection(*(set(timed[run]) for run in runs)) - {case}
    usual = {name: median(timed[run][name] for run in runs) for name in others}
    middle = median(usual.values()) if others else 0.0
    expected = {run: middle * median(timed[run][name] / usual[name] for name in others) for run in runs if others}
    anchors = Anchors(timed)
    count, found = anchors.of(case, runs)
    assert (len(others), pytest.approx(expected)) == (count, found)
    assert (count, found) == anchors.of(case, runs), "what is kept is the same"


def test_the_anchor_is_that_of_the_asked_runs() -> None:
    """Others may have timed fewer cases."""
    anchors = Anchors({"1": {"a": 1.0, "b": 2.0, "c": 6.0}, "2": {"a": 1.0, "b": 4.0}})
    assert (2, {"1": 4.0}) == anchors.of("a", ["1"])
    assert (1, {"1": 2.0, "2": 4.0}) == anchors.of("a", ["1", "2"])
    assert (0, {}) == Anchors({"1": {"a": 1.0}}).of("a", ["1"])


def test_times_are_those_that_a_run_measured_itself() -> None:
    """Not one that it took over, nor none, nor one of 0 µs; the card is that of the case."""
    own = Measured(evidence=replace(make_evidence(), timing=make_timing(70.0, roofline_us=35.0), device_uuid="card-1"))
    outcomes: dict[str, Outcome] = {
        "own": own,
        "untimed": Measured(evidence=make_evidence()),
        "nothing": Measured(evidence=replace(make_evidence(), timing=replace(make_timing(1.0), latency_us=0.0))),
        "not run": NotRun(reason="interrupted"),
        "taken over": taken_over(own, make_run()),
        "last": own,
    }
    records = [Record(case=replace(make_case(), id=name), outcome=outcome) for name, outcome in outcomes.items()]
    expected = CaseTime(
        us=70.0,
        least_us=35.0,
        card="card-1",
        content_hash=make_case().content_hash,
        cold=True,
        blocks=21,
        sound=True,
        shared=False,
    )
    assert {"own": expected, "last": expected} == case_times(records)
