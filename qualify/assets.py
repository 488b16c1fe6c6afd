"""Where shipped data lives: in the package, beside it in a checkout, or in folders of --cards; and the user's cache."""

from __future__ import annotations

import os
from pathlib import Path

from qualify.errors import UsageError
from qualify.files import is_file, is_folder

CHECKS = Path(".qualify") / "checks"
"""where the matrix of a `qualify check` lies, unless it is saved in another place"""
FOLDERS = ("kernels", "matrices", "canaries", "reports", "traffic")


def shipped(folder: str) -> Path:
    """The shipped folder of that name: beside the package in a checkout, inside it in a wheel."""
    package = Path(__file__).resolve().parent
    inside = package / "_shipped" / folder
    return inside if inside.is_dir() else package.parent / folder


def again_elsewhere(path: str) -> tuple[str, str]:
    """Command and argument that run a matrix on another machine.

    A shipped one goes by its name. What `qualify check` wrote for this machine is made anew there. Another one goes by
    its path.
    """
    folder = Path(path).parent
    if folder == CHECKS:
        return "check", "MODEL"
    return "run", Path(path).stem if folder == shipped("matrices") else path


def released_selftest() -> Path:
    """The selftest's result that was measured for the release; it may not exist."""
    return Path(__file__).resolve().parent / "released" / "selftest.json"


def extra(folder: str, cards: tuple[Path, ...]) -> list[Path]:
    """The places in the user's ``--cards`` folders that hold cards of this kind.

    ``--cards DIR`` may hold the cards directly or in a subfolder of the shipped name.
    """
    places = []
    for root in cards:
        if not is_folder(root):
            found = "is a file" if is_file(root) else "no such folder"
            raise UsageError(f"--cards {root}: {found}. Give the folder that holds your card files.")
        places += [root / folder] if (root / folder).is_dir() else [root]
    return places


def digest_cache() -> Path:
    """The file in which digests of files are remembered; it only saves time."""
    return cache_folder() / "sha256.json"


def cache_folder() -> Path:
    """Where things are kept that only save time."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "qualify"
