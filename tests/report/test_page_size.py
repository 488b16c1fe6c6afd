"""However a run is shaped, its page opens with 20,000 elements at most, and each failure is readable without script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chromium import IN_CHROMIUM
from report_examples import facts_of, grid, make_launch, signed

from qualify.facts.outcome import Finding, Measured
from qualify.facts.run import Record
from qualify.report.beside import Beside
from qualify.report.columns import Column, Table
from qualify.report.files import write_report
from qualify.report.room import Room
from qualify.report.views import anchor

MOST = 20_000
"""elements at the start"""
ELEMENTS = "document.getElementsByTagName('*').length"
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = list(IN_CHROMIUM)


def failing(records: list[Record]) -> list[Record]:
    """The same, with a census that fails in each case that was measured."""
    found = []
    for number, record in enumerate(records):
        outcome = record.outcome
        if isinstance(outcome, Measured):
            wrong = Finding(check="census", verdict="fail", detail=f"row {number} is wrong", values={"row": number})
            evidence = replace(outcome.evidence, findings=(*outcome.evidence.findings, wrong))
            outcome = Measured(evidence=evidence)
        found.append(replace(record, outcome=outcome))
    return found


def models(count: int) -> tuple[str, ...]:
    """Names."""
    return tuple(f"model-{number}.tp1" for number in range(count))


def with_kernels(records: list[Record], count: int) -> list[Record]:
    """The same cases under so many kernels, each of which launches one of its own."""
    found = []
    for number, record in enumerate(records):
        kernel = f"kernel-{number % count}"
        case = replace(record.case, kernel=kernel, id=f"{record.case.cell}.n{number // count}/{kernel}")
        outcome = record.outcome
        if isinstance(outcome, Measured):
            witness = replace(outcome.evidence.witness, launches=(make_launch(f"{kernel}_fwd", "attention"),))
            outcome = Measured(evidence=replace(outcome.evidence, witness=witness))
        found.append(Record(case=case, outcome=outcome))
    return found


SHAPES: dict[str, Callable[[], list[Record]]] = {
    "many models": lambda: grid(models(400), (1024,), ("prefill",))[::3],
    "many kernels": lambda: with_kernels(grid(models(40), (1024, 2048, 4096), ("prefill",)), 60),
    "all fail": lambda: failing(grid(models(120), (1024,), ("prefill",))),
    "each kernel fails": lambda: failing(with_kernels(grid(models(3), tuple(range(64, 104)), ("varlen",)), 600)),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_page_opens_with_few_elements(tab: Any, unscripted: Any, tmp_path: Path, shape: str) -> None:
    """With and without script, beside long tables of everything that may stand beside a run."""
    facts = facts_of(SHAPES[shape]())
    beside = Beside(
        notes=tuple(f"note {number}" for number in range(3000)),
        signed=tuple(signed("valid", number=number) for number in range(3000)),
    )
    address = write_report(tmp_path, facts.run, facts.records, facts.conclusion, beside).as_uri()
    for page in (tab, unscripted):
        page.goto(address)
        if page is tab:
            page.locator("html.scripted").wait_for()
        assert MOST >= page.evaluate(ELEMENTS)


def test_every_failure_is_readable_without_script(unscripted: Any, tmp_path: Path) -> None:
    """Behind the first, which stand whole, a failure opens with its evidence as text; of very many each has a line."""
    records = failing(grid(models(1), tuple(range(1024, 1224)), ("prefill",)))
    facts = facts_of(records)
    address = write_report(tmp_path, facts.run, facts.records, facts.conclusion).as_uri()
    unscripted.goto(address)
    text = unscripted.locator("#why").text_content()
    assert [] == [record.case.id for record in records if record.case.id not in text]

    group = unscripted.locator("#why details.members").first
    group.locator("summary").first.click()
    brief = group.locator("details.brief").first
    brief.locator("summary").click()
    told = brief.inner_text()
    for words in (
        "fail census: row",
        "Launched kernels: Role attention",
        "Error against the golden result: ",
        "Time: ",
    ):
        assert words in told


def test_a_failure_behind_the_first_opens_with_script(tab: Any, tmp_path: Path) -> None:
    """It is built out of the data of the page as in the list, also where a link leads to it."""
    records = failing(grid(models(1), tuple(range(1024, 1034)), ("prefill",)))
    facts = facts_of(records)
    address = write_report(tmp_path, facts.run, facts.records, facts.conclusion).as_uri()
    last = max(number for number, record in enumerate(records) if record.case.kernel == "torch-sdpa")
    tab.goto(f"{address}#{anchor('case', records[last].case.id)}")
    box = tab.locator(f"#why #{anchor('case', records[last].case.id)}")
    sync_api.expect(box.locator("span.detail")).to_have_text(f"row {last} is wrong")
    sync_api.expect(box.locator("table.data").first).to_be_attached()
    sync_api.expect(box.locator("noscript")).to_have_count(0)


def test_a_link_leads_into_a_part_that_is_built_when_it_is_opened(tab: Any, tmp_path: Path) -> None:
    """The evidence of the last of many models is in the data of the page, and a link puts it in its place."""
    facts = facts_of(grid(models(120), (1024,), ("prefill",))[::3])
    tab.goto(write_report(tmp_path, facts.run, facts.records, facts.conclusion).as_uri())
    tab.locator("html.scripted").wait_for()
    assert 0 == tab.locator("#model-120-kernels").count()
    tab.evaluate("location.hash = 'model-120-kernels'")
    sync_api.expect(tab.locator("#model-120-kernels")).to_be_visible()
    inner = tab.locator("#model-120-kernels details.numbers")
    inner.locator("summary").first.click()
    sync_api.expect(inner.locator("table").first).to_be_visible()


def test_room_is_shared_by_its_parts() -> None:
    """A part takes from the whole; rows of a table are counted with the links and bars of their cells."""
    room = Room(20)
    part = room.part(15)
    assert part.take("<p>" * 12)
    assert not part.take("<p><b></b></p>" * 2)
    table = Table(caption="", columns=(Column(key="it", title="It", cell=str, link=str),), rows=(1, 2, 3, 4))
    assert (1, 2) == room.rows(table)
    assert (1,) == Room(20).rows(table, 1)
