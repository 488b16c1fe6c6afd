"""What a kernel does to its own process stays there: every other case of the run ends as it would have without it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from cli_process import Ended, call, write_card, write_cards, write_matrix

DISTURBERS = {
    "sets-default-dtype": "PASS",
    "sets-default-device": "crashed while its call was prepared: RuntimeError: and that was it",
    "seeds": "PASS",
    "sets-flags": "PASS",
    "sets-threads": "PASS",
    "sets-modes": "PASS",
    "changes-folder": "PASS",
    "changes-environment": "PASS",
    "changes-locale": "PASS",
    "limits-recursion": "PASS",
    "limits-descriptors": "PASS",
    "handles-signals": "PASS",
    "disturbs-the-interpreter": "PASS",
    "patches-torch": "crashed while its kernels were traced: TypeError: ",
    "patches-qualify": "PASS",
    "patches-builtins": "crashed while its call was prepared: ",
    "replaces-stdout": "PASS",
    "closes-descriptors": "crashed while its call was prepared: something in the process closed qualify's own pipe",
    "replaces-descriptors": "crashed while its call was prepared: the process exited with status 0",
    "hangs-at-once": "no sign of life for 6 s while its call was prepared",
}
"""what becomes of each kernel: its verdict, or how its reason begins"""
BEFORE, AFTER = ("tiled-torch", "correct", "wrong"), ("correct-later", "wrong-later")
TIMEOUT_S = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with a matrix over them, between right and wrong kernels."""
    folder = tmp_path_factory.mktemp("isolation")
    cards = write_cards(folder / "cards")
    module = shutil.copy(Path(__file__).with_name("disturbers.py"), cards)
    own = [name for name in (*BEFORE, *DISTURBERS, *AFTER) if name != "tiled-torch"]
    for name in own:
        write_card(cards, name, Path(module).stem, name.replace("-", "_"))
    # Every shape comes with all kernels in this order: after the first shape everything has been disturbed.
    exclude = tuple(f"*/b1.q9.*/{name}" for name in DISTURBERS)
    matrix = write_matrix(
        folder / "isolation.yaml",
        *BEFORE,
        *DISTURBERS,
        *AFTER,
        seqlens=(8, 9),
        exclude=exclude,
        timeout_s=TIMEOUT_S,
    )
    matrix.write_text(matrix.read_text().replace(f"compile_timeout_s: {TIMEOUT_S}", "compile_timeout_s: 600"))
    return folder


@pytest.fixture(scope="module")
def ended(folder: Path) -> Ended:
    """The run of it. Its hosts are forked, each before any kernel ran; those of test_forgeries.py are started."""
    return call(
        "run",
        "isolation.yaml",
        "--cards",
        "cards",
        "--db",
        "evidence.db",
        "--json",
        cwd=folder,
        timeout_s=900,
    )


@pytest.fixture(scope="module")
def cases(ended: Ended) -> dict[str, Any]:
    """The cases as JSON, by shape and kernel."""
    return {"/".join(item["id"].split("/")[2::3]): item for item in ended.data["cases"]}


@pytest.mark.parametrize("kernel", DISTURBERS)
def test_a_kernel_disturbs_itself_at_most(cases: dict[str, Any], kernel: str) -> None:
    """What is right stays right whatever its process is like; what ended is blamed itself."""
    found, expected = cases[f"b1.q8.k8/{kernel}"], DISTURBERS[kernel]
    if expected == "PASS":
        assert ("measured", "PASS", []) == (found["outcome"], found["verdict"], found["reasons"])
    else:
        assert "FAIL" == found["verdict"]
        assert found["reasons"][0].startswith(expected)


@pytest.mark.parametrize(
    ("shape", "kernel"),
    [
        ("b1.q8.k8", "tiled-torch"),
        ("b1.q8.k8", "correct"),
        ("b1.q8.k8", "correct-later"),
        ("b1.q9.k9", "tiled-torch"),
        ("b1.q9.k9", "correct"),
        ("b1.q9.k9", "correct-later"),
    ],
)
def test_a_right_kernel_passes(cases: dict[str, Any], shape: str, kernel: str) -> None:
    """Before the others and after them, on its first case and on a later one."""
    found = cases[f"{shape}/{kernel}"]
    assert ("measured", "PASS", []) == (found["outcome"], found["verdict"], found["reasons"])
    assert "budget" in {finding["check"] for finding in found["findings"] if finding["verdict"] == "pass"}


@pytest.mark.parametrize("shape", ["b1.q8.k8", "b1.q9.k9"])
@pytest.mark.parametrize("kernel", ["wrong", "wrong-later"])
def test_a_wrong_kernel_fails(cases: dict[str, Any], shape: str, kernel: str) -> None:
    """By the same checks, before the others and after them."""
    found, undisturbed = cases[f"{shape}/{kernel}"], cases[f"{shape}/wrong"]
    assert ("measured", "FAIL") == (found["outcome"], found["verdict"])
    assert "budget" in failed_checks(found)
    assert failed_checks(undisturbed) == failed_checks(found)


def failed_checks(case: Any) -> set[str]:
    """Names of the checks that say no."""
    return {finding["check"] for finding in case["findings"] if finding["verdict"] == "fail"}


def test_every_check_says_the_same(cases: dict[str, Any]) -> None:
    """A right kernel's findings after the others are those that it had before them."""
    before, after = cases["b1.q8.k8/correct"], cases["b1.q8.k8/correct-later"]
    assert [(item["check"], item["verdict"]) for item in before["findings"]] == [
        (item["check"], item["verdict"]) for item in after["findings"]
    ]


def test_a_hang_costs_the_limit_of_a_call(cases: dict[str, Any]) -> None:
    """The card compiles nothing, so its first call has ``timeout_s`` and not ``compile_timeout_s``."""
    found = cases["b1.q8.k8/hangs-at-once"]
    assert ("timed_out", [f"no sign of life for {TIMEOUT_S} s while its call was prepared"]) == (
        found["outcome"],
        found["reasons"],
    )
