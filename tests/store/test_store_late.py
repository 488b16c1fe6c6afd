"""A store whose file the first write makes."""

from __future__ import annotations

from pathlib import Path

import pytest
import store_examples as examples

from qualify.errors import StoreError
from qualify.store import Store
from qualify.store.schema import head


def test_it_reads_as_an_empty_one_until_it_is_written(tmp_path: Path) -> None:
    """Reading makes nothing, beginning a run makes the file, and another process finds the run in it."""
    path = tmp_path / "evidence.db"
    with Store.open(str(path), create="late") as store:
        assert ([], head(), None) == (store.runs(), store.check(), store.mark())
        assert [] == list(tmp_path.iterdir())
        store.begin(examples.run(1))
        with Store.open(str(path), create=False) as other:
            assert store.runs() == other.runs()
            assert 1 == len(other.runs())


def test_it_reads_what_another_process_made_meanwhile(tmp_path: Path) -> None:
    """Two commands begin with the same missing file: what one writes, the other sees, and adds to."""
    path = str(tmp_path / "evidence.db")
    with Store.open(path, create="late") as first, Store.open(path, create="late") as second:
        assert [] == second.runs()
        first.begin(examples.run(1))
        assert first.runs() == second.runs()
        second.begin(examples.run(2))
        assert 2 == len(first.runs())


def test_the_default_folder_is_made_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever only reads leaves an empty folder empty."""
    monkeypatch.chdir(tmp_path)
    with Store.open(".qualify/evidence.db", create="late") as store:
        assert ([], []) == (store.runs(), list(tmp_path.iterdir()))
        store.begin(examples.run(1))
    assert (tmp_path / ".qualify" / "evidence.db").is_file()


@pytest.mark.parametrize("inside", [".qualify/evidence.db", "missing/evidence.db"])
def test_what_can_never_be_made_is_told_at_once(inside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody measures for an hour before the store turns out to be impossible."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".qualify").write_text("a file in place of the folder")
    with pytest.raises(StoreError, match="the folder"):
        Store.open(inside, create="late")


def test_a_file_that_is_empty_still_becomes_a_store(tmp_path: Path) -> None:
    """Another process makes it at this moment: there is nothing to migrate, whoever may not."""
    (tmp_path / "e.db").touch()
    with Store.open(str(tmp_path / "e.db"), create="late", migrate=False) as store:
        assert [] == store.runs()
