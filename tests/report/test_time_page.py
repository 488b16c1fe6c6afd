"""The section on time: each budget, the duel that judged it, its cells in words, and the command without one."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape
from typing import Any

from report_examples import HOSTILE, facts_of, grid
from stored_runs import NOW

from qualify.facts.duel import DuelVerdict
from qualify.facts.performance import BudgetUse, BudgetVerdict, CellChange, Performance
from qualify.facts.run import Conclusion
from qualify.facts.typed import Typed
from qualify.report.beside import Beside
from qualify.report.context import ReportContext, report_context
from qualify.report.document import to_json
from qualify.report.page import render_html
from qualify.verdict.gate import forbid_regression

DUEL = "duel-20261121T025000Z-000001"
CELL = "llama-3.1-8b.tp1/decode/b1.q1.k1024.p16/bf16/causal/flash-attn-3"


def change(verdict: DuelVerdict, at: float | None, cell: str = CELL, reason: str = "") -> CellChange:
    """A cell with an interval of half a percent."""
    low, high = (None, None) if at is None else (at - 0.005, at + 0.005)
    return CellChange(
        cell=cell,
        phase="decode",
        verdict=verdict,
        evidence="duel",
        basis=DUEL,
        change=at,
        low=low,
        high=high,
        before_us=None if at is None else 100.0,
        reason=reason,
    )


def performance(verdict: BudgetVerdict, *cells: CellChange, why_not: str = "") -> Performance:
    """One budget of decode cells that came to a verdict, or the lack of a duel."""
    worst = cells[0] if cells else change("SAME", None)
    use = BudgetUse(
        phase="decode",
        of="cell",
        allowed=0.05,
        verdict=verdict,
        change=worst.change,
        low=worst.low,
        high=worst.high,
        evidence=("duel",),
        cells=() if verdict == "PASS" else cells,
    )
    return Performance(
        accepted="duel",
        duel="" if why_not else DUEL,
        at=None if why_not else NOW,
        against="" if why_not else "old",
        stack_a="" if why_not else "ab" * 32,
        budgets=() if why_not else (use,),
        cells=cells,
        why_not=why_not,
        required=True,
    )


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
    context = context_of(performance("FAIL", change("SLOWER", 0.08), change("SAME", 0.001, "other")))
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
    context = context_of(performance("PASS", change("FASTER", -0.1), change("SLOWER", 0.02, "other")))
    html = render_html(context)
    assert context.why.empty
    assert f"1 of 1 budgets hold against old ({DUEL})" in text_of(html)
    assert "▼ faster -10.0 % -10.5 % to -9.5 %" in text_of(html)
    assert "▲ slower" in text_of(html)
    assert json.loads(to_json(context))["performance"]["verdict"] == "PASS"


def test_undecided_cells_say_why() -> None:
    """No verdict: the cell is undecided or was not timed, with the reason."""
    cells = change("AMBIGUOUS", 0.05), change("INCONCLUSIVE", None, "other", "B crashed")
    text = text_of(render_html(context_of(performance("INCONCLUSIVE", *cells))))
    assert "? undecided" in text
    assert "other – no valid time – – a duel B crashed" in text


def test_without_a_duel_the_page_gives_the_command() -> None:
    """Neither the verdict nor the section pretends to know."""
    context = context_of(performance("INCONCLUSIVE", why_not="no duel of hopper-serving is stored"))
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
    found: Any = performance("FAIL", change("SLOWER", 0.08, HOSTILE, HOSTILE))
    assert "<script>alert" not in render_html(context_of(replace(found, against=HOSTILE)))
