"""The verdict on one stored run: what makes it stale, a demonstration, or no verdict at all."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from builders import make_evidence, make_finding
from stored_runs import IDS, MATRIX, NOW, PASSED, WRONG, make_stack, shipped_kernels, store_run

from qualify.errors import CardError
from qualify.facts.checks import CHECK_VERSION
from qualify.facts.devices import DeviceKind
from qualify.facts.environment import Environment
from qualify.facts.outcome import Measured
from qualify.judge.judged import judge
from qualify.plan.code import CodeHere
from qualify.report.verdict_text import to_text
from qualify.store.store import Store

HERE = CodeHere(folders=(), cache=None, every=False)
"""this machine, of whose code nothing is compared"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The matrix of two shapes and two kernels."""
    (tmp_path / "serving.yaml").write_text(MATRIX)
    return tmp_path / "serving.yaml"


@pytest.mark.parametrize(
    ("version", "code", "stale"), [(1, None, False), (1, HERE, True), (CHECK_VERSION, HERE, False)]
)
def test_a_run_of_other_checks_is_stale_where_this_machine_is_asked(
    store: Store, path: Path, version: int, code: CodeHere | None, stale: bool
) -> None:
    """Then it must run again, and the command says so; a stored run is judged by what it was asked."""
    run = store_run(store, path, check_version=version)
    found = judge(store, run.id, shipped_kernels(), now=NOW, code=code)
    assert (5 if stale else 0, stale, stale) == (found.conclusion.exit_code, found.stale, "--fresh" in found.again)


def test_an_environment_that_nobody_reported_is_no_verdict(store: Store, path: Path) -> None:
    """Its evidence belongs to no stack."""
    environments = {"next": Environment(python="/opt/next/bin/python")}
    run = store_run(store, path, environments=environments, code={})
    found = judge(store, run.id, shipped_kernels(), now=NOW)
    why = "must run again: nobody reported what environment next ran on"
    assert (5, True) == (found.conclusion.exit_code, found.stale)
    assert [f"{name}@next {why}" for name in ("tiled-torch", "torch-cpu-math")] == list(found.notes[:2])


def test_an_edited_or_future_run_is_no_verdict(store: Store, path: Path) -> None:
    """Whatever it shows; evidence from the future is made anew."""
    future = judge(store, store_run(store, path, age=-timedelta(hours=2)).id, shipped_kernels(), now=NOW)
    assert (5, True) == (future.conclusion.exit_code, "--fresh" in future.again)
    run = store_run(store, path)
    edit(store, "UPDATE runs SET matrix_source = matrix_source || '# edited'")
    edited = judge(store, run.id, shipped_kernels(), now=NOW)
    assert (5, False) == (edited.conclusion.exit_code, "--fresh" in edited.again)
    assert edited.notes[0].startswith(f"run {run.id} contradicts itself: the stored matrix has sha256 ")


def test_a_run_that_may_still_be_written_is_waited_for(store: Store, path: Path) -> None:
    """It has not ended: nobody says so of its cases, and to finish it comes second."""
    run = store_run(store, path, state="running")
    edit(store, "DELETE FROM outcomes")
    text = to_text(judge(store, run.id, shipped_kernels(), now=NOW), NOW)
    finish = f"finish it: qualify run {path} --resume {run.id}"
    assert f"do: wait until the run has ended; where its process has gone, {finish}" in text.splitlines()
    assert "  the run goes on, or ended before its turn" in text


def edit(store: Store, *statements: str) -> None:
    """What somebody does behind the program's back."""
    with closing(sqlite3.connect(store.where)) as database, database:
        for statement in statements:
            database.execute(statement)
    database.close()


def test_a_deleted_finding_is_no_verdict(store: Store, path: Path) -> None:
    """A failure between others, also where its check passed in another way; and the only answer of a check."""
    wrong = Measured(evidence=make_evidence(make_finding(check="poison"), make_finding("fail", "NaN", check="poison")))
    run = store_run(store, path, lambda case: wrong if case.id == IDS[0] else PASSED)
    assert 1 == judge(store, run.id, shipped_kernels(), now=NOW).conclusion.exit_code
    edit(store, "DELETE FROM findings WHERE verdict = 'fail'")
    found = judge(store, run.id, shipped_kernels(), now=NOW).conclusion
    assert 5 == found.exit_code
    (told,) = (item.reasons[0] for item in found.judgements if item.verdict == "INCONCLUSIVE")
    assert told.startswith("its evidence contradicts itself: somebody deleted a finding of this case: ")
    edit(store, """DELETE FROM findings WHERE "check" = 'budget'""")
    reasons = [item.reasons for item in judge(store, run.id, shipped_kernels(), now=NOW).conclusion.judgements]
    missing = "its evidence contradicts itself: the answer of the check budget is missing"
    assert [missing] * len(IDS) == [first for first, *_ in reasons]
    assert all("somebody deleted a finding of this case" in " ".join(rest) for _, *rest in reasons)


def test_a_deleted_case_is_no_verdict(store: Store, path: Path) -> None:
    """A case that failed is not made good by removing it."""
    run = store_run(store, path, lambda case: WRONG if case.id == IDS[0] else PASSED)
    mine = f"SELECT key FROM cases WHERE case_id = '{IDS[0]}'"
    parts = f"SELECT id FROM outcomes WHERE case_key = ({mine})"
    edit(
        store,
        *(f"DELETE FROM {name} WHERE outcome_id IN ({parts})" for name in ("findings", "launches")),
        f"DELETE FROM outcomes WHERE case_key = ({mine})",
        f"DELETE FROM cases WHERE case_id = '{IDS[0]}'",
    )
    found = judge(store, run.id, shipped_kernels(), now=NOW)
    assert (5, len(IDS) - 1) == (found.conclusion.exit_code, len(found.records))
    assert f"run {run.id} contradicts itself: 1 case of its plan is missing" == found.notes[0]


def test_who_selected_a_part_may_see_it_pass(store: Store, path: Path) -> None:
    """For everybody else the rest of the matrix is not judged."""
    run = store_run(store, path, select="*")
    seen = [judge(store, run.id, shipped_kernels(), now=NOW, part=part) for part in (False, True)]
    assert [(5, "PASS"), (0, "PASS")] == [(found.conclusion.exit_code, found.part) for found in seen]


@pytest.mark.parametrize(("device", "demonstration"), [("cpu", True), ("cuda", False)])
def test_kernels_for_a_gpu_are_not_qualified_by_a_cpu(
    store: Store, path: Path, device: DeviceKind, demonstration: bool
) -> None:
    """The same evidence of the other kernels qualifies where a GPU was there."""
    path.write_text(MATRIX.replace("torch-cpu-math", "flash-attn-3"))
    stack = make_stack()
    run = store_run(store, path, device=device, stack=replace(stack, device=replace(stack.device, kind=device)))
    found = judge(store, run.id, shipped_kernels(), now=NOW).conclusion
    assert (demonstration, 5 if demonstration else 0) == (found.demonstration, found.exit_code)


def test_given_waivers_must_be_there(store: Store, path: Path, tmp_path: Path) -> None:
    """Who names a file means it; one that the matrix names may be elsewhere."""
    run = store_run(store, path)
    with pytest.raises(CardError, match=r"nowhere\.yaml"):
        judge(store, run.id, shipped_kernels(), now=NOW, waivers=tmp_path / "nowhere.yaml")
