"""`qualify repro` on real processes: kernels that are wrong, die or hang, and what it prints of them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_process import Ended, call, environment, server, write_card
from fresh_python import Nursery, nursery

WRONG_KERNELS = Path(__file__).parents[1] / "run" / "wrong_kernels.py"
FUNCTIONS = ("long_ones_are_wrong", "dies_when_long", "hangs_when_batched", "correct")
MATRIX = """\
matrix: repro
models:
  - model: toy
    geometry: {groups: [{layers: [0], heads_q: 8, heads_kv: 4, head_dim: 32, mask: causal}]}
phases:
  varlen: {lengths: [[3, 40, 17]]}
dtypes: fp32
kernels: [long-ones-are-wrong, correct]
"""
KILLERS = """\
matrix: repro
models:
  - model: tiny
    geometry: {groups: [{layers: [0], heads_q: 1, heads_kv: 1, head_dim: 32, mask: full}]}
phases:
  varlen: {lengths: [[1, 1, 1], [3, 12]]}
dtypes: fp32
kernels: [hangs-when-batched, dies-when-long]
exclude: ["*/l1-1-1/*/dies-when-long", "*/l3-12/*/hangs-when-batched"]
policy: {timeout_s: 6, compile_timeout_s: 6}
"""
"""each step that kills costs a process, and one that hangs also its limit, so these two have few to take"""
CELLS = {
    "dies-when-long": "tiny.tp1/varlen/l3-12/fp32/full",
    "hangs-when-batched": "tiny.tp1/varlen/l1-1-1/fp32/full",
}
CELL = "toy.tp1/varlen/l3-40-17/fp32/causal"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with these kernels' evidence in its store."""
    folder = tmp_path_factory.mktemp("repro")
    cards = folder / "cards"
    cards.mkdir()
    shutil.copy(WRONG_KERNELS, cards)
    for function in FUNCTIONS:
        write_card(cards, function.replace("_", "-"), "wrong_kernels", function)
        path = cards / f"{function.replace('_', '-')}.yaml"
        path.write_text(path.read_text().replace("features: [ragged]", "features: [gqa, ragged]"))
    for text in (KILLERS, MATRIX):
        (folder / "repro.yaml").write_text(text)
        call("run", "repro.yaml", "--cards", "cards", "--db", "e.db", "--json", cwd=folder)
    return folder


def repro(folder: Path, kernel: str, *options: str) -> Ended:
    """The command on one of the cases."""
    case = f"{CELLS.get(kernel, CELL)}/{kernel}"
    return call("repro", case, "--db", "e.db", "--cards", "cards", *options, cwd=folder)


def run_script(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A fresh Python that cannot import qualify."""
    path = folder / "printed.py"
    path.write_text(script)
    command = [sys.executable, "-P", str(path)]
    env = {key: value for key, value in environment().items() if key != "PYTHONPATH"}
    return subprocess.run(command, cwd="/", env=env, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture(scope="module")
def fresh() -> Iterator[Nursery]:
    """Pythons that have imported torch and nothing else."""
    with nursery() as made:
        yield made


def lengths_of(script: str) -> str:
    """What the script says about its own size."""
    return script.partition("Made smaller while it failed in the same way:")[2].partition('"""')[0]


def test_the_printed_script_shows_the_failure(folder) -> None:
    """A fresh Python that imports the entry from its folder prints both values and exits 1."""
    printed = repro(folder, "long-ones-are-wrong")
    assert 0 == printed.code, printed.err
    assert "calling the kernel" not in printed.err
    assert re.search(r"^repeated alone: \w+ fails: ", printed.err, re.MULTILINE), printed.err
    shown = run_script(printed.out, folder)
    assert 1 == shown.returncode, shown.stdout + shown.stderr
    assert re.search(r"sequence \d+, query \d+, head \d+, element \d+: out is \S+, exact \S+", shown.stdout)


@pytest.mark.slow
def test_a_wrong_kernel_is_made_smaller(folder, fresh: Nursery, tmp_path) -> None:
    """One sequence, two KV heads and no mask remain, just long enough, and the smaller script still fails."""
    printed = repro(folder, "long-ones-are-wrong", "--minimise", "--json")
    data = printed.data
    assert "qualify.repro/1" == data["schema"]
    assert data["standalone"]
    assert [step for step in data["shrunk"] if step.startswith("batch")]
    assert [step for step in data["shrunk"] if step.endswith("/2")]
    assert "no causal mask" in data["shrunk"]
    (longest,) = {int(length) for length in re.findall(r"max_seqlen_k=(\d+)", data["script"])}
    assert 21 == longest
    assert len(data["shrunk"]) == lengths_of(data["script"]).count("\n  ")
    shown = fresh.run(data["script"], tmp_path)
    assert (1, "WRONG") == (shown.returncode, shown.stdout.splitlines()[-1]), shown.stdout + shown.stderr
    assert re.search(r": as before, \w+ fails\n", printed.err)


@pytest.mark.slow
def test_a_kernel_that_dies_is_made_smaller_without_dying_along(folder, fresh: Nursery, tmp_path) -> None:
    """Its script ends by the same signal, on fewer queries."""
    printed = repro(folder, "dies-when-long", "--minimise")
    assert 0 == printed.code, printed.err
    assert "as before, crashed (killed by signal 11 (SIGSEGV))" in printed.err
    assert "batch 2 to 1" in lengths_of(printed.out)
    assert "lengths 12x12 to 11x11" in lengths_of(printed.out)
    assert -11 == fresh.run(printed.out, tmp_path).returncode


@pytest.mark.slow
def test_a_kernel_that_hangs_is_made_smaller(folder, fresh: Nursery, tmp_path) -> None:
    """Its script hangs as the kernel does, on the two sequences that it needs."""
    printed = repro(folder, "hangs-when-batched", "--minimise")
    assert 0 == printed.code, printed.err
    assert "as before, timed out" in printed.err
    assert "batch 3 to 2" in lengths_of(printed.out)
    with pytest.raises(subprocess.TimeoutExpired):
        fresh.run(printed.out, tmp_path, limit_s=5)


def test_a_case_that_passed_is_shown(folder, fresh: Nursery, tmp_path) -> None:
    """It says so, and prints a script that shows a right value and exits 0."""
    printed = repro(folder, "correct", "-v")
    assert 0 == printed.code, printed.err
    assert "passed in run" in printed.err
    assert "calling the kernel" in printed.err.splitlines()
    assert 0 == fresh.run(printed.out, tmp_path).returncode


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((f"{CELL}/corect", "--db", "e.db", "--cards", "cards"), 2, f"Perhaps you meant {CELL}/correct"),
        ((f"{CELL}/correct", "--run", "nosuchrun", "--db", "e.db", "--cards", "cards"), 2, "no run 'nosuchrun'"),
        ((f"{CELL}/correct", "--db", "e.db"), 2, "--db e.db --cards DIR"),
        ((f"{CELL}/correct", "--db", "other.db"), 4, "other.db"),
    ],
)
def test_what_cannot_be_repeated_is_said(folder, arguments, code, said) -> None:
    """Unknown case or run, a card that is gone, no store: one sentence, the documented exit code, nothing on stdout."""
    ended = call("repro", *arguments, cwd=folder)
    assert (code, "") == (ended.code, ended.out)
    assert said in ended.err


def test_a_kernel_that_was_mended_since_is_no_failure_of_its_neighbours(folder, tmp_path) -> None:
    """What does not fail any more has another cause: the code is not that of the run."""
    mended = Path(shutil.copytree(folder, tmp_path / "mended"))
    module = mended / "cards" / WRONG_KERNELS.name
    module.write_text(f"{module.read_text()}\nlong_ones_are_wrong = correct\n")
    printed = repro(mended, "long-ones-are-wrong")
    assert 0 == printed.code, printed.err
    why = f"and its kernel is another than in the run: its code changed since: {module.name}."
    assert f"Repeated alone the case does not fail, {why} The script runs qualify instead." in printed.err
    assert "--select" in printed.out


@pytest.mark.slow
def test_what_depends_on_history_runs_qualify(tmp_path) -> None:
    """A failure that needs other cases before it has no script of calls: what is printed runs them all again."""
    cards = tmp_path / "cards"
    cards.mkdir()
    shutil.copy(Path(__file__).parent / "third_party.py", cards)
    write_card(cards, "remembers", "third_party", "remembers_lengths")
    text = MATRIX.replace("[[3, 40, 17]]", "[[3, 41, 17], [3, 77, 17]]").replace("heads_q: 8", "heads_q: 4")
    (tmp_path / "repro.yaml").write_text(re.sub(r"kernels: .*", "kernels: [remembers]", text))
    ended = call("run", "repro.yaml", "--cards", "cards", "--db", "e.db", "--json", cwd=tmp_path)
    failed = [case["id"] for case in ended.data["cases"] if case["verdict"] == "FAIL"]
    assert failed
    printed = call("repro", failed[0], "--db", "e.db", "--cards", "cards", "--json", cwd=tmp_path)
    assert not printed.data["standalone"]
    script = printed.data["script"]
    assert "# Repeated alone the case does not fail: what ran before it in its process matters." in script
    (tmp_path / "printed.py").write_text(script)
    assert 1 == server().run([], tmp_path, 240, script=str(tmp_path / "printed.py")).code


@pytest.mark.slow
def test_what_a_pair_of_calls_shows_of_history_needs_no_other_case(tmp_path, fresh: Nursery) -> None:
    """Where two calls of the check show what a kernel keeps, the script has these two and not the whole run."""
    cards = tmp_path / "cards"
    cards.mkdir()
    shutil.copy(WRONG_KERNELS, cards)
    write_card(cards, "keeps", "wrong_kernels", "keeps_the_first_mask")
    text = re.sub(r"kernels: .*", "kernels: [keeps]\nmasks: [full, causal]", MATRIX).replace("heads_q: 8", "heads_q: 4")
    (tmp_path / "repro.yaml").write_text(text)
    ended = call("run", "repro.yaml", "--cards", "cards", "--db", "e.db", "--json", cwd=tmp_path)
    (failed,) = [case for case in ended.data["cases"] if case["verdict"] == "FAIL"]
    assert failed["reasons"][0].startswith("history: history-dependent: it passes alone in a fresh process")
    printed = call("repro", failed["id"], "--db", "e.db", "--cards", "cards", "--json", cwd=tmp_path)
    assert "repeated alone: history fails" in printed.err
    assert "the case does not fail" not in printed.err
    assert (True, "finding:history") == (printed.data["standalone"], printed.data["ended"])
    shown = fresh.run(printed.data["script"], cards)
    assert (1, "WRONG") == (shown.returncode, shown.stdout.splitlines()[-1]), shown.stdout + shown.stderr
