"""Evidence of another interpreter counts for the stack of that interpreter only."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from environments import install, make_environment
from stored_runs import MATRIX, NOW, PASSED, WRONG, make_stack, shipped_kernels, store_run, write_waivers

from qualify.cards.load import load_matrix
from qualify.errors import UsageError
from qualify.facts.environment import Environment
from qualify.facts.outcome import NotRun
from qualify.facts.run import Run
from qualify.facts.stack import Component, Stack
from qualify.judge.against import side_of
from qualify.judge.evidence import Fresh
from qualify.judge.gathered import gather
from qualify.judge.judged import Judged, judge
from qualify.plan.code import CodeHere
from qualify.plan.interpreter import interpreter
from qualify.store.store import Store
from qualify.verdict.compare import compare

PYTHON = "/opt/next/bin/python"
NEXT = make_stack(torch="2.13.0")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A matrix of two shapes and one kernel."""
    (tmp_path / "serving.yaml").write_text(MATRIX.replace("tiled-torch, torch-cpu-math", "tiled-torch"))
    return tmp_path / "serving.yaml"


def stored(store: Store, path: Path, there: Stack | None, hours: int = 1, python: str = PYTHON, **changes: Any) -> Run:
    """A run with the environment ``next`` on that stack; every case passed."""
    environments = {"next": Environment(python=python, stack=there)}
    return store_run(store, path, age=timedelta(hours=hours), environments=environments, code={}, **changes)


def gate(store: Store, path: Path, python: str = PYTHON, code: CodeHere | None = None) -> Judged:
    """The gate on the matrix with the environment, at NOW."""
    loaded = load_matrix(str(path), (), {"next": python})
    wanted = Fresh(now=NOW, max_age=timedelta(hours=24), level="smoke", code=code)
    return gather(store, loaded, shipped_kernels(), wanted, waivers=loaded.waivers, waivers_path="")


def lacking(judged: Judged) -> dict[str, str]:
    """Reasons of the cases without evidence, by kernel."""
    found = [(record.case.kernel, record.outcome) for record in judged.records]
    return {kernel: outcome.reason for kernel, outcome in found if isinstance(outcome, NotRun)}


def test_stacks_of_an_environment_are_not_mixed(store: Store, path: Path) -> None:
    """The newest run says which stack it has; what an older run found on another one does not count."""
    other = make_stack(torch="2.12.0")
    newest = stored(store, path, NEXT, hours=1)
    path.write_text(path.read_text().replace("- 9\n", "- 9\n      - 10\n"))
    older = stored(store, path, other, hours=2)
    found = gate(store, path)
    assert (newest.id, older.id) == found.runs  # the case of this interpreter counts
    assert {"tiled-torch@next"} == set(lacking(found))
    differs = "torch 2.12.0 → 2.13.0"
    assert f"environment next was another stack: {differs}" in lacking(found)["tiled-torch@next"]
    assert 5 == found.conclusion.exit_code
    stored(store, path, NEXT, hours=1)
    assert 0 == gate(store, path).conclusion.exit_code


def test_builds_of_a_library_of_an_environment_are_not_mixed(store: Store, path: Path) -> None:
    """The newest run had not mapped it there; the one before says which build is judged."""

    def mapped(digest: str) -> Stack:
        part = Component(kind="binary", name="fa3.so", version="", digest=digest)
        return replace(NEXT, components=(*NEXT.components, part))

    def part(*sizes: int) -> Any:
        return lambda case: PASSED if any(f".q{size}." in case.id for size in sizes) else NotRun(reason="interrupted")

    stored(store, path, mapped("old"), hours=3)
    stored(store, path, mapped("new"), hours=2, outcome=part(8), state="interrupted")
    stored(store, path, NEXT, outcome=part(), state="interrupted")
    found = gate(store, path)
    assert {"tiled-torch@next"} == set(lacking(found))
    assert "environment next was another stack: fa3.so sha256:old → sha256:new" in lacking(found)["tiled-torch@next"]


def test_a_run_without_the_environment_has_no_evidence_of_it(store: Store, path: Path) -> None:
    """Its kernels are open, those of this interpreter are not."""
    store_run(store, path, code={})
    assert {"tiled-torch@next"} == set(lacking(gate(store, path)))


def test_a_newer_run_without_the_environment_hides_nothing_of_it(store: Store, path: Path) -> None:
    """A run of the other kernel is newer: what the evidence was made on and by is told, and waivers see it."""
    there = {"tiled-torch@next": {"kernel.py": "a" * 64}}
    environments = {"next": Environment(python=PYTHON, stack=NEXT)}
    older: dict[str, Any] = {"age": timedelta(hours=2), "environments": environments, "code": there}
    store_run(store, path, lambda case: WRONG if case.environment else PASSED, **older)
    here = {"tiled-torch": {"kernel.py": "b" * 64}}
    newest = store_run(store, path, kernel="tiled-torch", code=here)
    write_waivers(path.parent / "waivers.yaml", {"select": "*/tiled-torch@next", "stack": {"torch": "2.13.*"}})
    path.write_text(f"{path.read_text()}waivers: waivers.yaml\n")
    found = gate(store, path)
    assert (newest.id, 0) == (found.runs[0], found.conclusion.exit_code)
    counts = found.conclusion.counts["verdicts"]
    assert (2, 2) == (counts["PASS"], counts["WAIVED"])
    assert (environments, {**here, **there}) == (found.run.environments, found.run.code)


def test_an_environment_that_the_matrix_has_no_more_is_not_told(store: Store, path: Path) -> None:
    """None of its cases is judged, so the verdict does not name what they ran on."""
    stored(store, path, NEXT)
    wanted = Fresh(now=NOW, max_age=timedelta(hours=24), level="smoke")
    found = gather(store, load_matrix(str(path)), shipped_kernels(), wanted, waivers=(), waivers_path="")
    assert (0, {}) == (found.conclusion.exit_code, found.run.environments)


def test_an_upgrade_of_an_environment_makes_its_evidence_stale(store: Store, path: Path, tmp_path: Path) -> None:
    """What is installed there now is compared where this machine's code is; the rest of the run still counts."""
    folder = tmp_path / "env"
    python = str(make_environment(folder, torch="2.13.0", fake_attn="1.5"))
    there = make_stack(**{"torch": "2.13.0", "fake-attn": "1.5", "triton": ""})
    here = CodeHere(folders=(), cache=tmp_path / "sha256.json", environments={"next": python})
    kernels = load_matrix(str(path), (), {"next": python})
    run = stored(store, path, there, python=python)
    found = judge(store, run.id, shipped_kernels(), now=NOW)
    assert ("PASS", False) == (found.conclusion.verdict, found.stale)
    install(folder, "fake_attn", "1.6")
    interpreter.cache_clear()
    told = gate(store, path, python, here)
    assert kernels.environments == {"next": python}
    assert "environment next changed since: fake-attn 1.5 → 1.6" in lacking(told)["tiled-torch@next"]
    interpreter.cache_clear()


def test_an_interpreter_that_has_gone_is_an_error(store: Store, path: Path, tmp_path: Path) -> None:
    """This machine's environments were asked about, and one of them is not here."""
    stored(store, path, NEXT)
    here = CodeHere(folders=(), cache=tmp_path / "sha256.json", environments={"next": "/nowhere/python"})
    with pytest.raises(UsageError, match="environment next, /nowhere/python: no such file"):
        gate(store, path, "/nowhere/python", here)


def test_a_comparison_names_what_changed_in_an_environment(store: Store, path: Path) -> None:
    """As PART@NAME, beside what changed in this interpreter."""
    before = stored(store, path, make_stack(torch="2.12.0"), hours=3)
    after = stored(store, path, NEXT, stack=make_stack(triton="3.7.0"))
    sides = [side_of(judge(store, run.id, shipped_kernels(), now=NOW)) for run in (before, after)]
    changes = [(change.component, change.before, change.after) for change in compare(*sides).stack]
    assert [("triton", "3.6.0", "3.7.0"), ("torch@next", "2.12.0", "2.13.0")] == changes
