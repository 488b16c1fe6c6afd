"""Hosts that end, or must be ended: with all that they started, blamed on their own case, and no other host ends."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from cli_process import Ended, call, write_card, write_cards, write_matrix

MODULE = Path(__file__).with_name("deadly.py")
TIMEOUT_S = 6
PIPE = "something in the process wrote into qualify's own pipe"
DEADLY = {
    "leaves-a-daemon": "crashed while its call was prepared: killed by signal 11 (SIGSEGV), in deadly.py:",
    "forks": f"no sign of life for {TIMEOUT_S} s while its call was prepared",
    "announces-without-end": f"crashed while its call was prepared: {PIPE} (event 'Began')",
    "announces-while-traced": f"crashed while its kernels were traced: {PIPE} (event 'Began')",
    "raises-on-zeros": "crashed while census was checked: ValueError: no query is 0 (deadly.py:",
    "dies-on-zeros": "crashed while census was checked: killed by signal 11 (SIGSEGV), in deadly.py:",
    "writes-without-an-end-of-a-line": f"no sign of life for {TIMEOUT_S} s while its call was prepared",
}
"""how the reason of each begins"""
LIVING = ("stays", "prints-a-gigabyte")
STARTED = {"stays", "leaves-a-daemon", "forks"}
"""what takes processes along, and what lives beside it: in a run whose judge and hosts start as users start them. The
others only say or print something, and run in forked ones"""
RUNS = ("started", "forked")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with a matrix of either kind: each deadly kernel has one case, the others have two."""
    folder = tmp_path_factory.mktemp("deaths")
    cards = write_cards(folder / "cards")
    shutil.copy(MODULE, cards)
    for name in (*LIVING, *DEADLY):
        write_card(cards, name, MODULE.stem, name.replace("-", "_"))
    for run in RUNS:
        kernels = [name for name in (*LIVING, *DEADLY) if (name in STARTED) == (run == "started")]
        exclude = tuple(f"*/b1.q9.*/{name}" for name in kernels if name in DEADLY)
        write_matrix(folder / f"{run}.yaml", *kernels, seqlens=(8, 9), exclude=exclude, timeout_s=TIMEOUT_S)
    return folder


@pytest.fixture(scope="module")
def cases(folder: Path) -> dict[str, Any]:
    """The cases of both runs as JSON, by shape and kernel."""
    runs: list[Ended] = [
        call("run", f"{run}.yaml", "--cards", "cards", "--db", f"{run}.db", "--json", cwd=folder, forks=run == "forked")
        for run in RUNS
    ]
    return {"/".join(item["id"].split("/")[2::3]): item for ended in runs for item in ended.data["cases"]}


@pytest.mark.parametrize("kernel", DEADLY)
def test_the_culprit_is_named(cases: dict[str, Any], kernel: str) -> None:
    """The stage, and how its host ended; within the limit of a stage, whatever it says meanwhile."""
    found = cases[f"b1.q8.k8/{kernel}"]
    assert "FAIL" == found["verdict"]
    assert found["reasons"][0].startswith(DEADLY[kernel])


@pytest.mark.parametrize("shape", ["b1.q8.k8", "b1.q9.k9"])
@pytest.mark.parametrize("kernel", LIVING)
def test_the_others_pass(cases: dict[str, Any], shape: str, kernel: str) -> None:
    """Before and after; printing is no fault."""
    found = cases[f"{shape}/{kernel}"]
    assert ("measured", "PASS", []) == (found["outcome"], found["verdict"], found["reasons"])


def test_no_other_host_was_started_anew(folder: Path, cases: dict[str, Any]) -> None:
    """One process served both cases of the kernel that stays."""
    assert 1 == len(pids(folder, "stays"))


@pytest.mark.parametrize(("kernel", "least"), [("leaves-a-daemon", 1), ("forks", 20)])
def test_nothing_is_left(folder: Path, cases: dict[str, Any], kernel: str, least: int) -> None:
    """What a host started has ended with it."""
    started = pids(folder, kernel.replace("-", "_"))
    assert len(started) >= least
    assert not [pid for pid in started if of_this_folder(pid, folder)]


def pids(folder: Path, name: str) -> list[int]:
    """Processes that left their id."""
    return [int(line) for line in (folder / "cards" / f"{name}.pids").read_text().split()]


def of_this_folder(pid: int, folder: Path) -> bool:
    """Whether such a process runs here, and not another one of that id."""
    try:
        return Path(f"/proc/{pid}/cwd").readlink() == folder
    except OSError:
        return False
