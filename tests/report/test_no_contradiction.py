"""Whatever happened in a run, no part of its report contradicts the gate's verdict on the same records."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from any_runs import runs
from hypothesis import given, settings
from page_data import unpacked, verdicts
from report_examples import PROBES
from stored_runs import NOW

from qualify.facts.outcome import Measured, Refused, Substituted
from qualify.judge.judged import Judged
from qualify.judge.summary import detail, summarize
from qualify.report.context import ReportContext, report_context
from qualify.report.explorer import explorer_data, to_script
from qualify.report.formats import markdown
from qualify.report.formats.interface import OutputOptions
from qualify.report.questions import QUESTIONS, Answer
from qualify.report.verdict_text import to_text, verdict_line
from qualify.report.views import CaseView, by_model, join


def answers(context: ReportContext, number: int) -> dict[str, Answer]:
    """The answers for one model, by question."""
    keys = [question.key for question in QUESTIONS]
    return dict(zip(keys, context.models[number].answers, strict=True))


def fails(view: CaseView) -> bool:
    """Whether a check of the case failed."""
    return any(finding.verdict == "fail" for finding in view.findings)


@settings(max_examples=250, deadline=None)
@given(runs())
def test_no_answer_contradicts_the_gate(judged: Judged) -> None:
    """Green only where the gate sees nothing wrong, red only where it does."""
    conclusion = judged.conclusion
    context = report_context(judged.run, judged.records, conclusion)
    for number, model in enumerate(by_model(join(judged.records, conclusion), conclusion)):
        found = answers(context, number)
        states = {key: answer.state for key, answer in found.items()}
        ends = {view.verdict for view in model.cases} | {shape.judgement.verdict for shape in model.shapes}
        if "FAIL" in ends:
            assert "bad" == states["kernels"]
        elif "INCONCLUSIVE" in ends:
            assert states["kernels"] in ("open", "untested")
        # A waiver may accept the failure of a case that stays open for another reason.
        accepted = any(view.verdict == "INCONCLUSIVE" and fails(view) for view in model.cases)
        if not ends & {"FAIL", "WAIVED"} and not accepted:
            assert "bad" not in states.values()
        for shape in model.shapes:
            assert not (
                "All" in found["kernels"].headline and shape.judgement.verdict in ("FAIL", "INCONCLUSIVE", "WAIVED")
            )
        for view in model.cases:
            checks = {(item.check, item.verdict) for item in view.findings}
            if view.verdict in ("PASS", "NOT_REQUIRED"):
                continue
            if any((probe, "fail") in checks for probe in PROBES):
                assert "bad" == states["packing"]
            if view.case.phase == "varlen" and view.evidence is None:
                assert "good" != states["packing"]
            if isinstance(view.outcome, Substituted | Refused):
                assert "good" != states["fallback"]
            if isinstance(view.outcome, Measured) and {("budget", "fail"), ("budget", "inconclusive")} & checks:
                assert "good" != states["tolerance"]
        check_paths(model, found["kernels"])
        check_gains(model, found["gains"])


def check_paths(model: Any, answer: Answer) -> None:
    """The counts of a phase are the gate's, and no card is called proven beside a shape of the phase that it fails."""
    for (_, shapes), line in zip(model.phases(), answer.lines, strict=False):
        required = [shape for shape in shapes if shape.required]
        proven = [shape for shape in required if shape.judgement.verdict == "PASS"]
        assert line.term.endswith(f" {len(proven)}/{len(required)}") if required else "/" not in line.term
        whole = {view.case.kernel for shape in shapes for view in shape.proving} - {
            view.case.kernel for shape in shapes for view in shape.cases if view.verdict in ("FAIL", "INCONCLUSIVE")
        }
        told = re.search(r"(\d+) other cards? proven too", line.note)
        assert not told or int(told[1]) <= len(whole)


def check_gains(model: Any, answer: Answer) -> None:
    """`only` and `neither` are said of phases whose shapes were all compared."""
    if not answer.tables:
        return
    compared = sum(row["shapes"] for row in answer.tables[0].data())
    if compared < len(model.shapes):
        assert f"{compared} of {len(model.shapes)} shapes compared" in answer.headline
        assert "only" not in answer.headline
        assert "neither" not in answer.headline


@settings(max_examples=150, deadline=None)
@given(runs())
def test_headline_counts_and_formats_are_the_gates(judged: Judged) -> None:
    """Badge, sentence, heat map, one line, Markdown and the list of runs say one thing."""
    conclusion = judged.conclusion
    context = report_context(judged.run, judged.records, conclusion)
    words = {"PASS": ("Qualified", "qualified"), "FAIL": ("Not qualified", "not qualified")}
    headline, word = words.get(conclusion.verdict, ("No verdict", "no verdict"))
    if judged.run.narrowed and conclusion.verdict == "PASS":  # a part of a matrix is never qualified
        headline, word = "What was selected passed", "passed"
    assert headline == context.headline
    assert context.summary.startswith(f"{headline}: ")
    assert verdict_line(judged).startswith(f"{judged.run.matrix}: {word}")
    assert f"exit {conclusion.exit_code}" in markdown.render(judged, OutputOptions(now=NOW)).splitlines()[0]
    assert (conclusion.verdict == "PASS" and not judged.run.narrowed) == (
        "\ndo: promote\n" in f"{to_text(judged, NOW)}\n".replace("; waived failures", "\n")
    )
    listed = summarize(judged)
    assert (conclusion.verdict, conclusion.exit_code) == (listed.verdict, listed.exit_code)
    shares = Counter[str]()
    for share in detail(judged).shares:
        shares.update(share.verdicts)
    assert Counter(item.verdict for item in conclusion.judgements) == shares
    check_page(judged, context)
    required = [cell for cell in conclusion.cells if cell.verdict != "NOT_REQUIRED"]
    proven = sum(cell.verdict == "PASS" for cell in required)
    told = f"{proven} of {len(required)} production shape" if required else "no production shape is required"
    assert told in verdict_line(judged)
    lacking = sum(cell.verdict in ("FAIL", "INCONCLUSIVE") for cell in required)
    if lacking:
        assert f"{lacking} of {len(required)} production shape" in context.summary
    elif proven < len(required):
        assert f"{proven} of {len(required)} production shape" in context.summary


def check_page(judged: Judged, context: ReportContext) -> None:
    """The map, the list of all cases and the block of failures count what the gate counts."""
    conclusion = judged.conclusion
    data = unpacked(to_script(explorer_data(context.shapes)))
    assert {item.case_id: item.verdict for item in conclusion.judgements} == verdicts(data)
    shown = [(shape[0], data["verdicts"][shape[3]][0]) for shape in data["shapes"]]
    assert sorted(shown) == sorted((cell.cell, cell.verdict) for cell in conclusion.cells)
    on_map = Counter(view.verdict for spot in context.overview.spots for view in spot.views)
    for verdict in ("FAIL", "INCONCLUSIVE", "WAIVED", "PASS"):
        assert conclusion.counts["verdicts"][verdict] == on_map[verdict]
    why = context.why
    assert (conclusion.verdict == "PASS") == why.empty
    if conclusion.verdict != "PASS":
        grouped = Counter({"FAIL": 0, "INCONCLUSIVE": 0})
        for group in why.groups:
            assert {group.verdict} == {view.verdict for view in (*(it.view for it in group.sections), *group.lines)}
            grouped[group.verdict] += group.count
        assert grouped == {name: conclusion.counts["verdicts"][name] for name in ("FAIL", "INCONCLUSIVE")}
        assert why.lacking == sum(cell.verdict in ("FAIL", "INCONCLUSIVE") for cell in conclusion.cells)
        worst = {it.verdict for it in (*why.groups, *why.hindrances, *why.pathless)}
        assert ("FAIL" in worst) == (conclusion.verdict == "FAIL")
