"""Where installed code is looked up: in this interpreter, or in what another one answered."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any, Protocol

from qualify.facts.adapters import ENTRY_POINTS
from qualify.plan.interpreter import ask


@dataclass(frozen=True, kw_only=True, slots=True)
class Installed:
    """What an installed distribution says of itself."""

    version: str
    root: str
    """folder that its RECORD counts from"""
    record: str
    """text of its RECORD; empty where it has none"""
    direct_url: str
    """text of its direct_url.json; ``{}`` where it has none"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """Where a top-level module or package stands."""

    origin: str
    """its file; empty for a package of several folders"""
    places: tuple[str, ...] | None
    """folders of a package; None for a module"""


class CodeSite(Protocol):
    """An interpreter's installed code."""

    def installed(self, name: str) -> Installed | None:
        """A distribution; None where it is not installed."""

    def module(self, top: str, folders: Sequence[str]) -> Standing | None:
        """Where a worker finds a top-level module: the --cards folders come last; None where it does not."""

    def offering(self, adapter: str) -> list[str]:
        """The distributions that offer an adapter."""


class ThisSite:
    """The interpreter that this runs in. It reads of a distribution once: the RECORD of torch has a megabyte."""

    def __init__(self) -> None:
        self._read: dict[str, Installed | None] = {}

    def installed(self, name: str) -> Installed | None:
        """A distribution; None where it is not installed."""
        if name not in self._read:
            self._read[name] = _read_here(name)
        return self._read[name]

    def module(self, top: str, folders: Sequence[str]) -> Standing | None:
        """Where a worker finds a top-level module."""
        # The first path is that of the command's script, or the working folder: the worker has neither.
        own = sys.path if sys.flags.safe_path else sys.path[1:]
        # An editable installation has a finder of its own.
        others = (finder.find_spec(top, None) for finder in sys.meta_path if finder is not PathFinder)
        return _standing(PathFinder.find_spec(top, [*own, *folders]) or next(filter(None, others), None))

    def offering(self, adapter: str) -> list[str]:
        """The distributions that offer an adapter."""
        offered = metadata.entry_points(group=ENTRY_POINTS, name=adapter)
        return [entry.dist.name for entry in offered if entry.dist is not None]


class OtherSite:
    """Another environment's interpreter, asked once for all that is looked up."""

    def __init__(self, name: str, python: str, distributions: Iterable[str], modules: Iterable[str]) -> None:
        self._answer = ask(name, python, distributions, modules)
        offered = [named for named in self._answer["adapters"].values() if named not in self._answer["records"]]
        if offered:
            self._answer["records"] |= ask(name, python, offered)["records"]

    def installed(self, name: str) -> Installed | None:
        """A distribution; None where it is not installed."""
        found = self._answer["records"].get(name)
        return Installed(**found) if found else None

    def module(self, top: str, folders: Sequence[str]) -> Standing | None:
        """Where its host finds a top-level module."""
        found: dict[str, Any] | None = self._answer["modules"].get(top)
        if found is None:
            return _standing(PathFinder.find_spec(top, list(folders)))
        if found["places"] is None and not found["origin"]:
            return None
        places = found["places"]
        return Standing(origin=found["origin"] or "", places=None if places is None else tuple(places))

    def offering(self, adapter: str) -> list[str]:
        """The distributions that offer an adapter."""
        return [named for offered, named in self._answer["adapters"].items() if offered == adapter]


def _read_here(name: str) -> Installed | None:
    """What a distribution of this interpreter says of itself; None where it is not installed."""
    try:
        one = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    return Installed(
        version=one.version,
        root=str(one.locate_file("")),
        record=one.read_text("RECORD") or "",
        direct_url=one.read_text("direct_url.json") or "{}",
    )


def _standing(spec: ModuleSpec | None) -> Standing | None:
    """Where a finder found a module; None where that is no file."""
    if spec is None:
        return None
    origin = str(spec.origin) if spec.origin and spec.has_location else ""
    if spec.submodule_search_locations is not None:
        return Standing(origin=origin, places=tuple(spec.submodule_search_locations))
    return Standing(origin=origin, places=None) if origin else None
