"""Which outcome a later run may take over instead of measuring it again."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from builders import make_evidence, make_finding, make_witness
from stored_runs import make_run

from qualify.facts.outcome import Crashed, Measured, Outcome, Substituted
from qualify.verdict.origin import is_settled, made_at, newest, oldest, weaker

PASSED = make_evidence()


@pytest.mark.parametrize(
    ("outcome", "settled"),
    [
        (Measured(evidence=PASSED), True),
        (Measured(evidence=make_evidence(make_finding(), make_finding("note"))), True),
        (Measured(evidence=make_evidence(make_finding(), make_finding("inconclusive"))), False),
        (Measured(evidence=make_evidence(make_finding(), make_finding("fail"))), False),
        (Measured(evidence=make_evidence(witness=make_witness("unproven"))), False),
        (Measured(evidence=replace(PASSED, attempt=2)), False),
        (Substituted(evidence=PASSED), False),
        (Crashed(stage="call", error="SIGSEGV", log="", attempt=1), False),
    ],
)
def test_only_a_proven_pass_of_the_first_attempt_is_settled(outcome: Outcome, settled: bool) -> None:
    """Everything else might end otherwise, so it is measured again."""
    assert settled == is_settled(outcome)


def test_smoke_checks_less_than_full() -> None:
    """And a level no less than itself."""
    assert [True, False, False, False] == [
        weaker(level, wanted) for level in ("smoke", "full") for wanted in ("full", "smoke")
    ]


def test_the_latest_date_of_a_run_is_its_end() -> None:
    """A clock that is ahead at the end shows; a run without an end has its start."""
    run = make_run()
    late = run.started_at + timedelta(hours=3)
    assert [late, run.started_at] == [newest(replace(run, finished_at=end)) for end in (late, None)]


@pytest.mark.parametrize("ended", [None, timedelta(hours=25)])
def test_a_run_that_ended_before_it_began_is_as_old_as_its_end(ended: timedelta | None) -> None:
    """Its clock was a day ahead and was set back meanwhile: a day later its evidence is not fresh."""
    run = make_run()
    right = run.started_at - timedelta(hours=25)
    outcome = Measured(evidence=replace(PASSED, ended_at=ended and right + ended))
    back = replace(run, finished_at=right)
    assert [right, right] == [oldest(back), made_at(outcome, back)]
