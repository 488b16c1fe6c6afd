"""The HTML page: self-contained, well-formed, harmless, and complete."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from qualify.facts.outcome import Crashed, Refused
from qualify.report.context import report_context
from qualify.report.page import render_html

VOID = {"meta", "link", "input", "br", "hr", "img"}
SHAPES = {"path", "rect"}
HOSTILE = '<script>alert(1)</script>"&'


class Page(HTMLParser):
    """Reads a page and notes what a browser would: open tags, ids, attributes, text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.problems: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in SHAPES:
            self.problems.append(f"<{tag}/> is no empty element in HTML")

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> at {self.getpos()} closes something else")

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        """All text of the page."""
        return " ".join(self.words)

    def attributes(self, name: str) -> list[str]:
        """Values of an attribute over all tags."""
        return [attributes[name] for _, attributes in self.tags if name in attributes]


def html_of(facts: Any) -> str:
    """The page of a run."""
    return render_html(report_context(facts.run, facts.records, facts.conclusion))


@pytest.fixture
def html(facts: Any) -> str:
    """The page of the run with everything in it."""
    return html_of(facts)


def test_tags_are_balanced(html: str) -> None:
    """Every tag that opens is closed, in order."""
    page = Page(html)

    assert ([], []) == (page.problems, page.open)


def test_nothing_is_loaded_from_outside(html: str) -> None:
    """The page opens from an artifact without a network: every reference stays inside."""
    page = Page(html)

    assert {"data:,"} == {href for href in page.attributes("href") if not href.startswith("#")}
    assert [] == page.attributes("src")
    assert [] == re.findall(r"https?://|@import|url\(", html)


def test_policy_allows_exactly_the_two_inline_blocks(html: str) -> None:
    """The policy forbids everything but the style and the script whose digests it names."""
    policy = Page(html).attributes("content")[0]
    blocks = re.findall(r"<(style|script)>(.*?)</\1>", html, re.DOTALL)
    digests = {
        name: "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for name, text in blocks
    }

    assert ["style", "script"] == [name for name, _ in blocks]
    assert "default-src 'none'" in policy
    assert f"style-src '{digests['style']}'; script-src '{digests['script']}'" in policy
    assert "unsafe" not in policy


def test_no_inline_handlers_or_styles(html: str) -> None:
    """The policy would drop them, so there are none."""
    names = {name for _, attributes in Page(html).tags for name in attributes}

    assert set() == {name for name in names if name.startswith("on") or name == "style"}


def test_every_link_leads_somewhere_and_ids_are_unique(html: str) -> None:
    """Each fragment has one target."""
    page = Page(html)
    ids = page.attributes("id")

    assert len(ids) == len(set(ids))
    assert set() == {href[1:] for href in page.attributes("href") if href.startswith("#")} - set(ids)


def test_hostile_kernel_name_is_text_everywhere(html: str) -> None:
    """A kernel name with markup in it stays text, in the page and in its attributes."""
    assert "<script>alert" not in html
    assert 1 == html.count("<script>")
    assert 4 <= html.count("&lt;script&gt;alert(1)&lt;/script&gt;&#34;&amp;")
    assert HOSTILE in Page(html).text


def test_hostile_text_is_harmless_in_every_field(facts: Any, build: Callable[..., Any]) -> None:
    """Names of models and kernels, errors, logs, reasons, environment and the matrix are text, too."""
    first, second = facts.records[:2]
    case = replace(
        first.case, id=f"{HOSTILE}/prefill/x/bf16/causal/{HOSTILE}", model=HOSTILE, kernel=HOSTILE, shape=HOSTILE
    )
    crash = Crashed(stage=HOSTILE, error=HOSTILE, log=HOSTILE, attempt=1)
    hostile = build(
        [replace(first, case=case, outcome=crash), replace(second, outcome=Refused(by="plan", reasons=(HOSTILE,)))]
    )
    stack = replace(hostile.run.stack, environment={HOSTILE: HOSTILE})
    run = replace(hostile.run, matrix=HOSTILE, matrix_source=HOSTILE, matrix_path=HOSTILE, select=HOSTILE, stack=stack)
    html = render_html(report_context(run, hostile.records, hostile.conclusion))
    page = Page(html)

    assert 1 == html.count("<script>")
    assert ([], []) == (page.problems, page.open)
    assert 12 <= page.text.count(HOSTILE)


def test_every_case_is_on_the_page(facts: Any, html: str) -> None:
    """No case is left out, whatever became of it."""
    text = Page(html).text

    assert [] == [record.case.id for record in facts.records if record.case.id not in text]


def test_refusals_show_their_reasons(facts: Any, html: str) -> None:
    """A refusal shows why as text, and in the heat map on hover; never a blank."""
    page = Page(html)
    reasons = {
        reason for record in facts.records if isinstance(record.outcome, Refused) for reason in record.outcome.reasons
    }

    assert 6 == len(reasons)
    assert [] == [reason for reason in reasons if reason not in page.text]
    assert reasons <= set(page.attributes("title"))
    assert "" not in re.findall(
        r"<td[^>]*>(.*?)</td>", html[html.index('<table class="heat"') : html.index('id="evidence"')]
    )


def test_verdicts_have_a_word_and_a_glyph(html: str) -> None:
    """Colour is never the only sign of a verdict."""
    heat = html[html.index('<table class="heat"') : html.index('id="evidence"')]

    for glyph, word in (("✓", "pass"), ("✗", "fail"), ("◐", "waived"), ("?", "inconclusive"), ("–", "not required")):
        assert f">{glyph} {word}</a>" in heat


def test_tables_have_scoped_headers_and_pictures_have_names(html: str) -> None:
    """A screen reader can tell rows from columns, and reads what a picture shows."""
    tags = Page(html).tags

    assert set() == {attributes.get("scope", "none") for tag, attributes in tags if tag == "th"} - {
        "row",
        "col",
        "rowgroup",
    }
    assert all("aria-label" in attributes or "aria-hidden" in attributes for tag, attributes in tags if tag == "svg")


def test_failing_cases_come_first(html: str) -> None:
    """The section of a failure stands above every pass."""
    verdicts = re.findall(r'<span class="v (\w+)">', html)

    assert ["FAIL"] * 4 + ["INCONCLUSIVE", "WAIVED"] == verdicts[:6]
    assert {"PASS"} == set(verdicts[6:])


def test_refused_cases_take_a_row_and_not_a_section(facts: Any, html: str) -> None:
    """A case that no device touched costs one row."""
    ran = [record for record in facts.records if record.outcome.outcome not in ("refused", "not_run")]

    assert len(ran) == html.count('<details class="case"')


def test_a_run_without_a_stack_or_a_case_still_gives_a_page(build: Callable[..., Any]) -> None:
    """An interrupted run has no worker, no ceilings and perhaps no case."""
    empty = build([])
    run = replace(empty.run, stack=None, ceilings=None, finished_at=None, state="interrupted")
    page = Page(render_html(report_context(run, [], empty.conclusion)))

    assert ([], []) == (page.problems, page.open)
    assert "not finished (interrupted)" in page.text
    assert "no worker reported" in page.text
