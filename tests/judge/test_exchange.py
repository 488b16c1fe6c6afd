"""A baseline as a file: which one is written, and which file becomes no baseline."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from duels import make_cell, make_duel
from stored_runs import IDS, MATRIX, NOW, accept_run, make_stack, store_run

from qualify.errors import UsageError
from qualify.judge.exchange import LONGEST, receive, send
from qualify.store.store import Store
from qualify.store.transfer import read


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The matrix of two shapes and two kernels."""
    (tmp_path / "serving.yaml").write_text(MATRIX)
    return tmp_path / "serving.yaml"


def packed(file: Path, about: bytes, evidence: bytes) -> Path:
    """A file of these two members."""
    with zipfile.ZipFile(file, "w") as written:
        written.writestr("baseline.json", about)
        written.writestr("run.jsonl.gz", evidence)
    return file


def members(file: Path) -> tuple[bytes, bytes]:
    """The acceptance and the run of a file."""
    with zipfile.ZipFile(file) as read:
        return read.read("baseline.json"), read.read("run.jsonl.gz")


@pytest.fixture
def sent(store: Store, path: Path, tmp_path: Path) -> Path:
    """A sound file."""
    accept_run(store, store_run(store, path))
    send(store, "serving", "*", "", tmp_path / "sound.zip")
    return tmp_path / "sound.zip"


def test_baselines_of_two_device_models_are_never_mixed_up(store: Store, path: Path, tmp_path: Path) -> None:
    """A glob that means both writes nothing and names them; the name of one writes that one."""
    other = make_stack()
    other = replace(other, device=replace(other.device, name="Other CPU"))
    mine, theirs = (accept_run(store, store_run(store, path, stack=stack)) for stack in (make_stack(), other))
    with pytest.raises(UsageError, match=r"on several device models: .*\. Choose one with --variant\.") as caught:
        send(store, "serving", "*", "", tmp_path / "b.zip")
    assert mine.variant in str(caught.value)
    assert theirs.variant in str(caught.value)
    assert not (tmp_path / "b.zip").exists()
    assert theirs == send(store, "serving", theirs.variant, "", tmp_path / "b.zip")


def test_two_exports_of_a_baseline_do_not_share_a_file(store: Store, path: Path, tmp_path: Path) -> None:
    """What another one has begun beside it, as another user, is in nobody's way."""
    baseline, file = accept_run(store, store_run(store, path)), tmp_path / "out" / "b.zip"
    (tmp_path / "out" / ".b.zip.unfinished").mkdir(parents=True)
    assert baseline == send(store, "serving", "*", "", file)
    assert [".b.zip.unfinished", "b.zip"] == sorted(found.name for found in file.parent.iterdir())


@pytest.mark.parametrize("changes", [{"select": "*q8*"}, {"kernel": "tiled*"}, {"state": "interrupted"}], ids=str)
def test_a_part_of_a_matrix_becomes_no_baseline_by_a_file(
    store: Store, path: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Whoever wrote such a file: a later gate would compare with a weaker run."""
    run = store_run(store, path, **changes)
    accept_run(store, run)
    send(store, "serving", "*", "", tmp_path / "b.zip")
    with Store.open(str(tmp_path / "team.db")) as team:
        with pytest.raises(UsageError, match=rf"b\.zip: its acceptance is not of its run {run.id} \({run.state}\)\."):
            receive(team, tmp_path / "b.zip", now=NOW)
        assert ([], []) == (team.baselines(), team.runs())


def test_a_duel_is_no_baseline(store: Store, path: Path, sent: Path, tmp_path: Path) -> None:
    """The file holds an acceptance, and a duel in place of the run."""
    duel = make_duel(store.runs()[0], make_cell(IDS[0]))
    store.add_duel(duel)
    store.export_duels([duel.id], tmp_path / "duel.jsonl.gz")
    file = packed(tmp_path / "b.zip", members(sent)[0], (tmp_path / "duel.jsonl.gz").read_bytes())
    with Store.open(str(tmp_path / "team.db")) as team:
        with pytest.raises(UsageError, match=rf"b\.zip: it holds duel {duel.id}, and .* its run alone\. No baseline"):
            receive(team, file, now=NOW)
        assert ([], []) == (team.baselines(), team.duels())


def encrypted(file: Path) -> None:
    """The members say that a password is needed."""
    data = bytearray(file.read_bytes())
    for sign, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = data.find(sign)
        while at >= 0:
            data[at + place] |= 1
            at = data.find(sign, at + 1)
    file.write_bytes(data)


def nested(file: Path) -> None:
    """The acceptance is a list in a list, a hundred thousand deep."""
    packed(file, b"[" * 100_000 + b"]" * 100_000, members(file)[1])


def padded(size: int) -> Callable[[Path], None]:
    """The acceptance has so many bytes."""

    def write(file: Path) -> None:
        about, evidence = members(file)
        packed(file, about + b" " * (size - len(about)), evidence)

    return write


def alone(file: Path) -> None:
    """The run is missing."""
    with zipfile.ZipFile(file, "w") as written:
        written.writestr("baseline.json", "{}")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (encrypted, "it is no exported baseline, or it was damaged"),
        (nested, "it is no exported baseline, or it was damaged"),
        (alone, "it is no exported baseline, or it was damaged"),
        (padded(LONGEST + 1), "its members are compressed or too large"),
    ],
)
def test_a_hostile_file_ends_with_one_line_and_no_traceback(
    store: Store, sent: Path, tmp_path: Path, damage: Callable[[Path], None], words: str
) -> None:
    """It names the file; nothing of it enters the store."""
    damage(sent)
    with Store.open(str(tmp_path / "team.db")) as team:
        with pytest.raises(UsageError) as caught:
            receive(team, sent, now=NOW)
        assert str(caught.value).startswith(f"{sent}: {words}")
        assert 1 == len(str(caught.value).splitlines())
        assert ([], []) == (team.runs(), team.baselines())


def test_a_baseline_is_no_damaged_run(sent: Path) -> None:
    """`verify` and `db import` take a run; whoever gives them a baseline is told which command reads it."""
    told = f"{sent}: it is a ZIP file, perhaps an exported baseline. `qualify baseline import` checks and reads one."
    with pytest.raises(UsageError) as caught:
        read(sent)
    assert told == str(caught.value)


def test_an_acceptance_of_the_largest_size_is_read(sent: Path, tmp_path: Path) -> None:
    """The limit is no byte below what it says."""
    padded(LONGEST)(sent)
    with Store.open(str(tmp_path / "team.db")) as team:
        assert receive(team, sent, now=NOW).new


def test_the_file_says_nothing_of_who_is_proven(sent: Path) -> None:
    """To another store a file proves nothing."""
    told = json.loads(members(sent)[0])["baseline"]
    assert ("jane", False) == (told["accepted_by"], "how" in told)


@pytest.mark.parametrize("what", ["acceptance", "run"])
def test_a_baseline_from_the_future_is_not_a_later_one(sent: Path, path: Path, tmp_path: Path, what: str) -> None:
    """A machine whose clock was wrong accepted it: the store does not believe it, so a sound one becomes current."""
    with Store.open(str(tmp_path / "team.db")) as team:
        ahead = timedelta(days=900)
        wrong = store_run(team, path, age=-ahead if what == "run" else timedelta(hours=1))
        accept_run(team, wrong, hours=1 - 24 * ahead.days if what == "acceptance" else 0)
        received = receive(team, sent, now=NOW)
        assert (True, received.baseline) == (received.new, received.current)
        assert received.baseline == team.baseline("serving", received.baseline.variant)
        assert not receive(team, sent, now=NOW).new


@pytest.mark.parametrize("what", ["acceptance", "run"])
def test_a_file_from_the_future_is_no_baseline(store: Store, path: Path, tmp_path: Path, what: str) -> None:
    """As a run that is dated in the future cannot be accepted."""
    ahead = timedelta(days=900)
    run = store_run(store, path, age=-ahead if what == "run" else timedelta(hours=1))
    accept_run(store, run, hours=1 - 24 * ahead.days if what == "acceptance" else 0)
    send(store, "serving", "*", "", tmp_path / "b.zip")
    with Store.open(str(tmp_path / "team.db")) as team:
        with pytest.raises(UsageError, match=rf"b\.zip: its {what} is dated in the future \(2029-05-.* UTC\): a clock"):
            receive(team, tmp_path / "b.zip", now=NOW)
        assert ([], []) == (team.baselines(), team.runs())
