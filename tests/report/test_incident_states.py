"""Incidents in a report: the state of each, on the page and in its JSON twin."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from builders import make_case, make_evidence, make_finding, make_kernel, make_matrix
from report_examples import make_run

from qualify.facts.outcome import Crashed, Finding, Measured, NotRun, Refused, TimedOut
from qualify.facts.run import Record
from qualify.report.context import report_context
from qualify.report.document import to_json
from qualify.report.incidents import STATES
from qualify.report.page import render_html
from qualify.verdict.gate import conclude
from qualify.verdict.policy import Rules

ENTRY: dict[str, Any] = {
    "incident": "pytorch-195910",
    "issue": ["pytorch/pytorch#195910", "owner/other#7"],
    "title": "Rows saw the <future>.",
    "trigger": "causal",
    "shown_by": ["suffix", "lse", "crash"],
    "calls": [{"heads_q": 4, "head_dim": 64, "seqlens_q": 64}],
}
CELL = "incidents/pytorch-195910/b1.q64.k64/bf16/causal.h4x4.d64"
NOTE = Finding(check="suffix", verdict="note", detail="not asked: one query")
REFUSED = Refused(by="plan", reasons=("head_dim=64 > 32 (small claims ≤ 32)",))
CRASHED = Crashed(stage="call", error="killed by signal 11 (SIGSEGV)", log="", attempt=2)


def measured(*findings: Finding) -> Measured:
    return Measured(evidence=make_evidence(*findings))


def fails(check: str, **values: Any) -> Finding:
    return Finding(check=check, verdict="fail", detail="row 3 notices the future", values=values)


def context(*outcomes: Any, **entry: Any) -> Any:
    """The page of a run in which the kernels alpha, beta, ... came to these ends."""
    matrix = make_matrix(models=..., phases=..., dtypes=..., kernels=["*"], incidents=[ENTRY | entry])
    records = [
        Record(case=make_case(kernel, CELL), outcome=outcome)
        for kernel, outcome in zip(("alpha", "beta", "gamma"), outcomes, strict=False)
    ]
    rules = Rules(matrix=matrix.card, patterns={"alpha": make_kernel().card.witness.must_match}, partial=False)
    run = replace(make_run(), matrix_source=matrix.source, matrix_path="incidents.yaml")
    return report_context(run, records, conclude(records, rules))


@pytest.mark.parametrize(
    ("outcome", "entry", "state"),
    [
        (measured(fails("suffix")), {}, "reproduced"),
        (measured(fails("lse")), {}, "reproduced"),
        (CRASHED, {}, "reproduced"),
        (CRASHED, {"shown_by": ["suffix"]}, "fails otherwise"),
        (TimedOut(stage="call", limit_s=9, attempt=1), {"shown_by": ["hang"]}, "reproduced"),
        (Refused(by="library", reasons=("no",)), {"shown_by": ["refusal"]}, "reproduced"),
        (measured(fails("needle")), {}, "fails otherwise"),
        (measured(make_finding(check="suffix")), {}, "not reproduced"),
        (measured(make_finding(check="budget")), {"shown_by": ["lse"]}, "not reproduced"),
        (measured(make_finding(check="census")), {"shown_by": ["crash"]}, "not reproduced"),
        (measured(NOTE), {"shown_by": ["suffix"]}, "not asked"),
        (measured(make_finding(check="census")), {"shown_by": ["history"]}, "not asked"),
        (measured(fails("budget", inputs="normal")), {"shown_by": ["budget"], "inputs": "rising"}, "fails otherwise"),
        (measured(fails("budget", inputs="rising")), {"shown_by": ["budget"], "inputs": "rising"}, "reproduced"),
        (NotRun(reason="the run ended before its turn"), {}, "open"),
        (REFUSED, {}, "not applicable"),
    ],
)
def test_the_state_of_a_case(outcome, entry, state) -> None:
    """What shows the incident decides, and nothing else reproduces it."""
    (row,) = context(outcome, **entry).replays
    assert state == row.state


def test_the_worst_state_is_the_incidents() -> None:
    """One kernel that does it is enough, and each kernel stands in its column."""
    page = context(measured(make_finding(check="suffix")), measured(fails("suffix")), REFUSED)
    (row,) = page.replays
    assert ("reproduced", "beta", "alpha") == (row.state, row.kernels("reproduced"), row.kernels("not reproduced"))
    assert "1 reproduced" == page.incident_counts
    assert "incidents: 1 reproduced" in page.summary
    assert list(STATES) == sorted(STATES, key=STATES.index)


def test_the_page_links_the_evidence() -> None:
    """The state leads to the case that shows it; no answer is given for production shapes that there are not."""
    page = context(measured(make_finding(check="suffix")), measured(fails("suffix")), REFUSED)
    html = render_html(page)
    (beta,) = [view for view in page.views if view.case.kernel == "beta"]
    assert f'<a href="#{beta.anchor}">✗ reproduced</a>' in html
    assert "Rows saw the &lt;future&gt;." in html
    assert "head_dim=64 &gt; 32" in html
    assert 'id="answers"' not in html
    assert 'href="#incidents"' in html


def test_the_json_lists_every_case() -> None:
    """The incident with its state, and each case with its own and the reason."""
    data = json.loads(to_json(context(measured(fails("suffix")), REFUSED)))
    (incident,) = data["incidents"]
    assert ("pytorch-195910", "reproduced") == (incident["incident"], incident["state"])
    assert [
        ("alpha", "reproduced", ["suffix: row 3 notices the future"]),
        ("beta", "not applicable", list(REFUSED.reasons)),
    ] == [(case["kernel"], case["state"], case["why"]) for case in incident["cases"]]


def test_a_run_without_incidents_has_none(facts) -> None:
    """No section, no link, and no matrix is read."""
    page = report_context(facts.run, facts.records, facts.conclusion)
    assert () == page.replays
    assert 'id="incidents"' not in render_html(page)


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        ((measured(), REFUSED), "PASS"),
        ((measured(fails("suffix")), REFUSED), "FAIL"),
        ((measured(fails("suffix")), measured()), "FAIL"),
        ((REFUSED, REFUSED), "INCONCLUSIVE"),
    ],
)
def test_the_gate(outcomes, verdict) -> None:
    """A reproduced incident is a failed case; one that nobody here claims is not required and proves nothing."""
    conclusion = context(*outcomes).conclusion
    assert verdict == conclusion.verdict
    if verdict == "INCONCLUSIVE":
        (cell,) = conclusion.cells
        assert "NOT_REQUIRED" == cell.verdict
        assert "every kernel is refused here" in cell.reasons[0]
