"""Whose evidence counts, kernel by kernel, and the notes beside a verdict: as plain functions of runs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from builders import make_evidence, make_record, make_witness
from stored_runs import NOW, PASSED, make_run, make_stack

from qualify.facts.code import Code
from qualify.facts.environment import Environment
from qualify.facts.outcome import Crashed, Measured, NotRun, Outcome, Refused, ran_code
from qualify.facts.run import Run
from qualify.judge.code import changed_code, foreign_environments, ran_kernels
from qualify.judge.notes import reused_note, unasserted_note
from qualify.verdict.origin import origins_of, taken_over

HERE: Mapping[str, Code | None] = {"one": {"one.py": "aa"}, "two": {"two.py": "bb"}}


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (HERE, {}),
        ({"one": {"one.py": "aa"}, "two": {"two.py": "cc"}}, {"two": "its code changed since: two.py"}),
        ({"one": {"one.py": "aa"}}, {}),
        (None, dict.fromkeys(HERE, "an older qualify made the evidence, and did not note the code of the kernel")),
    ],
)
def test_kernels_whose_code_changed_are_named(before: Any, expected: dict[str, str]) -> None:
    """A kernel that the run did not have is not among them; a run of an older qualify names all."""
    assert expected == changed_code(make_run(code=before), HERE)


OLD, NEW = make_stack(torch="2.10.0"), make_stack()


def in_environment(**stacks: Any) -> Run:
    """A run with these environments, whose stack is a third one."""
    environments = {name: Environment(python="/usr/bin/python3", stack=stack) for name, stack in stacks.items()}
    return make_run(stack=make_stack(torch="2.9.0"), environments=environments)


@pytest.mark.parametrize(
    ("run", "wanted", "expected"),
    [
        (in_environment(next=NEW), {"next": NEW}, ""),
        (in_environment(next=NEW), {}, ""),
        (in_environment(next=NEW), {"next": None}, ""),
        (in_environment(next=OLD), {"next": NEW}, "environment next was another stack: torch 2.10.0 → 2.11.0"),
        (in_environment(next=None), {"next": NEW}, "nobody reported what environment next ran on"),
        (in_environment(next=None), {}, "nobody reported what environment next ran on"),
        (in_environment(), {"next": NEW}, "it had no environment next"),
    ],
)
def test_evidence_of_an_environment_belongs_to_its_stack(run: Run, wanted: Any, expected: str) -> None:
    """Of a kernel in this interpreter nothing is said: the run's own stack is compared elsewhere."""
    found = foreign_environments(run, {"": NEW, **wanted}, ["kernel", "kernel@next"])
    assert ({"kernel@next": expected} if expected else {}) == found


def test_only_a_refusal_of_the_plan_ran_no_code() -> None:
    """And what was not run."""
    outcomes: dict[str, Outcome] = {
        "measured": PASSED,
        "crashed": Crashed(stage="call", error="SIGSEGV", log="", attempt=1),
        "library": Refused(by="library", reasons=("no",)),
        "plan": Refused(by="plan", reasons=("no",)),
        "not run": NotRun(reason="interrupted"),
    }
    assert {"measured", "crashed", "library"} == {name for name, it in outcomes.items() if ran_code(it)}
    records = [make_record(outcome, kernel=name) for name, outcome in outcomes.items()]
    assert {"measured", "crashed", "library"} == ran_kernels(records)


@pytest.mark.parametrize(
    ("count", "shown"), [(1, "d0"), (3, "d2, d1, d0"), (4, "d3, d2, d1 and 1 more"), (5, "d4, d3, d2 and 2 more")]
)
def test_a_note_says_from_which_runs_evidence_was_taken_over(count: int, shown: str) -> None:
    """The newest three, and when the oldest of all began."""
    runs = [make_run(id=f"d{day}", started_at=NOW - timedelta(days=10 - day)) for day in range(count)]
    records = [make_record(), *(make_record(taken_over(PASSED, run), kernel=run.id) for run in runs)]
    taken = f"{count} of {count + 1} cases were not run again, but taken over from {shown}"
    expected = f"{taken}, begun 2026-11-11 03:00 UTC at the earliest. To run everything: qualify run x"
    assert [expected] == reused_note(records, origins_of(records), "qualify run x")
    assert [] == reused_note([make_record()], {}, "qualify run x")


def test_a_note_names_kernels_that_any_pattern_accepts() -> None:
    """Proven cases alone: what was not proven is no green one, and says why itself."""
    anything = make_witness("proven", reason="any kernel is accepted")
    records = [
        make_record(Measured(evidence=make_evidence(witness=anything)), kernel="zeta"),
        make_record(Measured(evidence=make_evidence(witness=anything)), kernel="alpha"),
        make_record(Measured(evidence=make_evidence(witness=anything)), kernel="zeta"),
        make_record(Measured(evidence=make_evidence(witness=make_witness("unproven", reason="lost"))), kernel="lost"),
        make_record(kernel="asserted"),
        make_record(NotRun(reason="interrupted"), kernel="absent"),
    ]
    told = "alpha (1 of the cases), zeta (2 of the cases)"
    assert [f"identity was not asserted for {told}: the card's patterns accept any kernel"] == unasserted_note(records)
    assert [] == unasserted_note(records[3:])
