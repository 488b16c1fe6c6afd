"""Budgets of time: which duel counts, when a budget fails, and that every format names the cell and its interval."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest
from cli_process import call
from duels import BEFORE, make_cell, make_duel
from sealing import new_pair
from stored_runs import CELL, MATRIX, NOW, accept_run, make_stack, shipped_kernels, store_run

from qualify.assets import shipped
from qualify.cards.load import load_matrix
from qualify.cards.policy import TimeBudget
from qualify.cards.traffic import TrafficCard, parse_traffic
from qualify.facts.case import Case
from qualify.facts.duel import Duel, DuelCell
from qualify.facts.environment import Environment
from qualify.facts.run import Run
from qualify.judge.judged import Judged, judge
from qualify.judge.timed import weights, with_performance
from qualify.plan.plan import make_plan
from qualify.report.formats import github, junit, sarif
from qualify.report.formats.interface import OutputOptions
from qualify.report.verdict_json import to_data
from qualify.report.verdict_text import to_text
from qualify.seal.duel_form import seal_duel
from qualify.statistics.verdicts import margin_of
from qualify.store.store import Store
from qualify.verdict.performance import duel_changes, use_budgets, without_budgets

BUDGETS = """\
policy:
  performance:
    budgets:
      - {phase: prefill, of: cell, percent: 5}
      - {of: p99, percent: 3}
"""
OPTIONS = OutputOptions(now=NOW, workspace=None, subjects=(), key=None)


NAMES = [f"{CELL.format(size)}/tiled-torch" for size in (8, 9)]


@pytest.fixture
def run(store: Store, tmp_path: Path) -> Run:
    """A run that passed, of a matrix with budgets."""
    (tmp_path / "serving.yaml").write_text(MATRIX + BUDGETS)
    return store_run(store, tmp_path / "serving.yaml")


def judged(store: Store, run: Run, *, required: bool = False, keys: Any = ()) -> Judged:
    """The verdict as the gate makes it."""
    found = judge(store, run.id, shipped_kernels(), now=NOW)
    return with_performance(store, found, now=NOW, max_age=timedelta(hours=24), required=required, keys=keys)


def test_budgets_that_hold_qualify(store: Store, run: Run) -> None:
    """Also where a cell is slower, by less than it may be."""
    store.add_duel(make_duel(run, make_cell(NAMES[0], 0.02, verdict="SLOWER"), make_cell(NAMES[1])))
    found = judged(store, run)
    assert ("PASS", 0) == (found.conclusion.verdict, found.conclusion.exit_code)
    assert "time: 2 of 2 budgets hold against old (duel-20261121T025000Z-000001)" in to_text(found, NOW).splitlines()


def test_a_slower_cell_fails_and_every_format_names_it(store: Store, run: Run) -> None:
    """With the change and its interval; the exit code is 1."""
    store.add_duel(make_duel(run, make_cell(NAMES[0], 0.08, verdict="SLOWER"), make_cell(NAMES[1])))
    found = judged(store, run)
    assert ("FAIL", 1) == (found.conclusion.verdict, found.conclusion.exit_code)
    told = f"{NAMES[0]}: SLOWER, +8.0% [+7.5%, +8.5%]"
    text = to_text(found, NOW)
    assert "serving: not qualified, and a budget of time is exceeded" in text
    assert told in text
    assert "do: look at the cells that take longer than their budget allows" in text
    assert "FAIL" == to_data(found)["performance"]["verdict"]
    first, second = github.worst_annotations(found, OPTIONS)[:2]
    assert ("error", "error", "a budget of time is exceeded") == (first.level, second.level, second.title)
    assert told in second.message
    results = json.loads(sarif.render(found, OPTIONS))["runs"][0]["results"]
    mine = [result for result in results if result["ruleId"] == "performance"]
    assert any(told in result["message"]["text"] and result["level"] == "error" for result in mine)
    failed = [
        case for case in fromstring(junit.render(found, OPTIONS)).iter("testcase") if case.find("failure") is not None
    ]
    assert any("budget of each cell, prefill (+5.0%)" == case.attrib["name"] for case in failed)
    assert any(told in (case.find("failure").text or "") for case in failed)  # type: ignore[union-attr]


def test_the_traffic_may_hide_no_cell(store: Store, run: Run) -> None:
    """p99 counts the slowest calls: one shape of two that grew by 4 % breaks 3 %, and keeps 5 % of a cell."""
    store.add_duel(make_duel(run, make_cell(NAMES[0], us=50.0), make_cell(NAMES[1], 0.04, verdict="SLOWER", us=200.0)))
    found = judged(store, run)
    assert found.performance is not None
    assert ["PASS", "FAIL"] == [use.verdict for use in found.performance.budgets]
    change = found.performance.budgets[1].change
    assert change is not None
    assert abs(change - 0.04) < 1e-9


@pytest.mark.parametrize(
    "open_",
    [
        make_cell(NAMES[0], 0.05, verdict="AMBIGUOUS", width=0.04),
        make_cell(NAMES[0], 0.2, verdict="AMBIGUOUS", width=0.01),
        replace(make_cell(NAMES[0]), verdict="INCONCLUSIVE", ratios={}, way=None, reason="B (k): it crashed"),
    ],
    ids=["an interval around the budget", "a slowdown that nobody confirmed", "no time"],
)
def test_what_is_undecided_is_no_verdict(open_: DuelCell, store: Store, run: Run) -> None:
    """Exit 5, and the advice is a longer duel."""
    store.add_duel(make_duel(run, open_, make_cell(NAMES[1])))
    found = judged(store, run)
    assert ("INCONCLUSIVE", 5) == (found.conclusion.verdict, found.conclusion.exit_code)
    told = f"do: decide what is open by another duel, with more time: qualify duel {BEFORE.fingerprint} here"
    assert told in to_text(found, NOW)


def test_a_kernel_that_only_the_old_side_can_run_leaves_the_traffic_open(store: Store, run: Run) -> None:
    """It may have served its shape, and nobody knows how fast that is now. A budget of each cell is not about it."""
    gone = f"{CELL.format(8)}/torch-cpu-math"
    store.add_duel(make_duel(run, *map(make_cell, NAMES), only_a=(gone,)))
    found = judged(store, run)
    assert found.performance is not None
    assert ["PASS", "INCONCLUSIVE"] == [use.verdict for use in found.performance.budgets]
    assert f"{gone}: INCONCLUSIVE, not timed; only old can run it" in to_text(found, NOW)


def test_a_wide_interval_within_the_budget_is_enough(store: Store, run: Run) -> None:
    """An ambiguous cell whose whole interval is below the budget keeps it."""
    store.add_duel(make_duel(run, make_cell(NAMES[0], 0.0, verdict="AMBIGUOUS", width=0.02), make_cell(NAMES[1])))
    assert "PASS" == judged(store, run).conclusion.verdict


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"null": True}, "it compares a side with itself"),
        ({"finished_at": NOW - timedelta(days=2)}, "it is older than 1 day"),
        ({"finished_at": NOW + timedelta(days=2)}, "it is dated in the future"),
        ({"select": "*/decode/*"}, "it was narrowed by --select '*/decode/*'"),
        ({"matrix_hash": "0" * 64}, "the matrix has changed since"),
        ({"stack_b": BEFORE}, "its side B (here) ran on another stack than the run"),
    ],
)
def test_a_duel_of_something_else_does_not_count(changes: Mapping[str, Any], why: str, store: Store, run: Run) -> None:
    """No verdict, with the reason."""
    store.add_duel(make_duel(run, make_cell(NAMES[0]), make_cell(NAMES[1]), **changes))
    found = judged(store, run)
    assert 5 == found.conclusion.exit_code
    assert found.performance is not None
    assert why in found.performance.why_not


def test_a_duel_that_came_before_its_date_is_as_old_as_its_coming(store: Store, run: Run, tmp_path: Path) -> None:
    """The clock of the machine where it was fought was ahead by 40 days: on that date it is 40 days old."""
    dated, file, whys = datetime.now(UTC) + timedelta(days=40), tmp_path / "both.jsonl.gz", []
    duel = make_duel(run, *map(make_cell, NAMES), started_at=dated, finished_at=dated)
    store.add_duel(duel)
    store.export_run(run.id, file, duels=[duel.id])
    with Store.open(str(tmp_path / "team.db")) as team:
        team.import_run(file)
        for at in (store, team):
            found = judge(at, run.id, shipped_kernels(), now=NOW)
            found = with_performance(at, found, now=dated, max_age=timedelta(hours=24))
            assert found.performance is not None
            whys.append(found.performance.why_not)
    assert ["", True] == [whys[0], "it is older than 1 day" in whys[1]]


def test_a_duel_that_is_dated_in_the_future_is_told_where_an_older_one_counts(
    store: Store, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be the newest one, and have found the cell slower; however many older ones there are."""
    monkeypatch.setattr("qualify.judge.timed.LOOKED_AT", 2)
    dated = datetime.now(UTC) + timedelta(days=400)
    slower = make_cell(NAMES[0], 0.08, verdict="SLOWER")
    ahead = {"id": "duel-ahead", "started_at": dated, "finished_at": dated}
    for name in ("duel-1", "duel-2"):
        store.add_duel(make_duel(run, *map(make_cell, NAMES), id=name))
    store.add_duel(make_duel(run, slower, make_cell(NAMES[1]), **ahead | {"id": "duel-null", "null": True}))
    before = judged(store, run)
    store.add_duel(make_duel(run, slower, make_cell(NAMES[1]), **ahead))
    found = judged(store, run)
    assert before.performance == found.performance
    (note,) = set(found.notes) - set(before.notes)
    told = f"dated in the future ({dated:%Y-%m-%d %H:%M} UTC), because a clock was wrong. Its cells: 1 SLOWER, 1 SAME"
    assert f"duel-ahead does not count, though it may be the newest: it is {told}. Fight it again" == note


def test_a_duel_of_equal_stacks_shows_no_upgrade(store: Store, run: Run, tmp_path: Path) -> None:
    """Two environments with the libraries of today say nothing about those of the baseline."""
    assert run.stack is not None
    store.add_duel(make_duel(run, make_cell(NAMES[0]), make_cell(NAMES[1]), stack_a=run.stack))
    assert "PASS" == judged(store, run, required=True).conclusion.verdict, "nobody accepted a baseline"
    accept_run(store, run, hours=2)
    assert "PASS" == judged(store, run, required=True).conclusion.verdict, "nothing changed since then"
    accept_run(store, store_run(store, tmp_path / "serving.yaml", age=timedelta(hours=3), stack=BEFORE))
    found = judged(store, run, required=True)
    assert 5 == found.conclusion.exit_code
    assert found.performance is not None
    assert "its sides, old and here, ran on equal stacks" in found.performance.why_not
    store.add_duel(make_duel(run, make_cell(NAMES[0]), make_cell(NAMES[1]), id="duel-20261121T025001Z-000002"))
    assert "PASS" == judged(store, run, required=True).conclusion.verdict


def test_a_duel_the_wrong_way_round_does_not_count(store: Store, tmp_path: Path) -> None:
    """The baseline's stack as side B is faster than this one: that says how much slower this one is, and is no pass."""
    path = tmp_path / "serving.yaml"
    path.write_text(MATRIX + BUDGETS)
    before = store_run(store, path, stack=BEFORE, age=timedelta(hours=9))
    accept_run(store, before, hours=8)
    run = store_run(store, path, environments={"old": Environment(python=sys.executable, stack=BEFORE)})
    turned = (replace(make_cell(name, -0.2, verdict="FASTER"), a=name, b=f"{name}@old") for name in NAMES)
    sides: dict[str, Any] = {"a": "here", "b": "old", "stack_a": run.stack, "stack_b": BEFORE}
    store.add_duel(make_duel(run, *turned, id="duel-20261121T025500Z-000002", finished_at=NOW, **sides))
    found = judged(store, run)
    assert (5, True) == (found.conclusion.exit_code, "Fight it with the sides exchanged: old here" in told_by(found))
    right = make_duel(run, *(make_cell(name, 0.25, verdict="SLOWER") for name in NAMES))
    store.add_duel(right)
    assert 1 == judged(store, run).conclusion.exit_code


def test_a_duel_of_other_code_does_not_count(store: Store, tmp_path: Path) -> None:
    """Neither of other kernel code, nor of another card, than the evidence is of; one that did not note it does."""
    path = tmp_path / "serving.yaml"
    path.write_text(MATRIX + BUDGETS)
    code = {"tiled-torch": {"kernel.py": "a" * 64}}
    run = store_run(store, path, code=code)
    cells = [make_cell(name) for name in NAMES]
    content = {record.case.id: record.case.content_hash for record in store.records(run.id)}
    counted = {}
    for number, (name, timed) in enumerate(
        {
            "not noted": {},
            "the same": {"code": code, "content": content},
            "other code": {"code": {"tiled-torch": {"kernel.py": "b" * 64}}, "content": content},
            "other card": {"code": code, "content": {NAMES[0]: "c" * 64}},
        }.items()
    ):
        made = {"id": f"duel-20261121T02500{number}Z-000001", "started_at": NOW + timedelta(seconds=number), **timed}
        store.add_duel(make_duel(run, *cells, finished_at=NOW, **made))
        found = judged(store, run, required=True).performance
        counted[name] = found.duel.partition("T")[2][:6] if found else ""
    assert {"not noted": "025000", "the same": "025001", "other code": "025001", "other card": "025001"} == counted


def test_a_planted_slowdown_fails_no_release(store: Store, run: Run) -> None:
    """Somebody made B spin to see that a duel finds it: that says nothing of the kernels, neither red nor green."""
    spun = replace(make_cell(NAMES[0], 0.08, verdict="SLOWER"), planted=0.08)
    store.add_duel(make_duel(run, spun, make_cell(NAMES[1])))
    found = judged(store, run)
    assert (5, True) == (found.conclusion.exit_code, "a side with itself" in told_by(found))


def told_by(found: Judged) -> str:
    """Why no duel counts."""
    assert found.performance is not None
    return found.performance.why_not


def test_a_duel_of_two_kernels_does_not_count(store: Store, run: Run) -> None:
    """It says which of two kernels is faster here, and not whether this stack is slower than the one before."""
    fought = make_duel(run, *map(make_cell, NAMES), a="tiled-torch", b="torch-cpu-math")
    shapes = [name.rpartition("/")[0] for name in NAMES]
    cells = [replace(cell, name=shape) for cell, shape in zip(fought.cells, shapes, strict=True)]
    samples = {shape: fought.samples[name] for shape, name in zip(shapes, NAMES, strict=True)}
    store.add_duel(replace(fought, cells=tuple(cells), samples=samples))
    found = judged(store, run)
    assert 5 == found.conclusion.exit_code
    assert found.performance is not None
    assert "it compares two kernels, tiled-torch and torch-cpu-math" in found.performance.why_not


@pytest.mark.parametrize(
    ("cell", "verdict", "code"),
    [
        (make_cell(NAMES[0], 0.08, verdict="SLOWER"), "FAIL", 1),
        (make_cell(NAMES[0], 0.0, verdict="AMBIGUOUS", width=0.02), "INCONCLUSIVE", 5),
        (replace(make_cell(NAMES[0]), verdict="INCONCLUSIVE", ratios={}, way=None, reason="crash"), "INCONCLUSIVE", 5),
        (make_cell(NAMES[0], -0.08, verdict="FASTER"), "PASS", 0),
    ],
    ids=lambda value: getattr(value, "verdict", value),
)  # fmt: skip
def test_a_required_duel_judges_a_matrix_without_budgets(
    cell: DuelCell, verdict: str, code: int, store: Store, tmp_path: Path
) -> None:
    """`gate --require-duel`: its cells count as the duel's own exit code does; the slower one is named."""
    (tmp_path / "plain.yaml").write_text(MATRIX)
    plain = store_run(store, tmp_path / "plain.yaml")
    store.add_duel(make_duel(plain, cell, make_cell(NAMES[1])))
    found = judged(store, plain, required=True)
    assert (verdict, code) == (found.conclusion.verdict, found.conclusion.exit_code)
    assert (verdict != "PASS") == (NAMES[0] in to_text(found, NOW))


def test_a_large_margin_makes_no_slower_cell_green() -> None:
    """A duel with --margin 10 calls +8 % the same; a gate without budgets asks for the usual margin."""
    cells = (make_cell(NAMES[0], 0.08), make_cell(NAMES[1]))
    use = without_budgets(duel_changes(replace(duel_of(), cells=cells)), margin_of)
    assert ("INCONCLUSIVE", [NAMES[0]]) == (use.verdict, [cell.cell for cell in use.cells])


def test_a_duel_of_exactly_the_age_counts(store: Store, run: Run) -> None:
    """A day is a day."""
    store.add_duel(make_duel(run, *map(make_cell, NAMES), finished_at=NOW - timedelta(hours=24)))
    assert 0 == judged(store, run).conclusion.exit_code


def test_the_reason_is_that_of_the_newest_duel(store: Store, run: Run) -> None:
    """Of two that do not count nobody cares why the older one does not; without any, that alone is said."""
    assert "no duel of serving is stored" == told_by(judged(store, run))
    older = {"id": "duel-20261121T020000Z-000000", "started_at": NOW - timedelta(hours=1), "null": True}
    for changes in (older, {"select": "*/decode/*"}):
        store.add_duel(make_duel(run, *map(make_cell, NAMES), **changes))
    assert "it was narrowed by --select" in told_by(judged(store, run))


def test_a_duel_with_an_environment_of_the_run_counts(store: Store, run: Run) -> None:
    """Its kernels ran there: B is that environment's stack, and not that of the default one."""
    other = make_stack(torch="2.13.0")
    store.add_duel(make_duel(run, *map(make_cell, NAMES), stack_b=other))
    found = judge(store, run.id, shipped_kernels(), now=NOW)
    for stack, code in ((other, 0), (None, 5), (BEFORE, 5)):
        there = replace(run, environments={"next": Environment(python="/usr/bin/python3", stack=stack)})
        timed = with_performance(store, replace(found, run=there), now=NOW, max_age=None)
        assert code == timed.conclusion.exit_code, stack


def test_an_unsealed_duel_hides_no_sealed_one(store: Store, run: Run, tmp_path: Path) -> None:
    """Anybody could add one: the newest that one of the keys sealed counts."""
    pair, stranger = new_pair(tmp_path), new_pair(tmp_path, "stranger")
    older = make_duel(
        run, make_cell(NAMES[0], 0.08, verdict="SLOWER"), make_cell(NAMES[1]),
        id="duel-20261121T020000Z-000000", started_at=NOW - timedelta(hours=1),
    )  # fmt: skip
    store.add_duel(older, seal_duel(older, pair.signing))
    for number, key in ((1, None), (2, stranger.signing)):
        forged = make_duel(run, *map(make_cell, NAMES), id=f"duel-20261121T025000Z-00000{number}")
        store.add_duel(forged, seal_duel(forged, key) if key else None)
    found = judged(store, run, keys=pair.trusted)
    assert (1, older.id) == (found.conclusion.exit_code, found.performance and found.performance.duel)


def test_the_worst_cell_is_listed_first(store: Store, run: Run) -> None:
    """Whoever reads one line reads that one."""
    store.add_duel(make_duel(run, make_cell(NAMES[0], -0.08, verdict="FASTER"), make_cell(NAMES[1], 0.001)))
    found = judged(store, run)
    assert found.performance is not None
    assert NAMES[::-1] == [cell.cell for cell in found.performance.cells]


def test_without_a_duel_there_is_no_verdict_where_one_is_needed(store: Store, tmp_path: Path) -> None:
    """A matrix without budgets needs none, unless the gate is asked for one."""
    (tmp_path / "serving.yaml").write_text(MATRIX)
    run = store_run(store, tmp_path / "serving.yaml")
    assert ("PASS", None) == ((plain := judged(store, run)).conclusion.verdict, plain.performance)
    found = judged(store, run, required=True)
    assert 5 == found.conclusion.exit_code
    assert "time: no duel counts: no duel of serving is stored" in to_text(found, NOW).splitlines()
    assert "a duel counts" in junit.render(found, OPTIONS)
    store.add_duel(make_duel(run, make_cell(NAMES[0])))
    assert 0 == judged(store, run, required=True).conclusion.exit_code


def test_a_failure_stays_one(store: Store, run: Run) -> None:
    """A missing duel does not make a wrong kernel undecided."""
    from stored_runs import WRONG

    wrong = store_run(store, Path(run.matrix_path), WRONG)
    assert 1 == judged(store, wrong).conclusion.exit_code


def test_only_a_sealed_duel_counts_where_seals_are_asked_for(store: Store, run: Run, tmp_path: Path) -> None:
    """By one of the keys."""
    pair, stranger = new_pair(tmp_path), new_pair(tmp_path, "stranger")
    fought = make_duel(run, make_cell(NAMES[0]), make_cell(NAMES[1]))
    store.add_duel(fought, seal_duel(fought, pair.signing))
    assert 0 == judged(store, run, keys=pair.trusted).conclusion.exit_code
    found = judged(store, run, keys=stranger.trusted)
    assert found.performance is not None
    assert "not by one of the required keys" in found.performance.why_not


def test_weights_come_from_the_traffic() -> None:
    """A slow shape that nobody asks for does not count in a quantile; the mean is weighted."""
    slow, fast = (
        make_cell("m/decode/b1.q1.k8/bf16/causal/x", 0.5, verdict="SLOWER", us=900.0, phase="decode"),
        make_cell("m/decode/b1.q1.k4/bf16/causal/x", phase="decode"),
    )
    small, large = (f"m/decode/b1.q1.{keys}/bf16/causal" for keys in ("k4", "k8"))
    run_of = {small: 1.0, large: 0.0}
    budgets = (TimeBudget(of="p99", percent=3.0), TimeBudget(of="mean", percent=3.0))
    fought = replace(duel_of(slow, fast), cells=(slow, fast))
    assert ["PASS", "PASS"] == [use.verdict for use in use_budgets(duel_changes(fought), budgets, run_of)]
    assert ["FAIL", "FAIL"] == [use.verdict for use in use_budgets(duel_changes(fought), budgets, {})]
    (mean,) = use_budgets(duel_changes(fought), budgets[1:], {large: 1.0, small: 9.0})
    assert mean.change is not None
    assert abs(mean.change - 0.25) < 1e-9


TRAFFIC = """\
traffic: ours
source: made up for a test
buckets:
  - {phase: prefill, seqlen: 8, weight: 3}
  - {phase: prefill, seqlen: 9, weight: %s}
"""


@pytest.mark.parametrize(("weight", "code"), [(2, 1), (0.001, 0)], ids=["often", "hardly ever"])
def test_the_traffic_of_the_run_weighs_its_shapes(store: Store, tmp_path: Path, weight: float, code: int) -> None:
    """A slower shape breaks the budget of the mean where production asks for it often, whatever else it measures."""
    budget = "traffic: ours.yaml\npolicy: {performance: {budgets: [{of: mean, percent: 3}]}}\n"
    (tmp_path / "serving.yaml").write_text(MATRIX + budget)
    (tmp_path / "ours.yaml").write_text(TRAFFIC % weight)
    run = store_run(store, tmp_path / "serving.yaml", traffic_source=TRAFFIC % weight)
    store.add_duel(make_duel(run, make_cell(NAMES[0]), make_cell(NAMES[1], 0.08, verdict="SLOWER", us=200.0)))
    assert code == judged(store, run).conclusion.exit_code


def planned(folder: Path, traffic: str, model: str = "llama-3.1-8b", **more: Any) -> tuple[TrafficCard, list[Case]]:
    """Some traffic, and the cases of a matrix of that traffic."""
    (folder / "t.yaml").write_text(traffic)
    written: dict[str, Any] = {"matrix": "m", "models": [model], "traffic": "t.yaml", "dtypes": ["bf16"]}
    (folder / "m.yaml").write_text(json.dumps(written | {"kernels": ["tiled-torch"]} | more))
    plan = make_plan(load_matrix(str(folder / "m.yaml")), shipped_kernels())
    return parse_traffic(traffic, "t.yaml"), [*plan.cases, *(case for case, _ in plan.refused)]


def test_buckets_of_one_shape_add_up(tmp_path: Path) -> None:
    """A cache without pages may be written in two ways: the call is as frequent as both lines say."""
    text = TRAFFIC.replace("prefill, seqlen: 8", "decode, context: 8").replace(
        "prefill, seqlen: 9", "decode, context: 8, page_size: contiguous"
    )
    found = weights(*planned(tmp_path, text % 2))
    assert {"llama-3.1-8b.tp1/decode/b1.q1.k8/bf16/causal": 5.0} == found


def test_calls_of_every_group_of_layers_have_the_weight_of_their_bucket(tmp_path: Path) -> None:
    """Cross-attention has keys of its own, and is as frequent as the call of the decoder; what replays a bug is not."""
    traffic = TRAFFIC.replace("prefill, seqlen: 9", "decode, batch: 16, context: 512") % 9
    found = weights(*planned(tmp_path, traffic, "whisper-large", phases={"prefill": {"seqlen": 24}}))
    frequent = {cell.removeprefix("whisper-large.tp1/"): weight for cell, weight in found.items()}
    assert {
        "prefill/b1.q8.k8/bf16/causal": 3.0,
        "decode/b16.q1.k512/bf16/causal": 9.0,
        "prefill/b1.q8.k1500/bf16/cross": 3.0,
        "decode/b16.q1.k1500/bf16/cross": 9.0,
        "prefill/b1.q8.k8/bf16/encoder.full": 3.0,
        "prefill/b1.q24.k24/bf16/causal": 0.0,
        "prefill/b1.q24.k1500/bf16/cross": 0.0,
        "prefill/b1.q24.k24/bf16/encoder.full": 0.0,
    } == frequent


def duel_of(*cells: DuelCell) -> Duel:
    """A duel of no run."""
    from stored_runs import make_run

    return make_duel(make_run(), *cells)


def test_the_faster_kernel_serves_a_shape() -> None:
    """The traffic meets the kernel that was the fastest before; the other one's slowdown is its own."""
    shape = "m/decode/b1.q1.k8/bf16/causal"
    cells = (
        make_cell(f"{shape}/fast", us=10.0, phase="decode"),
        make_cell(f"{shape}/slow", 0.5, verdict="SLOWER", us=90.0, phase="decode"),
    )
    (use,) = use_budgets(duel_changes(duel_of(*cells)), (TimeBudget(of="p50", percent=3.0),), {})
    assert "PASS" == use.verdict


def test_a_kernel_that_could_not_be_timed_may_be_the_one_that_serves() -> None:
    """Nobody knows whether it was the fastest one before: another kernel's time does not speak for the shape."""
    shape = "m/decode/b1.q1.k8/bf16/causal"
    crashed = replace(make_cell(f"{shape}/fast"), verdict="INCONCLUSIVE", ratios={}, way=None, reason="B: it crashed")
    cells = (replace(crashed, phase="decode"), make_cell(f"{shape}/slow", us=90.0, phase="decode"))
    for order in (cells, cells[::-1]):
        (use,) = use_budgets(duel_changes(duel_of(*order)), (TimeBudget(of="p99", percent=3.0),), {})
        assert ("INCONCLUSIVE", [f"{shape}/fast"]) == (use.verdict, [cell.cell for cell in use.cells])


def test_a_shipped_traffic_file_has_weights(tmp_path: Path) -> None:
    """Each of its buckets is a call that a model makes."""
    text = next(iter(sorted(shipped("traffic").glob("*.yaml")))).read_text()
    traffic, cases = planned(tmp_path, text)
    found = weights(traffic, cases)
    assert len(traffic.buckets) <= len(found)
    assert sum(found.values()) >= sum(bucket.weight for bucket in traffic.buckets) * 0.999


def test_the_command_takes_require_duel(store: Store, run: Run, tmp_path: Path, empty_sqlite: str) -> None:
    """`gate --require-duel`: 5 without one."""
    ended = call("gate", "--run", run.id, "--require-duel", "--db", empty_sqlite, cwd=tmp_path)
    assert 5 == ended.code, ended.out + ended.err
    assert "time: no duel counts" in ended.out


def test_the_report_says_what_the_gate_says(store: Store, run: Run, tmp_path: Path, empty_sqlite: str) -> None:
    """Without a duel the page of a matrix with budgets is no green one, although every case passed."""
    ended = call("report", run.id, "--db", empty_sqlite, "--out", "out", cwd=tmp_path)
    assert 0 == ended.code, ended.err
    data = json.loads((tmp_path / "out" / run.id / "report.json").read_text())
    assert ("INCONCLUSIVE", {"PASS"}) == (data["verdict"], {case["verdict"] for case in data["cases"]})


def test_a_gate_without_budgets_imports_no_scipy() -> None:
    """It takes longer to import than the gate takes, and a base install has none."""
    code = (
        "import sys, qualify.cli.gate, qualify.judge.timed; print([n for n in ('scipy', 'numpy') if n in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "[]" == told.stdout.strip()
