"""A canary whose kernel looks slower fights a duel with the older environment: real hosts, stores, signals."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from canary_examples import lead
from cli_process import call, write_card, write_matrix
from duels import make_cell
from duels import make_duel as timed_duel
from environments import make_environment, share_torch
from fire_examples import ORDER
from outages import Outage
from sealing import new_pair
from service_process import Place
from stored_runs import NOW, make_stack, shipped_kernels, store_run

from qualify.canary.duels import keep, left_over, make_request, seen_of_duel, settle
from qualify.canary.messages import DuelOrder
from qualify.errors import LeaseLost, StoreError, UsageError
from qualify.facts.duel import Duel, DuelCell, DuelVerdict, Ratio
from qualify.fleet.patience import Patience
from qualify.judge.against import compare_with
from qualify.judge.judged import judge
from qualify.store import Store

SPINS = Path(__file__).with_name("spins_here.py")
MODEST = {
    "features: [ragged]": "features: []\n  batch: {max: 1}\n  elements: {max: 2147483648}",
    "deterministic: true": "deterministic: false",
}
"""changes of a card: it claims a single sequence, of which level full has few checks; only its times are in question"""
BUDGET = "  performance: {budgets: [{of: cell, percent: 5}]}\n"


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The python of the environment before the upgrade."""
    folder = tmp_path_factory.mktemp("environments") / "older"
    python = make_environment(folder)
    share_torch(folder)
    (folder / "older").touch()
    return python


def prepare(place: Place, older: Path, duel: str, policy: str = "", run: str = "level: full") -> None:
    """A canary `t-duel` whose matrix names the older environment; smoke times too little to compare two runs."""
    shutil.copy(SPINS, place.cards / "spins_here.py")
    write_card(place.cards, "spins-here", "spins_here")
    kernel = place.cards / "spins-here.yaml"
    for claim, modest in MODEST.items():
        kernel.write_text(kernel.read_text().replace(claim, modest))
    place.canary("duel", "spins-here", (32,), duel=duel)
    card = place.cards / "t-duel.yaml"
    card.write_text(card.read_text().replace("level: smoke", run))
    matrix = place.cards / "m-duel.yaml"
    lines = matrix.read_text().replace("policy: {timeout_s: 60, compile_timeout_s: 60}\n", "")
    matrix.write_text(f"{lines}environments: {{older: {{python: {older}}}}}\npolicy:\n  timeout_s: 60\n{policy}")


def accept(place: Place, run_id: str | None) -> None:
    """The run becomes the baseline."""
    words = ("baseline", "accept", run_id, "--by", "me", "--reason", "first", "--cards", place.cards)
    assert 0 == (ended := call(*words, "--db", place.address, cwd=place.folder)).code, ended.err


@pytest.mark.slow
def test_a_planted_slowdown_is_confirmed_although_the_leader_is_killed(sqlite_place: Place, older: Path) -> None:
    """Killed in mid-duel: the next leader fights the whole duel again, stores it once, and names it in the alert."""
    place = sqlite_place
    prepare(place, older, "{against: older, deadline: 5m, pairs: 2}", BUDGET)
    first = place.start("n")
    before = place.until(place.ask("duel"), "completed", 120)
    assert before.duel_id is None
    accept(place, before.run_id)
    (place.cards / "upgraded").touch()
    fire = place.ask("duel")
    first.said(" against older begins: 1 cells", 120)
    first.process.kill()
    second = place.start("n")
    ended = place.until(fire, "completed", 240)
    second.stop()
    assert (2, "FAIL", f"duel-{ended.run_id}") == (ended.attempts, ended.verdict, ended.duel_id)
    (broken,) = [reason for reason in ended.reasons if "budget of each cell" in reason]
    assert broken.endswith(f" of +5.0 % allowed, by {ended.duel_id}")
    (slower,) = [reason for reason in ended.reasons if "confirmed by" in reason]
    assert slower.startswith("spins-here prefill ")
    assert slower.endswith(f", confirmed by {ended.duel_id}")
    with Store.open(place.address) as store:
        (duel,) = store.duels()
        assert 2 == len(store.runs())
        assert ["SLOWER"] == [cell.verdict for cell in duel.cells]
        assert 1 == len(store.canaries.holds("t-duel"))


@pytest.mark.slow
def test_the_deadline_leaves_cells_open_and_that_is_never_green(postgres_place: Place, older: Path) -> None:
    """On PostgreSQL, killed in mid-duel too: forty pairs do not fit, so the cell is open and the fire holds.

    From the duel on the kernel sleeps, so that the time until the deadline costs no processor. The run leaves out the
    older environment.
    """
    place = postgres_place
    duel = "{when: always, against: older, deadline: 20s, pairs: 40}"
    prepare(place, older, duel, run="level: smoke\nselect: '*/spins-here'")
    first = place.start("n")
    fire = place.ask("duel")
    first.said(" against older begins: 1 cells", 120)
    first.process.kill()
    (place.cards / "dawdles").touch()
    second = place.start("n")
    ended = place.until(fire, "completed", 240)
    second.stop()
    assert (2, "hold") == (ended.attempts, ended.advice)
    with Store.open(place.address) as store:
        (duel,) = store.duels()
        assert ended.duel_id == duel.id
        assert {cell.verdict for cell in duel.cells} <= {"AMBIGUOUS", "INCONCLUSIVE"}  # not timed at all on a busy CPU
        assert 1 == len(store.runs())
    assert f"{duel.id} against older did not decide every cell" in ended.reasons


def test_where_no_duel_can_be_fought_the_reason_is_told(tmp_path: Path, empty_sqlite: str) -> None:
    """An environment that the matrix lacks, no baseline, and a baseline of what is installed here."""
    matrix = write_matrix(tmp_path / "m.yaml", "tiled-torch")
    plan = DuelOrder(when="always", against="older", deadline_s=60, pairs=2)
    order = replace(ORDER, matrix=str(matrix), duel=plan)
    with Store.open(empty_sqlite) as store:
        here = make_stack(torch=metadata.version("torch"), triton="")
        run = store_run(store, matrix, stack=here)
        judged = judge(store, run.id, shipped_kernels(), now=NOW)
        asked = replace(order, duel=replace(plan, against="baseline"))
        whys = [settle(order, store, judged), settle(asked, store, judged)]
        compared = compare_with(store, judged, store_run(store, matrix, stack=here).id, shipped_kernels(), now=NOW)
        whys.append(settle(asked, store, compared))
        assert None is settle(replace(order, duel=None), store, judged)
        assert None is settle(replace(order, duel=replace(plan, when="slower")), store, compared)
        assert [] == store.duels()
    expected = ("m has no such environment; it has none", "stack of an accepted baseline", "are the ones installed")
    assert [True] * 3 == [word in why.why_not for word, why in zip(expected, whys, strict=True) if why]


def fought(*cells: DuelCell) -> Duel:
    """A duel with these cells."""
    facts: dict[str, Any] = {"matrix": "m", "matrix_hash": "0" * 64, "select": "", "null": False, "samples": {}}
    return Duel(
        **facts, id="duel-1", a="older", b="here", device="cpu", device_uuid="cpu", stack_a=make_stack(),
        stack_b=make_stack(), started_at=NOW, finished_at=NOW, complete=True, least_pairs=5, cells=cells,
    )  # fmt: skip


def cell(name: str, verdict: DuelVerdict, change: float = 0.0) -> DuelCell:
    """A cell with an interval of one per cent."""
    ratio = Ratio(
        verdict=verdict, change=change, low=change - 0.005, high=change + 0.005, a_us=100.0, b_us=100 * (1 + change),
        pairs=5, quads=10, detectable=0.01, margin=0.01,
    )  # fmt: skip
    return DuelCell(
        name=name, a=f"{name}@older", b=name, phase="decode", verdict=verdict, reason="too noisy", way="graph",
        ratios={"graph": ratio}, thrown_away=0,
    )  # fmt: skip


def test_cells_are_told_with_their_intervals() -> None:
    """As an alert names them: kernel, phase, shape, change, interval and the duel; three of many."""
    slow = cell("llama-3.1-8b.tp1/decode/b1.q1.k8192/bf16/causal/flash-attn-3", "SLOWER", 0.041)
    same, *noisy = (
        cell(f"m/decode/b{n}/bf16/causal/k", verdict) for n, verdict in enumerate(["SAME", *["AMBIGUOUS"] * 5])
    )
    seen = seen_of_duel(fought(same, *noisy, slow), (same.b,))
    told = "flash-attn-3 decode b1.q1.k8192 (llama-3.1-8b.tp1, bf16, causal): +4.1 % [+3.6, +4.6], confirmed by duel-1"
    assert ((told,), (same.b,), 7) == (seen.slower, seen.acquitted, seen.cells)
    assert ("k decode b1 (m, bf16, causal): +0.0 % [-0.5, +0.5]: AMBIGUOUS, too noisy", "and 2 more cells") == (
        seen.undecided[0], seen.undecided[-1]
    )  # fmt: skip


def test_a_duel_is_stored_once_and_under_the_lease(tmp_path: Path, empty_sqlite: str) -> None:
    """A later attempt takes the stored one and fights none; a leader that was succeeded stores nothing.

    One whose verdict was edited meanwhile says nothing.
    """
    matrix = write_matrix(tmp_path / "m.yaml", "tiled-torch")
    plan = DuelOrder(when="always", against="older", deadline_s=60, pairs=2)
    with Store.open(empty_sqlite) as store:
        run = store_run(store, matrix)
        slow = make_cell("m/decode/b1/bf16/causal/k", 0.041, verdict="SLOWER")
        found = timed_duel(run, slow, id=f"duel-{run.id}")
        first = lead(store, "a")
        second = store.canaries.acquire("canary", "b", 60, first)
        assert second is not None
        with pytest.raises(LeaseLost):
            store.canaries.file_duel(first, found, None)
        assert [] == store.duels()
        assert [True, False] == [store.canaries.file_duel(second, found, None) for _ in range(2)]
        judged = judge(store, run.id, shipped_kernels(), now=NOW)
        seen = settle(replace(ORDER, matrix=str(matrix), duel=plan), store, judged)
        assert seen is not None
        assert (found.id, "", 1) == (seen.id, seen.why_not, len(seen.slower))
        assert 1 == len(store.duels())
        with closing(sqlite3.connect(empty_sqlite)) as connection, connection:
            connection.execute("UPDATE duel_cells SET verdict = 'SAME'")
        seen = settle(replace(ORDER, matrix=str(matrix), duel=plan), store, judged)
        assert seen is not None
        assert seen.why_not.startswith(f"{found.id} does not count: it contradicts itself: ")


def test_a_duel_that_the_store_does_not_take_is_not_fought_again(
    tmp_path: Path, empty_sqlite: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its times wait beside the reports, sealed, for the next attempt. A leader that was succeeded leaves none."""
    monkeypatch.setenv("QUALIFY_DB", empty_sqlite)
    matrix, pair = write_matrix(tmp_path / "m.yaml", "tiled-torch"), new_pair(tmp_path)
    plan = DuelOrder(when="always", against="older", deadline_s=60, pairs=2)
    order = replace(ORDER, matrix=str(matrix), duel=plan, out=str(tmp_path / "out"))
    with Store.open(empty_sqlite, busy_timeout_s=0.01) as store, Outage(empty_sqlite) as outage:
        run = store_run(store, matrix)
        found = timed_duel(run, make_cell("m/decode/b1/bf16/causal/k", 0.041, verdict="SLOWER"), id=f"duel-{run.id}")
        order = replace(order, epoch=lead(store).epoch)
        file = tmp_path / "out" / f"{found.id}.jsonl.gz"
        outage.begin()
        with pytest.raises(StoreError, match=f"need not run again: all its times are in {file}"):
            keep(order, store, found, pair.signing, Patience(longest_s=0.0))
        outage.end()
        judged = judge(store, run.id, shipped_kernels(), now=NOW)
        seen = settle(order, store, judged)
        assert seen is not None
        assert (found.id, "", 1) == (seen.id, seen.why_not, len(seen.slower))
        kept = store.duel(found.id)
        assert (found, True) == (replace(kept.duel, received_at=None), kept.seal is not None)
        assert [] == list(file.parent.iterdir())
        with pytest.raises(LeaseLost):
            keep(replace(order, epoch=order.epoch - 1), store, replace(found, id="duel-2"), None, Patience())
        assert [] == list(file.parent.iterdir())


def test_a_file_of_an_earlier_attempt_that_is_damaged_is_left_alone(
    tmp_path: Path, empty_sqlite: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log says what is wrong with it; the duel is fought anew."""
    (tmp_path / "duel-1.jsonl.gz").write_text("cut")
    with Store.open(empty_sqlite) as store:
        assert left_over(replace(ORDER, out=str(tmp_path)), store, "duel-1") is None
    assert "Nothing was imported. The duel is fought again." in capsys.readouterr().err


def test_the_stack_of_the_baseline_is_found_among_the_environments(tmp_path: Path, empty_sqlite: str) -> None:
    """The run of before the upgrade had torch 2.11.0, and the environment `older` still has it: it is A."""
    python = make_environment(tmp_path / "older", torch="2.11.0")
    matrix = write_matrix(tmp_path / "m.yaml", "tiled-torch")
    before = make_stack(torch="2.11.0", triton="")
    plan = DuelOrder(when="always", against="baseline", deadline_s=60, pairs=2)
    order = replace(ORDER, matrix=str(matrix), duel=plan)
    with Store.open(empty_sqlite) as store:
        accepted = store_run(store, matrix, stack=before)
        judged = judge(store, store_run(store, matrix).id, shipped_kernels(), now=NOW)
        judged = compare_with(store, judged, accepted.id, shipped_kernels(), now=NOW)
        matrix.write_text(f"{matrix.read_text()}environments: {{older: {{python: {python}}}}}\n")
        request = make_request(order, plan, store, judged)
        (task,) = request.tasks
        assert (f"stack {before.fingerprint[:12]} (older)", "here") == (request.a, request.b)
        assert ("tiled-torch@older", "tiled-torch") == (task.a.kernel, task.b.kernel)
        assert (60.0, 2, "") == (request.deadline_s, request.least_pairs, request.select)
        narrowed = make_request(replace(order, kernel="tiled*"), plan, store, judged)
        assert "kernel=tiled*" == narrowed.select
        with pytest.raises(UsageError, match="no cell of the duel has a kernel that matches flash"):
            make_request(replace(order, kernel="flash*"), plan, store, judged)
