"""The Chromium of this machine, for tests that look at pages in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
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
COLOURS = ("color", "backgroundColor", "backgroundImage", "opacity", "filter", "textShadow", "fontSize", "fontWeight")
"""properties of an element and of those around it that decide whether its text has contrast enough"""
VIOLATIONS = rf"""options => {{
  const numbers = new Map(), looks = new Map(), texts = new Map();
  for (const it of document.querySelectorAll("*")) {{
    const style = getComputedStyle(it), around = looks.get(it.parentNode);
    const look = [around, it.tagName, it.getAttribute("class"), ...{[*COLOURS]}.map(name => style[name])].join();
    if (!numbers.has(look)) numbers.set(look, numbers.size);
    looks.set(it, numbers.get(look));
    const words = [...it.childNodes].filter(node => node.nodeType === Node.TEXT_NODE).map(node => node.data).join("");
    const letters = Math.min(2, words.match(/[\p{{L}}\p{{N}}]/gu)?.length ?? 0);
    const text = [looks.get(it), letters, it.checkVisibility(), it.matches(":disabled, [aria-disabled=true]")].join();
    texts.set(text, [...(texts.get(text) ?? []), it]);
  }}
  for (const alike of texts.values())
    alike.forEach((it, place) => it.toggleAttribute("data-alike", 0 < place && place < alike.length - 1));
  axe.configure({{ rules: [{{ id: "color-contrast", selector: ":not([data-alike])" }}] }});
  return axe.run({{ ...options, resultTypes: ["violations"] }}).then(found => found.violations);
}}"""
"""What axe finds, once its script is in the page.

Contrast takes most of its time. Of visible texts in the same colours, within the same elements, it judges the first
and the last: one may be covered by what stays in its place when the page is scrolled.
"""


@contextmanager
def launched() -> Iterator[Any]:
    """A browser; without playwright the test is skipped."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield browser
        browser.close()
