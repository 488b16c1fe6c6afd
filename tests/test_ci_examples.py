"""The pipelines of docs/ci.md and the action: their shell steps really run, on a small matrix and a real store."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cli_process import environment, write_cards, write_program
from junitparser import JUnitXml
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^<!-- file: (?P<path>\S+) -->\n```yaml\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
MATRIX = """\
matrix: serving
models:
  - model: toy
    geometry: {groups: [{layers: [0], heads_q: 2, heads_kv: 2, head_dim: 32, mask: causal}]}
phases: {prefill: {seqlen: [8]}}
dtypes: [fp32]
kernels: [KERNEL]
"""
PIP = """\
#!/bin/sh
exit 0
"""


def pipeline(path: str) -> Any:
    """An example of docs/ci.md as data."""
    texts = {match["path"]: match["text"] for match in FENCE.finditer((ROOT / "docs" / "ci.md").read_text())}
    return YAML(typ="safe").load(texts[path])


def github_steps() -> list[str]:
    """The shell of the workflow."""
    steps = pipeline(".github/workflows/qualify.yml")["jobs"]["gate"]["steps"]
    return [step["run"] for step in steps if "run" in step]


def gitlab_steps() -> list[str]:
    """The shell of the job: its lines run in one shell."""
    return ["\n".join(pipeline(".gitlab-ci.yml")["qualify"]["script"])]


def buildkite_steps() -> list[str]:
    """The shell of the step."""
    return [step["command"] for step in pipeline(".buildkite/pipeline.yml")["steps"]]


PIPELINES = {"github": github_steps, "gitlab": gitlab_steps, "buildkite": buildkite_steps}


def checkout(folder: Path) -> Path:
    """A checkout with a matrix, and commands on the PATH: this qualify, and a pip that installs nothing."""
    (folder / "matrices").mkdir()
    (folder / "matrices" / "serving.yaml").write_text(MATRIX.replace("KERNEL", "tiled-torch"))
    pip = write_program(folder / "bin").with_name("pip")
    pip.write_text(PIP)
    pip.chmod(0o755)
    return folder


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A checkout of the test's own."""
    return checkout(tmp_path)


@pytest.fixture(scope="module")
def promoted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout in which every step of the workflow of GitHub ended with 0: its first run measured everything."""
    folder = checkout(tmp_path_factory.mktemp("promoted"))
    promote(folder, "github")
    return folder


def promote(place: Path, name: str) -> None:
    """Every step of an example runs and ends with 0, and JUnit's file says so."""
    for step in PIPELINES[name]():
        ended = shell(place, step)
        assert 0 == ended.returncode, ended.stdout + ended.stderr
    tree = JUnitXml.fromfile(str(place / "gate.xml"))
    assert (0, 0, True) == (tree.failures, tree.errors, tree.tests >= 3)


def shell(place: Path, text: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """One step, as CI servers run it."""
    usual = {
        "PATH": f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "QUALIFY_DB": ".qualify/evidence.db",
        "GITHUB_STEP_SUMMARY": str(place / "summary.md"),
        "GITHUB_OUTPUT": str(place / "output"),
        "GITHUB_WORKSPACE": str(place),
    }
    env = environment(**(usual | variables))
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text],
        cwd=place,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


@pytest.mark.slow
def test_the_workflow_of_github_promotes(promoted: Path) -> None:
    """On a good kernel, from an empty store: it leaves what it promises."""
    assert (promoted / "summary.md").read_text().startswith("## ✓ serving: pass, exit 0")
    statement = json.loads((promoted / "statement.json").read_text())
    assert ("PASSED", True) == (statement["predicate"]["result"], len(statement["subject"]) > 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PIPELINES if name != "github"])
def test_a_pipeline_promotes(place: Path, promoted: Path, name: str) -> None:
    """The same of the others, whose run takes over what that one measured: that is no part of a pipeline."""
    (place / ".qualify").mkdir()
    shutil.copy(promoted / ".qualify" / "evidence.db", place / ".qualify")
    promote(place, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", PIPELINES)
def test_a_pipeline_blocks(place: Path, name: str) -> None:
    """A wrong kernel ends the deciding step with 1, and the reports are still written.

    Smoke shows it, and of any stack: that the lines hold with their own options the good kernel shows.
    """
    write_cards(place / "cards", "wrong_numbers")
    (place / "matrices" / "serving.yaml").write_text(MATRIX.replace("KERNEL", "wrong-numbers"))
    steps = [re.sub(r"(qualify (?:run|gate) )", r"\1--cards cards ", step) for step in PIPELINES[name]()]
    steps = [step.replace(" --stack here", "").replace("--level full", "--level smoke") for step in steps]
    codes = []
    for step in steps:
        codes.append(shell(place, step).returncode)
        if codes[-1]:
            break
    assert 1 == codes[-1]
    assert 0 < JUnitXml.fromfile(str(place / "gate.xml")).failures


def action(place: Path, **inputs: str) -> tuple[int, list[subprocess.CompletedProcess[str]]]:
    """The composite action with those inputs: its steps, as GitHub's runner would take them."""
    data = YAML(typ="safe").load((ROOT / "action.yml").read_text())
    given = {name: item.get("default", "") for name, item in data["inputs"].items()} | inputs

    def filled(text: str) -> str:
        return re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: given[found[1]], text)

    ended = []
    for step in data["runs"]["steps"]:
        condition = re.fullmatch(r"inputs\.([\w-]+) != ''", step.get("if", ""))
        if condition and not given[condition[1]]:
            continue
        assert "${{" not in step["run"], "inputs reach the shell through the environment, never as its text"
        variables = {name: filled(value) for name, value in step["env"].items()}
        ended.append(shell(place, step["run"], **{**variables, "QUALIFY_DB": given["db"]}))
        if ended[-1].returncode:
            break
    return ended[-1].returncode, ended


def test_the_action_runs_and_judges(place: Path) -> None:
    """Evidence is made once; the second use finds it fresh; the output holds the exit code."""
    code, first = action(place, matrix="matrices/serving.yaml", stack="here", run="smoke")
    assert 0 == code, first[-1].stdout + first[-1].stderr
    assert "exit-code=0" in (place / "output").read_text()
    assert "::notice file=matrices/serving.yaml," in first[-1].stdout
    runs = len(list((place / "out").iterdir()))
    code, _ = action(place, matrix="matrices/serving.yaml", stack="here", run="smoke")
    assert (0, runs) == (code, len(list((place / "out").iterdir())))


def test_the_action_is_deaf_to_its_inputs(place: Path) -> None:
    """An input is a value, never a command."""
    code, ended = action(place, matrix="x.yaml; touch owned; $(touch owned)", db="none/x.db")
    assert 0 != code
    assert not (place / "owned").exists()
    assert "Traceback" not in ended[-1].stderr


def test_the_action_says_stale_evidence_is_no_verdict(place: Path) -> None:
    """Exit 5, and the output says so."""
    assert 0 == shell(place, "qualify db upgrade").returncode
    code, _ = action(place, matrix="matrices/serving.yaml")
    assert (5, "exit-code=5\n") == (code, (place / "output").read_text())


def test_examples_pin_nothing_that_was_not_looked_up() -> None:
    """No invented digest: tags, each with a note."""
    text = (ROOT / "docs" / "ci.md").read_text()
    assert [] == re.findall(r"@[0-9a-f]{40}|sha256:[0-9a-f]{64}", text)
    used = [line for line in text.splitlines() if line.lstrip(" -").startswith("uses:")]
    assert [] == [line for line in used if "pin" not in line]
