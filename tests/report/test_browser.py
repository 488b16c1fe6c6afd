"""The page in a real Chromium, opened from a file as from a CI artifact."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qualify.report.files import write_report
from qualify.report.views import anchor

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
CRASHED = "llama-3.1-8b.tp1/decode/b32.q1.k8192.p16/bf16/causal/flashinfer-fa3"

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One browser for all tests of the module."""
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture
def address(facts: Any, tmp_path: Path) -> str:
    """Where the page of the run with everything in it lies."""
    return write_report(tmp_path, facts.run, facts.records, facts.conclusion).as_uri()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    """The page on a desk; a message on the console or an error of the script fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    trouble: list[str] = []
    page.on("console", lambda message: trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("dialog", lambda dialog: trouble.append(f"dialog {dialog.message}"))
    page.on(
        "request", lambda request: None if request.url.startswith(("file:", "data:")) else trouble.append(request.url)
    )
    page.goto(address)
    yield page
    context.close()
    assert [] == trouble


def shown(page: Any, selector: str) -> int:
    """How many elements are not hidden by the filter."""
    count: int = page.locator(f"{selector}:not([hidden])").count()
    return count


def test_page_loads_with_style_and_script(page: Any) -> None:
    """The policy lets its own style and script through, and nothing reaches the console."""
    assert "Not qualified: hopper-serving (20261120T234500Z-1f3a9c)" == page.title()
    assert "sticky" == page.evaluate("getComputedStyle(document.querySelector('.heat thead th')).position")
    assert 55 == page.locator(".heat td a").count()


def test_filter_narrows_shapes_and_cases(page: Any) -> None:
    """Words select rows that hold all of them; an empty filter shows everything again."""
    page.fill("#filter", "gemma decode")
    sync_api.expect(page.locator("#found")).to_have_text("2 shapes, 10 cases")

    assert (2, 8) == (shown(page, ".heat tr[id]"), shown(page, "details.case"))

    page.fill("#filter", "")
    sync_api.expect(page.locator("#found")).to_have_text("")
    assert (11, 45) == (shown(page, ".heat tr[id]"), shown(page, "details.case"))


def test_verdict_button_filters_and_releases(page: Any) -> None:
    """A button filters by its verdict and says that it is pressed; a second press lets go."""
    button = page.get_by_role("button", name="waived")
    button.click()
    assert ("true", 1, 1) == (
        button.get_attribute("aria-pressed"),
        shown(page, ".heat tr[id]"),
        shown(page, "details.case"),
    )

    button.click()
    assert ("false", 11) == (button.get_attribute("aria-pressed"), shown(page, ".heat tr[id]"))


def test_keyboard_reaches_and_opens_a_case(page: Any) -> None:
    """From the heat map, Enter opens the case and moves the focus into it."""
    link = page.locator(f".heat a[href='#{anchor('case', CRASHED)}']")
    link.focus()
    page.keyboard.press("Enter")
    body = page.locator(f"#{anchor('case', CRASHED)}")
    body.wait_for(state="visible")

    assert anchor("case", CRASHED) == page.evaluate("document.activeElement.id")
    assert "an illegal memory access" in body.inner_text()


def test_tab_reaches_the_filter_and_the_cases(page: Any) -> None:
    """Every stop of the tabulator is visible in order: skip link, filter, a summary of a case."""
    page.keyboard.press("Tab")
    assert "Skip to the answers" == page.evaluate("document.activeElement.textContent")

    page.locator("details.case summary").first.focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.matches('details.case summary')")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.parentElement.open")


def test_link_to_a_filtered_case_shows_it(page: Any) -> None:
    """An answer leads to its case even where the filter hides it."""
    page.fill("#filter", "gemma")
    sync_api.expect(page.locator("#found")).not_to_have_text("")
    page.evaluate(f"location.hash = '{anchor('case', CRASHED)}'")
    page.locator(f"#{anchor('case', CRASHED)}").wait_for(state="visible")

    assert "" == page.locator("#filter").input_value()


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_page_never_scrolls_sideways(browser: Any, address: str, width: int) -> None:
    """With everything open the page fits its window; wide tables scroll inside their frame."""
    context = browser.new_context(viewport={"width": width, "height": 844})
    page = context.new_page()
    page.goto(address)
    page.evaluate("for (const box of document.querySelectorAll('details')) box.open = true")

    assert width == page.evaluate("document.documentElement.scrollWidth")
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_scheme_and_keep_their_contrast(browser: Any, address: str, scheme: Any) -> None:
    """Text in every tone has a contrast of at least 4.5 to 1 with what lies under it."""
    context = browser.new_context(color_scheme=scheme)
    page = context.new_page()
    page.goto(address)
    selectors = [
        "body",
        ".badge",
        ".dim",
        *(f".heat td.{name} a" for name in ("PASS", "FAIL", "WAIVED", "NOT_REQUIRED")),
    ]
    pairs = [
        page.locator(selector).first.evaluate(
            "(node) => { let box = node; while (getComputedStyle(box).backgroundColor === 'rgba(0, 0, 0, 0)') "
            "box = box.parentElement; return [getComputedStyle(node).color, getComputedStyle(box).backgroundColor]; }"
        )
        for selector in selectors
    ]

    assert ("dark" == scheme) == (luminance(pairs[0][1]) < 0.2)
    assert [] == [(name, pair) for name, pair in zip(selectors, pairs, strict=True) if contrast(*pair) < 4.5]
    context.close()


def test_page_reads_without_script(browser: Any, address: str) -> None:
    """Without script a link still opens its case, because the target lies inside the closed box."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{address}#{anchor('case', CRASHED)}")

    assert page.locator(f"#{anchor('case', CRASHED)}").is_visible()
    context.close()


def luminance(colour: str) -> float:
    """Relative luminance of an ``rgb(…)`` colour, as WCAG defines it."""
    channels = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(front: str, back: str) -> float:
    """Contrast ratio of two colours, from 1 to 21."""
    low, high = sorted((luminance(front), luminance(back)))
    return (high + 0.05) / (low + 0.05)
