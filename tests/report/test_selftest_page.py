"""The selftest's result as a sentence, a page and JSON."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest

from qualify.assets import released_selftest
from qualify.facts.checks import CHECK_VERSION
from qualify.facts.selftest import Alarm, CorrectKernel, Detection, PlantedFault, SelfTest
from qualify.report.beside import Beside
from qualify.report.context import report_context
from qualify.report.detection import sentence, summary
from qualify.report.document import to_json
from qualify.report.page import render_html
from qualify.report.selftest import released, to_data, to_text, write_selftest


def fault(name: str, smoke: tuple[str, ...], full: tuple[str, ...], equivalent: str = "") -> PlantedFault:
    """A fault and what caught it."""
    detections = (
        Detection(level="smoke", cases=2, caught_by=smoke, example="prefill/x: census: <b>wrong</b>" if smoke else ""),
        Detection(level="full", cases=2, caught_by=full, example=""),
    )
    return PlantedFault(name=name, kind="A", mirrors="x#1", does="<i>", equivalent=equivalent, detections=detections)


@pytest.fixture
def result() -> SelfTest:
    """One fault caught at both levels, one at full only, one missed, one equivalent, and one false alarm."""
    alarm = Alarm(case_id="selftest/x", level="full", seed=1, check="budget", detail="E 2 > 1")
    return SelfTest(
        check_version=1,
        qualify_version="0.1.0",
        levels=("smoke", "full"),
        select="",
        started_at=datetime(2026, 11, 21, tzinfo=UTC),
        wall_s=200.0,
        faults=(
            fault("both", ("census", "lse"), ("census",)),
            fault("late", (), ("lse",)),
            fault("never", (), ()),
            fault("same", (), (), "nobody can tell"),
        ),
        correct=(
            CorrectKernel(name="plain", does="as it is", runs=1200, alarms=()),
            CorrectKernel(name="odd", does="other", runs=16, alarms=(alarm,)),
        ),
    )


def test_the_sentence(result: SelfTest) -> None:
    """Rates for both levels, false alarms and the version; without a result, what to type."""
    expected = "2 of 3 planted faults caught at full, 1 at smoke, 1 false alarm in 1,216 runs (check version 1)"
    assert expected == sentence(result, 1)
    assert "not run with these checks (check version 2): run `qualify selftest`" == sentence(None, 2)


def test_the_release_speaks_where_nobody_measured() -> None:
    """A new store shows what the selftest of the release found with these checks."""
    shipped = json.loads(released_selftest().read_text())
    told = sentence(None, CHECK_VERSION)
    assert told.startswith(
        f"{shipped['levels']['full']['caught']} of {shipped['faults']} planted faults caught at full"
    )
    assert told.endswith(f"measured for the release on {shipped['started_at'][:10]})")
    assert True is summary(None, CHECK_VERSION)["shipped"]


def test_the_contract_of_the_json(result: SelfTest) -> None:
    """The fields of contract 3; an equivalent fault is neither caught nor missed."""
    data = to_data(result)
    expected = {"faults": 3, "caught": 2, "missed": ["never"], "correct_runs": 1216, "false_alarms": ["odd"]}
    assert expected == {name: data[name] for name in expected}
    assert {"smoke": {"caught": 1}, "full": {"caught": 2}} == data["levels"]


def test_the_text_ends_with_what_is_wrong(result: SelfTest) -> None:
    """Misses and false alarms stand right before the sentence."""
    lines = to_text(result).splitlines()
    assert lines[2].startswith("MISSED never")
    assert lines[-2].startswith("ALARM  selftest/x (seed 1): budget")
    assert "2 of 3 planted faults" in lines[-1]


def test_the_page(result: SelfTest, tmp_path: Any) -> None:
    """Counts by class and check, and each fault with its checks; text beside every glyph, all escaped."""
    page = write_selftest(tmp_path, result).read_text()
    assert '<th scope="col" class="n">census</th><th scope="col" class="n">lse</th>' in page
    (row,) = re.findall(r'<tr><th scope="row">(.*?)</tr>', page)
    assert ["✗ 2 of 3", "1", "2"] == re.findall(r"<td[^>]*>(.*?)</td>", row)
    assert "census, lse" in page
    assert '<details class="model" id="class-A" open>' in page
    assert page.index('id="fault-never"') < page.index('id="fault-both"')
    assert "nobody can tell" in page
    assert "✗ missed" in page
    assert "≡ equivalent" in page
    assert "&lt;b&gt;wrong&lt;/b&gt;" in page
    assert "<b>wrong" not in page
    assert "Floors broken" in page
    assert "qualify.selftest/1" == json.loads((tmp_path / "selftest.json").read_text())["schema"]


def test_the_page_of_the_release_is_small(tmp_path: Any) -> None:
    """Its 240 faults and 25 checks are no grid of 6,000 cells: a phone opens it, and so does a screen reader."""
    shipped = json.loads(released_selftest().read_text())
    page = write_selftest(tmp_path, released(CHECK_VERSION)).read_text()
    told = json.loads((tmp_path / "selftest.json").read_text())
    assert shipped["kills"] == told["kills"]
    assert None is released(CHECK_VERSION + 1)
    assert shipped["faults"] + len(shipped["equivalent"]) == page.count('id="fault-')
    assert 5_000 > len(re.findall(r"<[a-z]", page))


def test_every_report_shows_it(facts: Any, result: SelfTest) -> None:
    """The header and the JSON twin of a run's report have the rates, or say that nobody measured them."""
    shown = report_context(facts.run, facts.records, facts.conclusion, Beside(selftest=result))
    assert "2 of 3 planted faults caught at full" in render_html(shown)
    assert {"smoke": 1, "full": 2} == json.loads(to_json(shown))["selftest"]["caught"]
    bare = report_context(facts.run, facts.records, facts.conclusion)
    assert "not run with these checks (check version 1)" in render_html(bare)
    assert json.loads(to_json(bare))["selftest"]["faults"] is None
