"""A promotion that needs waivers names owner, case and expiry date wherever the verdict is shown."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest
from builders import make_evidence, make_finding
from stored_runs import IDS, MATRIX, NOW, OPEN, PASSED, WRONG, shipped_kernels, store_run, write_waivers

from qualify.facts.artifact import parse_artifact
from qualify.facts.outcome import Measured, NotRun
from qualify.judge.against import compare_with
from qualify.judge.judged import Judged, judge
from qualify.report.beside import Beside
from qualify.report.context import report_context
from qualify.report.formats import github, junit, markdown
from qualify.report.formats.in_toto import to_statement
from qualify.report.formats.interface import OutputOptions
from qualify.report.page import render_html
from qualify.report.questions import QUESTIONS
from qualify.report.verdict_json import to_data
from qualify.report.verdict_text import to_text
from qualify.report.waived import NAMED, waived_words
from qualify.store.store import Store

WHO = f"{IDS[0]} and 1 more by jane@example.com until 2026-12-31 (w0)"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A matrix whose first two cases are waived."""
    (tmp_path / "serving.yaml").write_text(MATRIX + "waivers: w.yaml\n")
    write_waivers(tmp_path / "w.yaml", {"select": IDS[0].rpartition("/")[0] + "/*"}, {"select": "none"})
    return tmp_path / "serving.yaml"


def outcome(case: Any) -> Any:
    """The cases of the first shape fail."""
    return WRONG if case.id in IDS[:2] else PASSED


@pytest.fixture
def promoted(store: Store, path: Path) -> Judged:
    """A run that passes with waivers."""
    return judge(store, store_run(store, path, outcome).id, shipped_kernels(), now=NOW)


def test_every_headline_names_them(promoted: Judged) -> None:
    """Text, JSON, Markdown, GitHub, JUnit, in-toto, the page."""
    assert 0 == promoted.conclusion.exit_code
    text = to_text(promoted, NOW).splitlines()
    assert text[0].startswith(f"serving: qualified; waived: {WHO} (")
    assert f"do: promote; this accepts the waived failures: {WHO}" in text
    assert WHO in to_data(promoted)["headline"]
    assert WHO in unescape(markdown.render(promoted, OutputOptions(now=NOW)).splitlines()[2])
    notice = github.render(promoted, OutputOptions(now=NOW)).splitlines()[0]
    assert notice.startswith("::notice")
    assert WHO in notice
    suites = fromstring(junit.render(promoted, OutputOptions(now=NOW)))
    assert WHO in str(next(suites.iter("system-out")).text)
    assert any(WHO in item.attrib["value"] for item in suites.iter("property") if item.attrib["name"] == "headline")
    told = to_statement(promoted, [parse_artifact("--subject", f"x@sha256:{'ab' * 32}")])["predicate"]["configuration"][
        0
    ]
    expected = {"id": "w0", "owner": "jane@example.com", "expires": "2026-12-31", "cases": IDS[:2]}
    assert [expected] == told["annotations"]["waived"]
    context = report_context(promoted.run, promoted.records, promoted.conclusion)
    assert WHO in context.summary
    assert WHO in unescape(render_html(context).replace("<wbr>", ""))


def test_nothing_is_said_where_nothing_is_waived(store: Store, path: Path) -> None:
    """A waiver that covers no failure is no part of the promotion, and a failure is no promotion."""
    passed = judge(store, store_run(store, path).id, shipped_kernels(), now=NOW)
    assert "waived:" not in to_text(passed, NOW).splitlines()[0]
    failed = judge(store, store_run(store, path, WRONG).id, shipped_kernels(), now=NOW)
    assert "waived:" not in to_text(failed, NOW).splitlines()[0]


def test_a_waiver_of_too_few_checks_says_what_is_left(store: Store, path: Path) -> None:
    """Its glob is right: the lines name the failure that it does not accept, and nobody is sent to the glob."""
    findings = make_finding("fail", "row 3 sees key 9"), make_finding("fail", "off by 1", check="lse")
    both = Measured(evidence=make_evidence(*findings))
    judged = judge(
        store, store_run(store, path, lambda case: both if case.id == IDS[0] else PASSED).id, shipped_kernels(), now=NOW
    )
    left = f"waived by w0 ({path.parent}/w.yaml:2) is only census, not lse"
    assert left in [line.strip() for line in to_text(judged, NOW).splitlines()]
    markdown_text = unescape(markdown.render(judged, OutputOptions(now=NOW)))
    assert "is only census, not lse" in markdown_text
    (note,) = [line for line in to_text(judged, NOW).splitlines() if "waiver w0" in line]
    assert note.endswith(f"waiver w0 does not cover all that fails in 1 case, first {IDS[0]}: see what is left, and "
                         "correct its checks")  # fmt: skip
    page = unescape(render_html(report_context(judged.run, judged.records, judged.conclusion)).replace("<wbr>", ""))
    assert "waiver w0 of jane@example.com accepts census, and does not cover all that failed" in page


def test_the_first_to_end_stands_first(store: Store, path: Path) -> None:
    """More waivers than a line can hold are counted."""
    days = [f"2026-12-{day}" for day in range(31, 23, -1)]
    write_waivers(path.parent / "w.yaml", *({"select": IDS[0], "expires": day} for day in days))
    run = store_run(store, path, lambda case: WRONG if case.id == IDS[0] else PASSED)
    words = waived_words(judge(store, run.id, shipped_kernels(), now=NOW).conclusion)
    assert words.startswith(f"{IDS[0]} by jane@example.com until 2026-12-24 (w7); ")
    assert words.endswith(f"and {len(days) - NAMED} more waivers")


def test_no_waiver_is_to_be_removed_while_its_case_has_no_evidence(store: Store, path: Path) -> None:
    """A run that was interrupted says nothing of the cases behind it; once each has evidence, the gate says it."""
    write_waivers(path.parent / "w.yaml", {"select": IDS[2]})
    told = "covers no failure and no case that passes; remove it"
    behind = NotRun(reason="the run ended before its turn")
    for ended, expected in ((behind, False), (OPEN, True)):
        judged = judge(
            store,
            store_run(store, path, lambda case, ended=ended: ended if case.id == IDS[2] else PASSED).id,
            shipped_kernels(),
            now=NOW,
        )
        assert (expected, "unused") == (told in to_text(judged, NOW), judged.conclusion.waivers[0].state)
        assert expected == (told in github.render(judged, OutputOptions(now=NOW)))


def test_no_stack_is_blamed_for_the_end_of_a_waiver(store: Store, path: Path) -> None:
    """Where the same failed before; what passed before is blamed on what changed, whoever accepted it once."""
    write_waivers(path.parent / "w.yaml", {"expires": "2026-11-20"})
    kernels = shipped_kernels()
    passed, failed = (store_run(store, path, it, age=timedelta(hours=2)).id for it in (PASSED, outcome))
    judged = judge(store, store_run(store, path, outcome).id, kernels, now=NOW)
    told = "do: no stack is to blame since run {}: what fails was accepted until its waiver expired"
    for before, expected in ((failed, True), (passed, False)):
        text = to_text(compare_with(store, judged, before, kernels, now=NOW), NOW)
        assert (expected, not expected) == (told.format(before) in text, "suspect the device, the matrix" in text)


def test_a_shape_without_a_path_is_no_tick(promoted: Judged) -> None:
    """Somebody accepted that no kernel serves it: that does not answer which kernel does."""
    (model,) = report_context(promoted.run, promoted.records, promoted.conclusion).models
    told = next(found for question, found in zip(QUESTIONS, model.answers, strict=True) if question.key == "kernels")

    assert ("open", "1 of 2 shapes proven; 1 shape waived") == (told.state, told.headline)


def test_the_parts_are_named_in_their_order(promoted: Judged) -> None:
    """Whoever goes through the page from link to link goes down."""
    beside = Beside(notes=("the clock was set",))
    text = render_html(report_context(promoted.run, promoted.records, promoted.conclusion, beside))
    (parts,) = re.findall(r'<nav aria-label="Parts of this page">(.*?)</nav>', text)
    named = re.findall(r'href="#([a-z]+)"', parts)

    assert {"notes", "waivers", "cases"} <= set(named)
    assert sorted(named, key=lambda name: text.index(f' id="{name}"')) == named
