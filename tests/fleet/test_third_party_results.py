"""Kernels of third parties that leave their process alive: each gets its outcome, and disturbs no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_process import Ended, call, environment, write_card, write_cards, write_matrix

from qualify.facts.stages import when
from qualify.fleet.probe import list_kernels

LOADING = when("load")
OTHER_PARAMETERS = "third_party:takes_tensors cannot be called with one AttentionCall: missing a required argument: 'k'"
NO_FUNCTION = "ImportError: third_party:no_such_function: module third_party has no no_such_function"
AT = "(entry at cards/{}.yaml:4:8)"

UNLOADABLE = {
    "not-importable": ("not_importable", "attend", "import no_such_package_anywhere\n"),
    "no-such-function": ("third_party", "no_such_function", None),
    "no-such-module": ("nowhere.kernels", "attend", None),
    "takes-tensors": ("third_party", "takes_tensors", None),
}
FUNCTIONS = (
    "wrong_shape",
    "wrong_dtype",
    "returns_none",
    "wrong_numbers",
    "raises",
    "allocates_everything",
    "writes_inputs",
    "chatters",
    "raises_in_a_thread",
    "correct",
    "remembers",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with a matrix over all these kernels."""
    folder = tmp_path_factory.mktemp("results")
    cards = write_cards(folder / "cards", *FUNCTIONS)
    for name, (module, function, text) in UNLOADABLE.items():
        write_card(cards, name, module, function)
        if text is not None:
            (cards / f"{module}.py").write_text(text)
    names = [function.replace("_", "-") for function in FUNCTIONS]
    # Only `remembers` and the shipped kernel see a second dtype, after all the others.
    exclude = tuple(f"*/bf16/*/{name}" for name in [*names, *UNLOADABLE] if name != "remembers")
    kernels = (*UNLOADABLE, "tiled-torch", *names)
    write_matrix(folder / "results.yaml", *kernels, dtypes=("fp32", "bf16"), exclude=exclude)
    return folder


@pytest.fixture(scope="module")
def ended(folder: Path) -> Ended:
    """The run of it. FORCE_COLOR, which CI sets, must not bring colors or a bar into a log file."""
    env = environment(FORCE_COLOR="1")
    return call("run", "results.yaml", "--cards", "cards", "--db", "evidence.db", "--json", cwd=folder, env=env)


def case(ended: Ended, kernel: str, dtype: str = "fp32") -> Any:
    """The case of a kernel in the JSON."""
    (found,) = [item for item in ended.data["cases"] if item["id"].endswith(f"/{dtype}/causal/{kernel}")]
    return found


def test_a_function_whose_module_is_nowhere_is_not_available(folder: Path) -> None:
    """`qualify kernels` says so before anything runs, with the place of the entry."""
    listed = {it["kernel"]: it for it in list_kernels((folder / "cards",), {})}
    why = "no module nowhere is installed, or lies in a --cards folder "
    assert [f"{why}({folder}/cards/no-such-module.yaml:4:8: entry: nowhere.kernels:attend)"] == listed[
        "no-such-module"
    ]["reasons"]
    assert (False, True) == (listed["no-such-module"]["available"], listed["correct"]["available"])


def test_the_run_completes(ended: Ended) -> None:
    """Every case has an outcome, the verdict is `not qualified`, and stdout is one strict JSON object."""
    data = ended.data
    assert ("completed", "FAIL", 1, 1) == (data["state"], data["verdict"], data["exit_code"], ended.code)
    assert 0 == data["counts"]["outcomes"]["not_run"]
    assert len(FUNCTIONS) + len(UNLOADABLE) + 3 == len(data["cases"])


@pytest.mark.parametrize("kernel", ["correct", "chatters", "raises-in-a-thread", "tiled-torch"])
def test_a_correct_kernel_passes(ended: Ended, kernel: str) -> None:
    """Talking, and a thread that dies, are no faults; a right kernel among wrong ones passes."""
    assert ("measured", "PASS", []) == tuple(case(ended, kernel)[key] for key in ("outcome", "verdict", "reasons"))


def test_a_card_that_accepts_any_kernel_asserts_no_identity(ended: Ended) -> None:
    """Each case says so, and so do the notes under the verdict."""
    told = {name: case(ended, name)["identity_asserted"] for name in ("correct", "tiled-torch", "raises")}
    assert {"correct": False, "tiled-torch": True, "raises": False} == told
    (note,) = [note for note in ended.data["notes"] if note.startswith("identity was not asserted for ")]
    assert "correct (1 of the cases)" in note
    assert "tiled-torch" not in note


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        ("wrong-shape", "contract: out has shape (7, 2, 32), the contract says (8, 2, 32)"),
        ("wrong-dtype", "contract: out has dtype torch.float64, the contract says torch.float32"),
        ("returns-none", "contract: returned None; the contract is a tensor `out` or a pair"),
        ("writes-inputs", "contract: the kernel wrote into its inputs (or their guard bands): k"),
    ],
)
def test_a_wrong_result_fails_by_its_check(ended: Ended, kernel: str, reason: str) -> None:
    """The reason names the check and the values."""
    found = case(ended, kernel)
    assert ("measured", "FAIL") == (found["outcome"], found["verdict"])
    assert found["reasons"][0].startswith(reason)


def test_wrong_numbers_fail(ended: Ended) -> None:
    """One percent off is more than any budget."""
    found = case(ended, "wrong-numbers")
    assert ("measured", "FAIL") == (found["outcome"], found["verdict"])
    assert "budget" in {finding["check"] for finding in found["findings"] if finding["verdict"] == "fail"}


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        ("raises", "crashed while its call was prepared: RuntimeError: cannot read ?\x1b[31m or \x00 (third_party.py:"),
        ("allocates-everything", "crashed while its call was prepared: MemoryError"),
        (
            "not-importable",
            "crashed while its library was loaded: ModuleNotFoundError: No module named 'no_such_package_anywhere'",
        ),
        (
            "no-such-function",
            f"crashed {LOADING}: {NO_FUNCTION} {AT.format('no-such-function')}",
        ),
        (
            "no-such-module",
            f"crashed {LOADING}: ModuleNotFoundError: No module named 'nowhere' {AT.format('no-such-module')}",
        ),
        (
            "takes-tensors",
            f"crashed {LOADING}: ImportError: {OTHER_PARAMETERS} {AT.format('takes-tensors')}",
        ),
    ],
)
def test_an_exception_is_a_crash(ended: Ended, kernel: str, reason: str) -> None:
    """The reason names the stage, the first line of the exception, and the line of the kernel that raised it."""
    found = case(ended, kernel)
    assert ("crashed", "FAIL") == (found["outcome"], found["verdict"])
    assert found["reasons"][0].startswith(reason)
    assert ("entry at" in reason) == ("entry at" in found["reasons"][0])


@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        ("no-such-function", f"{NO_FUNCTION} {AT.format('no-such-function')}"),
        ("takes-tensors", f"ImportError: {OTHER_PARAMETERS} {AT.format('takes-tensors')}"),
        (
            "not-importable",
            "ModuleNotFoundError: No module named 'no_such_package_anywhere' (not_importable.py:1)",
        ),
    ],
)
def test_repro_says_where_the_code_cannot_be_loaded(folder: Path, ended: Ended, kernel: str, why: str) -> None:
    """The same words as in the verdict, which names this command: the line of the card, or that of the module."""
    found = case(ended, kernel)
    assert f"crashed {LOADING}: {why}" == found["reasons"][0]
    told = call("repro", found["id"], "--db", "evidence.db", "--cards", "cards", cwd=folder)
    assert (4, "", f"qualify: {kernel} cannot be loaded: {why}\n") == (told.code, told.out, told.err)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_what_depends_on_history_is_found(ended: Ended, dtype: str) -> None:
    """A kernel that is wrong once its process has seen both dtypes, and right alone, fails with that finding."""
    found = case(ended, "remembers", dtype)
    assert ("measured", "FAIL") == (found["outcome"], found["verdict"])
    (finding,) = [finding for finding in found["findings"] if finding["verdict"] == "fail"]
    assert "history" == finding["check"]
    assert finding["detail"].startswith("history-dependent: it passes alone in a fresh process; after other cases")
    assert "PASS" == case(ended, "tiled-torch", dtype)["verdict"]


def test_the_log_names_each_trouble_once_and_escapes_it(ended: Ended) -> None:
    """Progress goes to stderr, without what a terminal would obey."""
    assert (
        "causal/raises: crashed while its call was prepared: RuntimeError: cannot read ?\\x1b[31m or \\x00" in ended.err
    )
    assert "\x1b" not in ended.err
    assert ended.err.startswith("run ")
    assert "cases on cpu" in ended.err.splitlines()[0]


def test_the_gate_repeats_the_verdict(folder: Path, ended: Ended) -> None:
    """`gate --format json` gives the object of `run --json`, but for the report that only `run` writes."""
    again = call("gate", "--db", "evidence.db", "--cards", "cards", "--format", "json", cwd=folder)
    assert (1, "") == (again.code, again.err)
    data = ended.data
    report = data.pop("report")
    assert data == again.data
    assert (folder / report).read_text().startswith("<!doctype html>")


def test_the_text_names_the_worst_first(folder: Path, ended: Ended) -> None:
    """Wrong results stand before crashes, and the last line is the verdict."""
    lines = call("gate", "--db", "evidence.db", "--cards", "cards", cwd=folder).out.splitlines()
    assert lines[0].startswith("results: not qualified (2 of 2 production shapes have a proven path; 18 cases: ")
    failed = [line.rpartition("/")[2] for line in lines if line.startswith("FAIL")]
    assert failed.index("wrong-numbers") < failed.index("raises")
    assert "\x1b" not in "".join(lines)


def test_a_completed_run_is_resumed_without_work(folder: Path, ended: Ended) -> None:
    """--resume of a completed run runs nothing and gives the same verdict."""
    again = call(
        "run", "results.yaml", "--cards", "cards", "--db", "evidence.db", "--json", "--resume", "latest", cwd=folder
    )
    assert ended.code == again.code
    assert ended.data == again.data
    assert "starting a process" not in again.err
