"""The gate judges time by the history of runs: what is found, what it cannot tell, and that every format says so."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest
from builders import make_evidence, make_finding, make_timing
from duels import make_cell, make_duel
from sealing import new_pair
from stored_runs import IDS, MATRIX, NOW, make_stack, shipped_kernels, store_run

from qualify.cards.load import parse_matrix
from qualify.errors import CardError
from qualify.facts.case import Case
from qualify.facts.outcome import Measured, Outcome, Refused
from qualify.facts.performance import CellChange
from qualify.facts.run import Run
from qualify.judge.history import histories
from qualify.judge.judged import Judged, judge
from qualify.judge.timed import with_performance
from qualify.report.formats import junit, sarif
from qualify.report.formats.interface import OutputOptions
from qualify.report.verdict_json import to_data
from qualify.report.verdict_text import to_text
from qualify.run.measure.timing import shared
from qualify.seal.duel_form import seal_duel
from qualify.store.store import Store
from qualify.verdict.origin import taken_over

BUDGET = """\
policy:
  performance:
    evidence: {0}
    budgets:
      - {{of: cell, percent: 5}}
"""
OPTIONS = OutputOptions(now=NOW)
OLD, NEW = make_stack(torch="2.10.0"), make_stack()
Factor = Callable[[Case, bool], float]
"""by which a case takes longer, on the new stack or the old one"""


def one_slower(case: Case, new: bool) -> float:
    """The first case takes 12 % longer on the new stack."""
    return 1.12 if new and case.id == IDS[0] else 1.0


def unchanged(case: Case, new: bool) -> float:
    """Nothing."""
    return 1.0


def write(tmp_path: Path, evidence: str = "history") -> Path:
    """The matrix with a budget of 5 % for each cell."""
    (tmp_path / "serving.yaml").write_text(MATRIX + BUDGET.format(evidence))
    return tmp_path / "serving.yaml"


def nights(
    store: Store, path: Path, factor: Factor = unchanged, *, before: int = 10, since: int = 5, card_factor: float = 1.0
) -> Run:
    """So many runs on the old stack and on the new one, each on a day with a temper of its own; the newest."""
    run = None
    for night in range(before + since):
        new = night >= before
        temper = 1 + 0.01 * ((night * 7) % 5)

        def timed(case: Case, new: bool = new, temper: float = temper, night: int = night) -> Measured:
            noise = 1 + 0.002 * ((night * 3 + len(case.id)) % 5)
            day = temper * (card_factor if new else 1.0)
            us = 100 * day * noise * factor(case, new)
            timing = make_timing(us, roofline_us=50.0 * temper)
            return Measured(evidence=replace(make_evidence(), timing=timing))

        age = timedelta(hours=12 * (before + since - night))
        run = store_run(store, path, timed, age=age, stack=NEW if new else OLD)
    assert run is not None
    return run


def judged(store: Store, run: Run, *, required: bool = False) -> Judged:
    """The verdict as the gate makes it."""
    found = judge(store, run.id, shipped_kernels(), now=NOW)
    return with_performance(store, found, now=NOW, max_age=timedelta(days=30), required=required)


def cells_of(found: Judged) -> dict[str, CellChange]:
    """What the first budget shows."""
    assert found.performance is not None
    return {it.cell: it for use in found.performance.budgets for it in use.cells}


def test_a_slower_kernel_fails_and_every_format_says_by_what(store: Store, tmp_path: Path) -> None:
    """12 % behind a card whose days differ by 4 %: exit 1, with the interval and the runs that it comes from."""
    found = judged(store, nights(store, write(tmp_path), one_slower))
    assert ("FAIL", 1) == (found.conclusion.verdict, found.conclusion.exit_code)
    (slow,) = cells_of(found).values()
    assert (IDS[0], "SLOWER", "history", "10 runs before and 5 since") == (
        *(slow.cell, slow.verdict, slow.evidence, slow.basis),
    )
    assert slow.change == pytest.approx(0.12, abs=0.01)
    interval = f"{slow.change:+.1%} [{slow.low:+.1%}, {slow.high:+.1%}]"
    told = f"{IDS[0]}: SLOWER, {interval} (history: 10 runs before and 5 since)"
    text = to_text(found, NOW)
    assert told in text
    assert "budget of each cell (+5.0%) is exceeded, by the history of runs: " in text
    assert "time: 0 of 1 budgets hold against the runs before (history)" in text
    assert "history" == to_data(found)["performance"]["budgets"][0]["cells"][0]["evidence"]
    (result,) = [
        it for it in json.loads(sarif.render(found, OPTIONS))["runs"][0]["results"] if it["ruleId"] == "performance"
    ]
    assert told in result["message"]["text"]
    failed = fromstring(junit.render(found, OPTIONS)).iter("failure")
    assert any(told in (it.text or "") for it in failed)


@pytest.mark.parametrize(
    ("factor", "verdict", "code"),
    [(0.85, "FASTER", 0), (0.96, "AMBIGUOUS", 0), (1.04, "AMBIGUOUS", 5), (1.12, "SLOWER", 1)],
)
def test_a_change_has_a_name_only_beyond_what_history_can_tell(
    store: Store, tmp_path: Path, factor: float, verdict: str, code: int
) -> None:
    """4 % is more than two runs of one stack differ by, and within their interval and the margin: no name for it."""
    found = judged(store, nights(store, write(tmp_path), lambda case, new: factor if new and case.id == IDS[0] else 1))
    assert found.performance is not None
    (cell,) = (it for it in found.performance.cells if it.cell == IDS[0])
    assert (verdict, code) == (cell.verdict, found.conclusion.exit_code)
    assert (verdict == "AMBIGUOUS") == ("a change below 3.5% from noise" in cell.reason), cell.reason


def test_a_budget_that_history_can_keep_holds(store: Store, tmp_path: Path) -> None:
    """Without a change ±3.5 % lies within 5 %."""
    found = judged(store, nights(store, write(tmp_path)))
    assert ("PASS", 0) == (found.conclusion.verdict, found.conclusion.exit_code)
    assert "time: 1 of 1 budgets hold against the runs before (history)" in to_text(found, NOW)


@pytest.mark.parametrize(("us", "code"), [(60.0, 5), (160.0, 0)])
def test_a_kernel_that_served_a_shape_and_cannot_run_now_leaves_the_traffic_open(
    us: float, code: int, store: Store, tmp_path: Path
) -> None:
    """The new stack has no library for the fastest kernel: that the other one is as fast as before says nothing."""
    path = write(tmp_path)
    path.write_text(path.read_text().replace("of: cell", "of: p99"))

    def before(case: Case) -> Outcome:
        return timed_at(us if case.id == IDS[0] else 100.0)

    def since(case: Case) -> Outcome:
        return Refused(by="plan", reasons=("not installed",)) if case.id == IDS[0] else before(case)

    stacks = [(before, OLD)] * 9 + [(since, NEW)] * 4
    runs = [
        store_run(store, path, outcome, age=timedelta(hours=28 - 2 * night), stack=stack)
        for night, (outcome, stack) in enumerate(stacks)
    ]
    found = judged(store, runs[-1])
    assert code == found.conclusion.exit_code, to_text(found, NOW)
    told = f"{IDS[0]}: INCONCLUSIVE, not timed; it took 60.0 µs before, and this run has no time of it (refused)"
    assert (code == 5) == (told in to_text(found, NOW))


def test_times_with_a_warm_cache_are_no_history_of_cold_ones(store: Store, tmp_path: Path) -> None:
    """Launches that cost the host more leave time for fewer copies: a warm cache hides the slower kernel."""
    path = write(tmp_path)
    for night in range(13):
        timing = make_timing(100.0) if night < 9 else make_timing(95.0, cold=False)
        outcome = Measured(evidence=replace(make_evidence(), timing=timing))
        stack = OLD if night < 9 else NEW
        run = store_run(store, path, outcome, age=timedelta(hours=28 - 2 * night), stack=stack)
    found = judged(store, run)
    assert 5 == found.conclusion.exit_code
    why = "not enough history: no run on this card had another stack before; 4 had this one"
    assert f"{why}. Not counted: 9 more runs, with a cold cache" in to_text(found, NOW)


def test_times_of_wrong_results_are_no_history(store: Store, tmp_path: Path) -> None:
    """A kernel that was fast because it was wrong is repaired: that it takes longer now is no slowdown."""
    path = write(tmp_path)

    def wrong(case: Case) -> Outcome:
        found = make_evidence(make_finding("fail", "sees key 9"))
        return Measured(evidence=replace(found, timing=make_timing(60.0))) if case.id == IDS[0] else timed_at(100.0)

    for night in range(13):
        outcome, stack = (wrong, OLD) if night < 9 else (timed_at(100.0), NEW)
        run = store_run(store, path, outcome, age=timedelta(hours=28 - 2 * night), stack=stack)
    found = judged(store, run)
    why = "not enough history: no run on this card had another stack before; 4 had this one"
    assert (5, f"{why}. Not counted: 9 more runs, in which it failed a check") == (
        found.conclusion.exit_code,
        cells_of(found)[IDS[0]].reason,
    )
    failing = judged(store, store_run(store, path, wrong, age=timedelta(hours=1), stack=NEW))
    assert failing.performance is not None
    assert {"9 runs before and 5 since"} == {cell.basis for cell in failing.performance.cells}


@pytest.mark.parametrize(
    ("disturbed", "code", "basis", "told"),
    [
        (set(), 0, "12 runs before and 6 since", ""),
        ({0, 3, 12}, 0, "10 runs before and 5 since", "history leaves out what was timed {}: 12 times"),
        ({12, 13, 14}, 5, "12 runs before and 3 since", "history leaves out what was timed {}: 12 times"),
        (set(range(6)), 5, "6 runs before and 6 since", "history leaves out what was timed {}: 24 times"),
        (set(range(1, 18)), 0, "11 runs before and 6 since", "history counts only what was timed {}, because too few "),
    ],
    ids=["none", "some", "most since", "half before", "almost all"],
)
def test_times_of_a_shared_card_stand_beside_no_others(
    store: Store, tmp_path: Path, disturbed: set[int], code: int, basis: str, told: str
) -> None:
    """Another process makes one case twice as slow: neither slowdown nor history, and a note says what became of it."""
    path = write(tmp_path)
    for night in range(18):

        def outcome(case: Case, others: bool = night in disturbed, night: int = night) -> Measured:
            us = (100 + (night * 3 + len(case.id)) % 3 / 5) * (1.5 if others and case.id == IDS[0] else 1)
            found = make_evidence(make_finding(), *([shared({7})] if others else []))
            return Measured(evidence=replace(found, timing=make_timing(us)))

        age, stack = timedelta(hours=2 * (18 - night)), OLD if night < 12 else NEW
        run = store_run(store, path, outcome, age=age, stack=stack)
    found = judged(store, run)
    assert found.performance is not None
    assert (code, {basis}) == (found.conclusion.exit_code, {cell.basis for cell in found.performance.cells})
    notes = [it for it in found.notes if it.startswith("history ")]
    begins = [told.format("while another process used the card")] if told else []
    assert all(note.startswith(own) for note, own in zip(notes, begins, strict=True)), notes
    assert all(note in to_text(found, NOW) for note in notes)


def test_a_budget_below_the_known_error_is_never_green(store: Store, tmp_path: Path) -> None:
    """Two runs differ by 3.5 % without any change, so 3 % stays undecided, and a duel is advised."""
    path = write(tmp_path)
    path.write_text(path.read_text().replace("percent: 5", "percent: 3"))
    found = judged(store, nights(store, path))
    assert ("INCONCLUSIVE", 5) == (found.conclusion.verdict, found.conclusion.exit_code)
    text = to_text(found, NOW)
    assert "history cannot tell a change below 3.5% from noise; a duel can" in text
    assert f"do: decide what is open by a duel: qualify duel {OLD.fingerprint} here" in text


@pytest.mark.parametrize(
    ("before", "since", "why"),
    [
        (0, 6, "not enough history: no run on this card had another stack before; 6 had this one"),
        (
            *(9, 2),
            "not enough history on this card: 9 runs before this stack and 2 with it; 8 and 4 are needed",
        ),
        (
            *(3, 5),
            "not enough history on this card: 3 runs before this stack and 5 with it; 8 and 4 are needed",
        ),
    ],
)
def test_a_short_history_is_no_verdict(before: int, since: int, why: str, store: Store, tmp_path: Path) -> None:
    """Exit 5, and plain words."""
    found = judged(store, nights(store, write(tmp_path), before=before, since=since))
    assert 5 == found.conclusion.exit_code
    text = to_text(found, NOW)
    assert f"time: no history counts: {why}" in text.splitlines()
    assert (before > 0) == ("or give history more runs of this stack on this card" in text), (
        "they are no runs before it"
    )
    assert "the history of runs counts" in junit.render(found, OPTIONS)


def test_what_slows_all_cases_alike_is_not_green(store: Store, tmp_path: Path) -> None:
    """The anchor hides 10 % on every case; the ceilings of the same runs do not."""
    found = judged(store, nights(store, write(tmp_path), card_factor=1.10))
    assert ("INCONCLUSIVE", 5) == (found.conclusion.verdict, found.conclusion.exit_code)
    assert all(it.high is not None and it.high > 0.10 for it in cells_of(found).values())


def test_a_case_beside_faster_ones_does_not_fail(store: Store, tmp_path: Path) -> None:
    """Three cases that became 15 % faster make the fourth look slower: that is no proof."""

    def others_faster(case: Case, new: bool) -> float:
        return 0.85 if new and case.id != IDS[0] else 1.0

    assert 5 == judged(store, nights(store, write(tmp_path), others_faster)).conclusion.exit_code


def test_a_time_that_was_taken_over_counts_once(store: Store, tmp_path: Path) -> None:
    """Three runs that repeat what the first one measured are one run of history."""
    path = write(tmp_path)
    first = store_run(store, path, lambda case: timed_at(100.0), age=timedelta(hours=9))
    for age in (8, 7, 6):
        store_run(store, path, lambda case: taken_over(timed_at(100.0), first), age=timedelta(hours=age))
    assert [1] == [len(series.points) for series in histories(store, "serving", IDS[0])]


def test_edited_times_of_the_runs_before_hide_no_slowdown(store: Store, tmp_path: Path) -> None:
    """Somebody raised them by 12 % in the database: they count no more, and a note names the first of these runs."""
    run = nights(store, write(tmp_path), one_slower)
    old = [it.id for it in reversed(store.runs()) if it.stack == OLD]
    cases = f"select key from cases where run_id in ({', '.join('?' * len(old))}) and case_id = ?"
    with closing(sqlite3.connect(store.where)) as database, database:
        change = f"update outcomes set latency_us = latency_us * 1.12 where case_key in ({cases})"
        assert len(old) == database.execute(change, (*old, IDS[0])).rowcount
    found = judged(store, run)
    assert 5 == found.conclusion.exit_code
    begins = f"edited times do not count. Runs that have some: 10, first {old[0]}, {IDS[0]}: the latency is 11"
    assert any(note.startswith(begins) for note in found.notes), found.notes
    told: list[str] = []
    assert [5] == [len(series.points) for series in histories(store, None, IDS[0], tell=told.append)]
    assert (1, begins) == (len(told), told[0][: len(begins)])


def timed_at(us: float) -> Measured:
    """An outcome with that time."""
    return Measured(evidence=replace(make_evidence(), timing=make_timing(us)))


def test_either_takes_the_duels_word_first(store: Store, tmp_path: Path) -> None:
    """A duel has timed one case; history judges the other three, and a slowdown there fails."""
    run = nights(store, write(tmp_path, "either"), one_slower)
    store.add_duel(make_duel(run, make_cell(IDS[0], 0.003)))
    found = judged(store, run)
    assert 0 == found.conclusion.exit_code, cells_of(found)
    assert "1 of 1 budgets hold against old (duel-20261121T025000Z-000001 and history)" in to_text(found, NOW)
    (use,) = found.performance.budgets if found.performance else ()
    assert ("duel", "history") == use.evidence


def test_history_speaks_for_a_cell_that_a_duel_did_not_time(store: Store, tmp_path: Path) -> None:
    """B crashed there: a slowdown that history shows is no open end. Where nothing tells, the duel gives the reason."""
    run = nights(store, write(tmp_path, "either"), one_slower)
    crashed = {"verdict": "INCONCLUSIVE", "ratios": {}, "way": None, "reason": "B (k): it crashed"}
    lost = replace(make_cell(IDS[0]), **crashed)
    store.add_duel(make_duel(run, lost, *map(make_cell, IDS[1:])))
    found = judged(store, run)
    assert (1, {IDS[0]: "history"}) == (
        found.conclusion.exit_code,
        {cell.cell: cell.evidence for cell in cells_of(found).values()},
    )
    short = store_run(store, tmp_path / "serving.yaml", timed_at(100.0), stack=make_stack(torch="2.12.0"))
    alone = make_duel(short, lost, *map(make_cell, IDS[1:]), id="duel-20261121T025500Z-000002")
    store.add_duel(alone)
    (told,) = cells_of(judged(store, short)).values()
    assert ("duel", "B (k): it crashed") == (told.evidence, told.reason)


def test_either_without_a_duel_is_history_unless_one_is_required(store: Store, tmp_path: Path) -> None:
    """`--require-duel` asks for one whatever the matrix says."""
    run = nights(store, write(tmp_path, "either"))
    assert 0 == judged(store, run).conclusion.exit_code
    found = judged(store, run, required=True)
    assert 5 == found.conclusion.exit_code
    assert "no duel of serving is stored" in to_text(found, NOW)


def test_a_required_duel_is_not_replaced_by_the_history(store: Store, tmp_path: Path) -> None:
    """Whoever asks the gate for one, or writes so into the matrix, gets no green one from a history that holds."""
    path = write(tmp_path)
    run = nights(store, path)
    found = judged(store, run, required=True)
    assert found.performance is not None
    assert (5, "no duel of serving is stored") == (found.conclusion.exit_code, found.performance.why_not)
    path.write_text(MATRIX + "policy: {performance: {require: duel}}\n")
    assert 5 == judged(store, store_run(store, path, timed_at(100.0), age=timedelta(minutes=5))).conclusion.exit_code


def test_either_with_neither_says_what_both_lack(store: Store, tmp_path: Path) -> None:
    """A reader can end the doubt by a duel, or by more nights."""
    found = judged(store, nights(store, write(tmp_path, "either"), before=3))
    assert found.performance is not None
    told = "no duel of serving is stored; not enough history on this card: 3 runs before this stack and 5 with it; "
    assert found.performance.why_not.startswith(told)


def test_either_says_that_history_could_not_be_read(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An install without scipy reads no history: nobody shall think that there was none."""
    run = nights(store, write(tmp_path, "either"))
    monkeypatch.setattr("qualify.judge.timed.missing", lambda: ["numpy", "scipy"])
    found = judged(store, run)
    assert 5 == found.conclusion.exit_code
    assert "history needs numpy and scipy, which this interpreter lacks: pip install" in to_text(found, NOW)


def test_a_duel_alone_judges_by_default(store: Store, tmp_path: Path) -> None:
    """A history that would hold the budget is not asked."""
    path = write(tmp_path)
    path.write_text(path.read_text().replace("    evidence: history\n", ""))
    assert 5 == judged(store, nights(store, path)).conclusion.exit_code


def test_unsealed_runs_are_no_history_where_seals_are_asked_for(store: Store, tmp_path: Path) -> None:
    """Only what one of the keys sealed counts."""
    run = nights(store, write(tmp_path))
    pair = new_pair(tmp_path)
    store.add_duel(fought := make_duel(run, make_cell(IDS[0])), seal_duel(fought, pair.signing))
    found = judge(store, run.id, shipped_kernels(), now=NOW)
    sealed = with_performance(store, found, now=NOW, max_age=None, keys=pair.trusted)
    assert sealed.performance is not None
    assert "not enough history" in sealed.performance.why_not


def test_a_policy_cannot_ask_for_a_duel_and_let_none_count(tmp_path: Path) -> None:
    """The card is refused, with the way out."""
    text = MATRIX + "policy: {performance: {require: duel, evidence: history}}\n"
    with pytest.raises(CardError, match="write evidence: either"):
        parse_matrix(text, "serving.yaml")
