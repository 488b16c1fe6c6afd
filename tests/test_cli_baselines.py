"""`qualify baseline` over machines and branches: as a file, and under a name with a fallback."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import zipfile
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cli_process import Ended, call, command, environment
from exported import changed
from stored_runs import IDS, MATRIX, NOW, PASSED, WRONG, store_run

from qualify.store.store import Store


@pytest.fixture
def folder(tmp_path: Path, empty_sqlite: str) -> Path:
    """A folder with a matrix and an empty store."""
    (tmp_path / "serving.yaml").write_text(MATRIX)
    return tmp_path


def stored(folder: Path, outcome: Any = PASSED, hours: float = 1, db: str = "evidence.db", **changes: Any) -> str:
    """A run in a store of the folder; returns its id."""
    age = NOW - datetime.now(UTC) + timedelta(hours=hours)
    with Store.open(str(folder / db)) as store:
        return store_run(store, folder / "serving.yaml", outcome, age=age, **changes).id


def baseline(folder: Path, *arguments: object, db: str = "evidence.db") -> Ended:
    """A command on baselines."""
    return call("baseline", *arguments, "--db", db, cwd=folder)


def accept(folder: Path, run: str, *more: str, db: str = "evidence.db") -> Ended:
    """Somebody accepts a run."""
    return baseline(folder, "accept", run, "--by", "jane", "--reason", "release", *more, db=db)


def against(folder: Path, what: str, db: str = "evidence.db") -> Ended:
    """The gate, compared."""
    return call("gate", "--db", db, "--against", what, cwd=folder)


NO_BASELINE = pytest.mark.parametrize("command", [("show", "serving"), ("export", "serving")], ids=["show", "export"])


@NO_BASELINE
@pytest.mark.parametrize("newer", [{"select": "*q8*"}, {"state": "interrupted"}], ids=["narrowed", "interrupted"])
def test_without_a_baseline_a_run_is_named_that_may_become_one(
    folder: Path, command: tuple[str, str], newer: dict[str, Any]
) -> None:
    """The last run may be one that `accept` refuses. Where no run is whole, the command that makes one is named."""
    stored(folder, **newer)
    ended = baseline(folder, *command)
    make = f"qualify run {folder}/serving.yaml --device cpu --db evidence.db"
    assert (5, True) == (ended.code, ended.err.rstrip().endswith(f"did not complete. Make one: {make}")), ended.err
    whole = stored(folder, hours=2)
    told = baseline(folder, *command).err
    assert f"accept it: qualify baseline accept {whole} --reason 'first baseline' --db evidence.db --by" in told
    assert 0 == accept(folder, whole).code


def test_a_run_is_accepted_although_nobody_can_read_so(folder: Path) -> None:
    """The message does not say that the command must be typed again, nor anything of a run that was measured."""
    run = stored(folder)
    words = ("baseline", "accept", run, "--by", "jane", "--reason", "release", "--db", "evidence.db")
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            command(*words), cwd=folder, env=environment(), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    told = f"No space left on device. Run {run} is accepted all the same: qualify baseline list --db evidence.db"
    assert (4, f"qualify: the result cannot be written to stdout: {told}\n") == (ended.returncode, ended.stderr)
    assert run in baseline(folder, "list").out


def test_without_a_baseline_of_a_device_model_no_run_of_another_model_is_named(folder: Path) -> None:
    """It would become the baseline of its own model, and the one that was asked for would still be missing."""
    stored(folder)
    ended = baseline(folder, "show", "serving", "--variant", "NVIDIA*")
    assert (5, False) == (ended.code, "accept" in ended.err), ended.err
    assert "No run of that matrix is stored there for that device model." in ended.err


def test_a_baseline_moves_to_another_machine(folder: Path) -> None:
    """One file holds who accepted what, and the run; another store compares with it; a second import adds nothing."""
    first = stored(folder, hours=5)
    assert 0 == accept(folder, first).code
    sent = baseline(folder, "export", "serving")
    assert (0, True) == (sent.code, sent.out.startswith("serving.baseline.zip: current  serving on Test CPU"))
    once = (folder / "serving.baseline.zip").read_bytes()
    assert 0 == baseline(folder, "export", "serving").code
    assert once == (folder / "serving.baseline.zip").read_bytes()
    Store.open(str(folder / "other.db")).close()
    for new in (True, False):
        received = baseline(folder, "import", "serving.baseline.zip", "--json", db="other.db")
        assert (0, first, "jane", new) == (
            received.code,
            received.data["run"],
            received.data["accepted_by"],
            received.data["new"],
        )
    stored(folder, lambda case: WRONG if case.id == IDS[0] else PASSED, db="other.db")
    ended = against(folder, "baseline", db="other.db")
    assert (1, True) == (ended.code, f"against: run {first}, accepted by jane (unproven) on" in ended.out)
    assert 1 == len(baseline(folder, "list", db="other.db").out.splitlines())


def test_a_newer_run_that_failed_is_told_to_whoever_relies_on_an_older_one(folder: Path) -> None:
    """By `baseline accept`, `signoff` and `gate --run`, for people and for programs."""
    first, second = stored(folder, hours=5), stored(folder, WRONG, hours=2)
    access = {"access": "site", "signers": [{"name": "jane", "roles": ["release"]}]}
    (folder / "access.yaml").write_text(json.dumps(access))
    note = f"run {second} is newer than run {first}, on the same stack, and not qualified."
    see = f"See: qualify gate --run {second} --db evidence.db"
    assert f"\nnote: {note} {see}\n" in accept(folder, first).out
    assert [f"{note} {see}"] == accept(folder, first, "--name", "main", "--json").data["notes"]
    signing = ("signoff", first, "--by", "jane", "--role", "release", "--reason", "read", "--access", "access.yaml")
    assert f"\nnote: {note} {see}\n" in call(*signing, "--db", "evidence.db", cwd=folder).out
    assert f"\nnote: {note} {see}\n" in call("gate", "--run", first, "--db", "evidence.db", cwd=folder).out


def test_a_baseline_whose_run_was_edited_leaves_in_no_file(folder: Path) -> None:
    """What does not fit is told here, and not by the gate that compares with it elsewhere."""
    run = stored(folder, hours=5)
    accept(folder, run)
    with closing(sqlite3.connect(folder / "evidence.db")) as connection, connection:
        connection.execute("UPDATE runs SET device = 'cuda'")
    ended = baseline(folder, "export", "serving")
    assert 5 == ended.code, ended
    assert f"run {run} contradicts itself: " in ended.err
    assert f"What does not fit: qualify verify {run} --db evidence.db. Nothing was written." in ended.err
    assert not (folder / "serving.baseline.zip").exists()


def test_a_baseline_whose_run_was_edited_in_its_file_is_refused(folder: Path) -> None:
    """Nothing of it is stored: a gate that compared with it would have no verdict."""
    run = stored(folder, hours=5)
    accept(folder, run)
    baseline(folder, "export", "serving")
    file, evidence = folder / "serving.baseline.zip", folder / "run.jsonl.gz"
    with zipfile.ZipFile(file) as packed:
        members = {name: packed.read(name) for name in packed.namelist()}
    evidence.write_bytes(members["run.jsonl.gz"])
    changed(evidence, lambda lines: lines[-1]["run"].update(device="cuda"))
    with zipfile.ZipFile(file, "w") as packed:
        for name, content in (members | {"run.jsonl.gz": evidence.read_bytes()}).items():
            packed.writestr(name, content)
    ended = baseline(folder, "import", "serving.baseline.zip", db="other.db")
    assert (2, True) == (ended.code, f"its run {run} contradicts itself: " in ended.err), ended
    assert "No baseline was imported" in ended.err
    for words in (("list",), ("export", "serving")):
        assert not baseline(folder, *words, db="other.db").out


def test_a_file_of_before_replaces_no_later_baseline(folder: Path) -> None:
    """The store's own, later acceptance stays the current one, and the command says so."""
    old, new = stored(folder, hours=9), stored(folder, hours=5)
    accept(folder, old)
    baseline(folder, "export", "serving")
    accept(folder, new)
    received = baseline(folder, "import", "serving.baseline.zip")
    assert (0, True) == (received.code, f"run {new}" in received.out)
    assert "or a later one, already; nothing was added" in received.err
    with Store.open(str(folder / "evidence.db")) as store:
        assert [new, old] == [item.run_id for item in store.baselines()]


def test_a_branch_has_its_own_baseline_and_falls_back(folder: Path) -> None:
    """By name where somebody accepted one, else the one without a name, and the text says which."""
    main, branch = stored(folder, hours=9), stored(folder, hours=5)
    accept(folder, main)
    fallen = against(folder, "baseline:feature/x")
    assert f"against: run {main}, " in fallen.out
    assert "caveat: nobody accepted a baseline for feature/x: this is the one without a name" in fallen.out
    accept(folder, branch, "--name", "feature/x")
    stored(folder, hours=1)
    own = against(folder, "baseline:feature/x")
    assert (0, True, False) == (own.code, f"against: run {branch}, " in own.out, "caveat" in own.out)
    for what in ("baseline", "baseline:other"):
        assert f"against: run {main}, " in against(folder, what).out
    listed = baseline(folder, "list").out.splitlines()
    assert ["current", "current"] == [line.split()[0] for line in listed]
    assert " for feature/x: run " in listed[0]
    difference = call("diff", "baseline:feature/x", "--db", "evidence.db", cwd=folder)
    assert (0, True) == (difference.code, branch in difference.out)


def test_a_named_baseline_travels_with_its_name(folder: Path) -> None:
    """It is exported by its name, and enters the other store under it."""
    accept(folder, stored(folder), "--name", "v2")
    missing = baseline(folder, "export", "serving")
    assert (5, True) == (missing.code, "no baseline of serving without a name in evidence.db" in missing.err)
    assert 0 == baseline(folder, "export", "serving", "--name", "v2", "--out", "b.zip").code
    assert "v2" == baseline(folder, "import", "b.zip", "--json", db="other.db").data["name"]


@pytest.mark.parametrize("what", ["baseline:", "baseline: x", "baseline::x"])
def test_a_name_is_a_name(folder: Path, what: str) -> None:
    """An empty variable behind the colon is no fallback."""
    accept(folder, stored(folder))
    ended = against(folder, what)
    assert (2, "") == (ended.code, ended.out)
    assert f"--against {what}: give a name of at most 200 characters without spaces" in ended.err
    assert 2 == accept(folder, stored(folder), "--name", "").code


def repacked(path: Path, method: int = zipfile.ZIP_STORED, **changes: Any) -> None:
    """The file with another acceptance."""
    with zipfile.ZipFile(path) as packed:
        about, run = json.loads(packed.read("baseline.json")), packed.read("run.jsonl.gz")
    about["baseline"] |= {name: value for name, value in changes.items() if name in about["baseline"]}
    about |= {name: value for name, value in changes.items() if name in about}
    with zipfile.ZipFile(path, "w", method) as packed:
        packed.writestr("baseline.json", json.dumps(about))
        packed.writestr("run.jsonl.gz", run if changes.get("whole", True) else run[:-40])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"matrix": "other"}, "its acceptance is not of its run"),
        ({"variant": "NVIDIA H100"}, "its acceptance is not of its run"),
        ({"accepted_at": "soon"}, "it is no exported baseline, or it was damaged"),
        ({"format": "qualify.baseline/9"}, "it has the format qualify.baseline/9"),
        ({"whole": False}, "cut off or damaged"),
        ({"method": zipfile.ZIP_DEFLATED}, "its members are compressed or too large"),
    ],
)
def test_a_damaged_file_is_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    """Exit 2, the file's own name, and no baseline."""
    accept(folder, stored(folder))
    baseline(folder, "export", "serving", "--out", "b.zip")
    repacked(folder / "b.zip", **changes)
    ended = baseline(folder, "import", "b.zip", db="other.db")
    assert (2, "", True) == (ended.code, ended.out, ended.err.startswith("qualify: b.zip: "))
    assert message in ended.err
    with Store.open(str(folder / "other.db")) as store:
        assert [] == store.baselines()


def test_what_is_no_file_of_a_baseline(folder: Path) -> None:
    """A missing file, and one of another kind."""
    for name, message in (("none.zip", "No such file"), ("serving.yaml", "not a zip file")):
        ended = baseline(folder, "import", name)
        assert (2, True) == (ended.code, message in ended.err)
    stored(folder)
    accept(folder, "latest")
    unwritable = baseline(folder, "export", "serving", "--out", "none/b.zip")
    assert (4, True) == (unwritable.code, "--out none/b.zip: the baseline cannot be written there" in unwritable.err)


def test_a_pipe_is_neither_read_nor_replaced(folder: Path) -> None:
    """Without a writer it would keep a pipeline waiting for ever; `verify` says so, too."""
    os.mkfifo(folder / "pipe.zip")
    ended = baseline(folder, "import", "pipe.zip")
    assert (2, True) == (ended.code, "pipe.zip: it is a pipe, and only a regular file is read" in ended.err), ended
    stored(folder)
    accept(folder, "latest")
    ended = baseline(folder, "export", "serving", "--out", "pipe.zip")
    assert (4, True) == (ended.code, "--out pipe.zip is a pipe, which qualify does not replace" in ended.err), ended
    ended = call("verify", "pipe.zip", cwd=folder)
    assert (2, True) == (ended.code, "pipe.zip: it is a pipe, and only a regular file is read" in ended.err), ended


def test_a_token_proves_who_accepts(folder: Path) -> None:
    """Without one the name is marked wherever the acceptance is told; a moved file proves nobody."""
    made = call("access", "token", "jane", "--right", "sign", "--json", cwd=folder).data
    reader = call("access", "token", "joe", "--right", "read", "--right", "read", "--json", cwd=folder).data
    assert ["read"] == reader["entry"]["rights"]
    card = {"access": "site", "tokens": [made["entry"], reader["entry"]]}
    (folder / "access.yaml").write_text(json.dumps(card))
    for name, it in (("jane", made), ("joe", reader)):
        (folder / name).write_text(it["token"])
    first, second = stored(folder, hours=5), stored(folder, hours=3)
    why = ("--reason", "release", "--access", "access.yaml")
    assert 0 == accept(folder, first).code

    for refused, told in (
        (("--token-file", "joe"), "does not have the right 'sign'"),
        (("--token-file", "jane", "--by", "joe"), "the token is that of 'jane'"),
        ((), "nothing says who you are"),
    ):
        ended = baseline(folder, "accept", second, *why, *refused)
        assert (True, "") == (ended.code != 0 and told in ended.err, ended.out), (refused, ended.err)
    ended = call("gate", "--db", "evidence.db", "--run", second, "--against", "baseline", cwd=folder)
    assert f"against: run {first}, accepted by jane (unproven) on" in ended.out

    taken = baseline(folder, "accept", second, *why, "--token-file", "jane", "--json").data
    assert ("jane", True) == (taken["accepted_by"], taken["proven"])
    listed = baseline(folder, "list", "--json").data["baselines"]
    assert [(second, True), (first, False)] == [(it["run"], it["proven"]) for it in listed]
    third = stored(folder, hours=1)
    ended = call("gate", "--db", "evidence.db", "--run", third, "--against", "baseline", "--json", cwd=folder)
    assert ("jane", True) == (ended.data["against"]["accepted_by"], ended.data["against"]["accepted_proven"])

    assert 0 == baseline(folder, "export", "serving").code
    Store.open(str(folder / "other.db")).close()
    received = baseline(folder, "import", "serving.baseline.zip", "--json", db="other.db").data
    assert ("jane", False) == (received["accepted_by"], received["proven"])
