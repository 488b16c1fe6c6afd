"""Paths that a file names beside itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from qualify.files import beside


@pytest.mark.parametrize(
    ("file", "name", "expected"),
    [
        ("matrices/serving.yaml", "../waivers.yaml", "waivers.yaml"),
        ("serving.yaml", "waivers.yaml", "waivers.yaml"),
        ("a/b/serving.yaml", "../c/./waivers.yaml", "a/c/waivers.yaml"),
        ("a/serving.yaml", "../../waivers.yaml", "../waivers.yaml"),
        ("a/serving.yaml", "/elsewhere/waivers.yaml", "/elsewhere/waivers.yaml"),
    ],
)
def test_a_file_beside_another_is_named_tidily(file: str, name: str, expected: str) -> None:
    """Nobody needs to know through which folder the other file found it."""
    assert Path(expected) == beside(Path(file), name)


def test_a_step_up_from_a_link_keeps_its_meaning(tmp_path: Path) -> None:
    """The folder above a linked folder is the one above its target: without the steps the path would name another."""
    (tmp_path / "team" / "matrices").mkdir(parents=True)
    (tmp_path / "matrices").symlink_to(tmp_path / "team" / "matrices")
    for folder in (tmp_path, tmp_path / "team"):
        (folder / "waivers.yaml").write_text(folder.name)
    found = beside(tmp_path / "matrices" / "serving.yaml", "../waivers.yaml")
    assert ("team", tmp_path / "matrices" / ".." / "waivers.yaml") == (found.read_text(), found)
