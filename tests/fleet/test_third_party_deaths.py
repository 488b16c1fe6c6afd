"""Kernels of third parties that take their process along: the case is blamed, and the run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_process import Ended, call, write_card, write_cards, write_matrix

from qualify.facts.stages import when
from qualify.store.store import Store

PREPARING = when("prepare")

FIRST = (
    "hangs",
    "leaves",
    "raises_exit",
    "killed",
    "closes_descriptors",
    "writes_garbage",
    "leaves_a_child",
)
"""the first case of a process is alone in it, so its death is not repeated"""
AFTER_OTHERS = ("segfaults", "correct")
FUNCTIONS = (*FIRST, *AFTER_OTHERS)
AT_IMPORT = {
    "segfaults-at-import": "import ctypes\n\nctypes.string_at(0)\n",
    "hangs-at-import": "import time\n\ntime.sleep(600)\n",
}
NOTE = "import os\nfrom pathlib import Path\n\nwith Path(__file__).with_suffix('.pids').open('a') as notes:\n"
"""a module with this beginning leaves the id of every process that imports it"""
TIMEOUT_S = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with a matrix over all these kernels; those that die at import have three cases each."""
    folder = tmp_path_factory.mktemp("deaths")
    cards = write_cards(folder / "cards", *FUNCTIONS)
    for name, text in AT_IMPORT.items():
        module = name.replace("-", "_")
        write_card(cards, name, module)
        (cards / f"{module}.py").write_text(f"{NOTE}    notes.write(f'{{os.getpid()}}\\n')\n{text}")
    names = [function.replace("_", "-") for function in FUNCTIONS]
    first, after = names[: len(FIRST)], names[len(FIRST) :]
    exclude = tuple(f"*/b1.q{length}.*/{name}" for length in (9, 40) for name in names if name != "correct")
    kernels = (*first, "tiled-torch", *AT_IMPORT, *after)
    write_matrix(folder / "deaths.yaml", *kernels, seqlens=(8, 9, 40), exclude=exclude, timeout_s=TIMEOUT_S)
    return folder


@pytest.fixture(scope="module")
def ended(folder: Path) -> Ended:
    """The run of it. Those of tests/hosts/test_deaths.py are started as users start them."""
    return call("run", "deaths.yaml", "--cards", "cards", "--db", "evidence.db", cwd=folder)


@pytest.fixture(scope="module")
def cases(folder: Path, ended: Ended) -> dict[str, Any]:
    """The stored cases as JSON, by shape and kernel."""
    data = call("gate", "--db", "evidence.db", "--cards", "cards", "--json", cwd=folder).data
    return {"/".join(item["id"].split("/")[2::3]): item for item in data["cases"]}


def test_the_run_completes(ended: Ended, cases: dict[str, Any]) -> None:
    """Every case has an outcome, and the command ends with the verdict and the report."""
    assert 1 == ended.code
    verdict, *_, report = ended.out.splitlines()
    assert verdict.startswith("deaths: not qualified (3 of 3 production shapes have a proven path; 20 cases: 6 PASS, ")
    assert report.startswith("report: out/")
    assert "not_run" not in {item["outcome"] for item in cases.values()}


@pytest.mark.parametrize("shape", ["b1.q8.k8", "b1.q9.k9", "b1.q40.k40"])
@pytest.mark.parametrize("kernel", ["tiled-torch", "correct"])
def test_the_others_pass(cases: dict[str, Any], shape: str, kernel: str) -> None:
    """Kernels that shared a process with the dying ones keep their own outcome."""
    assert ("measured", "PASS") == tuple(cases[f"{shape}/{kernel}"][key] for key in ("outcome", "verdict"))


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        ("segfaults", "crashed while its call was prepared: killed by signal 11 (SIGSEGV), in third_party.py:"),
        ("leaves", "crashed while its call was prepared: the process exited with status 3"),
        ("leaves-a-child", "crashed while its call was prepared: the process exited with status 4"),
        ("raises-exit", "crashed while its call was prepared: SystemExit: enough (third_party.py:"),
        (
            "killed",
            f"crashed {PREPARING}: killed by signal 9 (SIGKILL), by itself or by someone on this machine",
        ),
        (
            "closes-descriptors",
            f"crashed {PREPARING}: something in the process closed qualify's own pipe, so it ended (OSError: ",
        ),
        (
            "writes-garbage",
            "crashed while its call was prepared: something in the process wrote into qualify's own pipe (b'not a",
        ),
        ("hangs", f"no sign of life for {TIMEOUT_S} s while its call was prepared"),
    ],
)
def test_the_culprit_is_named(cases: dict[str, Any], kernel: str, reason: str) -> None:
    """The reason says the stage, how the process ended, and where it was."""
    found = cases[f"b1.q8.k8/{kernel}"]
    assert "FAIL" == found["verdict"]
    assert found["reasons"][0].startswith(reason)


def test_a_hang_says_where(cases: dict[str, Any]) -> None:
    """The watchdog notes the line of Python that was running."""
    note, alone = cases["b1.q8.k8/hangs"]["findings"]
    assert ("process", "note") == (alone["check"], alone["verdict"])
    assert ("watchdog", "note") == (note["check"], note["verdict"])
    assert "third_party.py:" in note["detail"]
    assert "(hangs)" in note["detail"]


@pytest.mark.parametrize("shape", ["b1.q8.k8", "b1.q9.k9", "b1.q40.k40"])
@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (
            "segfaults-at-import",
            "crashed while its library was loaded: killed by signal 11 (SIGSEGV), in segfaults_at_import.py:8",
        ),
        ("hangs-at-import", f"no sign of life for {TIMEOUT_S} s while its library was loaded"),
    ],
)
def test_a_death_at_import_is_shared(cases: dict[str, Any], shape: str, kernel: str, reason: str) -> None:
    """All cases of a kernel that cannot be imported have that outcome."""
    assert cases[f"{shape}/{kernel}"]["reasons"][0].startswith(reason)


@pytest.mark.parametrize("module", ["segfaults_at_import", "hangs_at_import"])
def test_a_death_at_import_costs_one_process(folder: Path, ended: Ended, module: str) -> None:
    """Nothing else ran in it, so there is nothing to try again: not one for each case."""
    assert 1 == len((folder / "cards" / f"{module}.pids").read_text().split())


def test_the_log_of_a_fault_is_kept(folder: Path, ended: Ended) -> None:
    """The stored outcome holds the Python stack at the fault."""
    with Store.open(str(folder / "evidence.db"), create=False) as store:
        outcomes = {record.case.kernel: record.outcome for record in store.records(store.resolve("latest"))}
    crashed = outcomes["segfaults"]
    assert "crashed" == crashed.outcome
    assert crashed.log.startswith("Fatal Python error: Segmentation fault")
    assert "third_party.py" in crashed.log


def test_cases_that_were_prepared_beside_one_that_died_pass(tmp_path: Path) -> None:
    """The first case of a process runs alone, the others together; only the one that ended it is blamed."""
    write_cards(tmp_path / "cards", "segfaults_at_47")
    write_matrix(tmp_path / "beside.yaml", "segfaults-at-47", seqlens=(8, 9, 10, 47))
    data = call("run", "beside.yaml", "--cards", "cards", "--json", cwd=tmp_path).data
    found = {item["id"].split("/")[2]: (item["outcome"], item["verdict"]) for item in data["cases"]}
    alive = {f"b1.q{length}.k{length}": ("measured", "PASS") for length in (8, 9, 10)}
    assert {**alive, "b1.q47.k47": ("crashed", "FAIL")} == found
