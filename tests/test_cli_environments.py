"""``--environment`` on the command line, with real virtual environments: what runs there, and what is told of them."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from importlib import metadata
from pathlib import Path

import pytest
import stored_runs
from cli_process import call, environment
from environments import install, make_environment, script, share_torch, site_of

from qualify.facts.environment import Environment
from qualify.store import Store

CARD = """\
kernel: fast
generation: portable
shipped_by: [fake-attn>=2]
adapter: call
entry: fake_attn:attend
requires: {device: any}
claims:
  dtypes: [fp32]
  head_dim: {max: 64}
  layouts: [packed]
  masks: [full, causal]
  features: [ragged]
  deterministic: true
  empty_row: {out: any, lse: any}
accuracy: {fp32: fp32}
witness: {must_match: [".+"]}
"""
MATRIX = """\
matrix: two
models:
  - model: toy
    geometry: {groups: [{layers: [0], heads_q: 2, heads_kv: 2, head_dim: 32, mask: causal}]}
phases:
  prefill: {seqlen: [8]}
dtypes: [fp32]
kernels: [fast, tiled-torch]
"""
CELL = "toy.tp1/prefill/b1.q8.k8/fp32/causal"
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
OTHER_TORCH = os.environ.get("QUALIFY_TEST_TORCH", "")


@pytest.fixture(scope="module")
def pythons(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two environments with different releases of one library, and one without torch."""
    folder = tmp_path_factory.mktemp("environments")
    return {
        "old": make_environment(folder / "old", torch="2.11.0", fake_attn="1.5.0"),
        "next": make_environment(folder / "next", torch="2.13.0+cu130", fake_attn="2.1.0"),
        "bare": make_environment(folder / "bare", fake_attn="2.1.0"),
    }


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with the matrix ``two`` and the card ``fast``."""
    (tmp_path / "cards").mkdir()
    (tmp_path / "cards" / "fast.yaml").write_text(CARD)
    (tmp_path / "two.yaml").write_text(MATRIX)
    return tmp_path


def options(pythons: dict[str, Path], *names: str) -> list[str]:
    """The options for some of them."""
    return [word for name in names for word in ("--environment", f"{name}={pythons[name]}")]


def test_kernels_are_listed_for_each_environment(place: Path, pythons: dict[str, Path]) -> None:
    """With the version that is there, or why they cannot run there."""
    words = ("kernels", "--cards", "cards", *options(pythons, "old", "next", "bare"))
    lines = dict(line.split(maxsplit=1) for line in call(*words, cwd=place, env=environment(**NO_GPU)).out.splitlines())
    assert "not installed (pip install 'fake-attn>=2')" == lines["fast"]
    assert "fake-attn 1.5.0 is installed in environment old, fast@old needs >=2" == lines["fast@old"]
    assert "available (fake-attn 2.1.0)" == lines["fast@next"]
    assert f"torch is not installed in environment bare ({pythons['bare']} -m pip install torch)" == lines["fast@bare"]
    data = call(*words, "--json", cwd=place, env=environment(**NO_GPU)).data["kernels"]
    found = {kernel["kernel"]: (kernel["environment"], kernel["available"]) for kernel in data}
    assert [("", False), ("old", False), ("next", True)] == [found[name] for name in ("fast", "fast@old", "fast@next")]
    assert "tiled-torch@next" in found


def test_a_plan_has_every_environment(place: Path, pythons: dict[str, Path]) -> None:
    """Without a machine all of their cases; with --here those whose distribution is not there are refused."""
    words = ("plan", "two.yaml", "--cards", "cards", *options(pythons, "old", "next"))
    names = ["fast", "tiled-torch", "fast@old", "tiled-torch@old", "fast@next", "tiled-torch@next"]
    assert [f"{CELL}/{name}" for name in names] == call(*words, cwd=place).out.split()
    here = call(*words, "--here", "--json", cwd=place, env=environment(**NO_GPU)).data
    assert [f"{CELL}/{name}" for name in ("tiled-torch", "tiled-torch@old", "fast@next", "tiled-torch@next")] == here[
        "cases"
    ]
    reasons = {item["id"].rpartition("/")[2]: item["reasons"] for item in here["refused"]}
    assert ["fake-attn 1.5.0 is installed in environment old, fast@old needs >=2"] == reasons["fast@old"]
    chosen = call(*words, "--kernel", "*@next", cwd=place).out.split()
    assert [f"{CELL}/{name}" for name in ("fast@next", "tiled-torch@next")] == chosen


def test_a_matrix_names_environments_beside_itself(place: Path, pythons: dict[str, Path]) -> None:
    """A relative path counts from the matrix's folder, whichever the present one is."""
    (place / "envs").symlink_to(pythons["next"].parents[2])
    text = f"{MATRIX}environments:\n  next: {{python: envs/next/bin/python}}\n"
    (place / "two.yaml").write_text(text)
    (place / "elsewhere").mkdir()
    words = ("plan", "../two.yaml", "--cards", "../cards", "--here")
    found = call(*words, cwd=place / "elsewhere", env=environment(**NO_GPU))
    assert f"{CELL}/fast@next" in found.out.split()
    assert "refused" not in next(line for line in found.out.splitlines() if "fast@next" in line)


def test_doctor_describes_each_environment(tmp_path: Path, pythons: dict[str, Path]) -> None:
    """Interpreter, torch, CUDA, what offers an adapter; what keeps kernels from running is an error, and exit 4."""
    offering = site_of(pythons["next"].parents[1]) / "fake_attn-2.1.0.dist-info" / "entry_points.txt"
    offering.write_text("[qualify.adapters]\nfake = fake_attn:create\n")
    words = options(pythons, "next", "bare")
    found = call("doctor", *words, "--environment", "gone=/nowhere/python", cwd=tmp_path, env=environment(**NO_GPU))
    lines = [re.sub(" +", " ", line) for line in found.out.splitlines()]
    assert 4 == found.code
    assert f"environment next: {pythons['next']}" in lines
    assert "next torch 2.13.0+cu130 (CUDA 13.0)" in lines
    assert "next fake-attn 2.1.0" in lines
    assert f"error torch is not installed in environment bare ({pythons['bare']} -m pip install torch)" in lines
    assert any(line.startswith("error environment gone, /nowhere/python: no such file.") for line in lines)
    data = call("doctor", *options(pythons, "next"), "--json", cwd=tmp_path, env=environment(**NO_GPU)).data
    (one,) = data["environments"]
    assert ("next", "2.13.0+cu130", "2.1.0") == (one["name"], one["torch"], one["distributions"]["fake-attn"])


def test_an_environment_whose_torch_is_too_old_is_told(place: Path, tmp_path: Path) -> None:
    """By doctor with exit 4, and by a run with exit 2: which version is there, and which one is needed."""
    old = options({"old": make_environment(tmp_path / "old", torch="1.13.0")}, "old")
    why = "torch 1.13.0 is installed in environment old, tiled-torch@old needs >=2.11"
    found = call("doctor", *old, cwd=tmp_path, env=environment(**NO_GPU))
    assert 4 == found.code
    assert f"no kernel can run in environment old: {why}" in found.out
    again = f"Correct that first, then: {shlex.join(['qualify', 'doctor', *old])}\n"
    assert found.out.endswith(f"verdict: nothing should run here: 1 error above. {again}")
    ended = call("run", "two.yaml", "--cards", "cards", *old, cwd=place, env=environment(**NO_GPU))
    assert 2 == ended.code
    assert "nothing that is selected of two can run there: " in ended.err
    assert why in ended.err


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("bare", "--environment bare={python}: torch is not installed in environment bare"),
        ("gone=/nowhere/python", "environment gone, /nowhere/python: no such file"),
        ("gone", "--environment gone: has no interpreter"),
    ],
)
def test_a_run_needs_interpreters_that_can_run(
    place: Path, pythons: dict[str, Path], option: str, message: str
) -> None:
    """Otherwise it would look green although nothing ran there; nothing is stored."""
    word = f"bare={pythons['bare']}" if option == "bare" else option
    ended = call("run", "two.yaml", "--cards", "cards", "--environment", word, cwd=place, env=environment(**NO_GPU))
    assert 2 == ended.code
    assert message.format(python=pythons["bare"]) in ended.err
    assert not (place / ".qualify").exists()


def stored(place: Path, pythons: dict[str, Path], **stacks: object) -> str:
    """A stored run of the matrix with the environment ``next``, every case passed; its id."""
    environments = {"next": Environment(python=str(pythons["next"]), stack=stacks.get("next"))}  # type: ignore[arg-type]
    with Store.open(str(place / "evidence.db")) as store:
        run = stored_runs.store_run(
            store,
            place / "two.yaml",
            cards=(place / "cards",),
            environments=environments,
        )
    return run.id


def gate(place: Path, *words: str) -> tuple[int, dict[str, object]]:
    """The exit code and the JSON of a gate."""
    common = ("--db", "evidence.db", "--cards", "cards", "--max-age", "3650d", "--json")
    ended = call("gate", *words, *common, cwd=place, env=environment(**NO_GPU))
    assert ended.out, ended.err
    return ended.code, json.loads(ended.out)


def test_evidence_of_an_environment_needs_its_stack(place: Path, pythons: dict[str, Path]) -> None:
    """A run whose environment reported no stack gives no verdict, whatever its cases say."""
    run = stored(place, pythons)
    code, data = gate(place, "--run", run)
    assert (5, "INCONCLUSIVE", True) == (code, data["verdict"], data["stale"])
    assert "tiled-torch@next must run again: nobody reported what environment next ran on" in str(data["notes"])


def test_evidence_of_an_environment_counts_with_its_stack(place: Path, pythons: dict[str, Path]) -> None:
    """Each case and the run name the environment; a matrix is judged with the environments that are asked for."""
    there = stored_runs.make_stack(torch="2.13.0+cu130")
    run = stored(place, pythons, next=there)
    code, data = gate(place, "--run", run)
    assert (0, "PASS") == (code, data["verdict"])
    by_kernel = {str(case["id"]).rpartition("/")[2]: case["environment"] for case in data["cases"]}  # type: ignore[attr-defined]
    assert {"fast": "", "tiled-torch": "", "fast@next": "next", "tiled-torch@next": "next"} == by_kernel
    (told,) = data["environments"]  # type: ignore[misc]
    assert ("next", str(pythons["next"]), there.fingerprint) == (told["name"], told["python"], told["stack"])
    (change,) = told["changes"]
    assert ("torch", "2.13.0+cu130") == (change["component"], change["to"])
    text = call("gate", "--run", run, "--db", "evidence.db", "--cards", "cards", cwd=place, env=environment(**NO_GPU))
    assert f"on next: torch 2.11.0 → 2.13.0+cu130 ({pythons['next']})" in text.out
    assert 2 == len(gate(place, "--matrix", "two.yaml")[1]["cases"])  # type: ignore[arg-type]
    code, data = gate(place, "--matrix", "two.yaml", *options(pythons, "next"))
    assert (0, 4) == (code, len(data["cases"]))  # type: ignore[arg-type]


ATTEND = """\
import torch

FACTOR = {factor}

def attend(call):
    bounds, out = call.cu_seqlens_q.tolist(), torch.empty_like(call.q)
    keys = call.cu_seqlens_k.tolist()
    for row, (first, last) in enumerate(zip(bounds, bounds[1:])):
        k, v = (part[keys[row] : keys[row + 1]] for part in (call.k, call.v))
        i = torch.arange(last - first)[:, None]
        j = torch.arange(len(k))
        seen = call.mask.visible(i, j, last - first, len(k))
        scores = torch.einsum("qhd,khd->hqk", call.q[first:last], k) * call.scale
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1).nan_to_num()
        out[first:last] = torch.einsum("hqk,khd->qhd", weights, v)
    return out * FACTOR
"""


def test_an_upgrade_is_two_environments(place: Path, tmp_path: Path) -> None:
    """The same kernel of two releases in one run: each runs in its own interpreter, and only the wrong one fails.

    A second run takes over what is settled here and there; the function of a third party is always run.
    """
    words = []
    for name, version, factor in (("old", "2.0.0", 1.0), ("next", "2.1.0", 1.2)):
        folder = tmp_path / name
        words += ["--environment", f"{name}={make_environment(folder)}"]
        install(folder, "fake_attn", version, ATTEND.format(factor=factor))
        share_torch(folder)
    command = ("run", "two.yaml", "--cards", "cards", "--db", "evidence.db", "--device", "cpu", "--json", *words)
    ended = call(*command, cwd=place, env=environment(**NO_GPU))
    assert 1 == ended.code, ended.err
    verdicts = {item["id"].rpartition("/")[2]: item["verdict"] for item in ended.data["cases"]}
    assert verdicts == {
        "fast": "NOT_REQUIRED",
        "fast@old": "PASS",
        "fast@next": "FAIL",
        **dict.fromkeys(("tiled-torch", "tiled-torch@old", "tiled-torch@next"), "PASS"),
    }
    with Store.open(str(place / "evidence.db")) as store:
        run = store.run(ended.data["run"])
    stacks = {name: run.stack_of(name) for name in ("old", "next")}
    assert all(stack and "torch" in {part.name for part in stack.components} for stack in stacks.values())
    again = call(*command, cwd=place, env=environment(**NO_GPU))
    assert "3 of 6 cases were not run again" in " ".join(again.data["notes"])


@pytest.mark.parametrize("started_by", ["its path", "a script"])
def test_the_packages_of_qualify_do_not_reach_another_interpreter(place: Path, tmp_path: Path, started_by: str) -> None:
    """PYTHONPATH leads qualify's own interpreter to a release; the other interpreter runs the one that is told of it.

    A script that starts the other interpreter may set such variables itself: its host is started as users start it.
    """
    python = {}
    for name, version, factor in (("here", "2.0.0", 1.0), ("next", "2.1.0", 1.2)):
        python[name] = make_environment(tmp_path / name)
        install(tmp_path / name, "fake_attn", version, ATTEND.format(factor=factor))
    share_torch(tmp_path / "next")
    if started_by == "a script":
        torch_alone = make_environment(tmp_path / "torch")
        share_torch(tmp_path / "torch")
        told = f'#!/bin/sh\nPYTHONPATH={site_of(tmp_path / "next")} exec {torch_alone} "$@"\n'
        python["next"] = script(tmp_path / "python", told)
    surroundings = environment(PYTHONPATH=str(site_of(tmp_path / "here")), **NO_GPU)
    words = ("--cards", "cards", *options(python, "next"))
    listed = call("kernels", *words, cwd=place, env=surroundings, started=False).out
    for name, version in (("fast", "2.0.0"), ("fast@next", "2.1.0")):
        assert re.search(rf"^{name} +available \(fake-attn {version}\)$", listed, re.MULTILINE), listed
    run = ("run", "two.yaml", "--kernel", "fast*", "--device", "cpu", "--json")
    ended = call(*run, *words, cwd=place, env=surroundings, started=False)
    verdicts = {item["id"].rpartition("/")[2]: item["verdict"] for item in ended.data["cases"]}
    assert {"fast": "PASS", "fast@next": "FAIL"} == verdicts, ended.err


def test_an_environment_that_lacks_the_library_is_refused(place: Path, tmp_path: Path) -> None:
    """It looked green, although nothing ran there; a kernel that can run there is enough."""
    make_environment(tmp_path / "here", fake_attn="2.1.0")
    python = {"next": make_environment(tmp_path / "next", torch="2.13.0")}
    words = ("run", "two.yaml", "--cards", "cards", "--device", "cpu", *options(python, "next"))
    surroundings = environment(PYTHONPATH=str(site_of(tmp_path / "here")), **NO_GPU)
    ended = call(*words, "--kernel", "fast*", cwd=place, env=surroundings)
    assert 2 == ended.code
    told = f"--environment next={python['next']}: nothing that is selected of two can run there: not installed in"
    assert told in ended.err
    assert f"qualify doctor --environment next={python['next']}" in ended.err
    assert not (place / ".qualify").exists()


@pytest.mark.slow
def test_two_stored_stacks_fight_a_duel(place: Path, tmp_path: Path) -> None:
    """From two real environments to a verdict: a run stores their stacks, and the duel finds them by fingerprint alone.

    The newer release computes everything eight times. Its interpreter is named nowhere on the command line of the duel.
    """
    words = []
    for name, version, calls in (("old", "2.0.0", 1), ("next", "2.1.0", 8)):
        folder = tmp_path / name
        words += ["--environment", f"{name}={make_environment(folder)}"]
        once = ATTEND.format(factor=1.0).replace("def attend(", "def once(")
        install(
            folder,
            "flash_attn",
            version,
            f"{once}\ndef attend(call):\n    return [once(call) for _ in range({calls})][-1]\n",
        )
        share_torch(folder)
    (place / "cards" / "fast.yaml").write_text(
        CARD.replace("fake-attn", "flash-attn").replace("fake_attn", "flash_attn")
    )
    text = MATRIX.replace("seqlen: [8]", "seqlen: [256]").replace("[fast, tiled-torch]", "[fast]")
    (place / "two.yaml").write_text(text)
    common = ("--cards", "cards", "--db", "evidence.db", "--device", "cpu", "--json")
    ran = call("run", "two.yaml", *common, *words, cwd=place, env=environment(**NO_GPU))
    verdicts = {item["id"].rpartition("/")[2]: item["verdict"] for item in ran.data["cases"]}
    assert verdicts == {"fast": "NOT_REQUIRED", "fast@old": "PASS", "fast@next": "PASS"}, ran.err
    with Store.open(str(place / "evidence.db")) as store:
        run = store.run(ran.data["run"])
    old, next_ = (stack.fingerprint for name in ("old", "next") if (stack := run.stack_of(name)))
    limits = ("--pairs", "2", "--most-pairs", "10", "--margin", "50")
    ended = call("duel", old[:12], next_[:12], "two.yaml", *limits, *common, cwd=place, env=environment(**NO_GPU))
    assert 1 == ended.code, ended.err
    (cell,) = ended.data["cells"]
    assert ("SLOWER", f"{CELL.replace('8.k8', '256.k256')}/fast") == (cell["verdict"], cell["name"])
    assert f"stack {old[:12]} (stack-{old[:8]})" == ended.data["a"]
    with Store.open(str(place / "evidence.db")) as store:
        (fought,) = store.duels("two")
    for stack, name in ((fought.stack_a, "old"), (fought.stack_b, "next")):
        stored_stack = run.stack_of(name)
        assert stored_stack is not None
        assert stack.agrees_with(stored_stack)


@pytest.mark.slow
@pytest.mark.skipif(not OTHER_TORCH, reason="QUALIFY_TEST_TORCH names no interpreter with another release of torch")
def test_two_releases_of_torch_run_beside_each_other(place: Path) -> None:
    """Doctor, kernels, run, gate, report and duel, with whatever release that interpreter has.

    Each side computes with its own torch: the case says in which environment it ran, and the run stores both stacks.
    """
    asked = "import torch, importlib.metadata as found; print(torch.__version__, found.version('torch'))"
    built, there = subprocess.run([OTHER_TORCH, "-c", asked], check=True, capture_output=True, text=True).stdout.split()
    here = metadata.version("torch")
    assert here != there, f"QUALIFY_TEST_TORCH={OTHER_TORCH}: its torch is this interpreter's release"
    (place / "two.yaml").write_text(MATRIX.replace("[fast, tiled-torch]", "[torch-cpu-math, tiled-torch]"))
    next_, db = ("--environment", f"next={OTHER_TORCH}"), ("--db", "evidence.db")
    surroundings = environment(**NO_GPU)

    (described,) = call("doctor", "--json", *next_, cwd=place, env=surroundings).data["environments"]
    assert built == described["torch"]
    listed = call("kernels", *next_, cwd=place, env=surroundings).out
    assert re.search(rf"^torch-cpu-math@next +available \(torch {re.escape(there)}\)$", listed, re.MULTILINE), listed

    run = ("run", "two.yaml", "--device", "cpu", "--out", "report", "--json")
    ended = call(*run, *next_, *db, cwd=place, env=surroundings)
    kernels = ("torch-cpu-math", "tiled-torch")
    assert dict.fromkeys((*kernels, *(f"{kernel}@next" for kernel in kernels)), "PASS") == {
        item["id"].rpartition("/")[2]: item["verdict"] for item in ended.data["cases"]
    }, ended.err
    with Store.open(str(place / "evidence.db")) as store:
        stored_run = store.run(ended.data["run"])
    here_stack, next_stack = stored_run.stack, stored_run.stack_of("next")
    assert here_stack is not None
    assert next_stack is not None
    assert [here, there] == [here_stack.version("torch"), next_stack.version("torch")]

    code, data = gate(place, "--run", ended.data["run"])
    (told,) = data["environments"]  # type: ignore[misc]
    (change,) = (item for item in told["changes"] if item["component"] == "torch")
    assert (0, here, there) == (code, change["from"].split()[0], change["to"].split()[0])
    (report,) = (place / "report").glob("*/report.html")
    assert f"torch {here} → {there}" in report.read_text()

    fought = call(
        *("duel", "here", "next", "two.yaml", "--device", "cpu", "--pairs", "2", "--most-pairs", "2", "--json"),
        *(*next_, *db),
        cwd=place,
        env=surroundings,
    )
    assert {f"{CELL}/{kernel}" for kernel in kernels} == {cell["name"] for cell in fought.data["cells"]}
    assert {"eager"} == {cell["way"] for cell in fought.data["cells"]}, "every cell was timed"
    with Store.open(str(place / "evidence.db")) as store:
        (duel,) = store.duels("two")
    assert [here, there] == [duel.stack_a.version("torch"), duel.stack_b.version("torch")]
