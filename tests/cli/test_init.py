"""``qualify init``: what it writes is accepted by the commands that read it, and its pipelines run when pasted."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from importlib.metadata import files
from pathlib import Path
from typing import Any

import pytest
from ci_examples import jenkins_blocks, jenkins_steps, make_runner, parsed, pipelines
from cli_process import ROOT, call, command, environment
from jsonschema import Draft7Validator

from qualify.cli.init import _write
from qualify.errors import InfrastructureError

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}
GITHUB, GITLAB, JENKINS = ".github/workflows/qualify.yml", ".gitlab-ci.yml", "Jenkinsfile"
SERVERS = [("github", GITHUB), ("gitlab", GITLAB), ("jenkins", JENKINS)]
STEPS: Mapping[str, Callable[[str], Any]] = {
    "github": lambda text: parsed(text)["jobs"]["gate"]["steps"],
    "gitlab": lambda text: [{"run": "\n".join(parsed(text)["qualify"]["script"])}],
    "jenkins": jenkins_steps,
}
"""the shell of a CI file"""


def project(folder: Path, *options: str) -> Path:
    """A project of a tiny model, started without questions."""
    (folder / "tiny").mkdir(parents=True, exist_ok=True)
    (folder / "tiny" / "config.json").write_text(json.dumps(CONFIG))
    ended = call("init", "--model", "tiny", "--yes", *options, cwd=folder)
    assert 0 == ended.code, ended.out + ended.err
    return folder


def shrink(matrix: Path) -> None:
    """The same matrix with one short prompt and one kernel: seconds on a CPU."""
    text = re.sub(r"phases:\n(  .*\n)+", "phases:\n  prefill: {seqlen: [8]}\n", matrix.read_text())
    text = re.sub(r'kernels: \["\*"\]\nexclude:\n(  .*\n)+', "kernels: [tiled-torch]\n", text)
    matrix.write_text(text.replace("dtypes: [bf16]", "dtypes: [fp32]"))


def test_every_file_is_accepted_by_the_commands_that_read_it(tmp_path: Path) -> None:
    """plan, waiver check, canary and gate read them as they are; a gate without evidence says how to make some."""
    folder = project(tmp_path)
    matrix = "matrices/tiny.yaml"
    planned = call("plan", matrix, cwd=folder)
    assert 0 == planned.code, planned.err
    assert {"prefill", "chunked", "varlen", "decode"} == {line.split("/")[1] for line in planned.out.splitlines()}
    assert 0 == call("waiver", "check", matrix, cwd=folder).code
    assert "tiny-nightly" in call("canary", "list", "--cards", ".", cwd=folder).out
    ended = call("gate", "--matrix", matrix, cwd=folder)
    assert 4 == ended.code
    assert "no such file. Evidence comes from `qualify run`" in ended.err


def test_parts_of_the_model_that_no_matrix_tests_are_said(tmp_path: Path) -> None:
    """Linear layers of a hybrid, in the text and in the JSON."""
    hybrid = CONFIG | {"model_type": "qwen3_next", "head_dim": 32, "full_attention_interval": 2}
    (tmp_path / "config.json").write_text(json.dumps(hybrid))
    words = "1 of 2 layers, which have no attention"
    assert f"not tested: {words}\n" in call("init", "--model", "config.json", "--yes", cwd=tmp_path).out
    data = call("init", "--model", "config.json", "--name", "other", "--json", cwd=tmp_path).data
    assert ([words], []) == (data["untested"], data["findings"])


def test_the_ci_file_is_not_taken_for_a_card(tmp_path: Path) -> None:
    """The command that init prints last names no file that it wrote."""
    folder = project(tmp_path, "--ci", "gitlab")
    ended = call("canary", "list", "--cards", ".", cwd=folder)
    assert (0, "") == (ended.code, ended.err)


@pytest.mark.parametrize(
    ("kind", "path"),
    [("matrix", "matrices/tiny.yaml"), ("waivers", "waivers.yaml"), ("canary", "canaries/tiny-nightly.yaml")],
)
def test_every_card_fits_its_schema(kind: str, path: str, tmp_path: Path) -> None:
    """The schema that `qualify schema` prints for editors finds nothing wrong."""
    folder = project(tmp_path)
    schema = call("schema", kind, cwd=folder).data
    assert [] == [each.message for each in Draft7Validator(schema).iter_errors(parsed((folder / path).read_text()))]


def test_the_pipelines_run_when_pasted(tmp_path: Path) -> None:
    """GitHub's step by step, then GitLab's and Jenkins' scripts; the verdict is in their files.

    GitLab's takes the evidence over.
    """
    runner = make_runner(tmp_path / "runner")
    project(runner.workspace)
    shrink(runner.workspace / "matrices" / "tiny.yaml")
    (job,) = parsed((runner.workspace / GITHUB).read_text().replace("--level full", "--level smoke"))["jobs"].values()
    ended = list(runner.steps(job["steps"], {}))
    assert [0, 0, 0] == [each.code for each in ended], ended[-1].out + ended[-1].err
    reports = runner.workspace / "reports"
    assert "PASS" == json.loads((reports / "gate.json").read_text())["verdict"]
    assert (reports / "gate.xml").exists()
    shutil.rmtree(reports)
    other = project(tmp_path / "other", "--ci", "gitlab", "--no-canary", "--package", "qualify wheel.whl")
    job = parsed((other / GITLAB).read_text().replace("--level full", "--level smoke"))["qualify"]
    assert "pip install 'qualify wheel.whl'" in job["script"]
    assert not (other / "canaries").exists()
    runner.job("\n".join(job["script"]), QUALIFY_DB=str(runner.tool_cache / "qualify.db"))
    assert "PASS" == json.loads((reports / "gate.json").read_text())["verdict"]
    other = project(tmp_path / "third", "--ci", "jenkins", "--package", "./qualify\\new wheel.whl")
    (step,) = jenkins_steps((other / JENKINS).read_text().replace("--level full", "--level smoke"))
    assert "pip install './qualify\\new wheel.whl'" in step["run"]
    (done,) = runner.steps([step], {})
    assert 0 == done.code, done.out + done.err
    assert "PASS" == json.loads((reports / "gate.json").read_text())["verdict"]


def test_the_jenkinsfile_has_the_blocks_of_the_documents(tmp_path: Path) -> None:
    """Every block is closed, and only the address of the clone is missing: --package says it."""
    text = (project(tmp_path, "--ci", "jenkins") / JENKINS).read_text()
    shown = jenkins_blocks(pipelines()["Jenkinsfile"])
    assert [path for path in shown if path != "pipeline/environment"] == jenkins_blocks(text)
    published = "always {"
    assert pipelines()["Jenkinsfile"].partition(published)[2] == text.partition(published)[2]


@pytest.mark.parametrize(("ci", "path"), SERVERS)
def test_a_pipeline_leaves_no_verdict_of_an_earlier_job(ci: str, path: str, tmp_path: Path) -> None:
    """The run makes no evidence, so no gate begins; the upload finds no verdict in a workspace that is not cleaned."""
    runner = make_runner(tmp_path / "runner")
    project(runner.workspace, "--ci", ci)
    (runner.workspace / "matrices" / "tiny.yaml").write_text("matrix: [\n")
    reports = runner.workspace / "reports"
    reports.mkdir()
    for name in ("gate.xml", "gate.json"):
        (reports / name).write_text("of yesterday")
    steps = STEPS[ci]((runner.workspace / path).read_text())
    assert 2 == list(runner.steps(steps, {}))[-1].code
    assert [] == list(reports.glob("*"))


@pytest.mark.parametrize(("ci", "path"), SERVERS)
def test_the_pipelines_install_nothing_from_pypi(ci: str, path: str, tmp_path: Path) -> None:
    """Qualify is not there: pip gets an address to fill in, and the command says so unless --package names one."""
    (tmp_path / "own").mkdir()
    asked = ("init", "own", "--model", "qwen3-8b", "--yes", "--ci", ci)
    ended = call(*asked, cwd=tmp_path)
    clone = "HOST/OWNER/qualify@COMMIT"
    assert f"pip install 'attn-qualify[run] @ git+https://{clone}'" in (tmp_path / "own" / path).read_text()
    assert f"in place of {clone}: CI installs it from there" in ended.out
    shutil.rmtree(tmp_path / "own")
    assert clone not in call(*asked, "--package", "qualify.whl", cwd=tmp_path).out


def test_the_workflow_is_safe(tmp_path: Path) -> None:
    """The strictest persona of zizmor, which audits workflows of GitHub, finds nothing in it."""
    folder = project(tmp_path)
    (folder / "zizmor.yml").write_text("rules:\n  self-hosted-runner: {disable: true}\n")
    program = next(str(file.locate()) for file in files("zizmor") or () if file.name == "zizmor")
    asked = ("--offline", "--no-progress", "--persona=auditor", "--config=zizmor.yml", ".github/workflows")
    done = subprocess.run([program, *asked], cwd=folder, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stdout


def test_a_folder_that_is_none_is_exit_4(tmp_path: Path) -> None:
    """As wherever an output cannot be written."""
    (tmp_path / "file").write_text("")
    ended = call("init", "file", "--model", "qwen3-8b", "--yes", cwd=tmp_path)
    assert (4, "") == (ended.code, ended.out)
    assert "cannot be written: Not a directory. Choose another folder" in ended.err


@pytest.mark.parametrize("path", ["matrices/tiny.yaml", "canaries/tiny-nightly.yaml"])
def test_nothing_is_written_over(path: str, tmp_path: Path) -> None:
    """A matrix or a canary of that name keeps all files from being written; another name makes way."""
    (tmp_path / path).parent.mkdir()
    (tmp_path / path).write_text("mine\n")
    asked = ("init", "--model", "qwen3-8b", "--yes", "--name")
    ended = call(*asked, "tiny", cwd=tmp_path)
    assert (2, "") == (ended.code, ended.out)
    told = f"{path}: exists already, so nothing was written. Remove it, or give another --name"
    assert f"qualify: {told}\n" == ended.err
    assert [path] == [str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*") if each.is_file()]
    assert 0 == call(*asked, "other", cwd=tmp_path).code
    assert "mine\n" == (tmp_path / path).read_text()


@pytest.mark.parametrize(("ci", "path"), SERVERS)
def test_a_second_model_shares_waivers_and_pipeline(ci: str, path: str, tmp_path: Path) -> None:
    """They stay as they are, and the command says so; CI does not know the new matrix, which it says, too."""
    folder = project(tmp_path, "--ci", ci)
    shared = ("waivers.yaml", path)
    for each in shared:
        (folder / each).write_text(f"{(folder / each).read_text()}# mine\n")
    asked = ("init", "--model", "tiny", "--yes", "--ci", ci, "--name")
    ended = call(*asked, "other", cwd=folder)
    assert 0 == ended.code, ended.err
    assert [f"kept {each}, which was there" for each in shared] == re.findall(r"kept .*", ended.out)
    assert f"do: have {path} run and gate matrices/other.yaml, too: it is as it was" in ended.out.splitlines()
    assert "HOST/OWNER" not in ended.out
    assert ended.out.endswith("git add matrices/other.yaml canaries/other-nightly.yaml\n")
    assert all((folder / each).read_text().endswith("# mine\n") for each in shared)
    assert 0 == call("plan", "matrices/other.yaml", cwd=folder).code
    (folder / "tiny" / "config.json").write_text(
        json.dumps(CONFIG | {"torch_dtype": "float32", "auto_map": {"a": "b"}})
    )
    data = call(*asked, "third", "--json", cwd=folder).data
    assert ("bf16", {"auto_map", "torch_dtype"}) == (data["dtype"], {it["where"] for it in data["findings"]})
    assert (["matrices/third.yaml", "canaries/third-nightly.yaml"], list(shared)) == (data["files"], data["kept"])


def test_what_a_killed_command_has_begun_is_finished(tmp_path: Path) -> None:
    """The same command says that it wrote everything; nobody has to remove what the first one left."""
    asked = ("init", "--model", "qwen3-8b", "--yes", "--json")
    first = call(*asked, cwd=tmp_path).data
    texts = {path: (tmp_path / path).read_text() for path in first["files"]}
    _, half, last = first["files"][:3]
    (tmp_path / half).write_text(texts[half][:40])
    (tmp_path / last).unlink()
    again = call(*asked, cwd=tmp_path)
    assert (0, first) == (again.code, again.data), again.err
    assert texts == {path: (tmp_path / path).read_text() for path in first["files"]}


def test_where_nobody_can_answer_the_model_must_be_given(tmp_path: Path) -> None:
    """A pipe is nobody; --json asks nothing and lists the files."""
    ended = call("init", cwd=tmp_path)
    assert (2, "") == (ended.code, ended.out)
    assert "nobody is here to answer: give --model MODEL" in ended.err
    data = call("init", "new", "--model", "qwen3-8b", "--ci", "none", "--json", cwd=tmp_path).data
    assert ["matrices/qwen3-8b.yaml", "waivers.yaml", "canaries/qwen3-8b-nightly.yaml"] == data["files"]
    assert all((tmp_path / "new" / path).exists() for path in data["files"])


def test_questions_at_a_terminal(tmp_path: Path) -> None:
    """A model that is none is asked for again; an empty answer takes the default."""
    own, other = pty.openpty()
    with subprocess.Popen(
        command("init"), cwd=tmp_path, env=environment(TERM="dumb"), stdin=other, stdout=subprocess.PIPE, stderr=other
    ) as child:
        os.close(other)
        for answer in ("qwen3-9b", "qwen3-8b", "serving", "gitlab", "n"):
            os.write(own, f"{answer}\n".encode())
        assert child.stdout
        out = child.stdout.read().decode()
    os.close(own)
    assert ["wrote matrices/serving.yaml", "wrote waivers.yaml", "wrote .gitlab-ci.yml"] == out.splitlines()[1:4]
    assert "matrix: serving\n" in (tmp_path / "matrices" / "serving.yaml").read_text()
    assert (ROOT / "matrices" / "models" / "qwen3-8b.json").exists()


def test_what_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    """Neither a file nor a folder that was made on the way; and an option that nothing would follow is refused."""
    new = tmp_path / "new"
    with pytest.raises(InfrastructureError, match="cannot be written: File name too long"):
        _write(new, {"matrices/tiny.yaml": "a", f"canaries/{'n' * 300}.yaml": "b"})
    assert not new.exists()
    ended = call("init", "--model", "qwen3-8b", "--ci", "none", "--package", "my.whl", "--yes", cwd=tmp_path)
    assert (2, []) == (ended.code, [*tmp_path.iterdir()])
    assert "--package my.whl: --ci none writes no CI file" in ended.err
    ended = call("init", "--model", "qwen3-8b", "--package", "my.whl\nother.whl", "--yes", cwd=tmp_path)
    assert (2, []) == (ended.code, [*tmp_path.iterdir()])
    assert r"--package 'my.whl\nother.whl': must be one line" in ended.err
