"""What canaries watch beside what every look sees: third-party kernels, and what their cards name.

A look finds what all canaries ask for. Each canary compares its own view of it: without what only others asked for, and
without what it ignores.
"""

from __future__ import annotations

import glob
import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from fnmatch import fnmatch, fnmatchcase
from pathlib import Path

from packaging.requirements import Requirement

from qualify.assets import digest_cache
from qualify.canary.deck import Deck
from qualify.cards.canary import OnStackChange, is_path
from qualify.cards.kernel import KernelCard
from qualify.cards.load import LoadedCanary, in_environments, load_kernels, load_matrix
from qualify.errors import CardError, UsageError
from qualify.facts.adapters import ADAPTERS
from qualify.facts.differing import ABSENT, UNSET
from qualify.facts.stack import Component, Stack
from qualify.files import walk
from qualify.plan.code import CodeHere
from qualify.plan.digests import digests_of
from qualify.run.machine.software import distributions, kernel_distributions
from qualify.run.machine.variables import started_with, told_safely

FABRIC_MANAGER = "nv-fabricmanager"
MOST_FILES = 2_000
"""most files that one pattern may name"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    """What one canary, or several together, watch beside what every look sees."""

    kernels: tuple[tuple[str, KernelCard], ...] = ()
    """cards of third-party kernels, and of those in other environments, by name"""
    environments: tuple[tuple[str, str], ...] = ()
    """interpreters by the name of their environment"""
    distributions: frozenset[str] = frozenset()
    files: frozenset[str] = frozenset()
    """absolute paths, with * and ?"""
    variables: frozenset[str] = frozenset()
    """names, with * and ?"""
    ignore: frozenset[str] = frozenset()

    @property
    def names(self) -> frozenset[str]:
        """Names of the components of kind ``code`` that it asks for."""
        kernels = (_code_of(name) for name, _ in self.kernels)
        return frozenset((*kernels, *self.distributions, *self.files, *self.variables, FABRIC_MANAGER))

    def view(self, stack: Stack) -> Stack:
        """A look as this canary sees it."""
        names = self.names
        parts = tuple(
            part
            for part in stack.components
            if not self._ignores(part.name) and (part.kind != "code" or part.name in names)
        )
        variables = {name: value for name, value in stack.environment.items() if not self._ignores(name)}
        return replace(stack, components=parts, environment=variables)

    def _ignores(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.ignore)


NOTHING = Scope()
_OWN = {known.name for known in ADAPTERS}


def together(scopes: Iterable[Scope]) -> Scope:
    """One scope that watches what any of these watches, and ignores nothing."""
    listed = list(scopes)
    return Scope(
        kernels=tuple({name: (name, card) for scope in listed for name, card in scope.kernels}.values()),
        environments=tuple(dict.fromkeys(pair for scope in listed for pair in scope.environments)),
        distributions=frozenset(name for scope in listed for name in scope.distributions),
        files=frozenset(path for scope in listed for path in scope.files),
        variables=frozenset(name for scope in listed for name in scope.variables),
    )


def scope_of(loaded: LoadedCanary, asked: OnStackChange, folders: tuple[Path, ...]) -> Scope:
    """What a canary watches. Raises CardError or UsageError where its matrix cannot be read.

    Args:
        folders: the ``--cards`` folders.
    """
    matrix = load_matrix(loaded.matrix, folders)
    cards = in_environments(load_kernels(folders), matrix.environments)
    chosen = [
        (name, kernel.card)
        for name, kernel in cards.items()
        if any(fnmatch(name.partition("@")[0], wanted) for wanted in matrix.card.kernels)
    ]
    shipping = {Requirement(text).name for _, card in chosen if not card.environment for text in card.shipped_by}
    return replace(
        _asked(asked, shipping - set(kernel_distributions())),
        kernels=tuple((name, card) for name, card in chosen if _is_third_party(card)),
        environments=tuple(matrix.environments.items()),
    )


def _asked(asked: OnStackChange, shipping: AbstractSet[str]) -> Scope:
    """What a card names."""
    return Scope(
        distributions=frozenset(shipping | set(asked.distributions)),
        files=frozenset(asked.files),
        variables=frozenset(asked.variables),
        ignore=frozenset(asked.ignore),
    )


def _is_third_party(card: KernelCard) -> bool:
    """Whether the distributions that every look sees do not hold its code."""
    return bool(card.environment) or card.adapter not in _OWN


class Scopes:
    """The scopes of all canaries of a deck that wait for a change; made anew when a card changed."""

    def __init__(self, deck: Deck) -> None:
        self._deck = deck
        self._known: dict[str, Scope] = {}
        self._signature: object = None

    def of(self, canary: str) -> Scope:
        """What a canary watches, as of the last look; an empty scope where the canary did not exist then."""
        return self._known.get(canary, NOTHING)

    def look(self) -> list[Component]:
        """What a look finds of all of them; called by the thread that looks.

        Raises:
            UsageError: a folder of cards is away. A look without its kernels would forget how they were, and nobody
                would notice that they come back changed.
        """
        if (folder := self._deck.away) is not None:
            raise UsageError(f"--cards {folder}: the folder is away or empty")
        cards = dict(self._deck.cards)
        signature = self._sign(cards)
        if signature != self._signature:
            waiting = [loaded for loaded in cards.values() if loaded.card.stack_change]
            before = self._known
            self._known = {it.card.canary: _scope(it, self._deck.extra, before.get(it.card.canary)) for it in waiting}
            self._signature = signature
        return extras(together(self._known.values()), self._deck.extra)

    def _sign(self, cards: Mapping[str, LoadedCanary]) -> object:
        """The canaries, and every file from which a matrix or kernel may be read."""
        paths = [
            Path(place, name)
            for folder in self._deck.extra
            for place, _, names in walk(folder)
            for name in names
            if name.endswith(".yaml")
        ]
        paths += [Path(loaded.matrix) for loaded in cards.values() if is_path(loaded.matrix)]
        return [(name, loaded.card) for name, loaded in cards.items()], {path: _state(path) for path in paths}


def _state(path: Path) -> tuple[int, ...]:
    try:
        seen = path.stat()
    except OSError:  # it went away in between
        return ()
    return seen.st_ino, seen.st_mtime_ns, seen.st_size


def _scope(loaded: LoadedCanary, folders: tuple[Path, ...], before: Scope | None) -> Scope:
    """What a canary watches. Where its matrix is broken, which its fire reports, the kernels that it watched before.

    Args:
        before: what the canary watched before; None = it is new.
    """
    assert loaded.card.stack_change is not None, "it was asked for"
    try:
        return scope_of(loaded, loaded.card.stack_change, folders)
    except (CardError, UsageError):
        asked = _asked(loaded.card.stack_change, frozenset())
    if before is None:
        return asked
    both = asked.distributions | before.distributions
    return replace(before, distributions=both, files=asked.files, variables=asked.variables, ignore=asked.ignore)


def extras(scope: Scope, folders: tuple[Path, ...]) -> list[Component]:
    """What a look finds. What is not installed is listed as absent, because it may come."""
    return [
        *_kernels(scope, folders),
        *_distributions(scope),
        *(_files(pattern) for pattern in sorted(scope.files)),
        *(_variables(pattern) for pattern in sorted(scope.variables)),
        _fabric_manager(),
    ]


def _kernels(scope: Scope, folders: tuple[Path, ...]) -> list[Component]:
    resolved = tuple(str(folder.resolve()) for folder in folders)
    here = CodeHere(folders=resolved, cache=digest_cache(), environments=dict(scope.environments))
    codes = here.of(card for _, card in scope.kernels)
    return [_component(_code_of(name), _digest(code) if code else "") for name, code in codes.items()]


def _code_of(kernel: str) -> str:
    return f"code of {kernel}"


def _distributions(scope: Scope) -> list[Component]:
    found = {part.name: part for part in distributions(digest_cache(), sorted(scope.distributions))}
    return [
        replace(found[name], kind="code") if name in found else _component(name, "")
        for name in sorted(scope.distributions)
    ]


def _files(pattern: str) -> Component:
    """All files of a pattern as one component."""
    paths = sorted(glob.iglob(pattern))[:MOST_FILES]  # noqa: PTH207 - here ** is *: no whole disk is walked
    return _component(pattern, _digest(digests_of(paths, digest_cache())))


def _variables(pattern: str) -> Component:
    """All variables of a pattern as one component; never one that may hold a secret."""
    found = {name: value for name, value in started_with().items() if fnmatchcase(name, pattern)}
    told = told_safely(found)
    text = told.get(pattern) or ", ".join(f"{name}={value}" for name, value in told.items())
    return Component(kind="code", name=pattern, version=text or UNSET, digest="")


def _fabric_manager() -> Component:
    """The daemon for NVLink switches, where it is installed beside this process."""
    path = shutil.which(FABRIC_MANAGER)
    return _component(FABRIC_MANAGER, _digest(digests_of([path], digest_cache())) if path else "")


def _digest(contents: Mapping[str, str]) -> str:
    """One digest of many by name; empty where there are none."""
    return hashlib.sha256(json.dumps(sorted(contents.items())).encode()).hexdigest() if contents else ""


def _component(name: str, digest: str) -> Component:
    return Component(kind="code", name=name, version="" if digest else ABSENT, digest=digest)
