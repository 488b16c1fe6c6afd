"""What runs is the source as it lies there, whatever bytecode lies beside it."""

from __future__ import annotations

import importlib.util
import os
import py_compile
import sys
from pathlib import Path

import pytest

from qualify.run.host.sources import import_from_source

OLD, NEW = "VALUE = 1\n", "VALUE = 2\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a kernel; the imports of a test are forgotten with it."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "path_hooks", [*sys.path_hooks])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    return tmp_path


def write_beside_bytecode(file: Path) -> None:
    """A source that was changed within one second after its import, and has kept its size."""
    file.parent.mkdir(parents=True, exist_ok=True)
    for text in (OLD, NEW):
        file.write_text(text)
        os.utime(file, (1e9, 1e9))
        if text == OLD:
            py_compile.compile(str(file))


@pytest.mark.parametrize("name", ["stale_module", "stale_package.part"])
@pytest.mark.parametrize("known", [False, True])
def test_bytecode_of_an_earlier_source_does_not_run(folder: Path, name: str, known: bool) -> None:
    """In a module and in a package, also where the folder was on the import path before; none is written either."""
    file = folder.joinpath(*name.split(".")).with_suffix(".py")
    write_beside_bytecode(file)
    if known:
        sys.path.append(str(folder))
        importlib.util.find_spec(name.partition(".")[0])
    import_from_source((str(folder),))
    assert 2 == importlib.import_module(name).VALUE
    kept = [path.name for path in folder.rglob("*.pyc")]
    assert [f"{file.stem}.{sys.implementation.cache_tag}.pyc"] == kept


def test_what_is_installed_keeps_its_bytecode(folder: Path) -> None:
    """A library below the folder, in a virtual environment, is as large as ever: Python's own rule holds there."""
    site = folder / ".venv" / "lib" / "site-packages"
    write_beside_bytecode(site / "stale_library.py")
    import_from_source((str(folder),))
    sys.path.append(str(site))
    assert 1 == importlib.import_module("stale_library").VALUE
