"""Budgets of time, weaker evidence, sign-offs and waivers: no part of the report contradicts the gate on them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape
from typing import Any, get_args

from any_runs import KERNELS, MODELS, PHASES, runs
from hypothesis import given, settings
from hypothesis import strategies as st
from report_examples import signed
from stored_runs import NOW

from qualify.cards.policy import TimeBudget
from qualify.facts.duel import DUEL_VERDICTS
from qualify.facts.people import SignOffState
from qualify.facts.performance import CellChange, Performance
from qualify.facts.weaker import Less, LessKind, Weaker
from qualify.judge.judged import Judged
from qualify.judge.signing import why_not_signed
from qualify.report.beside import beside_of
from qualify.report.context import ReportContext, report_context
from qualify.report.document import to_json
from qualify.report.page import render_html
from qualify.report.verdict_text import to_text
from qualify.verdict.gate import forbid_regression, forbid_weaker
from qualify.verdict.performance import use_budgets, worst_first

SHARES = st.sampled_from([-0.2, -0.01, 0.0, 0.019, 0.02, 0.03, 0.05, 0.4])
TOLD = {"PASS": "✓ holds", "FAIL": "✗ exceeded", "INCONCLUSIVE": "? undecided"}


@st.composite
def changes(draw: Any) -> CellChange:
    """What a duel may say about a cell: any verdict beside any interval, or no time."""
    phase, verdict = draw(st.sampled_from(PHASES)), draw(st.sampled_from(DUEL_VERDICTS))
    timed = verdict != "INCONCLUSIVE"
    ends = sorted(draw(st.tuples(SHARES, SHARES, SHARES)))
    low, change, high = ends if timed else (None, None, None)
    return CellChange(
        cell=f"{draw(st.sampled_from(MODELS))}/{phase}/b1.q{draw(st.integers(1, 3))}/bf16/causal/{KERNELS[0]}",
        phase=phase,
        verdict=verdict,
        evidence="duel",
        basis="duel-1",
        change=change,
        low=low,
        high=high,
        before_us=100.0 if timed else None,
        reason="" if timed else "B crashed",
    )


@st.composite
def performances(draw: Any) -> Performance | None:
    """No budget, budgets without a duel, or budgets that random cells keep, break or leave open."""
    kind = draw(st.sampled_from(["none", "no duel", "duel", "duel"]))
    if kind == "none":
        return None
    budgets = [
        TimeBudget(
            phase=draw(st.sampled_from([None, *PHASES])),
            of=draw(st.sampled_from(["cell", "mean", "p50", "p99"])),
            percent=draw(st.sampled_from([2.0, 5.0])),
        )
        for _ in range(draw(st.integers(1, 3)))
    ]
    cells = draw(st.lists(changes(), min_size=1, max_size=4, unique_by=lambda it: it.cell))
    found = kind == "duel"
    return Performance(
        accepted="duel",
        duel="duel-1" if found else "",
        at=NOW if found else None,
        against="old" if found else "",
        stack_a="ab" * 32 if found else "",
        budgets=use_budgets(cells, budgets, {}) if found else (),
        cells=tuple(sorted(cells, key=worst_first)) if found else (),
        why_not="" if found else "no duel of serving is stored",
        required=True,
    )


@st.composite
def weakers(draw: Any) -> Weaker | None:
    """Nothing, or some requirements that are weaker, which the policy may forbid."""
    several = st.lists(st.sampled_from(get_args(LessKind)), max_size=3, unique=True)
    kinds = draw(st.one_of(st.just([]), st.just(["level"]), several))
    if not kinds:
        return None
    points = tuple(Less(kind=kind, what=f"its {kind}", then="full", now="smoke") for kind in kinds)
    return Weaker(
        run="r0", accepted_by="jane", proven=True, accepted_at=NOW, changes=points, forbidden=draw(st.booleans())
    )


@st.composite
def judgements(draw: Any) -> Judged:
    """Any run, judged beside any baseline and any duel, signed by anybody."""
    judged: Judged = draw(runs())
    conclusion, weaker, performance = judged.conclusion, draw(weakers()), draw(performances())
    conclusion = forbid_weaker(conclusion, weaker) if weaker else conclusion
    conclusion = forbid_regression(conclusion, performance) if performance else conclusion
    states = draw(st.lists(st.sampled_from(get_args(SignOffState)), max_size=2))
    return replace(
        judged,
        conclusion=conclusion,
        weaker=weaker,
        performance=performance,
        signoffs=tuple(signed(state, number=number) for number, state in enumerate(states, 1)),
    )


def words_of(html: str, section: str) -> str:
    """What a reader sees of a section; empty where the page has none."""
    if f'<section id="{section}"' not in html:
        return ""
    part = html[html.index(f'<section id="{section}"') :]
    told = re.sub(r"<[^>]+>", " ", part[: part.index("</section>")])
    return re.sub(r"\s+", " ", unescape(told))


@settings(max_examples=60, deadline=None)
@given(judgements())
def test_what_stands_beside_a_run_never_contradicts_the_gate(judged: Judged) -> None:
    """Time, Weaker, Sign-off and Waivers say what the gate's conclusion rests on."""
    conclusion = judged.conclusion
    context = report_context(judged.run, judged.records, conclusion, beside_of(judged))
    html, twin = render_html(context), json.loads(to_json(context))
    assert (conclusion.verdict, conclusion.exit_code) == (twin["verdict"], twin["exit_code"])
    assert context.why.empty == (conclusion.verdict == "PASS")
    worst = {it.verdict for it in (*context.why.groups, *context.why.hindrances, *context.why.pathless)}
    assert ("FAIL" in worst) == (conclusion.verdict == "FAIL")
    check_tiles(judged, context)
    check_time(judged, context, words_of(html, "time"), twin)
    check_weaker(judged, context, words_of(html, "weaker"))
    check_signoffs(judged, words_of(html, "signoffs"))
    check_waivers(judged, words_of(html, "waivers"))


def check_tiles(judged: Judged, context: ReportContext) -> None:
    """No tile is red on a run that is not, and on a green one all are green, waived or without a say."""
    conclusion = judged.conclusion
    shown = {tile.verdict for tile in context.tiles}
    assert "FAIL" not in shown or conclusion.verdict == "FAIL"
    if conclusion.verdict == "PASS":
        assert shown <= {"PASS", "WAIVED", "NOT_REQUIRED"}
    (cases,) = (tile for tile in context.tiles if tile.title == "Cases")
    for name in ("FAIL", "INCONCLUSIVE"):
        if cases.verdict == name:
            assert cases.text.startswith(f"{conclusion.counts['verdicts'][name]:,} of ")
    (signing,) = (tile for tile in context.tiles if tile.title == "Signed by")
    assert (signing.verdict == "PASS") == any(it.state == "valid" for it in judged.signoffs)
    assert (signing.text == "nobody yet") == (not judged.signoffs and not why_not_signed(judged))


def check_time(judged: Judged, context: ReportContext, text: str, twin: Any) -> None:
    """Each budget has the gate's word, and none is told as held that is not."""
    found = judged.performance
    assert bool(text) == (found is not None)
    if found is None:
        assert twin["performance"] is None
        return
    assert found.verdict == twin["performance"]["verdict"]
    assert judged.conclusion.verdict != "PASS" or found.verdict == "PASS"
    assert {"FAIL": 1}.get(found.verdict, 0) <= judged.conclusion.exit_code
    for use in found.budgets:
        assert f"{TOLD[use.verdict]} {use.name} " in text
    for word in set(TOLD) - {use.verdict for use in found.budgets}:
        assert f"{TOLD[word]} {found.budgets[0].name if found.budgets else ''} " not in text
    titles = " ".join(it.title for it in context.why.hindrances)
    assert ("is exceeded" in titles) == any(use.verdict == "FAIL" for use in found.budgets)
    assert ("no duel counts" in text) == bool(found.why_not)
    assert f"time: {len([it for it in found.budgets if it.verdict == 'PASS'])} of" in context.summary or found.why_not
    assert ("a budget of time is exceeded" in to_text(judged, NOW)) == (found.verdict == "FAIL")


def check_weaker(judged: Judged, context: ReportContext, text: str) -> None:
    """Weaker evidence that the policy forbids never stands beside a green verdict."""
    weaker = judged.weaker
    assert bool(text) == (weaker is not None)
    if weaker is None:
        return
    assert ("✗ Weaker" in text) == weaker.forbidden
    assert not weaker.forbidden or judged.conclusion.verdict != "PASS"
    assert all(less.what in text for less in weaker.changes)
    told = [it.verdict for it in context.why.hindrances if "Requirements are weaker" in it.title]
    level = {less.kind for less in weaker.changes} == {"level"}
    assert told == ([("INCONCLUSIVE" if level else "FAIL")] if weaker.forbidden else [])


def check_signoffs(judged: Judged, text: str) -> None:
    """The page offers to sign what the gate would let somebody sign, and nothing else."""
    words = {
        "valid": "✓ in force",
        "revoked": "✗ revoked",
        "changed": "! evidence changed since",
        "unproven": "? unproven",
    }
    for state, told in words.items():
        assert (told in text) == any(it.state == state for it in judged.signoffs)
    offered = "qualify signoff" in text
    assert offered == (not why_not_signed(judged) and all(it.state != "valid" for it in judged.signoffs))
    assert not offered or judged.conclusion.verdict == "PASS"
    assert ("nobody can" in text) == (not judged.signoffs and bool(why_not_signed(judged)))


def check_waivers(judged: Judged, text: str) -> None:
    """An expired waiver is told as such, and the run is not qualified."""
    uses = judged.conclusion.waivers
    assert bool(text) == bool(uses)
    assert ("✗ expired" in text) == bool(judged.conclusion.expired)
    assert not judged.conclusion.expired or judged.conclusion.verdict == "FAIL"
    assert all(use.waiver.owner in text for use in uses)
