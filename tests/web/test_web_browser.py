"""The pages in a real Chromium: no blocked style or script, no dialog, links lead where they say."""

from __future__ import annotations

import re

import pytest
from chromium import IN_CHROMIUM, launched

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

pytestmark = list(IN_CHROMIUM)


def test_walk_through_the_site(served, tmp_path):
    """Runs, a report whose filter works under the policy, the comparison, the canaries; nothing is complained about."""
    trouble: list[str] = []
    with launched() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.on("console", lambda message: trouble.append(message.text))
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("dialog", lambda dialog: trouble.append(f"dialog {dialog.message}"))
        page.on("request", lambda it: None if it.url.startswith((served.url, "data:")) else trouble.append(it.url))
        page.goto(served.url)
        assert page.get_by_role("heading", level=1).inner_text() == "What needs attention"
        page.get_by_role("link", name="Runs", exact=True).click()
        assert page.get_by_role("heading", level=1).inner_text() == "Runs"
        assert "system-ui" in page.evaluate("getComputedStyle(document.body).fontFamily")
        page.screenshot(path=tmp_path / "runs.png", full_page=True)
        page.get_by_role("link", name=served.runs[1], exact=True).click()
        sync_api.expect(page).to_have_title(re.compile("Not qualified"))
        page.locator(".tools input").first.fill("no-such-case")
        sync_api.expect(page.locator(".tools output").first).not_to_be_empty()
        page.goto(f"{served.url}runs/{served.runs[1]}/against/{served.runs[0]}")
        assert "Regression" in page.title()
        page.goto(served.url)
        page.get_by_role("link", name="Canaries", exact=True).click()
        sync_api.expect(page.get_by_role("heading", name="Holds").first).to_be_visible()
        page.screenshot(path=tmp_path / "canaries.png", full_page=True)
        page.set_viewport_size({"width": 360, "height": 700})
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert [] == trouble
