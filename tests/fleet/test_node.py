"""The cards of one machine: shared or each by itself, in processes that can be killed, with a vote about bits."""

from __future__ import annotations

import gzip
import json
import math
import os
import random
import re
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cli_process import Begun, call, descendants, environment, write_cards, write_matrix
from fleet_examples import write_plan, write_spoiling, write_toy
from sealing import new_pair
from stored_runs import store_run

from qualify.cli.node import plan_of
from qualify.errors import InfrastructureError, NothingSelected, UsageError
from qualify.facts import codec
from qualify.facts.fleet import ListedCard, NodePlan
from qualify.facts.outcome import Crashed, Measured, card_of
from qualify.fleet import node as node_module
from qualify.fleet.inventory import kind_of, list_cards
from qualify.fleet.lane import LaneBegun, LaneOrder
from qualify.fleet.on_node import PLACE, run_plan
from qualify.processes import read_process
from qualify.run.process.folder import remove_folder
from qualify.run.process.repeats import REPEATS_PER_KERNEL
from qualify.store.store import Store


def test_equal_cards_share_a_run(tmp_path: Path) -> None:
    """One verdict, every case once; both devices took some, and the sealed run says which card gave which outcome."""
    pair = new_pair(tmp_path)
    cards = write_cards(tmp_path / "cards", "meets")
    matrix = write_matrix(tmp_path / "m.yaml", "meets", seqlens=(8, 16, 24, 32, 40, 48))
    env = environment(QUALIFY_SIGNING_KEY=str(pair.private))
    given = ("--device", "cpu:2", "--cards", cards, "--db", "s.db", "--json")
    ended = call("run", matrix, *given, cwd=tmp_path, env=env)
    assert (0, "PASS") == (ended.code, ended.data["verdict"])
    with Store.open(str(tmp_path / "s.db"), create=False) as store:
        run = store.run(ended.data["run"])
        assert run.placement is not None
        assert ("shard", 2) == (run.placement.spread, len(run.placement.cards))
        ran = {card_of(record.outcome) for record in store.records(run.id)}
    assert set(run.placement.cards) == ran
    verified = call("verify", run.id, "--signed-by", pair.public, "--db", "s.db", cwd=tmp_path)
    assert 0 == verified.code, verified.out


def test_cards_that_share_a_run_share_its_repeats(tmp_path: Path) -> None:
    """A kernel that fails everywhere is tried again as often as on one card, not as often on each."""
    cards = write_cards(tmp_path / "cards", "meets_wrongly")
    matrix = write_matrix(tmp_path / "m.yaml", "meets-wrongly", seqlens=tuple(range(8, 32)))
    ended = call("run", matrix, "--device", "cpu:2", "--cards", cards, "--db", "s.db", "--json", cwd=tmp_path)
    assert 1 == ended.code
    with Store.open(str(tmp_path / "s.db"), create=False) as store:
        outcomes = [record.outcome for record in store.records(ended.data["run"])]
    assert 2 == len(set(map(card_of, outcomes)))
    attempts = Counter(outcome.evidence.attempt for outcome in outcomes if isinstance(outcome, Measured))
    assert {1: 24 - REPEATS_PER_KERNEL, 2: REPEATS_PER_KERNEL} == attempts


def test_every_card_runs_all(tmp_path: Path) -> None:
    """A run for each, which the store has; devices of a CPU are called a demonstration. One device is none of many."""
    matrix = write_toy(tmp_path, 8)
    ended = call("run", matrix, "--device", "cpu:2", "--spread", "repeat", "--db", "s.db", cwd=tmp_path)
    lines = ended.out.splitlines()
    assert (0, "demonstration on a CPU, which proves nothing about a GPU") == (ended.code, lines[0])
    assert ["COVERED", "COVERED"] == [line.split()[0] for line in lines[2:]]
    with Store.open(str(tmp_path / "s.db"), create=False) as store:
        assert 2 == len(store.runs())
    alone = call("run", matrix, "--spread", "repeat", cwd=tmp_path)
    assert (2, True) == (alone.code, "--device auto uses a single card. Try: --device cuda:all" in alone.err)


@pytest.mark.slow
def test_a_card_that_spoils_results_is_named_by_the_vote(tmp_path: Path) -> None:
    """Every device runs all; the files of the node are taken in once, and an edited one is not."""
    matrix, cards = write_toy(tmp_path, 8, 16, kernel="spoiling"), write_spoiling(tmp_path / "cards")
    plan = write_plan(tmp_path, matrix, cards=[str(cards)])
    pair = new_pair(tmp_path)
    env = environment(SPOILED_CARD="CPU-n1-1", QUALIFY_SIGNING_KEY=str(pair.private))
    ended = call("node", plan, "--out", "runs", "-v", cwd=tmp_path, env=env)
    told = ended.data
    begun = [line for line in ended.err.splitlines() if line.endswith("/spoiling")]
    assert {"CPU-n1-0": 2, "CPU-n1-1": 2} == Counter(line.split(":")[0] for line in begun)
    assert (1, "FAIL", "n1") == (ended.code, told["verdict"], told["node"])
    assert [("CPU-n1-0", "COVERED", "PASS"), ("CPU-n1-1", "COVERED", "FAIL")] == [
        (card["uuid"], card["state"], card["verdict"]) for card in told["cards"]
    ]
    (vote,) = told["votes"]
    assert ("outlier card", "CPU-n1-1", 2) == (vote["kind"], vote["who"], len(vote["cases"]))
    assert [["CPU-n1-0"], ["CPU-n1-1"]] == sorted(vote["ballots"].values())
    files = [str(tmp_path / "runs" / name) for name in told["files"]]
    assert sorted(files) == sorted(map(str, (tmp_path / "runs").iterdir()))
    _take_in(tmp_path, files, pair.public)


def _take_in(folder: Path, files: list[str], key: Path) -> None:
    """Twice, then an edited copy."""
    for expected in (2, 0):
        ended = call("ingest", *files, "--signed-by", key, "--db", "central.db", "--json", cwd=folder)
        assert (0, expected, {}) == (ended.code, ended.data["new"], ended.data["refused"])
    text = gzip.decompress(Path(files[0]).read_bytes()).decode().splitlines()
    (folder / "unsealed.jsonl.gz").write_bytes(gzip.compress("\n".join(text).encode()[:-40]))
    ended = call("ingest", "unsealed.jsonl.gz", files[1], "--signed-by", key, "--db", "other.db", cwd=folder)
    assert (2, True) == (ended.code, "1 run added, 0 runs there already, 1 file refused" in ended.out)


def hold(tmp_path: Path, **changes: Any) -> tuple[subprocess.Popen[bytes], Path]:
    """A node of two cards, one of which hangs; once the other has ended."""
    matrix, cards = write_toy(tmp_path, 8, 16, kernel="spoiling"), write_spoiling(tmp_path / "cards")
    (cards / "hold").touch()
    plan = write_plan(tmp_path, matrix, cards=[str(cards)], interim_s=0.2, **changes)
    env = environment(HOLD_CARD="CPU-n1-1")
    process = Begun(
        "node", plan, "--out", "runs", cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    return process, tmp_path / "runs"


@pytest.mark.slow
def test_a_lane_that_dies_or_is_late_takes_no_other_along(tmp_path: Path) -> None:
    """The one that hangs is killed, as by a machine without memory: LOST, with what it had; the other is COVERED."""
    process, folder = hold(tmp_path)
    until = time.monotonic() + 120
    while not _whole(folder) or len(_running_children(process.pid)) != 1:
        assert time.monotonic() < until
        time.sleep(0.1)
    os.kill(*_running_children(process.pid), signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    told = json.loads(out)
    assert 5 == process.returncode, err
    assert ["COVERED", "LOST"] == [card["state"] for card in told["cards"]]
    assert "its process ended with signal SIGKILL" in told["cards"][1]["reason"]
    assert 2 == len(told["files"]) == len(list(folder.glob("*.jsonl.gz")))


def _whole(folder: Path) -> list[Path]:
    """Files of runs that ended."""
    return [path for path in folder.glob("*.jsonl.gz") if not path.name.endswith(".interim.jsonl.gz")]


def _running_children(pid: int) -> list[int]:
    """The processes that a process started and that have not ended."""
    found = map(read_process, descendants(pid))
    return [process.pid for process in found if process and process.parent == pid and not process.ended]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_what_was_measured(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C and a batch system's SIGTERM alike: exit 130, the run lies there as a file, and nothing else does."""
    matrix = write_matrix(tmp_path / "m.yaml", "correct", "slow")
    cards = write_cards(tmp_path / "cards", "correct", "slow")
    (cards / "hold").touch()
    plan, folder = write_plan(tmp_path, matrix, cards=[str(cards)], device="cpu:1", interim_s=0.05), tmp_path / "runs"
    process = Begun("node", plan, "--out", folder, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until = time.monotonic() + 60
    while not list(folder.glob("*.interim.jsonl.gz")):
        assert time.monotonic() < until
        time.sleep(0.02)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (130, b"", True) == (process.returncode, out, err.endswith(b"qualify: interrupted\n"))
    (path,) = folder.iterdir()
    ended = call("ingest", path, "--db", "s.db", "--json", cwd=tmp_path)
    assert 1 == ended.data["new"]
    with Store.open(str(tmp_path / "s.db"), create=False) as store:
        (run,) = store.runs()
        assert ("interrupted", 1) == (run.state, len(store.done(run.id)))


def test_what_cannot_be_exported_is_kept(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """No file can grow, as on a full disk: nothing is removed that holds evidence, and the log says how to get it."""
    db, folder = tmp_path / "0.db", tmp_path / "runs"
    folder.mkdir()
    noise = random.Random(1).randbytes(200_000).hex()
    with Store.open(str(db)) as store:
        run = store_run(store, write_toy(tmp_path, 8), Crashed(stage="call", error="it died", log=noise, attempt=1))
    (folder / f"{run.id}.interim.jsonl.gz").touch()
    lane = node_module._Lane(
        cards=(ListedCard(uuid="GPU-1", name="H100"),),
        process=subprocess.Popen(["true"]),
        db=db,
        begun=LaneBegun(run=run.id, cases=1),
        why="it died",
    )
    lane.process.wait()
    room = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, room[1]))
    try:
        (told,) = node_module._results(lane, folder, print)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, room)
    assert ("LOST", "it died", True) == (told.state, told.reason, lane.unsaved)
    assert () == node_module._files([told], folder)
    assert [f"{run.id}.interim.jsonl.gz"] == [path.name for path in folder.iterdir()]
    said = capfd.readouterr().out
    assert "File too large" in said
    assert f"Free the place, then: qualify db export {run.id} --db {db} --out {folder}/{run.id}.jsonl.gz\n" in said
    lane.unsaved = False
    assert run.id == node_module._export(lane, folder, print)
    assert [f"{run.id}.jsonl.gz"] == [path.name for path in folder.iterdir()]


def test_a_node_without_room_for_a_process_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process or file is left, or the interpreter is gone: no mistake of qualify, and nothing to report."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    plan = NodePlan(matrix=str(write_toy(tmp_path, 8)), device="cpu:1", level="smoke")
    with pytest.raises(InfrastructureError, match=r"no process can be started for CPU-.*/python'"):
        node_module.run_node(plan, tmp_path / "runs", print)
    assert [] == list((tmp_path / "runs").iterdir())


NEST = """\
import json, os, sys
from pathlib import Path

def nest(folder):
    place = os.open(folder, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=place)
        place, before = os.open("d", os.O_RDONLY, dir_fd=place), place
        os.close(before)

"""
HOSTILE_LANE = (
    NEST
    + """\
from qualify.store.store import Store

order = json.load(sys.stdin)
Store.open(order["db"]).close()
nest(Path(order["db"]).parent)
(Path(order["folder"]) / "r.interim.jsonl.gz").mkdir()
if order["uuids"] == ["CPU-n1-0"]:
    (Path(order["folder"]) / "r.jsonl.gz").mkdir()
print(json.dumps({"event": "begun", "run": "r", "cases": 1}))
print(json.dumps({"event": "finished", "run": "r", "verdict": "PASS", "ran": []}))
"""
)


@pytest.fixture
def spoiled(tmp_path: Path) -> Iterator[Path]:
    """A folder that goes with all that is nested in it; pytest could not remove that if a test failed."""
    yield tmp_path
    remove_folder(tmp_path)


@pytest.mark.parametrize("expected", ["CPU-n1-0", "CPU-n1-1"])
def test_a_kernel_that_spoils_the_folder_of_its_node(
    spoiled: Path, monkeypatch: pytest.MonkeyPatch, expected: str
) -> None:
    """It can find it, as any process of this user can: folders without end, and folders in the place of files.

    The node still answers. A card is not covered whose run is in no file, whatever its lane says.
    """
    lane, folder = spoiled / "lane", spoiled / "runs"
    lane.write_text(f"#!{sys.executable}\n{HOSTILE_LANE}")
    lane.chmod(0o700)
    plan = NodePlan(matrix=str(write_toy(spoiled)), device="cpu:2", node="n1", expected=(expected,))
    monkeypatch.setattr(sys, "executable", str(lane))
    found = node_module.run_node(plan, folder, print)
    (card,) = found.cards
    assert ("LOST", None, "INCONCLUSIVE", 5) == (card.state, card.verdict, found.verdict, found.exit_code)
    assert "run r is not in" in card.reason
    assert () == found.files
    assert not list(folder.glob(".lanes-*"))
    assert not (folder / "r.interim.jsonl.gz").exists()


def test_a_lane_whose_run_cannot_be_stored_says_why(tmp_path: Path, store: Store) -> None:
    """The store refuses the run, as on a full disk: that is the reason of its cards, not what is missing afterwards."""
    with closing(sqlite3.connect(store.where)) as connection, connection:
        connection.execute("CREATE TRIGGER full BEFORE INSERT ON runs BEGIN SELECT RAISE(FAIL, 'no room'); END")
    plan = NodePlan(matrix=str(write_toy(tmp_path, 8)), device="cpu:1", level="smoke")
    order = LaneOrder(plan=plan, uuids=("CPU-1",), db=store.where, folder=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "qualify.fleet.lane", str(os.getpid())],
        input=json.dumps(codec.to_data(order)),
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    told = json.loads(done.stdout.splitlines()[-1])
    assert "stopped" == told["event"]
    assert "no room" in told["message"]


@pytest.mark.slow
def test_what_is_late_is_stopped(tmp_path: Path) -> None:
    """After the plan's deadline: what was measured is exported, the card is LOST, and the verdict is none."""
    process, _ = hold(tmp_path, deadline_s=12.0, expected=["CPU-n1-1", "CPU-n1-7"])
    out, _ = process.communicate(timeout=120)
    told = json.loads(out)
    assert 5 == process.returncode
    assert [("CPU-n1-1", "LOST"), ("CPU-n1-7", "MISSING")] == [(card["uuid"], card["state"]) for card in told["cards"]]
    assert "did not end within the deadline of 12 s" in told["cards"][0]["reason"]
    assert "its cards: CPU-n1-0, CPU-n1-1" in told["cards"][1]["reason"]


def test_cards_that_must_not_run_are_refused_or_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is started on them, and nothing is proved."""
    sick = ListedCard(uuid="GPU-1", name="H100", refusals=("the GPU asks for recovery: reset the GPU",))
    used = ListedCard(uuid="GPU-2", name="H100", busy=("other processes use the card (pid 7)",))
    monkeypatch.setattr(node_module, "list_cards", lambda device, node: (sick, used))
    found = node_module.run_node(NodePlan(matrix="smoke"), tmp_path / "runs", print)
    assert [("REFUSED", sick.refusals[0]), ("BUSY", used.busy[0])] == [(it.state, it.reason) for it in found.cards]
    assert ("INCONCLUSIVE", 5, ()) == (found.verdict, found.exit_code, found.files)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        (
            "deadline_s",
            -1,
            "deadline_s is -1.0, and must be from 0.001 to 2147483647: give seconds above 0, or leave it",
        ),
        ("deadline_s", math.nan, "deadline_s is nan, and must be from 0.001"),
        (
            "interim_s",
            0,
            "interim_s is 0.0, and must be from 0.001 to 2147483647: give the seconds between two exports",
        ),
        ("interim_s", 1e308, "interim_s is 1e+308, and must be"),
        ("attempt", 0, "attempt is 0, and must be from 1 to 2147483647: attempts are counted from 1"),
        ("attempt", 1 << 70, "attempt is 1180591620717411303424, and must be"),
        ("shards", -2, "shards is -2, and must be from 0"),
        ("shard", -1, "shard is -1, and must be from 0 to 2147483647: shards are counted from 1"),
    ],
)
def test_a_number_that_no_node_could_obey_is_refused(tmp_path: Path, field: str, value: float, words: str) -> None:
    """With the file, the field, its value and what it may be."""
    (tmp_path / "plan.json").write_text(json.dumps({"matrix": "smoke", field: value}))
    with pytest.raises(UsageError, match=re.escape(f"plan.json: {words}")):
        plan_of(str(tmp_path / "plan.json"))


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        (
            {"kernel": "tiled-troch"},
            UsageError,
            "--kernel tiled-troch: not a kernel of matrix smoke; perhaps you meant",
        ),
        ({"cards": ("none",)}, UsageError, "--cards none: no such folder"),
        ({"select": "nothing*"}, NothingSelected, "no case of smoke matches --select 'nothing*'"),
        ({"matrix": "smok"}, UsageError, "no matrix is called 'smok'; perhaps you meant smoke"),
    ],
)
def test_what_no_card_could_run_is_refused_before_anything_starts(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    """Once, as `qualify run` refuses it, and not as a refusal of each card."""
    with pytest.raises(error, match=re.escape(words)):
        node_module.run_node(NodePlan(**{"matrix": "smoke", "device": "cpu:2", **changes}), tmp_path / "runs", print)
    assert [] == list(tmp_path.iterdir())


def test_logical_devices_are_asked_for_plainly(tmp_path: Path) -> None:
    """By cpu:N only; anything else says what can be typed."""
    assert ["CPU-n-0", "CPU-n-1"] == [card.uuid for card in list_cards("cpu:2", "n")]
    assert "cuda" == kind_of("cuda:all")
    for device in ("cpu:0", "cpu:65", "tpu", "cuda:1"):
        ended = call("run", "smoke", "--device", device, cwd=tmp_path)
        assert (2, True) == (ended.code, "cpu:N" in ended.err)


def test_a_wrong_plan_is_told(tmp_path: Path) -> None:
    """With the file, the field and the fields that there are."""
    (tmp_path / "plan.json").write_text('{"matrix": "smoke", "spread": "all"}')
    (tmp_path / "none.json").write_text("{")
    for name, words in (
        ("plan.json", "plan.json: spread: "),
        ("none.json", "none.json:1:2: is not valid JSON: "),
        ("no.json", "mistyped"),
    ):
        ended = call("node", name, cwd=tmp_path)
        assert (2, True) == (ended.code, words in ended.err)


HOSTILE_NODE = (
    NEST
    + """\
place = Path(sys.argv[1]).parent
nest(place)
(place / "runs").mkdir()
os.mkfifo(place / "runs" / "p.jsonl.gz")
(place / "runs" / "r.jsonl.gz").write_bytes(b"run")
for name in ("answer", "log"):
    (place / name).unlink()
    os.mkfifo(place / name)
print("the answer")
print("the log", file=sys.stderr)
"""
)


def test_a_kernel_that_spoils_the_folder_of_its_task(spoiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pipes that nobody writes to, and folders without end: the task hands on what there is, and leaves nothing."""
    (spoiled / "node.py").write_text(HOSTILE_NODE)
    place = spoiled / "tmp"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    said = list(run_plan({}, (sys.executable, str(spoiled / "node.py"))))
    assert [("begun",), ("file", "r.jsonl.gz", b"run"), ("done", "the answer\n", "the log\n")] == said
    assert [] == list(place.iterdir())


TASK = """\
import sys, tempfile
from qualify.fleet.on_node import run_plan
tempfile.tempdir = sys.argv[1]
for said in run_plan({}, ("/bin/true",)):
    print(said[0], flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_task_left_is_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray kills the worker of a cancelled task. The folder of a task that goes on stays, and so does any other."""
    (tmp_path / "task.py").write_text(TASK)
    place = tmp_path / "tmp"
    (place / f"{PLACE}other").mkdir(parents=True)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    begin = partial(Begun, place, script=tmp_path / "task.py", cwd=tmp_path, **pipes)
    with begin() as killed, begin() as other:
        assert ["begun\n"] * 2 == [task.stdout.readline() for task in (killed, other)]
        assert 3 == len(list(place.iterdir()))
        killed.kill()
        killed.wait()
        monkeypatch.setattr(tempfile, "tempdir", str(place))
        assert ["begun", "done"] == [said[0] for said in run_plan({}, ("/bin/true",))]
        assert 2 == len(list(place.iterdir()))
    assert [place / f"{PLACE}other"] == list(place.iterdir())
