"""Finds the code of a user's kernel that would never run, because another ``--cards`` folder has a module of its name.

All the folders are on the import path of a kernel, in the order of the command line. Python takes a module from the
first folder that has it::

    --cards v1 --cards v2      v1/attention.py    runs for the card in v1, and for the one in v2
                               v2/attention.py    never runs

What is installed comes before all of them. That may be what production uses, so it is no error, and a note says so.
"""

from __future__ import annotations

import ast
import contextlib
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from qualify import assets
from qualify.cards.kernel import CALL, KernelCard
from qualify.cards.problems import Problem
from qualify.cards.source import read
from qualify.files import open_regular, walk

PACKAGE = "__init__.py"


def shadow_problems(cards: Iterable[tuple[KernelCard, Path]], extra: Sequence[Path]) -> list[Problem]:
    """A problem for each card whose entry, or what it imports from the card's folder, stands in an earlier folder.

    Args:
        cards: with their files.
        extra: the ``--cards`` folders, in their order.
    """
    folders = list(dict.fromkeys(str(folder.resolve()) for folder in extra))
    if len(folders) < 2:
        return []
    problems: list[Problem] = []
    for card, path in cards:
        for own in _homes(path, extra) if card.adapter == CALL else ():
            shadow = next(_shadows(str(card.entry).partition(":")[0], own, folders), None)
            if shadow is not None:
                name, mine, first = shadow
                why = f"Python finds {name} in {first}, whose --cards folder comes first"
                todo = "rename one of the two, or give each folder to a run of its own"
                problems.append((read(path).place(("entry",)), f"entry: {mine} would never run: {why}; {todo}"))
    return problems


def hidden_by_installed(cards: Iterable[tuple[KernelCard, Path]], extra: Sequence[Path]) -> list[str]:
    """A sentence for each card that has the module of its entry beside it, where an installed one runs instead.

    Args:
        cards: with their files.
        extra: the ``--cards`` folders.
    """
    # The first path is that of the command's script, or the working folder: a kernel's process has neither.
    before = sys.path if sys.flags.safe_path else sys.path[1:]
    told: list[str] = []
    for card, path in cards:
        for own in _homes(path, extra) if card.adapter == CALL else ():
            name = str(card.entry).partition(":")[0]
            mine, first = _file(name, [own]), _file(name, [*before, own])
            if mine is not None and first is not None and not _same(mine, first):
                told.append(f"{mine} does not run for {card.kernel}: Python finds {name} in {first} before --cards")
    return told


def _homes(path: Path, extra: Sequence[Path]) -> list[str]:
    """The folders in which the card is found, resolved."""
    return [str(root.resolve()) for root in extra if path.parent in assets.extra("kernels", (root,))]


def _shadows(entry: str, own: str, folders: list[str]) -> Iterator[tuple[str, Path, Path]]:
    """Name of each module that the entry needs from its own folder, its file, and the other file that would run."""
    waiting, seen = [entry], set()
    while waiting:
        name = waiting.pop(0)
        mine, first = _file(name, [own]), _file(name, folders)
        if mine is None or mine in seen:
            continue
        seen.add(mine)
        if first is not None and not _same(mine, first):
            yield name, mine, first
        waiting += _imported(mine)


def _file(module: str, places: Iterable[str]) -> Path | None:
    """The file of a module, or of the outermost package around it; None where there is none.

    A package without a file of its own may have parts in several folders, so the next part of the name decides.
    """
    for part in module.split("."):
        spec = PathFinder.find_spec(part, list(places))
        if spec is None or spec.has_location:
            return Path(str(spec.origin)).resolve() if spec else None
        places = spec.submodule_search_locations or ()
    return None


def _same(one: Path, other: Path) -> bool:
    """Whether it is the same file, or a copy of a module; of two packages the first file says too little."""
    if one == other or PACKAGE in (one.name, other.name):
        return one == other
    with contextlib.suppress(OSError):
        return one.read_bytes() == other.read_bytes()
    return False


def _imported(file: Path) -> Iterator[str]:
    """The modules that a module, or any file of a package, imports by their full names."""
    for source in _sources(file):
        for node in ast.walk(_parsed(source)):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module


def _sources(file: Path) -> list[Path]:
    """The file of a module; all Python files of a package."""
    if file.name != PACKAGE:
        return [file]
    return [Path(place, name) for place, _, names in walk(file.parent) for name in names if name.endswith(".py")]


def _parsed(source: Path) -> ast.Module:
    """The tree of a Python file; an empty one where it cannot be read, is a binary, or is nested too deeply."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of escapes like "\d" again when it imports the file
        try:
            with open_regular(source) as file:
                return ast.parse(file.read())
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            return ast.Module(body=[], type_ignores=[])
