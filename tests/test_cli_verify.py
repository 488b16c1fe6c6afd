"""`qualify verify`, `gate --require-signed-by` and `gate --sign` as processes, on stored runs and on a real one."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cli_process import call, environment, write_matrix
from exported import changed
from sealing import KeyPair, new_pair, seal_run
from securesystemslib.dsse import Envelope
from stored_runs import IDS, MATRIX, NOW, PASSED, store_run

from qualify.seal.keys import SIGNING_KEY
from qualify.store.store import Store


@pytest.fixture
def pair(tmp_path: Path) -> KeyPair:
    """The runner's keys."""
    return new_pair(tmp_path)


@pytest.fixture
def folder(tmp_path: Path, empty_sqlite: str) -> Path:
    """A folder with a matrix and an empty store."""
    (tmp_path / "serving.yaml").write_text(MATRIX)
    return tmp_path


def stored(folder: Path, pair: KeyPair | None, hours: float = 1, **changes: Any) -> str:
    """A run that passed, sealed by a pair of keys; returns its id."""
    age = NOW - datetime.now(UTC) + timedelta(hours=hours)
    with Store.open(str(folder / "evidence.db")) as store:
        run = store_run(store, folder / "serving.yaml", PASSED, age=age, **changes).id
        if pair:
            seal_run(store, run, pair.signing)
    return run


def edit(folder: Path, statement: str) -> None:
    """Somebody who can write the store changes rows of it."""
    with closing(sqlite3.connect(folder / "evidence.db")) as connection, connection:
        assert connection.execute(statement).rowcount > 0


def ask(folder: Path, *arguments: object) -> Any:
    """A command on the folder's store."""
    return call(*arguments, "--db", "evidence.db", cwd=folder)


@pytest.mark.parametrize("command", [("db", "import"), ("ingest",)], ids=" ".join)
def test_no_store_takes_a_run_that_contradicts_itself(command: tuple[str, ...], folder: Path) -> None:
    """It says what does not fit: as evidence it would count for nothing, only later."""
    run = stored(folder, None)
    assert 0 == ask(folder, "db", "export", run, "--out", "run.jsonl.gz").code
    changed(folder / "run.jsonl.gz", lambda lines: lines[-1]["run"].update(device="cuda"))
    ended = call(*command, "run.jsonl.gz", "--db", "team.db", cwd=folder)
    assert 2 == ended.code, ended
    assert f"run {run} contradicts itself: " in ended.err
    assert "Nothing was imported" in ended.err
    assert "What differs: qualify verify run.jsonl.gz" in ended.err
    told = call("verify", "run.jsonl.gz", cwd=folder)
    assert (5, True) == (told.code, "contradicts itself" in told.out), told


def test_the_gate_takes_only_what_a_key_has_sealed(folder: Path, pair: KeyPair) -> None:
    """Exit 0 with its key, with a folder of keys, and without any; exit 5: no seal, another key, or an edited row."""
    run = stored(folder, pair)
    required = ("--require-signed-by", pair.public)
    for asked in (("gate",), ("gate", "--matrix", "serving.yaml")):
        assert [0, 0] == [ask(folder, *asked, *more).code for more in ((), required)]
    told = ask(folder, "gate", "--require-signed-by", pair.public.parent)
    assert (0, True) == (told.code, f"run {run} is sealed by {pair.public} (" in told.out)
    stranger = new_pair(folder, "stranger").public
    refused = ask(folder, "gate", "--require-signed-by", stranger)
    assert (5, True) == (refused.code, "not by one of the required keys" in refused.out)
    edit(folder, "UPDATE outcomes SET wall_s = 0.5 WHERE id = 1")
    assert [0, 5] == [ask(folder, "gate", *more).code for more in ((), required)]
    told = ask(folder, "gate", *required)
    assert f"run {run} does not count: it is not what was sealed: {IDS[0]} evidence.wall_s changed" in told.out
    matrix = ask(folder, "gate", "--matrix", "serving.yaml", *required)
    assert (5, True) == (matrix.code, "it is not what was sealed" in matrix.out)
    stored(folder, None)
    for asked in (("gate",), ("gate", "--matrix", "serving.yaml")):
        told = ask(folder, *asked, *required)
        assert (5, True) == (told.code, "it is not sealed" in told.out), told.out
        advice = "do: make evidence that one of the keys seals, with QUALIFY_SIGNING_KEY naming it: qualify run "
        assert advice in told.out


def test_a_run_without_a_seal_is_told_how_runs_get_one(folder: Path) -> None:
    """No verdict, and the variable that names the key."""
    told = ask(folder, "verify", stored(folder, None))
    assert (5, True) == (told.code, "it is not sealed" in told.out)
    assert "by the key that QUALIFY_SIGNING_KEY names (docs/signing.md)" in told.out


def test_a_comparison_needs_two_sealed_runs(folder: Path, pair: KeyPair) -> None:
    """A baseline that anybody wrote would hide what changed."""
    before = stored(folder, None, hours=3)
    stored(folder, pair)
    asked = ("gate", "--against", before)
    assert 0 == ask(folder, *asked).code
    told = ask(folder, *asked, "--require-signed-by", pair.public)
    assert (5, True) == (told.code, f"run {before} does not count: it is not sealed" in told.out), told.out


def test_the_accepted_baseline_must_be_sealed(folder: Path, pair: KeyPair) -> None:
    """What is weaker is counted from it: whoever edits its rows could hide that."""
    before = stored(folder, pair, hours=3)
    assert 0 == ask(folder, "baseline", "accept", before, "--by", "jane", "--reason", "7").code
    now = stored(folder, pair)
    required = ("gate", "--require-signed-by", pair.public)
    assert 0 == ask(folder, *required).code
    edit(folder, "UPDATE outcomes SET wall_s = 0.5 WHERE id = 1")
    told = ask(folder, *required)
    assert (5, True) == (told.code, f"the accepted baseline, run {before}, does not count: it is not what" in told.out)
    assert "do: nothing failed: a note below says why there is no verdict" in told.out
    accept = f"qualify baseline accept {now} --reason"
    assert f"If that is no surprise, accept a run that one of the keys sealed: {accept}" in told.out


def test_a_run_that_no_key_sealed_is_not_named_as_the_next_baseline(folder: Path, pair: KeyPair) -> None:
    """Whoever accepts it gets the same message from the next gate, of that run."""
    before = stored(folder, None, hours=3)
    assert 0 == ask(folder, "baseline", "accept", before, "--by", "jane", "--reason", "7").code
    stored(folder, None)
    for what in (("--run", "latest"), ("--matrix", folder / "serving.yaml")):
        told = ask(folder, "gate", *what, "--require-signed-by", pair.public)
        assert 5 == told.code
        assert "accept a run that one of the keys sealed: qualify baseline accept RUN --reason" in told.out


FORGED: dict[str, tuple[str, str]] = {
    "another name": (
        "UPDATE runs SET matrix = 'other'",
        "it says that its matrix is other, and the stored one is serving",
    ),
    "another device": (
        "UPDATE runs SET device = 'cuda'",
        "it says that it ran on cuda, and its stack is one of cpu",
    ),
    "a newer library": (
        "UPDATE components SET version = '99' WHERE position = 0",
        "the fingerprint of one of its stacks does not match the components of that stack",
    ),
    "another card": (
        "UPDATE stacks SET device_name = 'NVIDIA B200'",
        "the fingerprint of one of its stacks does not match the components of that stack",
    ),
    "no card": (
        "UPDATE runs SET stack_id = NULL",
        "it says nothing of its stack, and toy.tp1/prefill/b1.q8.k8/fp32/causal/tiled-torch ran",
    ),
}


@pytest.mark.parametrize("forged", FORGED)
def test_a_run_that_says_it_is_another_one_is_no_verdict(folder: Path, forged: str) -> None:
    """Without any seal: old evidence would count for a newer library, or count where no baseline of its name is."""
    run = stored(folder, None)
    statement, told = FORGED[forged]
    assert (0, 0) == (ask(folder, "gate").code, ask(folder, "gate", "--matrix", "serving.yaml").code)
    edit(folder, statement)
    found = ask(folder, "gate")
    assert (5, True) == (found.code, f"run {run} contradicts itself: {told}" in found.out), found
    assert 5 == ask(folder, "gate", "--matrix", "serving.yaml").code
    verified = ask(folder, "verify", run)
    assert (5, True) == (verified.code, f"run {run} contradicts itself: {told}" in verified.out), verified


@pytest.mark.parametrize(
    ("edited", "told"),
    [
        ("DELETE FROM cases WHERE run_id = '{}' AND position = 1", "1 case of its plan is missing"),
        ("UPDATE runs SET matrix_source = matrix_source || ' ' WHERE id = '{}'", "the stored matrix has sha256"),
    ],
    ids=["a case", "the matrix"],
)
@pytest.mark.parametrize("compared", [(), ("--against", "baseline")], ids=["beside", "against"])
def test_an_edited_baseline_is_no_verdict(folder: Path, compared: tuple[str, ...], edited: str, told: str) -> None:
    """Whoever takes requirements out of the accepted run hides that they are gone today."""
    before = stored(folder, None, hours=3)
    assert 0 == ask(folder, "baseline", "accept", before, "--by", "jane", "--reason", "7").code
    stored(folder, None)
    asked = ("gate", *compared)
    assert 0 == ask(folder, *asked).code
    edit(folder, edited.format(before))
    found = ask(folder, *asked)
    assert (5, True) == (found.code, f"run {before}, does not count: it contradicts itself: {told}" in found.out), found
    assert "Find out who edited it, then accept another run: qualify baseline accept " in found.out


def test_a_file_is_verified_without_a_store(folder: Path, pair: KeyPair) -> None:
    """The key that sealed it; what differs after an edit whose digest was written, too; a seal of one's own."""
    run = stored(folder, pair)
    ask(folder, "db", "export", run, "--out", "run.jsonl.gz")
    told = call("verify", "run.jsonl.gz", "--signed-by", pair.public, cwd=folder)
    assert (0, "") == (told.code, told.err)
    assert f"sealed by key {pair.signing.public.id[:12]}, {pair.public}" in told.out
    nobody = ask(folder, "verify", run)
    assert (0, True) == (nobody.code, "You named no key, so anybody may have sealed it" in nobody.out)
    edit(folder, "UPDATE findings SET detail = 'better' WHERE outcome_id = 2 AND position = 0")
    told = ask(folder, "verify", run, "--signed-by", pair.public, "--json")
    assert (5, False) == (told.code, told.data["sealed"])
    expected = {"case": IDS[1], "field": "evidence.findings[0].detail", "what": "changed"}
    assert [expected] == told.data["differences"]
    ask(folder, "db", "export", run, "--out", "edited.jsonl.gz")
    told = call("verify", "out/edited.json", cwd=folder)
    assert (2, "qualify: out/edited.json: No such file or directory. ") == (told.code, told.err[:53])
    told = call("verify", "edited.jsonl.gz", cwd=folder)
    assert (5, True) == (told.code, f"  {IDS[1]} evidence.findings[0].detail changed" in told.out), told.out
    refused = call("db", "import", "edited.jsonl.gz", "--db", "other.db", cwd=folder)
    assert (2, True) == (refused.code, "What differs: qualify verify edited.jsonl.gz" in refused.err)


def test_a_pass_that_its_numbers_contradict_is_no_verdict(folder: Path) -> None:
    """Without any seal: a pass whose witness saw another kernel, and a matrix that is not the one it was made with."""
    stored(folder, None)
    edit(folder, "UPDATE launches SET name = 'another_kernel' WHERE outcome_id = 1")
    for command in ("gate", "verify"):
        told = ask(folder, command, *(() if command == "gate" else ("latest",)))
        assert (5, True) == (told.code, "the witness says proven, expected under_test, and saw another" in told.out)
        assert (command == "gate") == ("do: make evidence that nobody has edited: qualify run " in told.out)
    edit(folder, "UPDATE runs SET matrix_source = matrix_source || 'policy: {timeout_s: 999}'")
    told = ask(folder, "gate")
    assert (5, True) == (told.code, "contradicts itself: the stored matrix has sha256" in told.out)


def test_the_clock_of_a_runner_is_noted(folder: Path, pair: KeyPair) -> None:
    """Where it was far from the store's: by the gate, by `verify`, and in the seal."""
    stored(folder, pair, clock_skew_s=-42.0)
    note = "was 42 s behind the store's clock, so the evidence seems 42 s older than it is"
    for command in (("gate",), ("gate", "--matrix", "serving.yaml"), ("verify", "latest")):
        told = ask(folder, *command)
        assert (0, True) == (told.code, note in told.out)
    edit(folder, "UPDATE runs SET clock_skew_s = 0.0")
    told = ask(folder, "verify", "latest")
    assert (5, True) == (told.code, "the run clock_skew_s changed" in told.out)


def test_a_signed_statement(folder: Path, pair: KeyPair) -> None:
    """An envelope that in-toto's readers take; without a key it says how to name one."""
    stored(folder, None)
    asked = ("gate", "--db", "evidence.db", "--format", "in-toto", "--subject", f"image@sha256:{'0' * 64}", "--sign")
    missing = call(*asked, cwd=folder, env=environment(**{SIGNING_KEY: ""}))
    assert (2, True) == (missing.code, "QUALIFY_SIGNING_KEY names no key" in missing.err)
    told = call(*asked, cwd=folder, env=environment(**{SIGNING_KEY: str(pair.private)}))
    assert (0, "") == (told.code, told.err)
    envelope = Envelope.from_dict(told.data)
    assert envelope.verify([pair.signing.public.key], 1)
    assert "PASSED" == json.loads(envelope.payload)["predicate"]["result"]
    other = ask(folder, "gate", "--sign")
    assert (2, True) == (other.code, "--sign needs --format in-toto" in other.err)


def test_a_run_is_sealed_and_takes_over_only_what_is_sealed(tmp_path: Path, pair: KeyPair) -> None:
    """A real run by a real key; the next one does not hand on a forged outcome under its own seal."""
    matrix = write_matrix(tmp_path / "m.yaml")
    key = environment(**{SIGNING_KEY: str(pair.private)})
    asked = ("run", matrix, "--device", "cpu", "--db", "evidence.db", "--json")
    first = call(*asked, cwd=tmp_path, env=key)
    assert (0, "") == (first.code, ""), first.err
    told = ask(tmp_path, "verify", "latest", "--signed-by", pair.public, "--json")
    assert (0, True, first.data["run"]) == (told.code, told.data["trusted"], told.data["run"])
    gate = ask(tmp_path, "gate", "--require-signed-by", pair.public)
    assert 0 == gate.code, gate.out
    edit(tmp_path, "UPDATE statistics SET rows = 2 * rows")
    again = call(*asked, cwd=tmp_path, env=key)
    assert (0, False) == (again.code, "taken over" in again.out), again.out
    third = call(*asked, cwd=tmp_path, env=key)
    assert (0, True) == (third.code, f"taken over from {again.data['run']}" in third.out), third.out
    told = ask(tmp_path, "verify", "latest", "--signed-by", pair.public)
    assert (0, True) == (told.code, third.data["run"] in told.out)


def test_old_evidence_does_not_become_fresh_by_another_date(folder: Path) -> None:
    """The id of a run holds its moment. The gate on a run, the gate on a matrix and `verify` see that they differ."""
    run = stored(folder, None, hours=30)
    old = ask(folder, "gate", "--matrix", "serving.yaml")
    assert (5, True) == (old.code, "stale: begun " in old.out), old
    now = f"{datetime.now(UTC) - timedelta(hours=1):%Y-%m-%d %H:%M:%S.%f}"
    edit(folder, f"UPDATE runs SET started_at = '{now}', finished_at = '{now}'")
    for words in (("gate", "--max-age", "24h"), ("gate", "--matrix", "serving.yaml"), ("verify", run)):
        ended = ask(folder, *words)
        assert (5, True) == (ended.code, "contradicts itself: its id says that it began at 20" in ended.out), ended


def test_a_renamed_run_is_told_by_every_command_that_hands_it_on(folder: Path) -> None:
    """The report is written, and says so; a file is not. Both end as the gate and `verify` do."""
    run, renamed = stored(folder, None), "20250101T000000Z-abcdef"
    for column in ("cases.run_id", "runs.id"):
        table, _, name = column.partition(".")
        edit(folder, f"UPDATE {table} SET {name} = '{renamed}' WHERE {name} = '{run}'")
    told = (
        f"run {renamed} contradicts itself: its id says that it began at 2025-01-01 00:00 UTC, but its record says 20"
    )
    advice = f"What does not fit: qualify verify {renamed} --db evidence.db"
    for words in (("gate",), ("verify", "latest")):
        assert (5, True) == ((ended := ask(folder, *words)).code, told in ended.out), ended
    shown = ask(folder, "report", "latest")
    assert (5, f"out/{renamed}/report.html\n") == (shown.code, shown.out)
    assert (True, True) == (told in shown.err, advice in shown.err), shown.err
    assert told in (folder / "out" / renamed / "report.html").read_text()
    (found,) = ask(folder, "report", "latest", "--json").data["contradictions"]
    assert told.partition("itself: ")[2] in found
    refused = ask(folder, "db", "export", "latest")
    assert (5, "", True, True) == (refused.code, refused.out, told in refused.err, advice in refused.err), refused.err
    assert [] == [*folder.glob("*.gz")]


@pytest.mark.parametrize("statement", [FORGED["a newer library"][0], "DELETE FROM cases WHERE position = 1"])
def test_an_edited_store_is_no_damaged_one(folder: Path, statement: str) -> None:
    """The gate, `verify`, `report` and `db export` say that the run contradicts itself, and end with 5."""
    run = stored(folder, None)
    edit(folder, statement)
    for words in (("gate",), ("verify", run), ("report", run), ("db", "export", run)):
        ended = ask(folder, *words)
        assert (5, True) == (ended.code, f"run {run} contradicts itself: " in ended.out + ended.err), ended
