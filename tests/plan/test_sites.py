"""Where installed code is looked up: where a worker would find it, and nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest
from environments import install, make_environment, site_of

from qualify.errors import UsageError
from qualify.plan.sites import OtherSite, Standing, ThisSite

LOOK = "from qualify.plan.sites import ThisSite; print(getattr(ThisSite().module('mine', []), 'origin', None))"


@pytest.mark.parametrize("safe", [False, True], ids=["the working folder", "-P and PYTHONPATH"])
def test_the_working_folder_is_no_place_of_a_worker(tmp_path: Path, safe: bool) -> None:
    """A gate with `python -m qualify` sees modules there, and no worker does: each starts with -P."""
    (tmp_path / "mine.py").write_text("x = 1\n")
    command = [sys.executable, *(["-P"] if safe else []), "-c", LOOK]
    variables = os.environ | ({"PYTHONPATH": str(tmp_path)} if safe else {})
    done = subprocess.run(command, cwd=tmp_path, env=variables, check=True, capture_output=True, text=True, timeout=60)
    assert str(tmp_path / "mine.py" if safe else None) == done.stdout.strip()


def test_the_cards_folders_come_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed module stands before one of the same name there, as it does for the worker."""
    for folder in ("site", "cards"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text("x = 1\n")
    found = [ThisSite().module("mine", [str(tmp_path / "cards")])]
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.syspath_prepend(str(tmp_path))  # stands for the folder of the command's script
    found.append(ThisSite().module("mine", [str(tmp_path / "cards")]))
    assert [str(tmp_path / folder / "mine.py") for folder in ("cards", "site")] == [it and it.origin for it in found]


@pytest.mark.parametrize("imported", [False, True])
def test_an_editable_installation_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, imported: bool) -> None:
    """It has a finder of its own, whether or not this process has imported it."""
    path = tmp_path / "anywhere" / "mine.py"

    class Finder:
        """What `pip install -e` leaves behind."""

        @staticmethod
        def find_spec(name: str, path_: object = None, target: object = None) -> ModuleSpec | None:
            return spec_from_file_location(name, path) if name == "mine" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    if imported:
        monkeypatch.setitem(sys.modules, "mine", sys)
    assert Standing(origin=str(path), places=None) == ThisSite().module("mine", [])
    assert ThisSite().module("another", []) is None


def test_what_is_built_in_has_no_file() -> None:
    """Nobody can compare it."""
    assert [None, None] == [ThisSite().module(name, []) for name in ("sys", "_imp")]


def test_a_distribution_offers_the_adapters_that_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not other adapters, and not commands of the same name."""
    for name, group, offered in (
        ("right", "qualify.adapters", "fast"),
        ("other", "qualify.adapters", "slow"),
        ("tool", "console_scripts", "fast"),
    ):
        info = tmp_path / f"{name}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{offered} = {name}:create\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [["right"], ["other"], []] == [ThisSite().offering(name) for name in ("fast", "slow", "none")]


def test_another_environment_answers_for_what_it_has(tmp_path: Path) -> None:
    """A package with its folders, a distribution that was asked for, and one that offers an adapter."""
    python = make_environment(tmp_path / "env", fake_attn="1.5")
    install(tmp_path / "env", "offers", "2.0")
    site = site_of(tmp_path / "env")
    (site / "offers-2.0.dist-info" / "entry_points.txt").write_text("[qualify.adapters]\nfast = offers:create\n")
    (site / "pack").mkdir()
    (site / "pack" / "__init__.py").write_text("x = 1\n")
    found = OtherSite("next", str(python), ["fake-attn", "absent"], ["pack", "fake_attn", "sys", "mine"])
    versions = [getattr(found.installed(name), "version", None) for name in ("fake-attn", "offers", "absent")]
    assert ["1.5", "2.0", None] == versions
    assert [["offers"], []] == [found.offering(name) for name in ("fast", "slow")]
    assert Standing(origin=str(site / "pack" / "__init__.py"), places=(str(site / "pack"),)) == found.module("pack", [])
    assert Standing(origin=str(site / "fake_attn.py"), places=None) == found.module("fake_attn", [])
    assert [None, None] == [found.module(name, []) for name in ("sys", "mine")]


def test_the_environment_that_cannot_be_asked_is_named(tmp_path: Path) -> None:
    """By the name that --environment gave it."""
    with pytest.raises(UsageError, match=f"^environment next, {tmp_path}/python: no such file"):
        OtherSite("next", str(tmp_path / "python"), [], [])
