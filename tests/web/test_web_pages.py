"""Every page of the site: the same navigation, one title, a permalink, a JSON twin; and every twin has its page."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from urllib.parse import urlsplit

import pytest
from web_examples import DUEL, Served

from qualify.report.site import NAVIGATION

MOST = 120
NO_TWIN = ("/login", "/audit")
"""pages that name no facts, or whose facts are for few"""
FILES = (".json", ".csv")


class Page(HTMLParser):
    """What a page has of what every page must have."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.navigation: list[str] = []
        self.titles = 0
        self._within = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes links, the navigation and headings."""
        named = dict(attrs)
        self.titles += tag == "h1"
        self._within = named.get("aria-label") == "Pages" if tag == "nav" else self._within
        if tag == "a" and (href := named.get("href")):
            (self.navigation if self._within else self.links).append(href)

    def handle_endtag(self, tag: str) -> None:
        """The navigation ends."""
        self._within = self._within and tag != "nav"


@pytest.fixture(scope="module")
def walked(served: Served) -> dict[str, tuple[str, Page]]:
    """Every page that links lead to from the first one: its text and what it has, by its address."""
    found: dict[str, tuple[str, Page]] = {}
    left = ["/"]
    while left and len(found) < MOST:
        path = left.pop(0)
        reply = served.get(path, Accept="text/html")
        assert 200 == reply.status, path
        found[path] = reply.text, Page(reply.text)
        _, page = found[path]
        for href in (*page.navigation, *page.links):
            other = href.partition("#")[0]
            if other.startswith("/") and not urlsplit(other).path.endswith(FILES) and other not in (*found, *left):
                left.append(other)
    assert len(found) < MOST, "the walk has an end"
    return found


def test_every_page_has_the_same_navigation(walked):
    """Reports, comparisons and the selftest have that of the lists, and every page one title."""
    entries = [href for href, _ in NAVIGATION]
    assert {} == {path: page.navigation for path, (_, page) in walked.items() if page.navigation != entries}
    assert {} == {path: page.titles for path, (_, page) in walked.items() if page.titles != 1}
    assert [] == [path for path, (text, _) in walked.items() if not re.search(r"<title>[^<]{3,}</title>", text)]
    assert {"/runs", "/duels", f"/duels/{DUEL}"} <= set(walked)
    assert any("/against/" in path for path in walked)


def test_every_page_has_a_permalink_and_a_twin(served, walked):
    """The permalink leads to the page, whatever name it was asked under; the twin is JSON with a schema."""
    seen = set()
    for path, (text, _) in walked.items():
        if path in NO_TWIN:
            continue
        footer = text.rpartition("<footer>")[2]
        permalink, twin = re.search(r'href="([^"]*)">permalink</a> · <a href="([^"]*)"', footer).groups()
        data = json.loads(served.get(twin.replace("&amp;", "&")).text)
        assert data["schema"].startswith("qualify."), path
        assert permalink.replace("&amp;", "&") in walked, path
        seen.add(urlsplit(twin).path)
    described = served.get("/openapi.json").data["paths"]
    patterns = {path: re.compile(re.sub(r"\{\w+\}", ".+", path) + "$") for path in described if path.endswith(".json")}
    unseen = {path for path, pattern in patterns.items() if not any(map(pattern.match, seen))}
    assert {"/audit.json"} == unseen


def test_verdicts_are_words_for_people(walked):
    """No page shows a verdict as JSON has it, but the line that the gate prints; what a script reads is no text."""
    raw = re.compile(r"\b(PASS|FAIL|WAIVED|INCONCLUSIVE|NOT_REQUIRED)\b")
    found = {}
    for path, (text, _) in walked.items():
        shown = re.sub(r"<(script|style).*?</\1>|<dt>In words</dt><dd>.*?</dd>|<[^>]*>", " ", text, flags=re.DOTALL)
        if words := raw.search(shown):
            found[path] = shown[words.start() - 40 : words.end() + 40]
    assert {} == found


def test_latest_has_the_permalink_of_its_run(served):
    """An address that means another run tomorrow names the one that it means today."""
    text = served.get("/runs/latest").text
    run = served.get("/runs/latest.json").data["run"]
    assert f'<a href="/runs/{run}">permalink</a>' in text


def test_the_counts_of_a_report_lead_to_its_cases(served):
    """Without the script of the report, too: the page of its cases has that verdict alone."""
    _, run, _ = served.runs
    href = re.search(r'class="count FAIL" data-cases="verdict=FAIL" href="([^"]+)"', served.get(f"/runs/{run}").text)[1]
    assert f"/runs/{run}/cases?verdict=FAIL" == href
    assert {"✗ fail"} == {row["verdict"] for row in served.get(href.replace("?", ".json?")).data["cases"]}


def test_a_duel(served):
    """Its cells with verdict, change and interval, what disturbed the card, the runs of B; JSON and CSV."""
    page, data = served.get(f"/duels/{DUEL}").text, served.get(f"/duels/{DUEL}.json").data
    words = {cell["cell"]: (cell["verdict"], cell["change"], cell["interval"]) for cell in data["cells"]}
    assert ["▲ slower", "– no valid time", "? undecided", "▼ faster", "= the same"] == [it[0] for it in words.values()]
    assert ("▲ slower", "+8.0 %", "+7.5 % to +8.5 %") == next(iter(words.values()))
    assert "1 of 5 cells: B is slower, and new processes confirmed it" in page
    assert "2 groups of four blocks do not count" in page
    assert "Not every cell was decided" in page
    assert "1 cell could not be timed, and more time does not help" in page
    only = [(row["side"].partition(":")[0], row["cell"]) for row in data["not_compared"]]
    assert ["A", "A"] == [side for side, _ in only]
    assert "another one" == only[1][1]
    assert "Only one side can run these cells" in page
    assert [served.runs[1]] == [run["run"] for run in data["runs"]]
    assert f'href="/runs/{served.runs[1]}"' in page
    assert 4 == page.partition("<figure")[2].partition("</figure>")[0].count('class="reach"')
    assert "samples" not in data["duel"]
    lines = served.get(f"/duels/{DUEL}.csv").text.splitlines()
    assert (6, True) == (len(lines), lines[1].startswith("▲ slower,"))
    assert f'href="/duels/{DUEL}"' in served.get("/").text
    assert f'href="/duels/{DUEL}"' in served.get("/duels").text
    assert 404 == served.get("/duels/nope").status
