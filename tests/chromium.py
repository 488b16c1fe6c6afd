"""The Chromium of this machine, for tests that look at pages in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""the first one has no windows, and takes less time for the same pages"""
CHROMIUM = next(filter(None, map(shutil.which, PROGRAMS)), None)
WITHOUT = (
    # Each window would hold two hidden pages for suggestions: they cost more than the pages of most tests.
    "WebUIOmniboxPopup",
    "WebUIOmniboxAimPopup",
    # The last list counts, so here are those of Playwright's own that concern a local page.
    "AimEnabled",
    "AvoidUnnecessaryBeforeUnloadCheckSync",
    "DestroyProfileOnBrowserClose",
    "HttpsFirstBalancedModeAutoEnable",
    "HttpsUpgrades",
    "LensOverlay",
    "MediaRouter",
    "NetworkTimeServiceQuerying",
    "OptimizationHints",
    "PaintHolding",
    "PreconnectToSearch",
    "ThirdPartyStoragePartitioning",
)
"""features of the browser that no test looks at"""
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    f"--disable-features={','.join(WITHOUT)}",
)
IN_CHROMIUM = (pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH"))
"""marks of a test"""
VIOLATIONS = "options => axe.run({...options, resultTypes: ['violations']}).then(found => found.violations)"
"""what axe finds, once its script is in the page"""


@contextmanager
def launched() -> Iterator[Any]:
    """A browser; without playwright the test is skipped."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield browser
        browser.close()
