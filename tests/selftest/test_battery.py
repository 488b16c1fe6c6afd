"""The battery catches faults, stays silent on correct kernels, and counts honestly."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from qualify.assets import released_selftest
from qualify.errors import NothingSelected
from qualify.facts.checks import CHECK_VERSION
from qualify.facts.outcome import Crashed, Refused
from qualify.selftest import battery
from qualify.selftest.battery import (
    Left,
    SelftestOptions,
    chosen,
    correct_tasks,
    fault_tasks,
    run_battery,
    shared_inputs,
    telling_cases,
)
from qualify.selftest.correct import VARIANTS
from qualify.selftest.examine import SpecimenTask, accuse, against, detect, outcomes
from qualify.selftest.faults.registry import FAULTS
from qualify.selftest.workloads import SHAPES


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ("causal-plus-1", "census"),
        ("gqa-square", "needle"),
        ("read-past", "poison"),
        ("writes-past-end", "contract"),
        ("p-fp8", "budget"),
        ("lse-log2", "lse"),
        ("unwritten-lse", "lse"),
        ("race", "repeat"),
        ("math-path", "witness"),
        ("odd-groups", "outcome"),
        ("paged-last-rows", "census"),
        ("paged-last-keys", "census"),
        ("paged-stale-tail", "poison"),
        ("paged-equal-queries", "needle"),
        ("empty-writes-k", "degenerate"),
    ],
)
def test_a_fault_is_caught_by_its_check(fault, check):
    """The pipeline of a real kernel finds it, and says which check did; the case that told of it before comes first."""
    (found,) = detect(fault, ("smoke",), telling_cases().get(fault, ()))
    assert check in found.caught_by
    assert found.example


def test_a_later_level_begins_where_an_earlier_one_told():
    """The case that caught a fault at smoke comes first at full."""
    smoke, full = detect("merge-equal", ("smoke", "full"))
    assert smoke.cases > 1
    assert 1 == full.cases


@pytest.mark.parametrize("number", range(3))
def test_correct_kernels_are_not_accused(number):
    """No finding of any case is a failure, and every case is proven: three kernels share the cases.

    One kernel takes all of them in processes below.
    """
    variant = ("small-tiles", "splits-7", "partials-rounded")[number]
    cases = range(len(SHAPES))[number::3]
    assert (len(cases), ()) == accuse(variant, "smoke", 1, cases)


def test_what_is_no_finding_counts_too():
    """A crash and a refusal of what the card claims make the gate fail, so they are detections."""
    crashed = Crashed(stage="prepare", error="RuntimeError: no", log="", attempt=1)
    assert ["outcome"] == [said.check for said in against(crashed)]
    assert ["outcome"] == [said.check for said in against(Refused(by="library", reasons=("no",)))]


@pytest.mark.usefixtures("forked_helpers")
def test_the_battery_in_processes():
    """A part of the faults and one round of a correct kernel, in processes of their own."""
    seen: list[tuple[int, int, str]] = []
    result = run_battery(SelftestOptions(levels=("smoke",), runs=1, select="m*"), lambda *step: seen.append(step))
    assert ["merge-nan", "merge-equal", "merge-max", "merge-two", "merge-order", "math-path"] == [
        fault.name for fault in result.faults
    ]
    assert () == result.missed
    assert len(SHAPES) == result.correct_runs
    assert () == result.alarmed
    assert result.holds
    assert (7, 7) == seen[-1][:2]
    assert {"merge-nan", "math-path"} <= {ended for _, _, ended in seen}


@pytest.mark.parametrize("runs", [0, 1, 1000])
def test_enough_correct_runs_are_planned(runs):
    """At least as many as asked, over all correct kernels and over several seeds."""
    tasks = correct_tasks(("smoke", "full"), runs)
    assert runs <= sum(len(task.shapes) for task in tasks) < runs + len(SHAPES)
    if runs == 1000:
        at_full = {shape for task in tasks for shape in task.shapes if task.levels == ("full",)}
        assert set(range(len(SHAPES))) == at_full
        assert {variant.name for variant in VARIANTS} == {task.specimen for task in tasks}
        assert {"smoke", "full"} == {level for task in tasks for level in task.levels}


def test_every_task_is_taken_once_and_a_process_goes_on_with_its_inputs():
    """Two processes begin apart, and each stays with what it has drawn while there is more."""
    tasks = [*fault_tasks(chosen(""), ("smoke", "full")), *correct_tasks(("smoke", "full"), 1000)]
    left = Left(tasks)
    taken: list[list[SpecimenTask]] = [[], []]
    waiting = True
    while waiting:
        waiting = False
        for mine in taken:
            task = left.take(mine[-1] if mine else None)
            if task is not None:
                mine.append(task)
                waiting = True
    assert sorted(map(repr, tasks)) == sorted(map(repr, taken[0] + taken[1]))
    groups = [[shared_inputs(task) for task in mine] for mine in taken]
    assert groups[0][0] != groups[1][0]
    kept_on = sum(before == after for mine in groups for before, after in pairwise(mine))
    assert kept_on >= len(tasks) - 2 * len({group for mine in groups for group in mine})


def test_a_process_without_tasks_of_its_own_helps_another():
    """It takes from what another began where nothing else is left, until that is done too."""
    smoke = [task for task in correct_tasks(("smoke",), 1000) if task.seed == 1]
    left = Left([*smoke[:2], smoke[2]])
    first = left.take(None)
    assert [*smoke[:3], None] == [first, left.take(None), left.take(first), left.take(first)]


def test_an_unknown_fault_is_named():
    """A glob that matches nothing ends with what names look like."""
    with pytest.raises(NothingSelected, match=r"'nothing-like-it'.*causal-plus-1"):
        chosen("nothing-like-it")


def test_the_committed_result_is_about_these_faults():
    """docs/selftest.md shows the faults and the check version of this checkout."""
    result = json.loads(released_selftest().read_text())
    assert [fault.name for fault in FAULTS] == [kill["fault"] for kill in result["kills"]]
    assert CHECK_VERSION == result["check_version"]
    assert result["correct_runs"] >= 1000
    assert [] == result["false_alarms"]


def test_outcomes_come_with_their_own_cases():
    """What a kernel refuses ends before the others of a session do, and is not taken for another case's."""
    order = range(len(SHAPES))[::2]
    told = {number: outcome for number, case, outcome in outcomes("odd-groups", "smoke", 1, order)}
    assert set(order) == set(told)
    ratios = {number: SHAPES[number][1].heads_q // SHAPES[number][1].heads_kv for number in order}
    assert {number for number, ratio in ratios.items() if ratio & (ratio - 1)} == {
        number for number, outcome in told.items() if isinstance(outcome, Crashed)
    }


def test_faults_begin_with_the_case_that_told_of_them():
    """The released result names it; but what a kernel keeps shows in the order of the matrix."""
    tell = telling_cases()
    assert {fault.name for fault in FAULTS if not fault.equivalent} == set(tell)
    assert all(0 <= number < len(SHAPES) for numbers in tell.values() for number in numbers)
    first = {task.specimen: task.shapes for task in fault_tasks(FAULTS, ("smoke", "full"))}
    assert all(first[fault.name] == (() if fault.kind == "J" else tell.get(fault.name, ())) for fault in FAULTS)
    (found,) = detect("sink-drop", ("smoke",), tell["sink-drop"])
    assert 1 == found.cases


def test_a_package_without_a_released_result_has_no_hints(monkeypatch, tmp_path):
    """Then every fault goes through the matrix in its order."""
    monkeypatch.setattr(battery, "released_selftest", lambda: tmp_path / "missing.json")
    assert {} == telling_cases()
    (tmp_path / "missing.json").write_text(
        json.dumps({"kills": [{"fault": "race", "example": "of another matrix: x"}]})
    )
    assert {} == telling_cases()


def test_a_fault_that_smoke_missed_meets_some_cases_at_smoke_and_all_at_full():
    """Only where full is asked too: a selftest of smoke alone measures all of smoke."""
    kills = json.loads(battery.released_selftest().read_text())["kills"]
    missed = {kill["fault"] for kill in kills if not kill["caught_by"]["smoke"]}
    assert missed
    both = {task.specimen: task.missed for task in fault_tasks(FAULTS, ("smoke", "full"))}
    assert missed == {name for name, some in both.items() if some}
    assert not any(task.missed for task in fault_tasks(FAULTS, ("smoke",)))
    (smoke,) = detect("queries-2048", ("smoke",), missed=True)
    assert (-(-len(SHAPES) // 3), ()) == (smoke.cases, smoke.caught_by)
    (full,) = detect("order-of-long", ("full",), missed=True)
    assert "long_context" in full.caught_by
