"""What a resumed run still owes, and what a repeat alone says about the first attempt."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from builders import make_evidence, make_finding, make_record, make_witness

from qualify.facts.outcome import Crashed, Measured, NotRun, Outcome, Refused, TimedOut, findings_of
from qualify.facts.run import Record
from qualify.run.process.child import STOPPED
from qualify.run.process.repeats import (
    PERHAPS_SLOW,
    REPEATS_PER_KERNEL,
    of_a_fresh_process,
    tasks_to_resume,
    with_history,
)

CRASHED = Crashed(stage="prepare", error="killed by signal 11 (SIGSEGV)", log="", attempt=1)
TIMED_OUT = TimedOut(stage="load", limit_s=60.0, attempt=1)
WRONG = Measured(evidence=make_evidence(make_finding("fail", "E = 3", "budget")))
RIGHT = Measured(evidence=make_evidence())
UNPROVEN = Measured(evidence=make_evidence(witness=make_witness("unproven", reason="events lost")))


def attempt(outcome: Any, number: int) -> Any:
    """The same outcome at a later attempt."""
    if isinstance(outcome, Measured):
        return replace(outcome, evidence=replace(outcome.evidence, attempt=number))
    return replace(outcome, attempt=number)


def numbered(*outcomes: Outcome) -> list[Record]:
    """A record of its own kernel for each outcome."""
    return [make_record(outcome, f"k{index}") for index, outcome in enumerate(outcomes)]


def test_what_is_settled_is_not_run_again() -> None:
    """A right result, a refusal, and whatever a repeat gave."""
    refused = Refused(by="library", reasons=("no",))
    settled = numbered(RIGHT, refused, attempt(CRASHED, 2), attempt(TIMED_OUT, 2), attempt(WRONG, 2))
    assert [] == tasks_to_resume([*settled, make_record(attempt(UNPROVEN, 3))])


def test_a_failure_that_no_repeat_was_owed_is_not_run_again() -> None:
    """It failed where nothing else had run, or nobody claims that the kernel can do the case."""
    final = [of_a_fresh_process(failure) for failure in (CRASHED, TIMED_OUT, WRONG)]
    assert [] == tasks_to_resume(numbered(*final))
    told = {(item.check, item.verdict, item.detail) for outcome in final for item in findings_of(outcome)[-1:]}
    assert {("process", "note", "it failed in a process in which no other case had run")} == told
    record = make_record(WRONG)
    assert [] == tasks_to_resume([replace(record, case=replace(record.case, unclaimed=("head_dim=7",)))])


def test_what_nothing_is_known_of_runs_as_at_first() -> None:
    """A case without an outcome may share a process."""
    (task,) = tasks_to_resume(numbered(NotRun(reason="the run ended before its turn")))
    assert (1, False, None) == (task.attempt, task.alone, task.before)


def test_a_failure_is_repeated_alone_with_its_history() -> None:
    """The first attempt of a failed case goes on where the run stopped: alone, and compared with what it was."""
    tasks = tasks_to_resume(numbered(CRASHED, TIMED_OUT, WRONG))
    assert [CRASHED, TIMED_OUT, WRONG] == [task.before for task in tasks]
    assert {(2, True)} == {(task.attempt, task.alone) for task in tasks}


def test_a_trace_that_proved_nothing_is_repeated() -> None:
    """Until the third attempt, and with no failure to compare with."""
    tasks = tasks_to_resume(numbered(UNPROVEN, attempt(UNPROVEN, 2)))
    assert [(2, True, None), (3, True, None)] == [(task.attempt, task.alone, task.before) for task in tasks]


def test_a_failure_whose_trace_proved_nothing_is_not_forgotten() -> None:
    """The next attempt is compared with it, and passes no more; in this run as in a resumed one."""
    before = replace(WRONG, evidence=replace(WRONG.evidence, witness=UNPROVEN.evidence.witness))
    (task,) = tasks_to_resume([make_record(before)])
    assert (2, True, before) == (task.attempt, task.alone, task.before)
    *_, finding = findings_of(with_history(RIGHT, before))
    cause = "in an earlier one, whose trace proved nothing, budget: E = 3"
    assert f"history-dependent: it passes alone in a fresh process; {cause}" == finding.detail


def test_repeats_are_limited_over_the_interruption() -> None:
    """Those before it count."""
    before = [make_record(attempt(CRASHED, 2)) for _ in range(REPEATS_PER_KERNEL - 1)]
    assert 1 == len(tasks_to_resume([*before, *[make_record(CRASHED)] * 3]))


def test_a_repeat_that_passes_fails_by_its_history() -> None:
    """The finding says what happened among others."""
    for before, cause in (
        (CRASHED, "it crashed (killed by signal 11 (SIGSEGV))"),
        (
            TIMED_OUT,
            f"it gave no sign of life for 60 s while its library was loaded; {PERHAPS_SLOW}",
        ),
        (
            replace(TIMED_OUT, findings=(make_finding("note", f"killed; {STOPPED}", "watchdog"),)),
            f"it gave no sign of life for 60 s while its library was loaded; {STOPPED}: run it again",
        ),
        (WRONG, "budget: E = 3"),
    ):
        *_, finding = findings_of(with_history(RIGHT, before))
        assert ("history", "fail") == (finding.check, finding.verdict)
        assert f"history-dependent: it passes alone in a fresh process; after other cases {cause}" == finding.detail


def test_a_repeat_that_fails_is_what_it_is() -> None:
    """Neither it nor a first attempt has a history."""
    assert WRONG == with_history(WRONG, CRASHED)
    assert RIGHT == with_history(RIGHT, None)
