"""The section on time: each budget, the duel that judged it, its cells in words, and the command without one."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape
from typing import Any

from report_examples import CELL, DUEL, HOSTILE, cell_change, facts_of, grid, performance_of

from qualify.facts.performance import Performance
from qualify.facts.run import Conclusion
from qualify.facts.typed import Typed
from qualify.report.beside import Beside
from qualify.report.context import ReportContext, report_context
from qualify.report.document import to_json
from qualify.report.page import render_html
from qualify.verdict.gate import forbid_regression


def context_of(found: Performance | None) -> ReportContext:
    """The page of a run in which every case passed, under these budgets of time."""
    facts = facts_of(grid(("llama-3.1-8b.tp1",), (1024,), ("prefill",)))
    conclusion: Conclusion = forbid_regression(facts.conclusion, found) if found else facts.conclusion
    run = replace(facts.run, select="")
    beside = Beside(performance=found, typed=Typed(cards=("my cards",), db="secret.db"))
    return report_context(run, facts.records, conclusion, beside)


def text_of(html: str) -> str:
    """What a reader sees of the section on time."""
    section = html[html.index('<section id="time"') :]
    told = re.sub(r"<[^>]+>", " ", section[: section.index("</section>")].replace("<wbr>", ""))
    return re.sub(r"\s+", " ", unescape(told))


def test_a_budget_that_is_exceeded_stands_first_and_names_its_cell() -> None:
    """Why not has the cell, its change with the interval and the command; the section has the duel and all cells."""
    context = context_of(performance_of("FAIL", cell_change("SLOWER", 0.08), cell_change("SAME", 0.001, "other")))
    (told,) = context.why.hindrances
    assert ("FAIL", "The budget of each cell, decode (+5.0%) is exceeded, by a duel: +8.0% [+7.5%, +8.5%]") == (
        told.verdict,
        told.title,
    )
    assert f"{CELL}: SLOWER, +8.0% [+7.5%, +8.5%] ({DUEL}) and 1 more cell." in told.detail
    assert f"qualify duel {'ab' * 32} here 'matrices/hopper serving.yaml' --cards 'my cards'" == told.command
    text = text_of(render_html(context))
    assert "✗ exceeded each cell, decode +5.0 % +8.0 % +7.5 % to +8.5 %" in text
    assert f"{CELL} ▲ slower +8.0 % +7.5 % to +8.5 % a duel" in text
    assert "other = the same" in text
    assert DUEL in text
    assert "Not qualified" == context.headline
    assert f"time: 0 of 1 budgets hold against old ({DUEL})" in context.summary


def test_budgets_that_hold_are_told_with_their_cells() -> None:
    """A reviewer sees what was compared also where nothing is wrong."""
    context = context_of(performance_of("PASS", cell_change("FASTER", -0.1), cell_change("SLOWER", 0.02, "other")))
    html = render_html(context)
    assert context.why.empty
    assert f"1 of 1 budgets hold against old ({DUEL})" in text_of(html)
    assert "▼ faster -10.0 % -10.5 % to -9.5 %" in text_of(html)
    assert "▲ slower" in text_of(html)
    assert json.loads(to_json(context))["performance"]["verdict"] == "PASS"


def test_undecided_cells_say_why() -> None:
    """No verdict: the cell is undecided or was not timed, with the reason."""
    cells = cell_change("AMBIGUOUS", 0.05), cell_change("INCONCLUSIVE", None, "other", "B crashed")
    text = text_of(render_html(context_of(performance_of("INCONCLUSIVE", *cells))))
    assert "? undecided" in text
    assert "other – no valid time – – a duel B crashed" in text


def test_without_a_duel_the_page_gives_the_command() -> None:
    """Neither the verdict nor the section pretends to know."""
    context = context_of(performance_of("INCONCLUSIVE", why_not="no duel of hopper-serving is stored"))
    (told,) = context.why.hindrances
    assert ("INCONCLUSIVE", "No duel counts yet") == (told.verdict, told.title)
    assert told.command.startswith("qualify duel BEFORE here")
    text = text_of(render_html(context))
    assert "no duel counts: no duel of hopper-serving is stored" in text
    assert "qualify duel BEFORE here 'matrices/hopper serving.yaml' --cards 'my cards'" in text
    assert "secret.db" not in text


def test_a_matrix_without_budgets_has_no_such_section() -> None:
    """Nothing is said about time where nobody asked."""
    context = context_of(None)
    assert 'id="time"' not in render_html(context)
    assert json.loads(to_json(context))["performance"] is None


def test_hostile_names_of_cells_stay_text() -> None:
    """A cell and a side come from outside."""
    found: Any = performance_of("FAIL", cell_change("SLOWER", 0.08, HOSTILE, HOSTILE))
    assert "<script>alert" not in render_html(context_of(replace(found, against=HOSTILE)))
