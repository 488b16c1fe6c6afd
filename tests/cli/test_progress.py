"""What a run says of itself on stderr."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from builders import make_evidence, make_finding, make_record

from qualify.cli.progress import Show
from qualify.facts.outcome import Crashed, Measured, Outcome
from qualify.facts.stages import doing
from qualify.fleet.filing import Progress


def test_what_was_compiled_ahead_is_no_first_call_of_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Its cost is the case's first call, but other processes paid it before the run's time began."""
    slow = Measured(evidence=replace(make_evidence(), first_call_us=4e6))
    first, second = (make_record(slow, kernel=name) for name in ("compiled", "not-compiled"))
    with Show() as show:
        show(Progress(done=0, total=2, case_id=first.case.id, stage="compiled ahead", record=None, compiling=True))
        for number, record in enumerate((first, second), 1):
            show(Progress(done=number, total=2, case_id=record.case.id, stage="done", record=record))
    assert "4.0 s of it in first calls" in capsys.readouterr().err


@pytest.mark.parametrize("begun", [False, True])
def test_only_what_began_took_time(capsys: pytest.CaptureFixture[str], begun: bool) -> None:
    """A run that is refused says why, and not that it took 0.0 s; one that is interrupted has its time."""
    with suppress(KeyboardInterrupt), Show() as show:
        if begun:
            steps_of(show, Measured(evidence=make_evidence()))
        raise KeyboardInterrupt
    assert begun == ("took " in capsys.readouterr().err)


def test_whoever_waits_for_compilers_hears_of_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a minute where nothing else is to be said; and all that time is compiling, however the run ends."""
    clock = [0.0]
    monkeypatch.setattr("qualify.cli.progress.time.monotonic", lambda: clock[0])
    where = Progress(done=0, total=9, case_id="", stage="compile ahead", record=None, compiling=True)
    with suppress(KeyboardInterrupt), Show() as show:
        for clock[0] in map(float, range(200)):
            show(where if clock[0] < 100 else replace(where, case_id="a", stage="compiled ahead: 1 of 9"))
        raise KeyboardInterrupt
    *lines, took = capsys.readouterr().err.splitlines()
    assert ["0/9  compiling kernels ahead of the run"] * 2 + ["0/9  a compiled ahead: 1 of 9"] * 2 == lines
    assert "took 0.0 s, 0.0 s of it in first calls, which may compile, after 199.0 s of compiling ahead" == took


def steps_of(show: Show, *outcomes: Outcome, total: int = 10) -> None:
    """One case after the other, each announced by a stage."""
    for number, outcome in enumerate(outcomes, 1):
        record = make_record(outcome, kernel=f"kernel-{number}")
        show(
            Progress(done=number - 1, total=total, case_id=record.case.id, stage="checks:page_permutation", record=None)
        )
        show(Progress(done=number, total=total, case_id=record.case.id, stage="done", record=record))


def test_stages_are_words_and_not_internal_names() -> None:
    """Whatever a process announces, the screen says it in words."""
    assert "loading torch-cpu-math" == doing("load:torch-cpu-math")
    assert "checking: page permutation" == doing("checks:page_permutation")
    assert all(" " in doing(stage) for stage in ("start", "ceilings", "fingerprint", "witness", "prepare"))


def test_counts_and_the_time_that_is_left(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """After a few calls a line says how many were right, how many were not, and about how long the rest takes."""
    monkeypatch.setattr("qualify.cli.progress.PLAIN_SECONDS", -1.0)
    right = Measured(evidence=make_evidence())
    wrong = Measured(evidence=make_evidence(make_finding("fail", "is off")))
    with Show() as show:
        steps_of(show, right, right, wrong, right)
    last = capsys.readouterr().err.splitlines()[-2]
    assert last.startswith("4/10  3 passed  1 failed  about 0 s left  ")
    assert last.endswith(" done")


FORGED = "x\n::error::all is lost\r##[error]y"
"""a name that a kernel gave its exception, or a device kernel: GitHub's runner would obey it in the log"""


@pytest.mark.parametrize(
    "outcome",
    [
        Crashed(stage="prepare", error=FORGED, log="", attempt=1),
        Measured(evidence=make_evidence(make_finding("fail", FORGED))),
    ],
    ids=["crashed", "failed"],
)
def test_what_a_kernel_calls_itself_is_no_line_of_the_log(capsys: pytest.CaptureFixture[str], outcome: Outcome) -> None:
    """One line is one case."""
    with Show() as show:
        steps_of(show, outcome)
    told, took = capsys.readouterr().err.splitlines()
    assert told.endswith("x ::error::all is lost ## [error]y")
    assert took.startswith("took ")


def test_what_runs_again_is_not_yet_failed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls that are done are those that passed and those that failed."""
    monkeypatch.setattr("qualify.cli.progress.PLAIN_SECONDS", -1.0)
    wrong = make_record(Measured(evidence=make_evidence(make_finding("fail", "is off"))), kernel="kernel-2")
    step = Progress(done=1, total=10, case_id=wrong.case.id, stage="done", record=wrong, final=False)
    with Show() as show:
        steps_of(show, Measured(evidence=make_evidence()))
        show(step)
        show(replace(step, done=2, final=True))
    told = capsys.readouterr().err
    first, second = (told.find(text) for text in ("1/10  1 passed  1 to run again  ", "2/10  1 passed  1 failed  "))
    assert -1 < first < second


def test_what_is_not_shown_is_counted_in_cases(capsys: pytest.CaptureFixture[str]) -> None:
    """A case that fails again when it runs alone is one case, however many lines there would be."""
    wrong = Measured(evidence=make_evidence(make_finding("fail", "is off")))
    records = [make_record(wrong, "k", id=f"case-{number}") for number in range(6)]
    with Show() as show:
        for final in (False, True):
            for record in records:
                show(Progress(done=1, total=6, case_id=record.case.id, stage="done", record=record, final=final))
    told = capsys.readouterr().err.splitlines()
    assert ["k: 3 other cases went wrong"] == [line for line in told if "other" in line]


def test_quiet_says_nothing_and_verbose_names_every_case(capsys: pytest.CaptureFixture[str]) -> None:
    """A failure is in the result, so quiet leaves it out of the log too."""
    right = Measured(evidence=make_evidence())
    wrong = Measured(evidence=make_evidence(make_finding("fail", "is off")))
    with Show("quiet") as show:
        steps_of(show, right, wrong)
    assert "" == capsys.readouterr().err
    with Show("verbose") as show:
        steps_of(show, right, wrong)
    told = capsys.readouterr().err
    assert "kernel-1: no check failed, " in told
    assert "kernel-2: failed census: is off" in told


def test_outcomes_that_wait_for_the_store(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence when the store begins to refuse, then the reason on every line of the progress."""
    monkeypatch.setattr("qualify.cli.progress.PLAIN_SECONDS", -1.0)
    step = Progress(done=3, total=10, case_id="a/b", stage="timing", record=None)
    unstored = "2 outcomes in memory, because the database server cannot be reached"
    with Show() as show:
        show(replace(step, case_id="", stage="", unstored=unstored, told="evidence store x: cannot be reached"))
        show(replace(step, unstored=unstored))
        show(step)
    sentence, _, waits, over, _ = capsys.readouterr().err.splitlines()
    assert "evidence store x: cannot be reached" == sentence
    assert f"3/10  {unstored}  a/b measuring the time" == waits
    assert "3/10  a/b measuring the time" == over
