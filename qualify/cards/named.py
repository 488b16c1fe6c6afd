"""Names to the files of cards: the shipped ones and those in the folders given by ``--cards``.

A user's folder may add cards, but never silently replace a shipped one: equal names are an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from qualify import assets
from qualify.cards.config.hub import is_repository
from qualify.cards.folders import declares, keys_of
from qualify.cards.problems import Problem, meant
from qualify.errors import CardError, Place, UsageError
from qualify.files import exists

OWN = "If it is one of your own, name its folder: --cards DIR"


def kernel_names(extra: tuple[Path, ...] = ()) -> list[str]:
    """Names of all kernel cards, sorted, without loading them."""
    return sorted(kernel_paths(extra))


def model_names(extra: tuple[Path, ...] = ()) -> list[str]:
    """Names of all model cards, sorted, without loading them."""
    return sorted(model_paths(extra))


def matrix_names(extra: tuple[Path, ...] = ()) -> list[str]:
    """Names of all matrices, sorted, without loading them."""
    return sorted(matrix_paths(extra))


def kernel_paths(extra: tuple[Path, ...]) -> dict[str, Path]:
    """The file of every kernel card by name. Raises CardError for two files of one name."""
    own = assets.shipped("kernels").glob("*.yaml")
    found = (path for place in assets.extra("kernels", extra) for path in place.glob("*.yaml"))
    return _by_name("kernel", own, (path for path in found if _is(path, "kernel")))


def model_paths(extra: tuple[Path, ...]) -> dict[str, Path]:
    """The same for model cards."""
    own = (assets.shipped("matrices") / "models").glob("*.json")
    found = (path for place in assets.extra("matrices", extra) for path in (place / "models").glob("*.json"))
    return _by_name("model", own, (path for path in found if declares(path, "model")))


def matrix_paths(extra: tuple[Path, ...]) -> dict[str, Path]:
    """The same for matrices."""
    own = assets.shipped("matrices").glob("*.yaml")
    found = (path for place in assets.extra("matrices", extra) for path in place.glob("*.yaml"))
    return _by_name("matrix", own, (path for path in found if _is(path, "matrix")))


def _is(path: Path, kind: str) -> bool:
    """Whether a file is a card of that kind, and no canary, which names its matrix and its kernels under those keys."""
    return declares(path, kind) and "canary" not in (keys_of(path) or ())


def canary_paths(extra: tuple[Path, ...] = ()) -> dict[str, Path]:
    """The file of every canary by name, without loading any. Raises CardError for two files of one name."""
    own = assets.shipped("canaries").glob("*.yaml")
    found = (path for place in assets.extra("canaries", extra) for path in place.glob("*.yaml"))
    return _by_name("canary", own, (path for path in found if declares(path, "canary")))


def matrix_path(name_or_path: str, extra: tuple[Path, ...]) -> Path:
    """The file of a matrix, by its name or its path. Raises UsageError for an unknown name."""
    looks_like_path = "/" in name_or_path or name_or_path.endswith((".yaml", ".yml"))
    checks = f"`qualify check {name_or_path}` checks it"
    if looks_like_path:
        path = Path(name_or_path)
        if is_repository(name_or_path) and path.suffix not in (".yaml", ".yml") and not exists(path):
            raise UsageError(
                f"{name_or_path}: no such file; check the path. A model of the hub is no matrix: {checks}."
            )
        return path
    paths = matrix_paths(extra)
    if name_or_path not in paths and exists(Path(name_or_path)):
        return Path(name_or_path)
    if name_or_path not in paths:
        is_model = name_or_path in model_paths(extra)
        todo = f"It is a model card: {checks}" if is_model else "Or give the path of a .yaml file"
        raise UsageError(unknown_card("matrix", name_or_path, paths, todo))
    return paths[name_or_path]


def unknown_canary(name: str, known: Iterable[str]) -> UsageError:
    """The error for a name that no canary has."""
    return UsageError(unknown_card("canary", name, known, f"{OWN}; docs/canary.md says how to write one"))


def unknown_card(kind: str, name: str, known: Iterable[str], command: str) -> str:
    """The message for a name that no card of a kind has.

    Args:
        command: what to do next, as a sentence without its full stop.
    """
    names = ", ".join(sorted(known)) or "none"
    return f"no {kind} is called {name!r}{meant(name, known)}. There are: {names}. {command}."


def _by_name(kind: str, own: Iterable[Path], extra: Iterable[Path]) -> dict[str, Path]:
    """Paths by file stem. The same file found twice is one; two files of one name are an error."""
    paths = {path.stem: path for path in own}
    problems: list[Problem] = []
    for path in sorted(extra):
        first = paths.setdefault(path.stem, path)
        if os.path.realpath(first) != os.path.realpath(path):
            message = f"{kind} {path.stem} exists already in {first}; give this one another name"
            problems.append((Place(path=str(path)), message))
    if problems:
        raise CardError(problems)
    return paths
