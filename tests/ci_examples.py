"""The pipelines of docs/ci.md and the action as data, and a machine that runs their shell as CI servers do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cli_process import environment, write_program
from ruamel.yaml import YAML

from qualify.assets import cache_folder

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^<!-- file: (?P<path>\S+) -->\n```(?:yaml|groovy)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
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
echo "$*" >> "{log}"
"""
COUNTED = """\
#!/bin/sh
echo "$*" >> "{log}"
exec "{program}" "$@"
"""
GH = """\
#!/bin/sh
# gh run list --branch B prints B where its workflow left an artifact; gh run download B --dir D fetches it.
if [ "$2" = list ]; then
  while [ "$1" != --branch ]; do shift; done
  if [ -d "{kept}/$2" ]; then echo "$2"; fi
else
  mkdir -p "$7" && cp "{kept}/$3/"* "$7/"
fi
"""
CURL = """\
#!/bin/sh
# curl … --output FILE URL fetches the artifact of a job of GitLab, and prints what the server answered.
for word in "$@"; do [ "$last" = --output ] && out=$word; last=$word; done
ref=$(printf %s "$last" | sed 's|.*/artifacts/||; s|/raw/.*||; s|%2F|/|g')
cp "{kept}/$ref/serving.baseline.zip" "$out" 2>/dev/null && echo 200 || echo 404
"""
BASH = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c")
JENKINS_SH = ("sh", "-xec")
"""how Jenkins runs a step ``sh`` that names no interpreter"""
GROOVY = re.compile(r"'''(?P<long>.*?)'''|'(?P<short>[^'\n]*)'|(?P<open>[^'{}\n]*)\{|(?P<close>\})", re.DOTALL)
"""the strings and blocks of a Jenkinsfile"""
EXPRESSION = re.compile(r"\$\{\{ *(.*?) *\}\}")


def pipelines() -> dict[str, str]:
    """The text of every example of docs/ci.md, by path."""
    return {match["path"]: match["text"] for match in FENCE.finditer((ROOT / "docs" / "ci.md").read_text())}


def parsed(text: str) -> Any:
    """YAML as data."""
    return YAML(typ="safe").load(text)


def jenkins_steps(text: str) -> list[Any]:
    """The shell steps of a Jenkinsfile, with its variables; in strings of Groovy a backslash is written twice."""
    variables = dict(re.findall(r"^ +([A-Z_]+) = '(.*)'$", text, re.MULTILINE))
    found = re.findall(r"\bsh '''\n(.*?)'''", text, re.DOTALL)
    return [{"run": step.replace("\\\\", "\\"), "env": variables, "interpreter": JENKINS_SH} for step in found]


def jenkins_blocks(text: str) -> list[str]:
    """The path of every block of a Jenkinsfile, in order; a block that is left open or closed twice is an error."""
    inside, paths = list[str](), list[str]()
    for token in GROOVY.finditer(re.sub(r"stage\('(\w+)'\)", r"stage \1", text)):
        if token["open"] is not None:
            inside.append(token["open"].strip())
            paths.append("/".join(inside))
        elif token["close"]:
            inside.pop()
    assert [] == inside, f"left open: {inside}"
    return paths


def action() -> Any:
    """action.yml as data."""
    return parsed((ROOT / "action.yml").read_text())


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How one step ended."""

    code: int
    out: str
    err: str


@dataclass(frozen=True, kw_only=True)
class Runner:
    """A machine that takes jobs: its tools outlive a job, its workspace does not outlive a clean checkout."""

    folder: Path
    outputs: dict[str, str] = field(default_factory=dict)

    @property
    def workspace(self) -> Path:
        """Where the checkout lies."""
        return self.folder / "work"

    @property
    def tool_cache(self) -> Path:
        """What outlives a job."""
        return self.folder / "tools"

    def checkout(self, kernel: str = "tiled-torch") -> None:
        """Clean the workspace, as actions/checkout does, and put a matrix into it."""
        shutil.rmtree(self.workspace, ignore_errors=True)
        (self.workspace / "matrices").mkdir(parents=True)
        (self.workspace / "matrices" / "serving.yaml").write_text(MATRIX.replace("KERNEL", kernel))

    def job(self, text: str, **variables: str) -> Ended:
        """One step that must succeed."""
        ended = self.shell(text, **variables)
        assert 0 == ended.code, ended.out + ended.err
        return ended

    def shell(self, text: str, interpreter: Sequence[str] = BASH, **variables: str) -> Ended:
        """One step, as CI servers run it."""
        usual = {
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.folder / "home"),
            "XDG_CACHE_HOME": str(cache_folder().parent),  # digests of torch, which would take a second each time
            "GITHUB_STEP_SUMMARY": str(self.folder / "summary.md"),
            "GITHUB_OUTPUT": str(self.folder / "output"),
            "GITHUB_WORKSPACE": str(self.workspace),
            "GITHUB_REPOSITORY": "owner/name",
            "RUNNER_TEMP": str(self.folder / "temp"),
            "RUNNER_TOOL_CACHE": str(self.tool_cache),
        }
        ended = subprocess.run(
            [*interpreter, text],
            cwd=self.workspace,
            env=environment(**(usual | variables)),
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert "Traceback" not in ended.stderr, ended.stderr
        return Ended(code=ended.returncode, out=ended.stdout, err=ended.stderr)

    def filled(self, text: str, values: dict[str, str]) -> str:
        """The text with its expressions; one that nobody gave a value for is an error."""
        known = {"runner.tool_cache": str(self.tool_cache), "github.action_path": str(ROOT), **values}
        return EXPRESSION.sub(lambda found: known[found[1]], str(text))

    def steps(self, steps: list[Any], values: dict[str, str]) -> Iterator[Ended]:
        """Run the shell of steps, as GitHub does: each with its environment, until one fails."""
        for step in steps:
            condition = re.fullmatch(r"(inputs\.[\w-]+) != ''", step.get("if", ""))
            if "run" not in step or (condition and not values[condition[1]]):
                continue
            assert "${{" not in step["run"], "inputs reach the shell through the environment, never as its text"
            variables = {name: self.filled(value, values) for name, value in step.get("env", {}).items()}
            ended = self.shell(step["run"], step.get("interpreter", BASH), **variables)
            yield ended
            if ended.code:
                return

    def action(self, **inputs: str) -> list[Ended]:
        """The composite action with those inputs; its outputs are kept."""
        data = action()
        (self.folder / "output").write_text("")
        given = {name: item.get("default", "") for name, item in data["inputs"].items()}
        given |= {name.replace("_", "-"): value for name, value in inputs.items()}
        values = {f"inputs.{name}": value for name, value in given.items()}
        ended = list(self.steps(data["runs"]["steps"], values))
        lines = (self.folder / "output").read_text().splitlines()
        written = {f"steps.gate.outputs.{name}": value for name, _, value in (line.partition("=") for line in lines)}
        absent = {"steps.gate.outputs.verdict": "", "steps.gate.outputs.exit-code": ""}
        self.outputs.clear()
        for name, item in data["outputs"].items():
            self.outputs[name] = self.filled(item["value"], values | absent | written)
        return ended

    def keep(self, kept: Path, branch: str) -> None:
        """What a CI server does with the artifact of a job on that branch."""
        (kept / branch).mkdir(parents=True)
        shutil.copy(self.workspace / "serving.baseline.zip", kept / branch)

    def commands(self) -> list[str]:
        """Every qualify command that ran since this was last asked."""
        log = self.folder / "commands"
        found = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return found


def make_runner(folder: Path, kept: Path | None = None) -> Runner:
    """A machine with this qualify on its PATH, which notes its commands, and a pip that notes what it should install.

    Args:
        kept: where gh and curl find the artifacts of a CI server, a folder for each branch.
    """
    for name in ("bin", "home", "temp", "tools"):
        (folder / name).mkdir(parents=True)
    program = write_program(folder / "real")
    programs = {
        "pip": PIP.format(log=folder / "pip"),
        "qualify": COUNTED.format(log=folder / "commands", program=program),
    }
    if kept:
        programs |= {"gh": GH.format(kept=kept), "curl": CURL.format(kept=kept)}
    for name, text in programs.items():
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    made = Runner(folder=folder)
    made.checkout()
    return made
