"""Shards that nodes ran without a leader: joined once into a run of the whole matrix, or refused by name."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import stored_runs as stored
from builders import make_xid
from cli_process import call
from sealing import new_pair
from sharing_nodes import MATRIX, Sharing, cards_of, passed, share

from qualify.cards.load import load_matrix
from qualify.errors import NoVerdict, UsageError
from qualify.facts.fleet import NodePlan
from qualify.facts.outcome import noted
from qualify.facts.stack import Component, Stack
from qualify.fleet import collect as module
from qualify.fleet.collect import collect
from qualify.fleet.engine import NodeFile
from qualify.fleet.ingest import ingest
from qualify.fleet.shares import of_shard, shards_of
from qualify.judge.fleet import coverage_of, exit_code_of
from qualify.seal.keys import SIGNING_KEY
from qualify.store.store import Store

SHARDS = 3
CASES = 24


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(str(tmp_path / "s.db")) as opened:
        yield opened


def plan_of(folder: Path, **changes: Any) -> NodePlan:
    """Three tasks share twelve production shapes."""
    (folder / "serving.yaml").write_text(MATRIX)
    plan = NodePlan(matrix=str(folder / "serving.yaml"), device="cpu:1", spread="shard", shards=SHARDS, fleet="job-1")
    return replace(plan, **changes)


def ran(store: Store, folder: Path, plan: NodePlan, number: int, **changes: Any) -> str:
    """A task has run its shard, and its file was ingested; the id of its run."""
    card = changes.pop("card", f"GPU-n{number}")
    own = replace(of_shard(replace(plan, shard=number)), node=f"n{number}", expected=(card,))
    engine = Sharing(folder, {}, lambda *_: None)
    engine.outcome, engine.key = changes.pop("outcome", passed), changes.pop("key", None)
    (file,) = (it for it in engine.ran(own, **{"stack": stored.make_stack(), **changes}) if isinstance(it, NodeFile))
    return ingest(store, folder / file.name).run


def told(store: Store, plan: NodePlan, **changes: Any) -> str:
    """Why nothing is joined."""
    with pytest.raises(NoVerdict) as caught:
        collect(store, plan, lambda _: None, **changes)
    assert [] == store.fleets.fleets()
    return str(caught.value)


def test_the_shards_make_one_run_once(store: Store, tmp_path: Path) -> None:
    """Every case once; a second call finds it; coverage shows the array as any fleet; a leader's fleet is refused."""
    plan = plan_of(tmp_path)
    runs = [ran(store, tmp_path, plan, number) for number in (3, 1, 2)]
    whole = collect(store, plan, lambda _: None)
    assert (CASES, "") == (len(store.records(whole)), store.run(whole).select)
    assert whole == collect(store, plan, lambda _: None)
    assert 1 + len(runs) == len(store.runs())
    found, votes = coverage_of(store, "job-1")
    assert (1.0, 0, whole, "array", "ended") == (
        found.share, exit_code_of(found, votes), found.whole, found.fleet.engine, found.fleet.state
    )  # fmt: skip
    assert {"n1", "n2", "n3"} == {card.node for card in found.cards}
    assert set(runs) == {it.run_id for it in found.shares}
    gate = call("gate", "--json", "--db", tmp_path / "s.db", cwd=tmp_path)
    assert (0, whole) == (gate.code, gate.data["run"]), gate.err
    _, led = share(store, tmp_path, cards_of("n1"))
    with pytest.raises(UsageError, match=r"this fleet has a leader \(sharing\)"):
        collect(store, replace(plan, fleet=led), print)


def test_a_card_that_two_nodes_report_is_told(store: Store, tmp_path: Path) -> None:
    """It is one card, whether containers of one machine share it or somebody copied an inventory."""
    plan, lines = plan_of(tmp_path), list[str]()
    for number, card in ((1, "GPU-a"), (2, "GPU-b"), (3, "GPU-a")):
        ran(store, tmp_path, plan, number, card=card)
    assert [collect(store, plan, lines.append)] == [*{collect(store, plan, print)}]
    (note,) = store.fleets.fleet("job-1").notes
    assert note in lines
    assert note.startswith("GPU-a: n1 and n3 name this card, and it counts once: 2 cards ran 3 shards.")
    found, _ = coverage_of(store, "job-1")
    assert ["GPU-a", "GPU-b"] == sorted(card.uuid for card in found.cards)


def test_whoever_waits_for_another_collect_is_told(store: Store, tmp_path: Path) -> None:
    """Once, before it waits; when the other one has ended, the shards are joined."""
    plan, lines = plan_of(tmp_path), list[str]()
    for number in (1, 2, 3):
        ran(store, tmp_path, plan, number)
    other = store.fleets.lead(plan.fleet, "another", module.LEASE_S)
    assert other

    def say(text: str) -> None:
        lines.append(text)
        if "another process joins the shards of fleet job-1, or was killed: waiting" in text:
            store.fleets.release(other)

    assert collect(store, plan, say)
    assert 2 == len(lines), lines


def test_a_collect_that_was_dated_ahead_is_told_of(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed while its machine's clock ran a day ahead: whoever waits for it learns why, before the wait."""
    plan, lines = plan_of(tmp_path), list[str]()
    for number in (1, 2, 3):
        ran(store, tmp_path, plan, number)
    assert store.fleets.lead(plan.fleet, "n9/1/x", 86_400.0)
    monkeypatch.setattr(module, "LEASE_S", 0.05)
    assert collect(store, plan, lines.append)
    assert re.fullmatch(
        r"n9/1/x holds what this process needs until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC, as a wrong clock dated it: "
        r"waiting for a sign of life of it, at most 0\.05 s",
        lines[0],
    )


def test_missing_shards_are_named(store: Store, tmp_path: Path) -> None:
    """One of which nothing came, and one that did not end; another fleet's does not count. Then both run again."""
    plan = plan_of(tmp_path)
    ran(store, tmp_path, plan, 2)
    ran(store, tmp_path, replace(plan, fleet="job-10"), 1)
    cut = ran(store, tmp_path, plan, 3, state="interrupted")
    why = told(store, plan)
    assert "of 3 shards, 2 missing. shard 1: no run of it is in the store; shard 3: run " in why
    assert f"run {cut} on n3 did not end (interrupted)" in why
    assert "Run shard 1,3 again with --fleet job-1" in why
    ran(store, tmp_path, plan, 3)
    ran(store, tmp_path, plan, 1)
    assert CASES == len(store.records(collect(store, plan, print)))


def test_a_shard_of_another_stack_is_named(store: Store, tmp_path: Path) -> None:
    """With its node and what differs. A run on the usual stack takes its place; so does a newer one later."""
    plan = plan_of(tmp_path)
    for number in (1, 2):
        ran(store, tmp_path, plan, number)
    ran(store, tmp_path, plan, 3, stack=stored.make_stack(torch="2.12.0"))
    why = told(store, plan)
    assert "of 3 shards, 1 different from most others or from the plan. shard 3: run " in why
    assert "on n3: it is of another stack: torch 2.11.0 → 2.12.0" in why
    ran(store, tmp_path, plan, 3)
    first = collect(store, plan, print)
    ran(store, tmp_path, plan, 2)
    second = collect(store, plan, print)
    assert first != second == collect(store, plan, print)


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1)])
def test_a_shard_of_other_code_or_version_is_named_whenever_it_came(
    store: Store, tmp_path: Path, order: tuple[int, ...]
) -> None:
    """The stack is the same everywhere: the one shard that differs is named, and not the others."""
    plan = plan_of(tmp_path)
    for number in order:
        ran(store, tmp_path, plan, number, run={"qualify_version": "0.0.9"} if number == 3 else {})
    why = told(store, plan)
    assert "of 3 shards, 1 different from most others or from the plan. shard 3: run " in why
    assert "its qualify version is '0.0.9', and that of others '0.1.0'" in why


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"level": "full"}, "ran at level smoke, and the plan asks for full"),
        ({"device": "cuda:all"}, "ran on cpu, and the plan asks for cuda"),
    ],
)
def test_shards_of_another_plan_are_no_evidence_of_this_one(
    store: Store, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    """Somebody changed the plan after its tasks had run: what they proved is less than what it asks for."""
    plan = plan_of(tmp_path)
    for number in (1, 2, 3):
        ran(store, tmp_path, plan, number)
    why = told(store, replace(plan, **changes))
    assert "of 3 shards, 3 missing. shard 1: run " in why
    assert words in why


def test_shards_of_two_builds_of_a_library_are_no_whole(store: Store, tmp_path: Path) -> None:
    """Also where the shard that the others are compared with had not mapped it. The whole names what all had mapped."""

    def mapped(*digests: str) -> Stack:
        parts = [Component(kind="binary", name="fa3.so", version="", digest=digest) for digest in digests]
        return replace(stored.make_stack(), components=(*stored.make_stack().components, *parts))

    plan = plan_of(tmp_path)
    for number, stack in ((1, mapped()), (2, mapped("aa")), (3, mapped("bb"))):
        ran(store, tmp_path, plan, number, stack=stack)
    assert "it is of another stack: fa3.so sha256:" in told(store, plan)
    ran(store, tmp_path, plan, 3, stack=mapped("aa"))
    whole = store.run(collect(store, plan, print)).stack
    assert whole is not None
    assert mapped("aa").fingerprint == whole.fingerprint


def test_a_shard_whose_card_failed_is_named(store: Store, tmp_path: Path) -> None:
    """With its node, the card and the error; it runs again on a sound card."""
    plan = plan_of(tmp_path)
    for number in (1, 3):
        ran(store, tmp_path, plan, number)
    bad = ran(store, tmp_path, plan, 2, outcome=lambda _: noted(stored.PASSED, make_xid(79)))
    why = told(store, plan)
    assert f"of 3 shards, 1 missing. shard 2: run {bad} on n2: card GPU-n2 failed: the driver reported Xid 79" in why
    ran(store, tmp_path, plan, 2)
    assert CASES == len(store.records(collect(store, plan, print)))


def test_a_shard_that_contradicts_itself_is_named(store: Store, tmp_path: Path) -> None:
    """Somebody gave its old run the date of today: in the run of the whole nobody would see that. It runs again."""
    plan = plan_of(tmp_path)
    old, *_ = (ran(store, tmp_path, plan, number) for number in (1, 2, 3))
    with closing(sqlite3.connect(tmp_path / "s.db")) as connection, connection:
        moved = "strftime('%Y-%m-%d %H:%M:%f000', started_at, '+2 hours')"
        connection.execute(f"UPDATE runs SET started_at = {moved}, finished_at = {moved} WHERE id = ?", (old,))
    why = told(store, plan)
    assert (
        f"of 3 shards, 1 missing. shard 1: run {old} on n1: it contradicts itself: its id says that it began at" in why
    )
    ran(store, tmp_path, plan, 1)
    assert CASES == len(store.records(collect(store, plan, print)))


def test_a_shard_of_other_cases_is_named(store: Store, tmp_path: Path) -> None:
    """A kernel card differs on its node. A run that is of no shard, of another number of shards, is named too."""
    plan = plan_of(tmp_path)
    for number in (1, 2):
        ran(store, tmp_path, plan, number)
    stray = ran(store, tmp_path, replace(plan, shards=4), 1)
    last = shards_of(load_matrix(plan.matrix), plan)[2][0].removesuffix("/*")
    ran(store, tmp_path, plan, 3, left_out=f"{last}/tiled-torch")
    why = told(store, plan)
    assert f"lacks {last}/tiled-torch as planned here: a kernel card on that node probably differs" in why
    assert f"Run {stray} names this fleet and ran no shard of this plan." in why


def test_only_sealed_shards_count(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the key that is named, or of the collector's own, which seals the whole."""
    mine, plan = new_pair(tmp_path, "mine"), plan_of(tmp_path)
    for number in (1, 2):
        ran(store, tmp_path, plan, number, key=mine.signing)
    ran(store, tmp_path, plan, 3)
    assert "shard 3: run" in told(store, plan, keys=mine.trusted)
    monkeypatch.setenv(SIGNING_KEY, str(mine.private))
    assert "shard 3: run" in told(store, plan)
    ran(store, tmp_path, plan, 3, key=mine.signing)
    assert store.evidence(collect(store, plan, print)).seal


def test_a_collector_that_was_killed(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the whole: the next one makes it. After it, before the fleet's end: the next one finds it."""
    plan = plan_of(tmp_path)
    for number in (1, 2, 3):
        ran(store, tmp_path, plan, number)

    def dies(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(module, "store_whole", dies)
        with pytest.raises(KeyboardInterrupt):
            collect(store, plan, print)
    assert (SHARDS, "running") == (len(store.runs()), store.fleets.fleet("job-1").state)
    with monkeypatch.context() as patched:
        patched.setattr(module, "slow_cards_of", dies)
        with pytest.raises(KeyboardInterrupt):
            collect(store, plan, print)
    assert SHARDS + 1 == len(store.runs())
    collect(store, plan, print)
    assert (SHARDS + 1, "ended") == (len(store.runs()), store.fleets.fleet("job-1").state)


def test_a_collector_under_a_wrong_clock_holds_nobody_up(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed while the clock was days ahead: the next one waits for a sign of life, and joins the shards."""
    plan = plan_of(tmp_path)
    for number in (1, 2, 3):
        ran(store, tmp_path, plan, number)
    assert store.fleets.lead(plan.fleet, "killed", 3 * 86400) is not None
    monkeypatch.setattr(module, "LEASE_S", 0.5)
    assert CASES == len(store.records(collect(store, plan, lambda _: None)))


def test_wrong_shards_are_told(tmp_path: Path) -> None:
    """Too many, none, one that there is not; every shape is in exactly one."""
    plan = plan_of(tmp_path)
    loaded = load_matrix(plan.matrix)
    shards = shards_of(loaded, plan)
    assert [4, 4, 4] == [len(cells) for cells in shards]
    assert 12 == len({cell for cells in shards for cell in cells})
    for changes, words in (
        ({"shards": 13, "shard": 1}, "13 shards are too many: the plan has 12"),
        ({"shard": 4}, "has shards 1 to 3, and not 4"),
        ({"shard": 0}, "has shards 1 to 3, and not 0"),
        ({"shards": 0, "shard": 1}, "the plan has no shards"),
        ({"spread": "repeat", "shard": 1}, '3 shards need "spread": "shard" in the plan. It has "repeat", which is'),
        ({"spread": "repeat", "shards": 0, "shard": 1}, "the plan has no shards"),
    ):
        with pytest.raises(UsageError, match=words):
            of_shard(replace(plan, **changes))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("m.yaml", MATRIX, "m.yaml: give the plan, the file of JSON that the nodes were given; a matrix has no shards"),
        ("p.json", '{"matrix": "m.yaml", "shards": "3"}', 'p.json: shards is "3", and must be a number: write it with'),
        ("p.json", '{"matrix": "m.yaml", "shards": true}', "p.json: shards is true, and must be a number"),
    ],
)
def test_what_is_no_plan_is_told_as_that(tmp_path: Path, name: str, text: str, message: str) -> None:
    """A matrix in place of its plan, and numbers that are none: true would be one shard."""
    (tmp_path / name).write_text(text)
    ended = call("collect", name, "--fleet", "f", cwd=tmp_path)
    assert (2, True) == (ended.code, ended.err.startswith(f"qualify: {message}")), ended.err
