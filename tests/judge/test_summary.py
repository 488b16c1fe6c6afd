"""What lists show of a verdict: its colour, and the groups of what went wrong, worst and largest first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import make_evidence, make_finding
from stored_runs import CELL, MATRIX, NOW, OPEN, PASSED, shipped_kernels, store_run

from qualify.facts.case import Case
from qualify.facts.outcome import Measured
from qualify.facts.run import Verdict
from qualify.judge.judged import Judged, judge
from qualify.judge.summary import detail, summarize
from qualify.store.store import Store


def failed(check: str, words: str) -> Measured:
    """A case in which one check found that."""
    return Measured(evidence=make_evidence(make_finding("fail", words, check=check)))


ENDS = {
    f"{CELL.format(8)}/tiled-torch": OPEN,
    f"{CELL.format(8)}/torch-cpu-math": failed("census", "row 1 sees key 2"),
    f"{CELL.format(9)}/tiled-torch": failed("packing", "row 3 sees key 9"),
    f"{CELL.format(10)}/tiled-torch": failed("packing", "row 4 sees key 9"),
}
"""of six cases of three shapes; the other two pass"""


@pytest.fixture
def judged(store: Store, tmp_path: Path) -> Judged:
    """A run with those ends."""
    (tmp_path / "serving.yaml").write_text(MATRIX.replace("- 9\n", "- 9\n      - 10\n"))

    def outcome(case: Case) -> Any:
        return ENDS.get(case.id, PASSED)

    run = store_run(store, tmp_path / "serving.yaml", outcome)
    return judge(store, run.id, shipped_kernels(), now=NOW)


def test_the_worst_and_largest_trouble_comes_first(judged: Judged) -> None:
    """Failures before open ends, and of failures those of most cases, each with the words of its first case."""
    troubles = detail(judged).troubles
    assert [
        ("FAIL", "tiled-torch", "packing", "row 3 sees key 9", 2),
        ("FAIL", "torch-cpu-math", "census", "row 1 sees key 2", 1),
        ("INCONCLUSIVE", "tiled-torch", "census", "no sample", 1),
    ] == [(it.verdict, it.kernel, it.check, it.reason.partition(": ")[2], len(it.cases)) for it in troubles]
    assert (("toy.tp1",), tuple(list(ENDS)[2:])) == (troubles[0].models, troubles[0].cases)


def test_a_kernel_has_its_share_of_every_verdict(judged: Judged) -> None:
    """Only of those that its cases have; and a model the shapes that need a path."""
    found = detail(judged)
    assert {
        ("toy.tp1", "tiled-torch", "prefill"): {"FAIL": 2, "INCONCLUSIVE": 1},
        ("toy.tp1", "torch-cpu-math", "prefill"): {"PASS": 2, "FAIL": 1},
    } == {(share.model, share.kernel, share.phase): share.verdicts for share in found.shares}
    assert {"prefill"} == {trouble.phase for trouble in found.troubles}
    assert ({"toy.tp1": (2, 3)}, 2, 3) == (found.shapes, (it := summarize(judged)).proven, it.shapes)
    assert (2, 3, 1) == tuple(it.cases[name] for name in ("PASS", "FAIL", "INCONCLUSIVE"))
    assert 6 == sum(it.outcomes.values())
    assert judged.conclusion.waivers == found.waivers


@pytest.mark.parametrize(
    ("verdict", "code", "demonstration", "qualified", "shown"),
    [
        ("PASS", 0, False, True, "PASS"),
        ("PASS", 0, True, False, "NOT_REQUIRED"),
        ("FAIL", 1, True, False, "FAIL"),
        ("PASS", 5, False, False, "PASS"),
    ],
)
def test_a_demonstration_on_a_cpu_is_never_shown_green(
    judged: Judged, verdict: Verdict, code: int, demonstration: bool, qualified: bool, shown: Verdict
) -> None:
    """It qualifies nothing that production serves; a failure of it stays red."""
    conclusion = replace(judged.conclusion, verdict=verdict, exit_code=code, demonstration=demonstration)
    found = summarize(replace(judged, conclusion=conclusion))
    assert (qualified, shown) == (found.qualified, found.shown)
