"""Wrong kernels that try to be taken for right ones: each is caught, and no other case is touched.

What a hostile kernel can still do stands in SECURITY.md; the last tests show some of it.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from cli_process import Ended, call, write_card, write_cards, write_matrix

MODULE = Path(__file__).with_name("forgeries.py")
NUMBERS = "measured"
"""a check says no"""
PIPE = "something in the process wrote into qualify's own pipe"
FALSE = "the process gave qualify an answer that it cannot accept"
CAUGHT = {
    "wrong": NUMBERS,
    "patches-checks": NUMBERS,
    "patches-findings": NUMBERS,
    "patches-golden": NUMBERS,
    "patches-comparison": NUMBERS,
    "patches-host": "timing: while it is timed, the call gives something else",
    "patches-clocks": NUMBERS,
    "patches-profilers": NUMBERS,
    "names-operators": NUMBERS,
    "writes-an-outcome": f"crashed while its call was prepared: {PIPE} (unknown event 'outcome')",
    "writes-an-outcome-upstairs": "crashed while its call was prepared: the process exited with status 0",
    "answers-in-advance": f"crashed while its call was prepared: {PIPE} (an answer that nobody asked for)",
    "answers-beside": f"crashed while its call was prepared: {PIPE} (an answer that nobody asked for)",
    "leaves-an-answering-child": "crashed while its call was prepared: ",
    "says-not-there": NUMBERS,
    "says-huge": f": {FALSE} (a result that no tensor can be)",
    "says-vast": "contract: out has shape (1048576, 1024, 32), the contract says (8, 2, 32)",
    "says-negative": f": {FALSE} (a result outside of its room)",
    "says-outside": f": {FALSE} (a result outside of its room)",
    "says-another-dtype": f": {FALSE} (a result that no tensor can be)",
    "says-many-parts": f": {FALSE} (a result of too many parts)",
    "says-a-long-shape": f": {FALSE} (a result that no tensor can be)",
    "cuts-the-shared-memory": NUMBERS,
    "says-no-parts": f": {FALSE} (a result of no parts)",
    "says-times-that-are-none": f"crashed while it was timed: {FALSE} (times that measure nothing; has something",
    "says-negative-times": f"crashed while it was timed: {FALSE} (times that measure nothing; has something",
    "says-no-times": f"crashed while it was timed: {FALSE} (times that measure nothing; has something",
    "says-times-of-ages": f"crashed while it was timed: {FALSE} (times that measure nothing; has something",
    "says-endless-launches": f"crashed while it was timed: {FALSE} (times that measure nothing; has something",
    "says-events-without-time": f"crashed while its kernels were traced: {FALSE} (events without a time)",
    "says-endless-events": f"crashed while its kernels were traced: {FALSE} (more than 1,000,000 events of one trace)",
    "says-events-of-no-kind": f"crashed while its kernels were traced: {FALSE} (events of no kind)",
    "says-events-of-many-fields": f"crashed while its kernels were traced: {FALSE} (events of no kind)",
    "says-events-without-arguments": f"crashed while its kernels were traced: {FALSE} (events of no kind)",
    "says-endless-memory": "crashed while its kernels were traced: ValueError: an event of the profiler has a",
    "reads-the-judge": NUMBERS,
    "scribbles-on-siblings": NUMBERS,
    "kills-siblings": NUMBERS,
    "kills-the-judge": "crashed while its call was prepared: killed by signal 9 (SIGKILL)",
    "mends-it-later": NUMBERS,
    "spoils-it-later": "contract: the result of a call is overwritten",
    "returns-one-buffer": "contract: the result of a call is overwritten by the next call",
    "returns-the-first": NUMBERS,
    "makes-itself-right": "contract: the kernel wrote into its inputs (or their guard bands): q, k, v",
    "returns-a-subclass": NUMBERS,
    "returns-a-lazy-tensor": NUMBERS,
    "right-three-times": NUMBERS,
    "right-twenty-times": NUMBERS,
    "hides-a-failure": "history: history-dependent: it passes alone in a fresh process; in an earlier one, whose trace",
    "right-for-patterns": NUMBERS,
    "right-for-random-values": "parameters: ",
    "nothing-while-timed": "timing: while it is timed, the call gives something else",
    "remembers-addresses-while-timed": "timing: while it is timed, the call gives something else",
    "refuses-the-rest": "the card claims it and the library refuses: not today",
    "refuses-while-checked": "the card claims it and the library refuses: not today",
    "refuses-until-timed": "budget: not run: not today",
    "has-no-memory-while-checked": "not run: no room for it on the device (no room)",
    "fills-the-disk": NUMBERS,
}
"""what becomes of each: the outcome, or what its first reason says"""
UNDECIDED = {"refuses-until-timed", "has-no-memory-while-checked"}
"""their numbers were never compared, so they are inconclusive"""
RUNS = {
    "started": (
        *("writes-an-outcome", "writes-an-outcome-upstairs", "reads-the-judge", "scribbles-on-siblings"),
        "kills-siblings",
    ),
    "without-a-judge": ("kills-the-judge",),
}
"""kernels by their run. Those that try to get out of their own process, or to see another one, are in a run whose
judge and hosts start as users start them. The others only forge what their own process does or says, and run in forked
ones, which take a tenth of the time; the one that takes the judge along with a few others, which all run again"""
FORKED = "forked"
"""the run of all others"""
PASSES = {
    "started": ("tiled-torch", "correct-later"),
    "without-a-judge": ("tiled-torch", "correct-later"),
    FORKED: ("tiled-torch", "correct", "calls-the-reference"),
}
"""right kernels by their run: the first one runs first"""
RIGHT = ("correct", "calls-the-reference", "correct-later")
"""those of them that are functions of the module"""
FULL = {"right-in-the-main-thread": "surroundings: "}
"""caught at the full level"""


def cards_of(folder: Path, *names: str) -> None:
    """The --cards folder."""
    cards = write_cards(folder / "cards")
    shutil.copy(MODULE, cards)
    for name in names:
        write_card(cards, name, MODULE.stem, name.replace("-", "_"))


def run_of(kernel: str) -> str:
    """The run of a forgery."""
    return next((run for run, kernels in RUNS.items() if kernel in kernels), FORKED)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with a matrix for each run."""
    folder = tmp_path_factory.mktemp("forgeries")
    cards_of(folder, *RIGHT, *CAUGHT)
    for run, (first, *others) in PASSES.items():
        kernels = [name for name in CAUGHT if run_of(name) == run]
        write_matrix(folder / f"{run}.yaml", first, *kernels, *others, timeout_s=30)
    return folder


@pytest.fixture(scope="module")
def ended(folder: Path) -> dict[str, Ended]:
    """The runs of them."""
    return {
        run: call(
            "run",
            f"{run}.yaml",
            "--cards",
            "cards",
            "--db",
            f"{run}.db",
            "--json",
            cwd=folder,
            timeout_s=1800,
            forks=run != "started",
        )
        for run in PASSES
    }


@pytest.fixture(scope="module")
def cases(ended: dict[str, Ended]) -> dict[tuple[str, str], Any]:
    """The cases as JSON, by kernel and run."""
    return {(item["id"].rpartition("/")[2], run): item for run, one in ended.items() for item in one.data["cases"]}


def test_the_battery_is_whole() -> None:
    """Every kernel of the module runs, and at least 25 of them forge."""
    written = re.findall(r"^def (\w+)\(call\):", MODULE.read_text(), re.MULTILINE)
    kernels = {name.replace("_", "-") for name in written} - {"patterned"}
    assert kernels == ({*CAUGHT, *FULL, *RIGHT} - {"correct-later"})
    assert len(CAUGHT) >= 25


@pytest.mark.parametrize("run", PASSES)
def test_the_run_completes(ended: dict[str, Ended], run: str) -> None:
    """One strict JSON object on stdout, whatever the kernels wrote, and an outcome for each case."""
    one = ended[run]
    assert ("completed", "FAIL", 1) == (one.data["state"], one.data["verdict"], one.code)
    assert 0 == one.data["counts"]["outcomes"]["not_run"]


@pytest.mark.parametrize("kernel", CAUGHT)
def test_a_forgery_is_caught(cases: dict[tuple[str, str], Any], kernel: str) -> None:
    """The case does not pass, and the reason says what was seen."""
    found, expected = cases[kernel, run_of(kernel)], CAUGHT[kernel]
    assert ("INCONCLUSIVE" if kernel in UNDECIDED else "FAIL") == found["verdict"]
    if expected == NUMBERS:
        assert NUMBERS == found["outcome"]
        assert {"budget", "census"} & {item["check"] for item in found["findings"] if item["verdict"] == "fail"}
    else:
        assert expected in found["reasons"][0]


@pytest.mark.parametrize(("run", "kernel"), [(run, name) for run, names in PASSES.items() for name in names])
def test_a_right_kernel_passes_among_them(cases: dict[tuple[str, str], Any], kernel: str, run: str) -> None:
    """Before them and after them; a kernel that calls qualify's own reference is right too, as SECURITY.md says."""
    found = cases[kernel, run]
    assert ("measured", "PASS", []) == (found["outcome"], found["verdict"], found["reasons"])


def test_nobody_looks_into_the_judge(folder: Path, ended: dict[str, Ended]) -> None:
    """Neither its memory nor its descriptors, nor those of who started it, nor those of hosts that have begun.

    Root may see where memory is and how a process was started.
    """
    assert set(found(folder, "reads_the_judge")) <= {"environ", "maps", "pagemap"}
    assert [] == found(folder, "writes_an_outcome_upstairs")
    assert [True, 0] == found(folder, "scribbles_on_siblings")


def test_temporary_files_of_a_kernel_end_with_its_host(folder: Path, ended: dict[str, Ended]) -> None:
    """Whatever it filled of the disk among them."""
    names = json.loads((folder / "cards" / "fills_the_disk.found").read_text())
    assert 8 == len(names)
    assert [] == [name for name in names if Path(name).exists()]


def test_nothing_says_which_case_it_is(folder: Path, ended: dict[str, Ended]) -> None:
    """Neither case nor seed nor golden result is in the host's arguments, environment or memory."""
    assert {"started": False, "kinds": [], "frames": []} == found(folder, "looks_for_its_case")


def found(folder: Path, name: str) -> Any:
    """What a kernel got hold of."""
    return json.loads((folder / "cards" / f"{name}.found").read_text())


@pytest.mark.parametrize("kernel", FULL)
def test_the_full_level_catches_more(tmp_path: Path, kernel: str) -> None:
    """It calls a kernel from where an engine may call it."""
    cards_of(tmp_path, kernel)
    write_matrix(tmp_path / "full.yaml", kernel)
    ended = call(
        "run",
        "full.yaml",
        "--cards",
        "cards",
        "--level",
        "full",
        "--db",
        "full.db",
        "--json",
        cwd=tmp_path,
    )
    (case,) = ended.data["cases"]
    assert "FAIL" == case["verdict"]
    assert case["reasons"][0].startswith(FULL[kernel])
