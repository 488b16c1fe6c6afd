"""Where shipped data lives: in the package, beside it in a checkout, or in folders of --cards; and the user's cache."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from qualify.errors import UsageError
from qualify.files import is_file, is_folder

CHECKS = Path(".qualify") / "checks"
"""where the matrix of a `qualify check` lies, unless it is saved in another place"""
AGAIN = "# The same on another machine: qualify check "
"""how the comment of such a matrix begins that has the rest of that command"""
CHECK_OPTIONS = frozenset({"--engine", "--backend", "--dtype", "--tensor-parallel"})
"""options of it that choose what is checked"""
FOLDERS = ("kernels", "matrices", "canaries", "reports", "traffic")


def shipped(folder: str) -> Path:
    """The shipped folder of that name: beside the package in a checkout, inside it in a wheel."""
    package = Path(__file__).resolve().parent
    inside = package / "_shipped" / folder
    return inside if inside.is_dir() else package.parent / folder


def named(path: str) -> str:
    """How a matrix is called on another machine: a shipped one goes by its name, another one by its path."""
    return Path(path).stem if Path(path).parent == shipped("matrices") else path


def again_elsewhere(path: str, source: str) -> tuple[str, ...]:
    """Command and arguments that run a matrix on another machine.

    What `qualify check` wrote for this machine is made anew there.

    Args:
        source: the matrix as it was; it may come from elsewhere, so that it gives arguments only.
    """
    if Path(path).parent != CHECKS:
        return "run", named(path)
    lines = (line.removeprefix(AGAIN) for line in source.splitlines() if line.startswith(AGAIN))
    return "check", *(_checked(next(lines, "")) or ("MODEL",))


def again_line(words: Sequence[str]) -> str:
    """The comment from which :func:`again_elsewhere` reads the arguments of a check; empty where it could not."""
    line = shlex.join(words)
    return AGAIN + line if words and line.isprintable() and _checked(line) == tuple(words) else ""


def _checked(line: str) -> tuple[str, ...]:
    """The model of a check and options that choose what is checked of it; empty where the line has anything else."""
    try:
        words = tuple(shlex.split(line))
    except ValueError:
        return ()
    known = len(words) % 2 == 1 and all(option in CHECK_OPTIONS for option in words[1::2])
    return words if known else ()


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
