"""The page of 5,000 cases in Chromium: size, elements, time until it can be used, filtering, printing.

Outcomes are measured here, then repeated under other ids: for eight models and six kernels, with different lengths,
errors and times in each case, and one failure in 250 cases. So the page cannot merge equal texts.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from common import command_line, evidence, machine, show, small
from playwright.sync_api import Page, sync_playwright

from qualify.cards.load import parse_matrix
from qualify.facts.outcome import Evidence, Finding, Measured
from qualify.facts.run import Record
from qualify.report.files import write_report
from qualify.verdict.gate import conclude
from qualify.verdict.policy import Rules

KERNELS = ("torch-sdpa", "flash-attn-2", "flash-attn-3", "flash-attn-4", "flashinfer-fa2", "flashinfer-fa3")
MODELS = 8
FAILURES = 250
"""one of so many cases fails"""
LOADS = 5
ERRORS = ("E", "R", "G", "beta")
USABLE = "document.querySelector('#list details') && document.documentElement.classList.contains('scripted')"
ARGUMENTS = ["--no-sandbox", "--disable-gpu"]
PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def main() -> None:
    """Write the page, then use it in a browser as a person would."""
    asked = command_line(__doc__, evidence=True).parse_args()
    count = 100 if small() else 5_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run, records = evidence(count, folder, asked.evidence)
        records = [_own(record, number) for number, record in enumerate(records)]
        matrix = parse_matrix(run.matrix_source, run.matrix_path)
        conclusion = conclude(records, Rules(matrix=matrix, patterns={}, partial=True))
        began = time.process_time()
        place = write_report(folder / "out", run, records, conclusion)
        written = time.process_time() - began
        machine()
        show(f"report.html of {count:,} cases", place.stat().st_size / 1e6, "MB")
        show("writing report.html and report.json: CPU", written, "s")
        with sync_playwright() as playwright:
            path = next(filter(None, map(shutil.which, PROGRAMS)), None)
            browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
            _measure(browser, place.as_uri())
            browser.close()


def _own(record: Record, number: int) -> Record:
    """The record for another model and kernel, with other numbers."""
    assert isinstance(record.outcome, Measured)
    case = record.case
    kernel = KERNELS[number % len(KERNELS)]
    model = f"model-{number // len(KERNELS) % MODELS}.tp1"
    case = replace(
        case,
        id=f"{model}/{case.phase}/{case.shape}/{case.dtype}/{case.mask}/{kernel}",
        model=model,
        kernel=kernel,
    )
    found = _with_numbers(record.outcome.evidence, number)
    if number % FAILURES == 0:
        wrong = Finding(
            check="census", verdict="fail", detail=f"row {number} sees a key too much", values={"row": number}
        )
        found = replace(found, findings=(*found.findings, wrong))
    return replace(record, case=case, outcome=Measured(evidence=found))


def _with_numbers(found: Evidence, number: int) -> Evidence:
    """The evidence with times multiplied, and errors divided, by a factor that differs between cases."""
    factor = 1 + number % 997 / 5000
    timing = found.timing
    if timing:
        samples = tuple(sample * factor for sample in timing.samples_us)
        share = timing.ceiling_share / factor
        timing = replace(timing, samples_us=samples, latency_us=median(samples), ceiling_share=share)
    statistics = tuple(replace(it, **{name: getattr(it, name) / factor for name in ERRORS}) for it in found.statistics)
    findings = tuple(
        replace(it, detail=f"{it.detail} [{number}]", values=dict(it.values) | _divided(it.values, factor))
        if set(ERRORS) & set(it.values)
        else it
        for it in found.findings
    )
    first_call_us = found.first_call_us * factor
    return replace(found, findings=findings, statistics=statistics, timing=timing, first_call_us=first_call_us)


def _divided(values: Mapping[str, Any], factor: float) -> dict[str, Any]:
    return {name: values[name] / factor for name in ERRORS if name in values}


def _measure(browser: Any, address: str) -> None:
    """Measure medians of several loads, each in a new window, then the next actions of a reader."""
    waits = []
    for _ in range(1 if small() else LOADS):
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        began = time.perf_counter()
        page.goto(address)
        page.wait_for_function(USABLE)
        waits.append(time.perf_counter() - began)
        if len(waits) < LOADS and not small():
            page.close()
    show("usable after", median(waits), "s")
    show("elements at the start", page.evaluate("document.getElementsByTagName('*').length"), "")
    show(
        "filtering by a word",
        _wait(page, lambda: page.fill("#f-text", "model-3 flash-attn-3"), "#found:not(:empty)"),
        "s",
    )
    show("a map of what was found", _wait(page, lambda: page.select_option("#f-view", "verdict"), "table.heat"), "s")
    plain = browser.new_context(java_script_enabled=False).new_page()
    plain.goto(address)
    show("elements without JavaScript", plain.evaluate("document.getElementsByTagName('*').length"), "")
    page.select_option("#f-view", "")
    show("opening a case", _wait(page, page.locator("#list summary").first.click, "#list .body"), "s")
    paper = page.pdf(format="A4")
    show("printed", len(re.findall(rb"/Type\s*/Page[^s]", paper)), "pages")


def _wait(page: Page, action: Any, selector: str) -> float:
    """Seconds from an action until its result is on the page."""
    began = time.perf_counter()
    action()
    page.locator(selector).first.wait_for()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
