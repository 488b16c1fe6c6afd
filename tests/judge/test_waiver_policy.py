"""How many cases one waiver may cover: looked at wherever the cases are known."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from stored_runs import IDS, MATRIX, NOW, PASSED, WRONG, make_stack, shipped_kernels, store_run, write_waivers

from qualify.cards.load import load_matrix
from qualify.cards.waivers import load_waivers
from qualify.errors import CardError
from qualify.facts.environment import Environment
from qualify.judge.against import accepted, compare_with
from qualify.judge.evidence import Fresh
from qualify.judge.gathered import gather
from qualify.judge.judged import judge
from qualify.judge.signing import named
from qualify.plan.plan import make_plan
from qualify.report.waivers import check_waivers
from qualify.store.store import Store

POLICY = "waivers: w.yaml\npolicy: {waivers: {max_cases: 1}}\n"
TOLD = 'w.yaml:3:13: select of waiver w0: "toy*" covers 4 of 4 cases; policy.waivers.max_cases of the matrix allows 1'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A matrix whose waivers may cover one case each, and a waiver of one case."""
    write_waivers(tmp_path / "w.yaml", {"select": IDS[0]})
    (tmp_path / "serving.yaml").write_text(MATRIX + POLICY)
    return tmp_path / "serving.yaml"


def failing(case: Any) -> Any:
    """The first case fails."""
    return WRONG if case.id == IDS[0] else PASSED


def test_one_case_is_within_it(store: Store, path: Path) -> None:
    """The failure is waived, as without a policy."""
    run = store_run(store, path, failing)
    assert 0 == judge(store, run.id, shipped_kernels(), now=NOW).conclusion.exit_code


def test_more_cases_are_refused_before_anything_runs(path: Path) -> None:
    """The plan knows the cases: `run`, `plan`, `gate --matrix` and `waiver check` end with the place of the glob."""
    write_waivers(path.parent / "w.yaml", {"select": "toy*"})
    with pytest.raises(CardError) as caught:
        make_plan(load_matrix(str(path)), shipped_kernels())
    assert f"{path.parent}/{TOLD}" == str(caught.value)
    with pytest.raises(CardError, match="covers 4 of 4 cases"):
        check_waivers(str(path), (), NOW)


def test_a_stored_run_and_waivers_from_elsewhere(store: Store, path: Path, tmp_path: Path) -> None:
    """Waivers are judged as they are today, those of --waivers by the same policy."""
    run = store_run(store, path, failing)
    broad = write_waivers(tmp_path / "broad.yaml", {"select": "toy*"})
    with pytest.raises(CardError, match=r"broad.yaml:3:13: select of waiver w0"):
        judge(store, run.id, shipped_kernels(), now=NOW, waivers=broad)
    loaded, wanted = load_matrix(str(path)), Fresh(now=NOW, max_age=timedelta(hours=24), level="smoke")
    with pytest.raises(CardError, match=r"broad.yaml:3:13: select of waiver w0"):
        gather(store, loaded, shipped_kernels(), wanted, waivers=load_waivers(broad), waivers_path=str(broad))


def test_the_policy_of_today_counts_for_the_baseline_too(store: Store, path: Path) -> None:
    """A policy that was stricter when the baseline was accepted refuses no waiver of today."""
    before = store_run(store, path, failing, age=timedelta(hours=2))
    assert accepted(
        store, judge(store, before.id, shipped_kernels(), now=NOW), by=named("jane", "ci"), reason="r", now=NOW
    )
    path.write_text(path.read_text().replace("max_cases: 1", "max_cases: 9"))
    write_waivers(path.parent / "w.yaml", {"select": "toy*"})
    after = judge(store, store_run(store, path, failing).id, shipped_kernels(), now=NOW)
    compared = compare_with(store, after, "baseline", shipped_kernels(), now=NOW)
    assert compared.against is not None


@pytest.mark.parametrize(("condition", "code", "state"), [("2.11.*", 1, "elsewhere"), ("2.13.*", 0, "used")])
def test_a_condition_is_about_the_environment_of_a_case(
    condition: str, code: int, state: str, store: Store, tmp_path: Path
) -> None:
    """The case ran on torch 2.13 there, and this interpreter has torch 2.11."""
    path = tmp_path / "serving.yaml"
    path.write_text(MATRIX.replace("tiled-torch, torch-cpu-math", "tiled-torch"))
    there = Environment(python=sys.executable, stack=make_stack(torch="2.13.0"))
    run = store_run(
        store,
        path,
        lambda case: WRONG if case.environment else PASSED,
        code={},
        stack=make_stack(torch="2.11.0"),
        environments={"next": there},
    )
    waivers = write_waivers(tmp_path / "w.yaml", {"select": "*@next", "stack": {"torch": condition}})
    found = judge(store, run.id, shipped_kernels(), now=NOW, waivers=waivers).conclusion
    assert (code, [state]) == (found.exit_code, [use.state for use in found.waivers])
