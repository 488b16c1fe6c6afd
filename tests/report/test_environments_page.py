"""The page names each environment of the run, what differs there, and where each case ran."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser

from page_data import data_of
from report_examples import facts_of, make_case, make_evidence, make_run

from qualify.facts.environment import Environment
from qualify.facts.outcome import Measured
from qualify.facts.run import Record, Run
from qualify.facts.stack import Component, Stack
from qualify.report.context import report_context
from qualify.report.document import to_json
from qualify.report.environments import environment_views
from qualify.report.page import render_html

HOSTILE = "/opt/<b>next</b>/bin/python"


class Words(HTMLParser):
    """The text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.feed(html)

    def handle_data(self, data: str) -> None:
        """Notes a piece of it."""
        self.words.append(data)


def changed(stack: Stack, **versions: str) -> Stack:
    """The stack with other versions, and with another file mapped."""
    parts = tuple(replace(part, version=versions.get(part.name, part.version)) for part in stack.components)
    return replace(stack, components=(*parts, Component(kind="binary", name="x.so", version="", digest="ab" * 32)))


def run() -> Run:
    """A run with an environment of another torch, and one that reported nothing."""
    base = make_run()
    assert base.stack is not None
    there = changed(base.stack, torch="2.13.0+cu131")
    environments = {"next": Environment(python=HOSTILE, stack=there), "silent": Environment(python="/opt/s/bin/python")}
    return replace(base, environments=environments)


def record(kernel: str) -> Record:
    """A case that passed."""
    case = make_case("llama-3.1-8b.tp1", "prefill", "flash-attn-3")
    named = replace(case, id=f"{case.cell}/{kernel}", kernel=kernel)
    return Record(case=named, outcome=Measured(evidence=make_evidence("flash-attn-3")))


def test_only_versions_are_named() -> None:
    """Not the files that a process mapped, and no digest beside versions that differ."""
    first, second = environment_views(run())
    assert "torch 2.11.0+cu130 → 2.13.0+cu131" == first.differs
    assert "nobody reported what it ran on: its evidence does not count" == second.differs
    same = replace(run(), environments={"same": Environment(python="/p", stack=make_run().stack)})
    assert ["no version differs from this interpreter"] == [view.differs for view in environment_views(same)]


def test_the_page_lists_them() -> None:
    """With the interpreter as text, whatever it is called; each case says where it ran."""
    records = [record("flash-attn-3"), record("flash-attn-3@next")]
    facts = facts_of(records)
    context = report_context(run(), records, facts.conclusion)
    html = render_html(context)
    words = [word.strip() for word in Words(html.replace("<wbr>", "")).words]
    assert HOSTILE in words
    assert "torch 2.11.0+cu130 → 2.13.0+cu131" in words
    data = data_of(html)
    facts_of_cases = [[tuple(data["texts"][at] for at in fact) for fact in case[11][4]] for case in data["cases"]]
    assert 1 == sum(("Environment", "next") in its for its in facts_of_cases)
    assert f"--environment 'next={HOSTILE}'" in context.repeat
    document = json.loads(to_json(context))
    assert ["", "next"] == [case["environment"] for case in document["cases"]]
    assert ["next", "silent"] == [one["name"] for one in document["environments"]]
    assert [None] == [one["stack"] for one in document["environments"][1:]]


def test_a_run_of_one_interpreter_has_no_such_section() -> None:
    """Nothing to read where there is nothing to compare."""
    facts = facts_of([record("flash-attn-3")])
    html = render_html(report_context(make_run(), facts.records, facts.conclusion))
    assert "What differs from this interpreter" not in html
