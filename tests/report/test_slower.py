"""A case that takes longer than in the accepted baseline: told wherever the verdict is, and never simply promoted."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest
from builders import make_evidence, make_timing
from stored_runs import IDS, MATRIX, NOW, make_stack, shipped_kernels, store_run

from qualify.cards.load import load_matrix
from qualify.facts.case import Case
from qualify.facts.comparison import Change
from qualify.facts.outcome import Measured
from qualify.facts.run import Run
from qualify.judge.against import accepted, compare_with
from qualify.judge.beside import beside_baseline
from qualify.judge.evidence import Fresh
from qualify.judge.gathered import gather
from qualify.judge.judged import Judged, judge
from qualify.judge.signing import named
from qualify.report.beside import Beside
from qualify.report.context import ReportContext, report_context
from qualify.report.document import to_json
from qualify.report.formats import github, junit, markdown
from qualify.report.formats.interface import OutputOptions
from qualify.report.page import render_html
from qualify.report.verdict_json import to_data
from qualify.report.verdict_text import to_text
from qualify.store.store import Store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The matrix of two shapes and two kernels."""
    (tmp_path / "serving.yaml").write_text(MATRIX)
    return tmp_path / "serving.yaml"


def timed(factor: float, base_us: float = 100.0) -> Any:
    """Every case takes the base time, and the first one as many times that."""

    def outcome(case: Case) -> Measured:
        evidence = make_evidence()
        return Measured(evidence=replace(evidence, timing=make_timing(base_us * (factor if case.id == IDS[0] else 1))))

    return outcome


def baseline(store: Store, path: Path, base_us: float = 100.0) -> Run:
    """An accepted run two hours old."""
    run = store_run(store, path, timed(1, base_us), age=timedelta(hours=2))
    assert accepted(
        store, judge(store, run.id, shipped_kernels(), now=NOW), by=named("jane", "ci"), reason="release 7", now=NOW
    )
    return run


def judged(store: Store, path: Path, factor: float, base_us: float = 100.0, **changes: Any) -> Judged:
    """A newer run with that factor, judged as `run` and `gate` do."""
    run = store_run(store, path, timed(factor, base_us), **changes)
    return beside_baseline(store, judge(store, run.id, shipped_kernels(), now=NOW))


def test_ten_times_slower_is_never_simply_promoted(store: Store, path: Path) -> None:
    """Exit 0, because two runs prove no slowdown; but the text names it and says to look at it first."""
    before = baseline(store, path)
    found = judged(store, path, 10)
    lines = to_text(found, NOW).splitlines()
    assert 0 == found.conclusion.exit_code
    assert f"slower: 1 case is slower than in run {before.id}, accepted by jane (unproven): 10 times as long" in lines
    assert f"do: before you promote, look at what became slower: qualify diff {before.id} {found.run.id}" in lines
    assert "do: promote only if somebody accepts the slowdown" in lines
    assert "do: promote" not in lines
    at = lines.index(f"SLOWER       {IDS[0]}")
    assert "100 µs became 1.00 ms, 10 times as long; measured one after the other" == lines[at + 1].strip()


def test_the_gate_on_a_matrix_tells_it(store: Store, path: Path) -> None:
    """Its evidence names the card of each case, and that of a run on one card does not."""
    before = baseline(store, path)
    run = store_run(store, path, timed(10))
    wanted = Fresh(now=NOW, max_age=timedelta(hours=24), level="smoke")
    gathered = gather(store, load_matrix(str(path)), shipped_kernels(), wanted, waivers=(), waivers_path="")
    found = beside_baseline(store, gathered)
    assert (run.id,) == found.runs
    assert found.slower is not None
    assert (before.id, [IDS[0]]) == (found.slower.run, [case.id for case in found.slower.cases])
    assert "do: promote only if somebody accepts the slowdown" in to_text(found, NOW).splitlines()


def test_every_format_names_the_slower_case(store: Store, path: Path) -> None:
    """JSON has both times and the factor; Markdown, GitHub, JUnit and the page have the case and its times."""
    before = baseline(store, path)
    found = judged(store, path, 10)
    (told,) = to_data(found)["slower"]
    assert (IDS[0], 100.0, 1000.0, 10.0, before.id) == tuple(
        told[name] for name in ("id", "before_us", "after_us", "factor", "run")
    )
    assert "Cases that became slower" in markdown.render(found, OutputOptions(now=NOW))
    warnings = [
        line for line in github.render(found, OutputOptions(now=NOW)).splitlines() if line.startswith("::warning")
    ]
    assert 1 == len([line for line in warnings if f"title=slower%3A {IDS[0]}" in line.replace("%2C", ",")])
    (said,) = fromstring(junit.render(found, OutputOptions(now=NOW))).iter("system-out")
    assert IDS[0] in str(said.text)
    assert "10 times as long" in str(said.text)
    context = report_context(found.run, found.records, found.conclusion, Beside(slower=found.slower))
    html = render_html(context)
    assert '<section id="slower"' in html
    assert "10 times as long" in html
    assert '"before_us":100.0' in to_json(context)


def test_the_page_says_once_how_times_were_compared(store: Store, path: Path) -> None:
    """In front of the table; a row of it says only what it alone has to say. The JSON twin keeps each sentence."""
    baseline(store, path)
    found = judged(store, path, 10)
    assert found.slower is not None
    (one,) = found.slower.cases
    usual = "slower, measured one after the other: only a duel confirms it"
    assert f"+900.0 %: {usual}" == one.detail
    cases = tuple(replace(one, id=f"{one.id}{number}", detail=f"+9{number}.0 %: {usual}") for number in range(5))
    html = render_html(report_of(found, cases))
    section = html[html.index('<section id="slower"') : html.index('id="signoffs"')]
    assert (1, 0) == (section.count(usual), section.count(">How it was compared<"))
    assert 5 == to_json(report_of(found, cases)).count(usual)
    many = tuple(replace(one, id=f"case-{number:02}") for number in range(30))
    html = render_html(report_of(found, many))
    section = html[html.index('<section id="slower"') : html.index('id="signoffs"')]
    shown, _, folded = section.partition("<details")
    assert (10, 20) == (shown.count(">case-"), folded.count(">case-"))
    assert "<summary>20 more slower cases</summary>" in folded
    other = "slower, but another process used the card"
    html = render_html(report_of(found, (*cases, replace(one, detail=f"+900.0 %: {other}"))))
    section = html[html.index('<section id="slower"') : html.index('id="signoffs"')]
    assert (1, 1, 1) == tuple(section.count(words) for words in (usual, other, ">How it was compared<"))


def report_of(found: Judged, cases: tuple[Change, ...]) -> ReportContext:
    """The page of a run with these slower cases."""
    assert found.slower is not None
    beside = Beside(slower=replace(found.slower, cases=cases))
    return report_context(found.run, found.records, found.conclusion, beside)


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.03])
def test_noise_and_gains_are_no_news(store: Store, path: Path, factor: float) -> None:
    """Two runs of one stack differ by 3.5 %: below that nothing is said, and it is promoted."""
    baseline(store, path)
    found = judged(store, path, factor)
    assert (None, []) == (found.slower, to_data(found)["slower"])
    assert "do: promote" in to_text(found, NOW).splitlines()


def test_a_short_case_that_became_long_is_told(store: Store, path: Path) -> None:
    """Launches explain a change of a few µs below 10 µs, and not one of 72 µs."""
    baseline(store, path, 8.0)
    assert judged(store, path, 1.9, 8.0).slower is None
    assert judged(store, path, 10, 8.0).slower is not None


def test_another_stack_on_the_same_card_is_compared(store: Store, path: Path) -> None:
    """An upgrade that costs time is what the baseline is for."""
    baseline(store, path)
    assert judged(store, path, 2, stack=make_stack(torch="2.12.0")).slower is not None


def test_two_cards_are_not_compared(store: Store, path: Path) -> None:
    """Equal cards differ by a third."""
    baseline(store, path)
    other = make_stack()
    assert judged(store, path, 10, stack=replace(other, device=replace(other.device, uuid="cpu-1"))).slower is None


def test_without_a_baseline_nothing_is_compared(store: Store, path: Path) -> None:
    """Nobody said what is normal; a run that is named says it."""
    before = store_run(store, path, timed(1), age=timedelta(hours=2))
    found = judged(store, path, 10)
    assert found.slower is None
    compared = compare_with(store, found, before.id, shipped_kernels(), now=NOW)
    assert compared.slower is not None
    assert (before.id, "") == (compared.slower.run, compared.slower.accepted_by)


FAIL = MATRIX + "policy: {drift: {times: fail}}\n"


def test_a_matrix_may_fail_slower_cases(store: Store, path: Path) -> None:
    """Exit 1; it says what it cannot know, and what to do. A rerun that is as fast as before is green again."""
    path.write_text(FAIL)
    before = baseline(store, path)
    assert 0 == judged(store, path, 1.03).conclusion.exit_code
    found = judged(store, path, 2)
    lines = to_text(found, NOW).splitlines()
    reason = f"takes longer than {before.id} in 1 case"
    assert (1, "FAIL") == (found.conclusion.exit_code, found.conclusion.verdict)
    assert lines[0].startswith("serving: not qualified, and 1 case became slower (")
    assert [
        "do: keep the release back",
        f"do: look at what became slower: qualify diff {before.id} {found.run.id}",
        f"do: measure again on an idle machine, before you blame a kernel: qualify run {path} --device cpu --fresh",
        f"do: or accept the times: qualify baseline accept {found.run.id} --reason '{reason}' --by \"$USER\"",
    ] == [line for line in lines if line.startswith("do: ")]
    assert any("two runs of one stack differ by 3.5% without any change" in line for line in lines)
    assert accepted(
        store, judge(store, found.run.id, shipped_kernels(), now=NOW), by=named("a", "ci"), reason="b", now=NOW
    )
    assert 0 == judged(store, path, 2).conclusion.exit_code


def test_times_that_cannot_be_compared_are_no_verdict(store: Store, path: Path) -> None:
    """Who asks for them gets no green one from another card; who does not is not bothered."""
    path.write_text(FAIL)
    before = baseline(store, path)
    stack = make_stack()
    other = replace(stack, device=replace(stack.device, uuid="cpu-1"))
    found = judged(store, path, 2, stack=other)
    assert (5, None) == (found.conclusion.exit_code, found.slower)
    why = f"the runs used two cards since run {before.id}, and equal cards differ"
    assert f"note: policy.drift.times is fail, and times are not compared: {why}" in to_text(found, NOW).splitlines()
    run = store_run(store, path, timed(1), stack=other)
    compared = compare_with(
        store, judge(store, run.id, shipped_kernels(), now=NOW), "baseline", shipped_kernels(), now=NOW
    )
    assert 5 == beside_baseline(store, compared).conclusion.exit_code


def test_times_of_another_level_are_no_verdict(store: Store, path: Path) -> None:
    """Where the matrix asks for times, it says that the level decides how long a case is timed."""
    path.write_text(FAIL)
    before = baseline(store, path)
    short = Measured(evidence=replace(make_evidence(), timing=make_timing(200.0, samples_us=(200.0,) * 5)))
    run = store_run(store, path, short)
    found = beside_baseline(store, judge(store, run.id, shipped_kernels(), now=NOW))
    assert (5, None) == (found.conclusion.exit_code, found.slower)
    assert f"were timed in another number of blocks since run {before.id}, and the level decides" in found.untimed


def test_another_run_may_be_the_measure(store: Store, path: Path) -> None:
    """`--against RUN` compares times with that run, where nobody accepted a baseline too."""
    path.write_text(FAIL)
    before = store_run(store, path, timed(1), age=timedelta(hours=2))
    found = judged(store, path, 2)
    assert 0 == found.conclusion.exit_code
    compared = beside_baseline(store, compare_with(store, found, before.id, shipped_kernels(), now=NOW))
    assert 1 == compared.conclusion.exit_code
