"""A duel that a store does not take is in a file that another store imports, with its seal and all its times."""

from __future__ import annotations

import shlex
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cli_process import call, paste, write_cards, write_matrix
from duels import make_cell, make_duel
from outages import Outage
from sealing import KeyPair, new_pair
from stored_runs import make_run

from qualify.errors import SigningFailed, StoreError
from qualify.facts.duel import Duel
from qualify.facts.typed import Typed
from qualify.fleet.duel_keeping import keep_duel
from qualify.fleet.patience import Patience
from qualify.seal.duel_form import duel_lines
from qualify.seal.keys import PUBLIC_KEY, SIGNING_KEY, needed_signing_key
from qualify.seal.sealed import check_seal
from qualify.store import Store

HERE = Typed(db="evidence.db")


@pytest.fixture(scope="module")
def duel() -> Duel:
    """A duel of two cells."""
    return make_duel(make_run(), make_cell("m/decode"), make_cell("m/prefill", 0.05, verdict="SLOWER"))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    """The runner's keys."""
    return new_pair(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def closed(empty_sqlite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store in which another process writes. The working folder is empty."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with Store.open(empty_sqlite, busy_timeout_s=0.01) as store, Outage(empty_sqlite) as outage:
        outage.begin()
        yield store


def test_a_store_that_stays_closed(closed: Store, duel: Duel, pair: KeyPair, tmp_path: Path) -> None:
    """The message names the file and the command that adds it to the store."""
    with pytest.raises(StoreError, match=r"stayed locked by another process\. The duel is not stored") as raised:
        keep_duel(closed, duel, pair.signing, Patience(longest_s=0.0), HERE)
    (file,) = Path().iterdir()
    assert f"{duel.id}.jsonl.gz" == file.name
    told = f"all its times are in {file.absolute()}. Once the store can be written: qualify db import {file.absolute()}"
    assert str(raised.value).endswith(f"{told} --db evidence.db")
    with Store.open(str(tmp_path / "other.db")) as store:
        store.import_run(file)
        (kept,) = store.duels()
        seal = store.duel(duel.id).seal
    assert duel == replace(kept, received_at=None)
    assert check_seal(seal, duel_lines(duel), duel.id, pair.trusted).trusted


def test_ctrl_c_while_the_store_is_closed(closed: Store, duel: Duel) -> None:
    """It ends the wait, and costs nothing that was timed."""
    impatient = Patience(lambda _: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt, match=r"^The duel is not stored, and need not run again: all its times are"):
        keep_duel(closed, duel, None, impatient, HERE)
    assert [f"{duel.id}.jsonl.gz"] == [file.name for file in Path().iterdir()]


def test_the_file_is_there_while_the_store_is_asked(closed: Store, duel: Duel) -> None:
    """A process that is killed while the store hangs leaves it; where the store has the duel, it has gone."""
    there = list[list[str]]()
    keep_duel(closed, duel, None, Patience(), HERE, add=lambda _: there.append([it.name for it in Path().iterdir()]))
    assert ([[f"{duel.id}.jsonl.gz"]], []) == (there, list(Path().iterdir()))


def test_the_working_folder_is_gone(closed: Store, duel: Duel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is in the temporary folder; where that is gone, too, the message says what is left."""
    patience = Patience()
    patience.end()
    (tmp_path / "here").rmdir()
    (temporary := tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with pytest.raises(StoreError, match=f"all its times are in {temporary}/{duel.id}"):
        keep_duel(closed, duel, None, patience, HERE)
    (temporary / f"{duel.id}.jsonl.gz").unlink()
    temporary.rmdir()
    with pytest.raises(StoreError, match=r"no file can be written here or in the temporary folder\. What is printed"):
        keep_duel(closed, duel, None, patience, HERE)


def test_a_key_that_does_not_sign_any_more(
    empty_sqlite: str, duel: Duel, pair: KeyPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The duel is stored without a seal, and the message says so."""
    monkeypatch.setenv(SIGNING_KEY, "command:" + shlex.join([sys.executable, "-c", "raise SystemExit('locked')"]))
    monkeypatch.setenv(PUBLIC_KEY, str(pair.public))
    with Store.open(empty_sqlite) as store:
        with pytest.raises(SigningFailed, match=f"^{duel.id} is stored without a seal. .* gives no signature"):
            keep_duel(store, duel, needed_signing_key(), Patience(), HERE)
        assert ([duel], None) == (store.duels(), store.duel(duel.id).seal)


def test_the_command_shows_what_is_not_stored(tmp_path: Path) -> None:
    """A side goes away, and a folder takes the place of the store. The printed command adds the duel afterwards."""
    cards = write_cards(tmp_path / "cards", "correct")
    matrix = write_matrix(tmp_path / "m.yaml", "correct", seqlens=(64,))
    python = tmp_path / "python"
    ends = f'rm "$0"; mkdir -p {shlex.quote(str(tmp_path / "e.db"))}'
    python.write_text(f'#!/bin/sh\ncase "$*" in *boot.py*) {ends};; esac\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    options = ("--cards", cards, "--device", "cpu", "--db", "e.db", "--environment", f"next={python}", "--json")
    ended = call("duel", "correct", "correct@next", matrix, *options, cwd=tmp_path)
    assert (4, "qualify.duel/1") == (ended.code, ended.data["schema"]), ended.err
    assert (False, 4) == (ended.data["stored"], ended.data["exit_code"])
    assert ended.err.endswith(f"qualify: {ended.data['error']}\n")
    assert "That Python has probably been removed" in ended.err
    (tmp_path / "e.db").rmdir()
    added = paste(ended.err.rpartition("Once the store can be written: ")[2].strip(), tmp_path)
    assert (0, True) == (added.code, f"duel {ended.data['id']} added" in added.out), added
