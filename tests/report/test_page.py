"""The HTML page: self-contained, well-formed, harmless, and complete."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any, get_args
from urllib.parse import parse_qsl

import pytest
from page_data import anchors, case_ids, data_of, verdicts
from report_examples import many

from qualify.facts.outcome import Bound, Crashed, Measured, Refused
from qualify.report.context import report_context
from qualify.report.page import render_html

VOID = {"meta", "link", "input", "br", "hr", "img", "wbr"}
SHAPES = {"path", "rect", "use", "circle"}
HOSTILE = '<script>alert(1)</script>"&'


class Page(HTMLParser):
    """Reads a page and notes what a browser would: open tags, ids, attributes, text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.problems: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.feed(html.replace("<wbr>", ""))  # which parts no word
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
    targets = {href[1:] for href in page.attributes("href") if href.startswith("#")}
    assert set() == targets - set(ids) - anchors(data_of(html))


def test_fields_of_the_map_filter_by_what_there_is(html: str) -> None:
    """A link that filters names a model, kernel, phase or verdict of the run."""
    data = data_of(html)
    names = {"model": data["models"], "kernel": data["kernels"], "phase": data["phases"]}
    names["verdict"] = [name for name, _, _ in data["verdicts"]]
    asked = [pair for query in Page(html).attributes("data-cases") for pair in parse_qsl(query)]

    assert {"model", "kernel", "phase", "verdict"} == {name for name, _ in asked}
    assert [] == [(name, value) for name, value in asked if value not in names[name]]


def test_markup_of_the_data_is_balanced_and_harmless(html: str) -> None:
    """What the script puts in when a place is opened is whole, and no name brought an element along."""
    late = [Page(part) for part in data_of(html)["late"]]

    assert late
    assert [] == [problem for page in late for problem in (*page.problems, *page.open)]
    assert set() == {tag for page in late for tag, _ in page.tags} & {"script", "img", "style"}


def test_what_only_a_script_opens_stands_in_the_page_too(html: str) -> None:
    """No noscript holds another: a browser with scripts would end the outer one where the inner one ends."""
    inside = re.findall(r"<noscript>(.*?)</noscript>", html, re.DOTALL)
    pages = [Page(part) for part in inside]

    assert "Cases by model, phase and kernel" in " ".join(page.text for page in pages)
    assert [] == [problem for page in pages for problem in (*page.problems, *page.open)]
    assert 0 == sum("<noscript" in part for part in inside)


def test_a_large_run_is_a_small_page() -> None:
    """2,000 cases, half of them refused: what repeats costs nothing, and elements do not grow with cases."""
    large, small = (html_of(many(count)) for count in (2000, 200))

    assert len(large.encode()) < 900_000
    counts = [len(Page(re.sub(r"<noscript>.*?</noscript>", "", html, flags=re.DOTALL)).tags) for html in (large, small)]
    assert counts[0] < counts[1] + 2500 < 6000
    assert 2000 == len(case_ids(data_of(large)))
    listed = Page(large[large.index("Cases by model and kernel") : large.index('id="cannot"')])
    assert 1000 == sum(text.count("✓ ") for text in listed.words if "/bf16/" in text)
    assert len(listed.tags) < 800


def test_hostile_kernel_name_is_text_everywhere(html: str) -> None:
    """A kernel name with markup in it stays text, in the page and in its attributes."""
    assert "<script>alert" not in html
    assert 1 == html.count("<script>")
    assert 4 <= html.replace("<wbr>", "").count("&lt;script&gt;alert(1)&lt;/script&gt;&#34;&amp;")
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
    assert 8 <= page.text.count(HOSTILE)
    data = data_of(html)
    assert f"{HOSTILE}/prefill/x/bf16/causal/{HOSTILE}" in case_ids(data)
    assert 4 <= json.dumps(data).count(json.dumps(HOSTILE)[1:-1])


def test_every_case_is_on_the_page(facts: Any, html: str) -> None:
    """No case is left out, whatever became of it, and each has the gate's verdict."""
    judged = {judgement.case_id: judgement.verdict for judgement in facts.conclusion.judgements}

    assert judged == verdicts(data_of(html))


def test_every_failure_reads_without_the_data(facts: Any, html: str) -> None:
    """A failed or undecided case stands on the page as text, with its reason: no script is needed."""
    text = Page(html[: html.index('<script type="text/plain"')]).text
    bad = [judgement for judgement in facts.conclusion.judgements if judgement.verdict in ("FAIL", "INCONCLUSIVE")]

    assert 6 == len(bad)
    assert [] == [judgement.case_id for judgement in bad if judgement.case_id not in text]
    assert [] == [
        it.reasons[0] for it in bad if it.reasons[0].removeprefix("census: ").removeprefix("budget: ") not in text
    ]


def test_refusals_show_their_reasons(facts: Any, html: str) -> None:
    """A refusal shows why as text, those with one reason together, and each case has its own in the data."""
    page, data = Page(html), data_of(html)
    reasons = {
        reason for record in facts.records if isinstance(record.outcome, Refused) for reason in record.outcome.reasons
    }
    of_cases = {data["texts"][number] for case in data["cases"] for number in case[10]}

    assert 6 == len(reasons)
    assert [] == [reason for reason in reasons if reason not in page.text]
    assert reasons <= of_cases
    assert "10 cases for 7 reasons" in re.sub(r"\s+", " ", page.text)


def test_ids_in_summaries_may_be_broken_after_each_part(html: str) -> None:
    """As in tables: a phone has no room for a whole id, and a break within a number would change it."""
    ids = re.findall(
        r"<summary>(?:(?!</summary>).)*?<code>(.*?)</code>", html[: html.index('<script type="text/plain"')]
    )

    assert len(ids) >= 6
    assert [] == [it for it in ids if it.count("/") != it.count("/<wbr>")]


def test_a_ceiling_is_explained_where_it_stands(build: Callable[..., Any], facts: Any) -> None:
    """Each bound in words, and what no kernel can be faster than: the name of a bound alone says nothing."""
    timed = [it for it in facts.records if isinstance(it.outcome, Measured) and it.outcome.evidence.timing]
    bounds = get_args(Bound)
    records = []
    for record, bound in zip(timed, bounds, strict=False):
        evidence = record.outcome.evidence
        timing = replace(evidence.timing, bound=bound)
        records.append(replace(record, outcome=Measured(evidence=replace(evidence, timing=timing))))
    texts = data_of(html_of(build(records)))["texts"]

    assert 4 == len([it for it in texts if it.startswith("No kernel can be faster than its arithmetic")])
    assert 4 == len([it for it in texts if " at best, for " in it])
    assert [] == [it for it in texts for bound in bounds if f"{bound}-bound" in it]


def test_checks_that_pass_are_counted_as_they_are_named(html: str) -> None:
    """A check that says pass of two inputs is one check, and one that fails on other inputs is not among them."""
    told = re.findall(r"✓ (\d+) checks? pass(?:es)?: ([^<]+)</summary>", html)

    assert [len(names.split(", ")) for _, names in told] == [int(number) for number, _ in told]
    assert ("1", "lse") in told


def test_verdicts_have_a_word_and_a_glyph(html: str) -> None:
    """Colour is never the only sign of a verdict: not in the map, not in the list."""
    told = re.sub(r"\s+", " ", html[html.index('id="overview"') : html.index('id="pictures"')])
    glyphs = {name: (glyph, word) for name, glyph, word in data_of(html)["verdicts"]}

    assert ("✓", "pass") == glyphs["PASS"]
    assert 5 == len({glyph for glyph, _ in glyphs.values()})
    for name in ("PASS", "FAIL", "WAIVED", "INCONCLUSIVE"):
        assert f'<span class="swatch {name}">{glyphs[name][0]}</span> {glyphs[name][1]}</li>' in told
    assert {"✓", "✗", "?"} <= {text[0] for text in re.findall(r'class="by-verdict"[^>]*>([^<]+)<', told)}


def test_tables_have_scoped_headers_and_pictures_have_names(html: str) -> None:
    """A screen reader can tell rows from columns, and reads what a picture shows."""
    tags = Page(html).tags

    assert set() == {attributes.get("scope", "none") for tag, attributes in tags if tag == "th"} - {
        "row",
        "col",
        "rowgroup",
    }
    assert all("aria-label" in attributes or "aria-hidden" in attributes for tag, attributes in tags if tag == "svg")


def test_failures_stand_before_everything_else(html: str) -> None:
    """Why not comes before the answers, and the list of all cases begins with the worst verdict."""
    found = re.findall(r'<section id="(\w+)"', html)
    order = list(dict.fromkeys(verdicts(data_of(html)).values()))

    assert ["why", "answers"] == found[:2]
    assert ["FAIL", "INCONCLUSIVE", "WAIVED", "PASS", "NOT_REQUIRED"] == order


def test_what_failed_is_in_view(facts: Any, html: str) -> None:
    """The models and kernels that failed stand first in the table of answers and on the map."""
    answers = html[html.index('<table class="answers">') : html.index('id="overview"')]
    heads = re.findall(r'rotate\(-80\)">([^<]+)</text>', html)
    failed = {item.case_id.rpartition("/")[2] for item in facts.conclusion.judgements if item.verdict == "FAIL"}

    assert "llama-3.1-8b.tp1" == re.findall(r'<th scope="row">([^<]+)</th>', answers)[0]
    assert failed == set(heads[: len(failed)])


def test_refused_cases_have_no_details(facts: Any, html: str) -> None:
    """A case that no device touched has its reasons and nothing to open."""
    ran = [record for record in facts.records if record.outcome.outcome not in ("refused", "not_run")]

    assert len(ran) == sum(case[11] != 0 for case in data_of(html)["cases"])


def test_a_run_without_a_stack_or_a_case_still_gives_a_page(build: Callable[..., Any]) -> None:
    """An interrupted run has no worker, no ceilings and perhaps no case."""
    empty = build([])
    run = replace(empty.run, stack=None, ceilings=None, finished_at=None, state="interrupted")
    page = Page(render_html(report_context(run, [], empty.conclusion)))

    assert ([], []) == (page.problems, page.open)
    assert "not finished (interrupted)" in page.text
    assert "no process that runs kernels reported one" in page.text
