"""Which stored runs count as tests of a bisection: a run that proves nothing blames nobody."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from builders import make_timing
from stored_runs import IDS, MATRIX, NOW, OPEN, PASSED, WRONG, by_later_qualify, make_stack, shipped_kernels, store_run

from qualify.errors import NothingSelected
from qualify.facts.case import Case
from qualify.facts.outcome import NotRun
from qualify.facts.run import Run
from qualify.judge.against import side_of
from qualify.judge.bisection import plan_bisection
from qualify.judge.judged import judge
from qualify.report.bisection import to_data, to_text
from qualify.store.store import Store
from qualify.verdict.bisect import Bisection
from qualify.verdict.compare import compare

OLD, NEW = make_stack(vllm="0.23.0"), make_stack(torch=f"2.12.0:{'b' * 64}", vllm="0.24.0")
MIDDLE = make_stack(vllm="0.24.0")
"""the earlier stack with vllm of the later one"""


def failing(case: Case) -> Any:
    """One failure among passes."""
    return WRONG if case.id == IDS[0] else PASSED


def timed(latency_us: float | None) -> Any:
    """A pass that took so long; None = two samples, the slower one of which is long."""
    samples = (100.0, 300.0) if latency_us is None else (latency_us,) * 9
    timing = make_timing(latency_us=median(samples), samples_us=samples)
    return replace(PASSED, evidence=replace(PASSED.evidence, timing=timing))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The matrix of two shapes and two kernels."""
    (tmp_path / "serving.yaml").write_text(MATRIX)
    return tmp_path / "serving.yaml"


@pytest.fixture
def two(store: Store, path: Path) -> tuple[Run, Run]:
    """A run that passed, and a later one on another stack in which one case fails."""
    return tuple(
        store_run(store, path, outcome, age=timedelta(hours=hours), stack=stack)
        for outcome, hours, stack in ((PASSED, 9, OLD), (failing, 1, NEW))
    )


def planned(store: Store, runs: tuple[Run, Run], select: str = "*") -> Bisection:
    """The plan between two runs."""
    before, after = (side_of(judge(store, run.id, shipped_kernels(), now=NOW)) for run in runs)
    comparison = compare(before, after)
    return plan_bisection(store, comparison, shipped_kernels(), select=select, now=NOW, waivers=None)


@pytest.mark.parametrize(
    ("changes", "result", "candidates"),
    [
        ({}, ["bad"], ("vllm",)),
        ({"outcome": PASSED}, ["good"], ("torch",)),
        ({"outcome": OPEN}, [], ("torch", "vllm")),
        ({"outcome": PASSED, "device": "cuda"}, [], ("torch", "vllm")),
        ({"check_version": 1}, [], ("torch", "vllm")),
        ({"age": -timedelta(hours=2)}, [], ("torch", "vllm")),
        ({"stack": make_stack(vllm="0.25.0")}, [], ("torch", "vllm")),
        ({"outcome": NotRun(reason="interrupted"), "state": "interrupted"}, [], ("torch", "vllm")),
    ],
    ids=["bad", "good", "not decided", "edited", "other checks", "the future", "no mixture", "never run"],
)
def test_only_a_run_that_says_something_blames_a_component(
    store: Store, path: Path, two: tuple[Run, Run], changes: dict[str, Any], result: list[str], candidates: tuple[str]
) -> None:
    """A run of other checks, of the future, of a third stack, or that never ran the case names nobody."""
    usual = {"outcome": failing, "age": timedelta(hours=5), "stack": MIDDLE}
    store_run(store, path, **{**usual, **changes})
    found = planned(store, two)
    assert (result, candidates) == ([test.result for test in found.tested], found.candidates)


def test_a_run_that_asked_less_exonerates_nobody(store: Store, path: Path) -> None:
    """What failed at full may pass at smoke with any stack; what fails at smoke is bad."""
    ends = ((PASSED, 9, OLD), (failing, 1, NEW))
    two = [
        store_run(store, path, outcome, age=timedelta(hours=hours), stack=stack, level="full")
        for outcome, hours, stack in ends
    ]
    store_run(store, path, PASSED, age=timedelta(hours=5), stack=MIDDLE)
    assert ("torch", "vllm") == planned(store, (two[0], two[1])).candidates
    store_run(store, path, failing, age=timedelta(hours=4), stack=MIDDLE)
    assert ("vllm",) == planned(store, (two[0], two[1])).candidates


def test_a_run_with_an_edited_case_exonerates_nobody(store: Store, path: Path, two: tuple[Run, Run]) -> None:
    """Whoever edits one of its cases may have edited the one that failed."""
    middle = store_run(store, path, timed(100.0), age=timedelta(hours=5), stack=MIDDLE)
    with closing(sqlite3.connect(store.where)) as database, database:
        case = "select key from cases where run_id = ? and case_id = ?"
        database.execute(f"update outcomes set latency_us = 1 where case_key = ({case})", (middle.id, IDS[1]))
    assert () == planned(store, two).tested


def test_a_run_whose_matrix_this_qualify_cannot_read_is_no_test(store: Store, path: Path, two: tuple[Run, Run]) -> None:
    """Another version made it: the plan is made without it."""
    by_later_qualify(store, store_run(store, path, PASSED, age=timedelta(hours=5), stack=MIDDLE))
    found = planned(store, two)
    assert ((), ("torch", "vllm")) == (found.tested, found.candidates)


CODE = {name: {"torch 2.11.0": "1", "mine.py": "2"} for name in ("tiled-torch", "torch-cpu-math")}
OTHER = {**CODE, "tiled-torch": {"torch 2.12.0": "3", "mine.py": "4"}}
UPGRADED = {name: {"torch 2.12.0": "3", "mine.py": "2"} for name in CODE}
TOLD = "the code of tiled-torch changed between the runs, which no component of the stack shows: mine.py"


def test_a_run_of_other_code_exonerates_nobody(store: Store, path: Path) -> None:
    """A kernel's own file says as much as a library; the libraries themselves are what is tested."""
    ends = ((PASSED, 9, OLD, CODE), (failing, 1, NEW, UPGRADED))
    two = [
        store_run(store, path, outcome, age=timedelta(hours=hours), stack=stack, code=code)
        for outcome, hours, stack, code in ends
    ]
    store_run(store, path, PASSED, age=timedelta(hours=5), stack=MIDDLE, code=OTHER)
    found = planned(store, (two[0], two[1]))
    assert ((), ()) == (found.tested, found.comparison.caveats)
    store_run(store, path, PASSED, age=timedelta(hours=4), stack=MIDDLE, code=CODE)
    assert ("torch",) == planned(store, (two[0], two[1])).candidates


def test_a_kernel_that_changed_too_is_told_beside_the_blame(store: Store, path: Path) -> None:
    """In words and in JSON, with what limits the comparison: the component named may be innocent."""
    torch = make_stack(torch=f"2.12.0:{'b' * 64}", vllm="0.23.0")
    two = [
        store_run(store, path, outcome, age=timedelta(hours=hours), stack=stack, code=code)
        for outcome, hours, stack, code in ((PASSED, 9, OLD, CODE), (failing, 1, torch, OTHER))
    ]
    found = planned(store, (two[0], two[1]))
    assert ("torch",) == found.candidates
    assert [TOLD] == to_data(found)["caveats"]
    assert f"caveat: {TOLD}" in to_text(found).splitlines()
    last = "look first at what changed in the code of tiled-torch; if a single component is to blame, it is torch"
    assert last == to_text(found).splitlines()[-1]
    here = store_run(store, path, failing, age=timedelta(minutes=5), stack=OLD, code=OTHER)
    blamed = (
        "both runs have the same stack, so no component is to blame; look at what changed in the code of tiled-torch"
    )
    assert blamed == to_text(planned(store, (two[0], here))).splitlines()[-1]


def test_a_run_of_other_calls_exonerates_nobody(store: Store, path: Path, two: tuple[Run, Run]) -> None:
    """Cases of the same ids, with twice the heads: neither of the two runs made these calls."""
    path.write_text(MATRIX.replace("heads_q: 2, heads_kv: 2", "heads_q: 4, heads_kv: 4"))
    store_run(store, path, PASSED, age=timedelta(hours=5), stack=MIDDLE)
    assert () == planned(store, two).tested


@pytest.mark.parametrize(
    ("changes", "result"),
    [
        ({}, ["good"]),
        ({"outcome": timed(200.0)}, ["bad"]),
        ({"outcome": PASSED}, []),
        ({"outcome": timed(None)}, []),
        ({"stack": replace(MIDDLE, device=replace(MIDDLE.device, uuid="cpu-1"))}, []),
    ],
    ids=["as fast", "slower", "not timed", "few samples", "another card"],
)
def test_only_times_that_can_be_compared_exonerate(
    store: Store, path: Path, changes: dict[str, Any], result: list[str]
) -> None:
    """A run without times, with too few samples, or on another card says nothing about a slower kernel."""
    before = store_run(store, path, timed(100.0), age=timedelta(hours=9), stack=OLD)
    after = store_run(store, path, timed(200.0), age=timedelta(hours=1), stack=NEW)
    store_run(store, path, **{"outcome": timed(100.0), "age": timedelta(hours=5), "stack": MIDDLE, **changes})
    found = planned(store, (before, after))
    assert ("times", result) == (found.symptom and found.symptom.topic, [test.result for test in found.tested])


def test_the_two_runs_are_no_tests_of_themselves(store: Store, two: tuple[Run, Run]) -> None:
    """That the one passed and the other failed is what is asked, and no answer."""
    assert () == planned(store, two).tested


def test_tests_are_listed_from_the_oldest(store: Store, path: Path, two: tuple[Run, Run]) -> None:
    """As they were run."""
    first = store_run(store, path, PASSED, age=timedelta(hours=7), stack=MIDDLE)
    second = store_run(store, path, failing, age=timedelta(hours=3), stack=OLD)
    assert [first.id, second.id] == [test.run.id for test in planned(store, two).tested]


def test_a_case_of_either_run_may_be_selected(store: Store, path: Path, two: tuple[Run, Run]) -> None:
    """Also one that only the earlier or only the later run has: there is nothing to blame, and no mistyped glob."""
    path.write_text(MATRIX.replace("- 9", "- 10"))
    later = store_run(store, path, age=timedelta(minutes=30), stack=NEW)
    for size in ("q9.", "q10."):
        assert planned(store, (two[0], later), f"*{size}*").symptom is None
    with pytest.raises(NothingSelected, match=r"--select '\*q11\*' matches no case of the two runs"):
        planned(store, (two[0], later), "*q11*")
