"""The page in a real Chromium, opened from a file as from a CI artifact."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from chromium import IN_CHROMIUM, VIOLATIONS
from report_examples import RAW_NAMES, everything, facts_of, grid, make_evidence

from qualify.assets import shipped
from qualify.facts.outcome import Finding, Measured
from qualify.report.drawings.curves import Point, Series, curves
from qualify.report.drawings.history import Moment, history
from qualify.report.drawings.intervals import Interval, intervals
from qualify.report.drawings.roofline import Dot, roofline
from qualify.report.drawings.strips import SampleRow, strips
from qualify.report.drawings.svg import Drawing
from qualify.report.files import write_report
from qualify.report.views import anchor

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CRASHED = "llama-3.1-8b.tp1/decode/b32.q1.k8192.p16/bf16/causal/flashinfer-fa3"
WRONG = "llama-3.1-8b.tp1/prefill/b1.q1024.k1024/bf16/causal/flash-attn-2"
PASSED = "gemma-2-9b.tp1/prefill/b1.q4096.k4096/bf16/causal/torch-sdpa"

pytestmark = list(IN_CHROMIUM)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where the page of the run with everything in it lies."""
    facts = everything()
    return write_report(tmp_path_factory.mktemp("page"), facts.run, facts.records, facts.conclusion).as_uri()


@pytest.fixture(scope="module")
def complaints(tab: Any) -> list[str]:
    """Messages on the console, errors of the script, dialogs, and requests to elsewhere."""
    trouble: list[str] = []
    tab.on("console", lambda message: trouble.append(message.text))
    tab.on("pageerror", lambda error: trouble.append(str(error)))
    tab.on("dialog", lambda dialog: trouble.append(f"dialog {dialog.message}"))
    tab.on(
        "request",
        lambda it: None if it.url.startswith(("file:", "data:", "about:")) else trouble.append(it.url),
    )
    return trouble


@pytest.fixture
def page(tab: Any, address: str, complaints: list[str]) -> Iterator[Any]:
    """The page on a desk, loaded again; whatever complains fails the test."""
    complaints.clear()
    tab.set_viewport_size({"width": 1280, "height": 900})
    tab.emulate_media(media="null", color_scheme="light")
    tab.goto("about:blank")
    tab.goto(address)
    tab.locator("html.scripted").wait_for()
    yield tab
    assert [] == complaints


def found(page: Any, text: str) -> None:
    """Wait until the list says how much it found."""
    sync_api.expect(page.locator("#found")).to_have_text(text)


def listed(page: Any) -> list[str]:
    """Ids of the cases in the list."""
    texts: list[str] = page.locator("#list summary code").all_text_contents()
    return texts


def test_page_loads_with_style_and_script(page: Any) -> None:
    """The policy lets its own style and script through, and nothing reaches the console."""
    assert "Not qualified: hopper-serving (20261120T234500Z-1f3a9c)" == page.title()
    assert "sticky" == page.evaluate("getComputedStyle(document.querySelector('.filter')).position")
    sync_api.expect(page.locator("#list details.case")).to_have_count(55)


def test_filters_narrow_the_cases_and_stand_in_the_address(page: Any, address: str) -> None:
    """Words and choices select cases that have them all; the address leads back to them; Clear shows all again."""
    page.fill("#f-text", "bf16 4096")
    page.select_option("#f-model", "gemma-2-9b.tp1")
    page.select_option("#f-phase", "decode")
    found(page, "5 cases of 1 shape")
    there = page.url
    assert "#?text=bf16+4096&model=gemma-2-9b.tp1&phase=decode" == there.removeprefix(address)

    page.click("#clear")
    found(page, "")
    assert 55 == len(listed(page))
    page.goto("about:blank")
    page.goto(there)
    found(page, "5 cases of 1 shape")
    assert "gemma-2-9b.tp1" == page.locator("#f-model").input_value()


def test_back_takes_the_filter_off(page: Any, address: str) -> None:
    """The list is that of the address again, also where the address is the page's own or that of the whole list."""
    page.locator(".count.WAIVED").click()
    found(page, "1 case of 1 shape")
    page.go_back()
    found(page, "")
    assert (address, "") == (page.url, page.locator("#f-verdict").input_value())
    page.select_option("#f-verdict", "FAIL")
    page.click("#clear")
    page.locator(".count.WAIVED").click()
    found(page, "1 case of 1 shape")
    page.go_back()
    found(page, "")
    assert f"{address}#cases" == page.url


def test_an_address_that_is_no_text_is_no_error(page: Any) -> None:
    """The page opens as without it, and its script complains of nothing."""
    page.evaluate("location.hash = '%zz'")
    page.fill("#f-text", "bf16 4096 gemma decode")
    found(page, "5 cases of 1 shape")


@pytest.mark.parametrize("width", [1280, 800, 360])
def test_a_linked_case_stands_below_the_filter(page: Any, width: int) -> None:
    """The filter has one row or several, and on a phone it does not stay at the top."""
    page.set_viewport_size({"width": width, "height": 700})
    page.evaluate(f"location.hash = '{anchor('case', PASSED)}'")
    case = page.locator("#list details[open]")
    case.wait_for()
    top, bar = case.bounding_box()["y"], page.locator(".filter").bounding_box()
    assert bar["y"] + bar["height"] <= top < 600


def test_filter_by_check_and_verdict(page: Any) -> None:
    """A count in the header leads to its cases, a check to those that it failed."""
    page.locator(".count.WAIVED").click()
    found(page, "1 case of 1 shape")
    page.click("#clear")
    page.select_option("#f-check", "census")
    found(page, "1 case of 1 shape")
    assert ["llama-3.1-8b.tp1/varlen/b6.q1024.k1024/bf16/causal/flash-attn-2"] == listed(page)


def test_cases_are_sorted(page: Any) -> None:
    """The slowest first, or by id; without a choice the worst verdict first."""
    assert ["✗ fail"] * 4 == page.locator("#list .v").all_text_contents()[:4]
    page.select_option("#f-sort", "time")
    assert "8192" in listed(page)[0]
    page.select_option("#f-sort", "id")
    assert sorted(listed(page)) == listed(page)


def test_map_keeps_what_matches_in_view(page: Any) -> None:
    """A kernel without a match has no column, so that no match stands outside the window."""
    page.select_option("#f-verdict", "FAIL")
    page.select_option("#f-view", "verdict")
    heads = page.locator("table.heat thead th").all_inner_texts()

    assert ["Shape", "Proven path", "flash-attn-2", "flash-attn-3", "flashinfer-fa3"] == sorted(
        heads, key=lambda head: (head[0].islower(), head != "Shape", head)
    )
    for field in page.locator("table.heat td.FAIL a").all():
        box = field.bounding_box()
        assert 0 <= box["x"] <= box["x"] + box["width"] <= 1280


def test_map_by_time_names_the_factor(page: Any) -> None:
    """The fastest passing kernel of a shape is 1.00×, and what does not pass has no factor."""
    page.select_option("#f-model", "gemma-2-9b.tp1")
    page.select_option("#f-phase", "prefill")
    page.select_option("#f-view", "ratio")

    assert ["1.47×", "1.99×", "1.00×", "1.09×", "1.18×"] == page.locator("table.heat tbody tr").first.locator(
        "td a"
    ).all_inner_texts()


def test_field_of_the_overview_leads_to_its_cases(page: Any) -> None:
    """A click on a kernel, model and phase filters the list by them."""
    page.get_by_role("link", name="flash-attn-2, llama-3.1-8b.tp1, varlen", exact=False).click()
    found(page, "2 cases of 2 shapes")
    assert "flash-attn-2" == page.locator("#f-kernel").input_value()


def test_overview_is_coloured_by_time(page: Any) -> None:
    """The second colouring shows factors instead of counts."""
    page.get_by_role("button", name="time against the fastest").click()
    fields = page.locator("#overview .draw a")

    assert "1.47×" in fields.locator(".by-time").all_text_contents()
    sync_api.expect(fields.locator(".by-verdict").first).to_be_hidden()


def test_failure_opens_where_it_stands(page: Any) -> None:
    """From an answer, Enter opens the failed case under its group and moves the focus into it."""
    page.evaluate(f"location.hash = '{anchor('case', CRASHED)}'")
    body = page.locator(f"#{anchor('case', CRASHED)}")
    body.wait_for(state="visible")

    assert anchor("case", CRASHED) == page.evaluate("document.activeElement.id")
    assert "crashed in its call, attempt 2: CUDA error: an illegal memory access" in body.inner_text()
    assert "Why not" == page.locator(".why h2").inner_text()


def test_link_to_a_case_of_the_data_builds_it(page: Any) -> None:
    """A case that is no failure is built in the list when a link leads to it, whatever the filter says."""
    page.fill("#f-text", "llama")
    found(page, "30 cases of 6 shapes")
    page.evaluate(f"location.hash = '{anchor('case', PASSED)}'")
    box = page.locator(f"[data-anchor='{anchor('case', PASSED)}']")
    box.locator(".body").wait_for(state="visible")

    assert "Error against the golden result" in box.inner_text()
    assert PASSED == page.locator("#f-text").input_value()
    assert page.evaluate("document.activeElement.matches('.body')")


def test_link_to_a_shape_shows_it_on_the_map(page: Any) -> None:
    """An answer leads to a production shape with all its kernels."""
    page.evaluate(f"location.hash = '{anchor('shape', PASSED.rpartition('/')[0])}'")
    page.locator("table.heat").wait_for()

    sync_api.expect(page.locator("table.heat tbody tr")).to_have_count(1)
    sync_api.expect(page.locator("table.heat td a")).to_have_count(5)


def test_the_script_builds_what_the_page_renders(page: Any) -> None:
    """A failed case reads the same in the list, built out of data, as under its group, rendered before."""
    rendered = page.locator(f"#{anchor('case', WRONG)}")
    page.fill("#f-text", WRONG)
    found(page, "1 case of 1 shape")
    page.locator("#list summary").first.click()
    built = page.locator("#list .body")
    built.wait_for()
    texts = [re.sub(r"\s+", "", body.evaluate("body => body.textContent")) for body in (rendered, built)]

    assert texts[0] == texts[1]
    assert "NaN" in texts[0]
    assert [["out"], ["out"]] == [body.locator("li.note div > code").all_text_contents() for body in (rendered, built)]
    attributes = "body => [...body.querySelectorAll('td, rect, path, a')].map(e => [e.tagName, e.className.toString(), "
    attributes += "Number(e.getAttribute('width')), e.getAttribute('d'), e.getAttribute('href')].join())"
    shapes = [[it.lower().replace(".0 ", " ") for it in body.evaluate(attributes)] for body in (rendered, built)]
    assert shapes[0] == shapes[1]


def test_tables_and_drawings_come_when_they_are_opened(page: Any) -> None:
    """The numbers beneath a drawing, and the drawings of another model, are built when a reader opens them."""
    numbers = page.locator("#overview .numbers")
    assert 0 == numbers.locator("table").count()
    numbers.locator("summary").click()
    numbers.locator("table").wait_for()
    assert "Cases by model, phase and kernel" == numbers.locator("caption").inner_text()

    other = page.locator("#pictures > details").nth(1)
    other.locator("summary").first.click()
    other.locator("svg.draw").first.wait_for()
    assert {"Prefill: time against length", "Error against length", "Roofline"} <= set(
        other.locator("figcaption").all_inner_texts()
    )


def test_keyboard_reaches_the_filter_and_the_cases(page: Any) -> None:
    """Every stop of the tabulator is visible in order: skip link, filter, a summary of a case."""
    page.keyboard.press("Tab")
    assert "Skip to why not" == page.evaluate("document.activeElement.textContent")

    page.locator("#list summary").first.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.parentElement.open")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('#list') !== null")


def test_page_never_scrolls_sideways(page: Any) -> None:
    """With everything open the page fits its window; wide tables scroll inside their frame."""
    page.evaluate("for (const box of document.querySelectorAll('details')) box.open = true")
    page.wait_for_timeout(100)
    for width in (1280, 768, 360):
        page.set_viewport_size({"width": width, "height": 844})
        assert width == page.evaluate("document.documentElement.scrollWidth")


def test_a_phone_shows_the_map_of_kernels_whole(page: Any) -> None:
    """With the names of all kernels and models: one that is cut at the edge does not look as if it went on."""
    page.set_viewport_size({"width": 360, "height": 844})
    frame = page.locator("#overview .wide").first
    assert 5 == page.locator("#overview .draw text[transform]").count()
    assert frame.evaluate("it => it.scrollWidth - it.clientWidth") <= 0
    beyond = """it => [...it.querySelectorAll('text')].filter(text => text.getBoundingClientRect().width)
        .filter(text => text.getBoundingClientRect().right > it.getBoundingClientRect().right + 1
            || text.getBoundingClientRect().left < it.getBoundingClientRect().left - 1
            || text.getBoundingClientRect().top < it.getBoundingClientRect().top - 1).map(text => text.textContent)"""
    assert [] == page.locator("#overview .draw").evaluate(beyond)


def test_a_phone_shows_which_kernel_ran(page: Any) -> None:
    """The table of launched kernels scrolls sideways in its frame, and their names are in view from the start."""
    page.set_viewport_size({"width": 390, "height": 844})
    page.evaluate(f"location.hash = '{anchor('case', WRONG)}'")
    table = page.locator("#why details[open] .wide").filter(has_text="Launched kernels").first
    table.wait_for()
    frame, name = table.bounding_box(), table.locator("tbody td.k").first.bounding_box()
    assert name["x"] + name["width"] <= frame["x"] + frame["width"]


def test_a_phone_shows_the_errors_of_a_case(page: Any) -> None:
    """Of the table of statistics, the inputs and the errors of element, row and all rows are in view from the start."""
    page.set_viewport_size({"width": 360, "height": 844})
    page.evaluate(f"location.hash = '{anchor('case', WRONG)}'")
    table = page.locator("#why details[open] .wide").filter(has_text="Error against the golden result").first
    table.wait_for()
    frame, ends = (
        table.bounding_box(),
        [it.bounding_box() for it in table.locator("tbody tr").first.locator("td").all()],
    )
    assert [True] * 4 == [it["x"] + it["width"] <= frame["x"] + frame["width"] for it in ends[:4]]


def test_ids_of_cases_break_between_their_parts(page: Any) -> None:
    """On a phone an id takes several lines, each of whole parts; what a reader copies is the id."""
    page.set_viewport_size({"width": 360, "height": 844})
    code = page.locator("#list summary code").first
    parts = code.evaluate("it => it.innerHTML.split('<wbr>')")
    assert 6 == len(parts)
    assert code.text_content() == "".join(parts)
    assert all(part.endswith("/") for part in parts[:-1])


def test_paper_is_not_told_to_be_hovered_over(page: Any) -> None:
    """What only a screen can do is not said in print."""
    for words in ("hover over a mark for its numbers", "each field leads to its cases"):
        sync_api.expect(page.get_by_text(words)).to_be_visible()
        page.emulate_media(media="print")
        sync_api.expect(page.get_by_text(words)).to_be_hidden()
        page.emulate_media(media="null")


def test_axe_finds_nothing(page: Any) -> None:
    """No violation of WCAG 2 A and AA, best practices included, in either theme, with a case and drawings open.

    Of the rules only contrast depends on the theme, so the second theme asks for that alone.
    """
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    page.evaluate(
        "for (const box of document.querySelectorAll('.members, .group .case, #evidence details, #pictures details, "
        "#list .case:nth-child(-n+3)')) box.open = true"
    )
    page.wait_for_timeout(100)
    page.evaluate(axe.Axe().axe_script)
    for scheme, rules in (("dark", {"runOnly": {"type": "rule", "values": ["color-contrast"]}}), ("light", {})):
        page.emulate_media(color_scheme=scheme)
        assert ("dark" == scheme) == page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
        violations = page.evaluate(VIOLATIONS, rules)
        told = [(it["id"], [node["html"][:200] for node in it["nodes"][:3]]) for it in violations]
        assert (scheme, []) == (scheme, told)


def test_page_reads_without_script(unscripted: Any, address: str) -> None:
    """Without script every failure is readable, a link opens its case, and nothing dead is offered."""
    unscripted.goto(f"{address}#{anchor('case', CRASHED)}")

    sync_api.expect(unscripted.locator(f"#{anchor('case', CRASHED)}")).to_be_visible()
    sync_api.expect(unscripted.locator(".filter")).to_be_hidden()
    sync_api.expect(unscripted.locator("a[href^='#?']")).to_have_count(0)
    sync_api.expect(unscripted.locator("#overview h2 small")).to_be_hidden()
    sync_api.expect(unscripted.locator("#overview .draw a").first).to_be_visible()


def test_every_case_and_table_is_reachable_without_script(unscripted: Any, address: str) -> None:
    """Cases that passed stand in a table by model and kernel, and every table opens."""
    page = unscripted
    page.set_viewport_size({"width": 360, "height": 800})
    page.goto("about:blank")
    page.goto(address)
    row = page.locator("#cases tbody tr").filter(has_text="gemma-2-9b.tp1").filter(has_text="torch-sdpa")
    assert "✓ 4 pass" in row.inner_text()
    row.locator("summary").click()
    sync_api.expect(row).to_contain_text("✓ prefill/b1.q4096.k4096/bf16/causal 256 µs", use_inner_text=True)

    for summary, table in (
        ("#overview .numbers > summary", "#overview table"),
        ("#pictures > details:nth-of-type(2) > summary", "#pictures > details:nth-of-type(2) table"),
        ("#evidence > details:nth-of-type(1) > summary", ""),
        ("#evidence .answer .numbers > summary", "#evidence .answer table"),
    ):
        page.locator(summary).first.click()
        if table:
            sync_api.expect(page.locator(table).first).to_be_visible()
    assert 360 == page.evaluate("document.documentElement.scrollWidth")
    page.set_viewport_size({"width": 1280, "height": 900})


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where the page of 2,400 cases of 40 models lies, some of which fail."""
    models = tuple(f"model-{number}.tp1" for number in range(40))
    sizes = tuple(1024 * number for number in range(1, 2400 // (2 * 40 * len(RAW_NAMES)) + 2))
    records = grid(models, sizes, ("prefill", "decode"))[:2400]
    wrong = Finding(check="census", verdict="fail", detail="row 3 sees a key too much", values={"row": 3})
    for number in range(0, len(records), 100):
        evidence = make_evidence("flash-attn-3")
        failed = Measured(evidence=replace(evidence, findings=(*evidence.findings, wrong)))
        records[number] = replace(records[number], outcome=failed)
    facts = facts_of(records)
    return write_report(tmp_path_factory.mktemp("large"), facts.run, facts.records, facts.conclusion).as_uri()


def edges() -> list[Drawing | None]:
    """Drawings with ticks at both ends of their axes, and roofs of nearly one height."""
    samples = ((50_380.0, 58_000.0), (50_300.0, 57_640.0), (5_000.0, 870_000.0))
    rates = {"fp32": 1.0e11, "fp16": 1.22e11, "bf16": 1.5e11, "fp8_e4m3": 1.9e11, "fp8_e5m2": 6e11}
    dot = Dot(kernel="k", number=0, intensity=1000.0, flops_per_s=1e8, title="")
    points = tuple(Point(x=x, y=x, low=x, high=x, title="") for x in (1.0, 131_072.0, 1_048_575.0))
    span = Interval(name="a", verdict="FAIL", change=9.0, low=-9.0, high=9.0, title="")
    start = datetime(2026, 11, 1, tzinfo=UTC)
    moments = [
        Moment(run=str(day), at=start + timedelta(days=day), verdict="PASS", latency_us=5.0) for day in range(50)
    ]
    return [
        *(strips("Samples", [SampleRow(name="k", number=0, samples_us=one, median_us=one[0])]) for one in samples),
        *(roofline("Roofline", [replace(dot, flops_per_s=rate)], rates, 1e10) for rate in (1e8, 5e10)),
        roofline("Roofline", [replace(dot, flops_per_s=5e9)], {"fp32": 1.35e11, "bf16": 1.5e11}, 1e10),
        curves("Time", [Series(name="k", number=0, points=points)], x_label="keys", y_label="time", y_unit="s"),
        intervals("Changes", [span], []),
        history("a case", moments),
    ]


def test_no_text_of_a_drawing_is_cut_or_covered(tab: Any) -> None:
    """Every text lies inside its drawing, also at the ends of an axis, and on no other text."""
    drawn = [one.svg for one in edges() if one]
    tab.set_content(f"<style>{(shipped('reports') / 'report.css').read_text()}</style>{''.join(drawn)}")
    boxes = tab.evaluate(
        """() => [...document.querySelectorAll("svg.draw")].map((svg) => [svg.viewBox.baseVal.width,
          [...svg.querySelectorAll("text")].map((it) => [it.textContent, it.getBBox()]).map(
            ([text, box]) => [text, box.x, box.x + box.width, box.y + 2, box.y + box.height - 2])])"""
    )
    assert 9 == len(boxes)
    for width, texts in boxes:
        assert [] == [text for text, left, right, *_ in texts if left < 0 or right > width]
        for one, other in itertools.combinations(texts, 2):
            apart = one[2] <= other[1] or other[2] <= one[1] or one[4] <= other[3] or other[4] <= one[3]
            assert apart, f"{one} lies on {other}"


def test_a_large_page_is_few_elements(tab: Any, unscripted: Any, large: str) -> None:
    """With and without JavaScript: at most 20,000 at the start, and every failure is there to read."""
    for page in (tab, unscripted):
        page.goto(large)
        if page is tab:
            page.locator("html.scripted").wait_for()
        assert 20_000 >= page.evaluate("document.getElementsByTagName('*').length")
        page.locator("#why .members summary").first.click()
        sync_api.expect(page.locator("#why .case").first).to_be_visible()
        sync_api.expect(page.get_by_text("row 3 sees a key too much").first).to_be_visible()
        later = page.locator("#pictures > details").nth(9)
        later.locator("summary").first.click()
        if page is tab:
            sync_api.expect(later.locator("tbody tr").nth(10)).to_be_attached()
            sync_api.expect(later.get_by_text("Without JavaScript")).to_have_count(0)
        else:
            told = later.locator("noscript p")
            sync_api.expect(told).to_be_visible()
            assert "report.json beside this file has these numbers" in told.inner_text()


def test_a_browser_that_cannot_unpack_the_cases_says_so(tab: Any, address: str) -> None:
    """Everything else on the page works."""
    page = tab.context.new_page()
    page.add_init_script("delete window.DecompressionStream")
    page.goto(address)
    sync_api.expect(page.locator("#cannot")).to_be_visible()
    page.locator("#overview .numbers summary").click()
    sync_api.expect(page.locator("#overview .numbers table")).to_be_visible()
    page.close()


def test_print_takes_few_pages(page: Any) -> None:
    """On paper the page is the verdict, the failures, the answers and the map: at most six pages."""
    assert 1 <= len(re.findall(rb"/Type\s*/Page[^s]", page.pdf(format="A4"))) <= 6


def test_a_failed_census_shows_both_masks(tab: Any, facts: Any, build: Any, tmp_path: Path) -> None:
    """The expected mask stands beside the seen one, and its numbers beneath."""
    record = next(record for record in facts.records if record.case.id == PASSED)
    values = {"sequence": 0, "query": 2000, "head": 0, "label": "keys 2001 to 2032", "expected": 0, "actual": 1.0}
    finding = Finding(
        check="census",
        verdict="fail",
        detail="rows see a key too much",
        values=values | {"looks_like": "a mask shifted by one key to the right"},
    )
    wrong = Measured(evidence=replace(make_evidence("torch-sdpa"), findings=(finding,)))
    failed = build([replace(record, outcome=wrong)])
    place = write_report(tmp_path, failed.run, failed.records, failed.conclusion).as_uri()
    tab.goto(f"{place}#{record_anchor(record)}")
    figure = tab.locator(".drawing:has(.masks)")

    sync_api.expect(figure).to_be_visible()
    assert "Every row looks like a mask shifted by one key to the right." in figure.inner_text()


def record_anchor(record: Any) -> str:
    """Where a case stands on the page."""
    return anchor("case", record.case.id)
