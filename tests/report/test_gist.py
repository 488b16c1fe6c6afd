"""The head of a report: why the run is not qualified, since which change, and what to do."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import timedelta
from html import unescape
from pathlib import Path

import pytest
from builders import make_evidence, make_witness
from stored_runs import IDS, MATRIX, NOW, OPEN, PASSED, WRONG, make_stack, shipped_kernels, store_run

from qualify.facts.case import Case
from qualify.facts.outcome import Measured, Outcome
from qualify.facts.typed import Typed
from qualify.judge.against import accepted, compare_with
from qualify.judge.beside import beside_baseline
from qualify.judge.judged import Judged, judge
from qualify.judge.signing import named
from qualify.report.beside import beside_of
from qualify.report.context import ReportContext, report_context
from qualify.report.formats import markdown, sarif
from qualify.report.formats.interface import OutputOptions
from qualify.report.page import render_html
from qualify.report.verdict_text import to_text
from qualify.store.store import Store

OLD, NEW = (make_stack(vllm=version) for version in ("0.23.0", "0.24.0"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The matrix of two shapes and two kernels."""
    (tmp_path / "serving.yaml").write_text(MATRIX)
    return tmp_path / "serving.yaml"


def judged_of(store: Store, path: Path, outcome: Outcome, *, before: bool = True) -> Judged:
    """A run on another stack than the accepted baseline's, whose first case ends so; printed commands name a store."""
    typed = Typed(db="sqlite:///secret-place.db")
    if before:
        one = store_run(store, path, age=timedelta(hours=2), stack=OLD)
        old = judge(store, one.id, shipped_kernels(), now=NOW)
        assert accepted(store, old, by=named("jane", "ci"), reason="release 7", now=NOW)

    def ended(case: Case) -> Outcome:
        return outcome if case.id == IDS[0] else PASSED

    run = store_run(store, path, ended, stack=NEW)
    return beside_baseline(store, judge(store, run.id, shipped_kernels(), now=NOW, typed=typed))


def page_of(judged: Judged) -> ReportContext:
    """The context of its report."""
    return report_context(judged.run, judged.records, judged.conclusion, beside_of(judged))


def head(judged: Judged) -> dict[str, str]:
    """What the head says, in words, by its terms."""
    html = render_html(page_of(judged))
    (gist,) = re.findall(r'<dl class="gist">(.*?)</dl>', html, re.DOTALL)
    pairs = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", gist, re.DOTALL)
    return {term: unescape(re.sub(r"<[^>]+>", "", text)) for term, text in pairs}


def test_the_head_says_why_since_when_and_what_to_do(store: Store, path: Path) -> None:
    """For a failure after an upgrade: the likely cause, the component that changed, and commands for other machines."""
    judged = judged_of(store, path, WRONG)
    told = head(judged)
    assert ["Why not", "Changed", "What to do"] == [*told]
    group = page_of(judged).why.groups[0]
    assert f"{group.title}. {group.diagnosis.short}" == told["Why not"]
    before = judged.since.before.id if judged.since else ""
    assert f"vllm 0.23.0 → 0.24.0 since run {before}, accepted by jane (unproven) on {NOW:%Y-%m-%d}" == told["Changed"]
    todo = told["What to do"]
    assert todo.startswith("keep the release back")
    assert f"repeat the worst failure: qualify repro {IDS[0]} --run {judged.run.id}" in todo
    assert f"find the component to blame: qualify bisect {before} {judged.run.id} --plan" in todo
    assert f"go back to the accepted stack of run {before} (vllm 0.24.0 → 0.23.0)" in todo


def test_the_head_names_no_store_and_not_the_page_itself(store: Store, path: Path) -> None:
    """People copy pages to other machines, and whoever reads the page need not make it."""
    judged = judged_of(store, path, WRONG)
    assert any(step.command.startswith("qualify") for step in page_of(judged).beside.steps)
    assert ("secret-place" in render_html(page_of(judged)), "qualify report" in head(judged)["What to do"]) == (
        False,
        False,
    )


def test_a_run_that_qualifies_has_no_why_not(store: Store, path: Path) -> None:
    """It says what changed. It does not say to promote, because a page is also read when its evidence is old."""
    judged = judged_of(store, path, PASSED)
    told = head(judged)
    assert ["Changed", "What to do"] == [*told]
    assert f"ask the gate whether this evidence counts today: qualify gate --run {judged.run.id}" == told["What to do"]


def test_without_a_baseline_nothing_is_said_to_have_changed(store: Store, path: Path) -> None:
    """An undecided case is a reason, too."""
    assert ["Why not", "What to do"] == [*head(judged_of(store, path, OPEN, before=False))]


def test_what_changed_leads_to_the_comparison(store: Store, path: Path) -> None:
    """Where the page has one."""
    judged = judged_of(store, path, WRONG)
    assert "#changes" not in render_html(page_of(judged))
    compared = compare_with(store, judged, "baseline", shipped_kernels(), now=NOW)
    assert '<a href="#changes">vllm 0.23.0 → 0.24.0</a>' in render_html(page_of(compared))


def test_the_same_stack_and_code_say_so(store: Store, path: Path) -> None:
    """Then no other stack would help."""
    one = store_run(store, path, age=timedelta(hours=2), stack=OLD)
    old = judge(store, one.id, shipped_kernels(), now=NOW)
    assert accepted(store, old, by=named("jane", "ci"), reason="release 7", now=NOW)
    run = store_run(store, path, lambda case: WRONG if case.id == IDS[0] else PASSED, stack=OLD)
    told = head(beside_baseline(store, judge(store, run.id, shipped_kernels(), now=NOW)))
    assert told["Changed"].startswith(f"no version changed, and no code of a kernel since run {one.id}")
    assert "so no other stack would help" in told["What to do"]
    assert "go back" not in told["What to do"]


def test_markdown_says_since_when(store: Store, path: Path) -> None:
    """The summary of a CI job names the accepted run, with and without a comparison, and commands as code."""
    judged = judged_of(store, path, WRONG)
    options = OutputOptions(now=NOW)
    told = [line for line in to_text(judged, NOW).splitlines() if line.startswith("since: ")]
    alone = unescape(markdown.render(judged, options))
    assert [True] == [f"\n{line}\n" in alone for line in told]
    assert re.search(r"\n\d\. find the component to blame: <code>qualify bisect \S+ \S+ --plan .*</code>\n", alone)
    compared = unescape(markdown.render(compare_with(store, judged, "baseline", shipped_kernels(), now=NOW), options))
    before = judged.since.before.id if judged.since else ""
    assert f"\n### Against run {before}, accepted by jane (unproven) on {NOW:%Y-%m-%d}\n" in compared
    assert "\nchanged: vllm 0.23.0 → 0.24.0\n" in compared


def test_sarif_names_the_run_of_the_comparison(store: Store, path: Path) -> None:
    """A code scanner shows results alone: a forbidden change says since which run."""
    path.write_text(MATRIX + "policy: {drift: {kernels: fail}}\n")
    another = Measured(evidence=replace(make_evidence(), witness=make_witness("proven", "another_kernel")))
    judged = compare_with(store, judged_of(store, path, another), "baseline", shipped_kernels(), now=NOW)
    (run,) = json.loads(sarif.render(judged, OutputOptions(now=NOW)))["runs"]
    before = judged.since.before.id if judged.since else ""
    assert (before, "vllm 0.23.0 → 0.24.0") == (run["properties"]["against"], run["properties"]["changed"])
    (message,) = [it["message"]["text"] for it in run["results"] if it["ruleId"] == "drift"]
    assert message.endswith(f" (since run {before}, accepted by jane (unproven) on {NOW:%Y-%m-%d})")
