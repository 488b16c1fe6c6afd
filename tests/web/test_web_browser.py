"""The pages in a real Chromium: no blocked style or script, no dialog, links lead where they say."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from chromium import IN_CHROMIUM, launched

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

pytestmark = list(IN_CHROMIUM)
CASE = "toy.tp1/prefill/b1.q8.k8/fp32/causal"


@pytest.fixture(scope="module")
def browser() -> Iterator:
    """One browser for all tests."""
    with launched() as browser:
        yield browser


def test_walk_through_the_site(served, browser):
    """Runs, a report whose filter works under the policy, the comparison, the canaries; nothing is complained about."""
    trouble: list[str] = []
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.on("console", lambda message: trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("dialog", lambda dialog: trouble.append(f"dialog {dialog.message}"))
    page.on("request", lambda it: None if it.url.startswith((served.url, "data:")) else trouble.append(it.url))
    page.goto(served.url)
    sync_api.expect(page.get_by_role("heading", level=1)).to_have_text("What needs attention")
    page.get_by_role("link", name="Runs", exact=True).click()
    sync_api.expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
    assert "system-ui" in page.evaluate("getComputedStyle(document.body).fontFamily")
    page.get_by_role("link", name=served.runs[1], exact=True).click()
    sync_api.expect(page).to_have_title(re.compile("Not qualified"))
    page.locator(".tools input").first.fill("no-such-case")
    sync_api.expect(page.locator(".tools output").first).not_to_be_empty()
    page.goto(f"{served.url}runs/{served.runs[1]}/against/{served.runs[0]}")
    sync_api.expect(page).to_have_title(re.compile("Regression"))
    page.goto(served.url)
    page.get_by_role("link", name="Canaries", exact=True).click()
    sync_api.expect(page.get_by_role("heading", name="Holds").first).to_be_visible()
    page.set_viewport_size({"width": 360, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert [] == trouble


def test_every_case_is_readable_without_script(served, browser):
    """From the report over its list to a page with all evidence of a case that passes, and of one that failed."""
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto(f"{served.url}runs/{served.runs[1]}")
    page.get_by_role("row", name="torch-cpu-math").get_by_role("link", name="page").click()
    page.get_by_role("link", name=f"{CASE}/torch-cpu-math").click()
    sync_api.expect(page.get_by_role("heading", level=1)).to_have_text(f"Case {CASE}/torch-cpu-math")
    sync_api.expect(page.locator("header")).to_contain_text("✓ pass in run")
    told = page.locator("main").inner_text()
    for words in ("Witness", "First call", "Launched kernels", "Content hash"):
        assert words in told
    page.get_by_role("link", name="All cases of the run").click()
    page.get_by_label("Verdict").select_option("FAIL")
    page.get_by_role("button", name="Filter").click()
    page.wait_for_url("**verdict=FAIL**")
    page.locator("table a").first.click()
    sync_api.expect(page.locator("header")).to_contain_text("✗ fail in run")
    sync_api.expect(page.locator("main li.fail").first).to_be_visible()
    page.goto(f"{served.url}cases/{CASE}/tiled-torch")
    page.get_by_role("link", name="✗ fail").first.click()
    sync_api.expect(page).to_have_url(f"{served.url}runs/{served.runs[1]}/cases/{CASE}/tiled-torch")


def test_a_case_built_in_the_browser_leads_to_its_page(served, browser):
    """The script gives the same address as the server."""
    page = browser.new_page()
    page.goto(f"{served.url}runs/{served.runs[0]}")
    page.locator("#list summary").first.click()
    name = page.locator("#list summary code").first.inner_text()
    page.locator("#list").get_by_role("link", name="Page of this case").first.click()
    sync_api.expect(page.get_by_role("heading", level=1)).to_have_text(f"Case {name}")
