"""One order of what is worst, in whatever tells of a run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from builders import make_evidence, make_finding
from stored_runs import IDS, MATRIX, NOW, OPEN, PASSED, shipped_kernels, store_run

from qualify.facts.outcome import Crashed, Measured, Outcome
from qualify.judge.judged import Judged, judge
from qualify.judge.summary import detail
from qualify.report.beside import beside_of
from qualify.report.context import report_context
from qualify.report.formats import sarif
from qualify.report.formats.interface import OutputOptions
from qualify.report.next_steps import next_steps
from qualify.report.troubles import troubles
from qualify.store.store import Store

BUDGET, CENSUS = (
    Measured(evidence=make_evidence(make_finding("fail", "wrong", check))) for check in ("budget", "census")
)
CRASHED = Crashed(stage="call", error="signal SIGSEGV", log="", attempt=1)


def first_told(judged: Judged) -> dict[str, str]:
    """The case that each answer to "where do I look first?" names."""
    context = report_context(judged.run, judged.records, judged.conclusion, beside_of(judged))
    (log,) = json.loads(sarif.render(judged, OutputOptions(now=NOW)))["runs"]
    steps = next_steps(judged, troubles(judged))
    (repro,) = (step.command for step in steps if step.words == "repeat the worst failure")
    results = [result["message"]["text"].partition(": ")[0] for result in log["results"]]
    return {
        "summary": re.findall(r"worst: (.*)\.$", context.summary)[0],
        "why not": context.why.groups[0].sections[0].view.case.id,
        "gate": next(trouble.first for trouble in troubles(judged) if trouble.is_case),
        "next step": repro.split()[2],
        "site": detail(judged).troubles[0].cases[0],
        "sarif": next(name for name in results if name in IDS),
    }


@pytest.mark.parametrize(
    ("ended", "worst"),
    [
        pytest.param((BUDGET, PASSED, CENSUS, PASSED), IDS[2], id="a wrong mask explains large errors"),
        pytest.param((CENSUS, BUDGET, PASSED, BUDGET), IDS[1], id="the kernel with most failures"),
        pytest.param((CRASHED, PASSED, CRASHED, BUDGET), IDS[3], id="nobody sees a wrong result"),
        pytest.param((OPEN, OPEN, OPEN, CRASHED), IDS[3], id="failed before undecided"),
    ],
)
def test_every_answer_begins_with_the_worst(
    store: Store, tmp_path: Path, ended: tuple[Outcome, ...], worst: str
) -> None:
    """So that nobody reads of two."""
    (tmp_path / "serving.yaml").write_text(MATRIX)
    by_case = dict(zip(IDS, ended, strict=True))
    run = store_run(store, tmp_path / "serving.yaml", lambda case: by_case[case.id])
    told = first_told(judge(store, run.id, shipped_kernels(), now=NOW))
    assert dict.fromkeys(told, worst) == told
