"""The code behind a kernel, as it lies on this machine: what evidence was made by, and what a gate compares with.

It is found without importing anything, so a gate without torch can compute it::

    adapter: call    the --cards folder of the entry's module, or its package, or the folder of a single module
    other adapters   qualify's module, and those of its modules that it imports; or the distribution that offers it
    shipped_by       every installed distribution that the card names

A distribution counts as one: the digest over what its RECORD promises, and every file that is not as promised. The CUDA
libraries beneath it belong to the stack, which hashes those that a process has mapped. The interpreter of another
environment says where its distributions lie; their files are read here.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement

import qualify
from qualify.assets import digest_cache
from qualify.cards.kernel import CALL, KernelCard
from qualify.errors import InfrastructureError
from qualify.facts.code import Code
from qualify.files import exists, walk
from qualify.plan.digests import digests_of
from qualify.plan.installed import Files, files_of, not_as_promised, runs
from qualify.plan.sites import CodeSite, Installed, OtherSite, Standing, ThisSite

_SKIPPED = {"__pycache__", "node_modules", "site-packages"}
_ADAPTERS = "qualify.run.adapters"
_IMPORT = re.compile(rf"^\s*(?:from|import) ({re.escape(_ADAPTERS)}\.\w+|qualify\.masks)\b", re.MULTILINE)
_ENTRY_ADAPTER = "interface"
"""the module that says what a third party's function gets"""


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeHere:
    """Where qualify looks for this machine's code, and which code it compares evidence with."""

    folders: tuple[str, ...]
    """the --cards folders, resolved"""
    cache: Path | None
    """where digests of files are remembered; None = every file is read again"""
    every: bool = True
    """False = only functions whose module stands in one of the folders, because libraries may be another machine's"""
    environments: Mapping[str, str] = field(default_factory=dict)
    """interpreters by the name of their environment. A kernel of any other environment has no code here. Without
    ``every``, kernels of an interpreter that is not on this machine are left out"""

    def of(self, cards: Iterable[KernelCard]) -> dict[str, Code | None]:
        """The code of each kernel that is compared; None where it is not here.

        Raises:
            UsageError: the interpreter of an environment does not answer.
            InfrastructureError: an installed distribution does not say where its sources lie.
        """
        groups: dict[str, list[KernelCard]] = {}
        for card in cards:
            groups.setdefault(card.environment, []).append(card)
        return {name: code for group, members in groups.items() for name, code in self._of(group, members).items()}

    def noted(self, cards: Iterable[KernelCard]) -> dict[str, Code]:
        """The same as a run or a duel notes it: no file of a kernel that is not here."""
        return {name: code or {} for name, code in self.of(cards).items()}

    def _of(self, environment: str, cards: list[KernelCard]) -> dict[str, Code | None]:
        """The same for the kernels of one environment."""
        chosen = [card for card in cards if self.every or self._own(card)]
        if not self._reaches(environment):
            return dict.fromkeys(card.kernel for card in chosen) if self.every else {}
        site = self._site(environment, chosen)
        found = {card.kernel: _sources(card, self.folders, site) for card in chosen}
        here = [sources for sources in found.values() if sources]
        distributions = {name: _recorded(name, site) for sources in here for name in sources.shipped}
        paths = {path for sources in here for path in sources.files.values()}
        paths |= {path for one in distributions.values() for path, _ in one.files.values()}
        digests = digests_of(sorted(paths), self.cache)
        whole = {name: one.code(digests) for name, one in distributions.items()}
        return {kernel: None if one is None else one.code(digests, whole) for kernel, one in found.items()}

    def _reaches(self, environment: str) -> bool:
        """Whether the environment has an interpreter to ask."""
        python = self.environments.get(environment, "")
        return not environment or bool(python if self.every else Path(python).is_file())

    def _site(self, environment: str, cards: list[KernelCard]) -> CodeSite:
        if not environment or not cards:
            return ThisSite()
        names = dict.fromkeys(name for card in cards for name in map(_name, card.shipped_by))
        tops = dict.fromkeys(_top(card) for card in cards if card.adapter == CALL)
        return OtherSite(environment, self.environments[environment], names, tops)

    def _own(self, card: KernelCard) -> bool:
        """Whether it is a function in one of the folders."""
        standing = ThisSite().module(_top(card), self.folders) if card.adapter == CALL else None
        return standing is not None and bool({str(base) for base in _bases(standing)} & set(self.folders))


def code_of_cards(folders: Iterable[Path]) -> CodeHere:
    """The code of the functions in these --cards folders, and of nothing else."""
    return CodeHere(folders=tuple(str(folder.resolve()) for folder in folders), cache=digest_cache(), every=False)


@dataclass(kw_only=True, slots=True)
class _Sources:
    """What a kernel's code consists of."""

    files: dict[str, str] = field(default_factory=dict)
    """paths by name"""
    shipped: list[str] = field(default_factory=list)
    """installed distributions"""

    def code(self, digests: dict[str, str], distributions: dict[str, Code]) -> Code:
        own = {name: digests.get(path, "") for name, path in self.files.items()}
        return {key: value for name in self.shipped for key, value in distributions[name].items()} | own


@dataclass(frozen=True, kw_only=True, slots=True)
class _Distribution:
    """What an installed distribution promises of its files."""

    title: str
    """name and version"""
    files: Files

    def code(self, digests: dict[str, str]) -> Code:
        promised = "\n".join(f"{name} {digest}" for name, (_, digest) in sorted(self.files.items()) if digest)
        other = not_as_promised(self.files, digests)
        return {self.title: hashlib.sha256(promised.encode()).hexdigest()} | other


def _sources(card: KernelCard, folders: Sequence[str], site: CodeSite) -> _Sources | None:
    """What the kernel's code consists of; None where it is not here."""
    sources = _Sources(shipped=[name for name in map(_name, card.shipped_by) if site.installed(name)])
    if card.adapter == CALL:
        standing = site.module(_top(card), folders)
        if standing is None:
            return None
        sources.files = _entry_files(standing, folders) | _adapter_files(_ENTRY_ADAPTER)
        return sources
    sources.files = _adapter_files(card.adapter)
    if not sources.files:
        sources.shipped += site.offering(card.adapter)
    return sources if sources.shipped else None


def _name(requirement: str) -> str:
    return Requirement(requirement).name


def _top(card: KernelCard) -> str:
    """The top-level module of a card's entry."""
    return str(card.entry).partition(":")[0].partition(".")[0]


def _bases(standing: Standing) -> list[Path]:
    """The folders in which the module or package stands."""
    return [Path(place).parent for place in ([standing.origin] if standing.places is None else standing.places)]


def _entry_files(standing: Standing, folders: Sequence[str]) -> dict[str, str]:
    """Names and paths of what may belong to a third party's function."""
    found: dict[str, str] = {}
    for base in _bases(standing):
        if str(base) in folders:
            found |= _tree(base, base)
    if standing.places is not None:
        for place in standing.places:
            found |= _tree(Path(place), Path(place).parent)
    elif not found:
        file = Path(standing.origin)
        # Beside a module in site-packages lie the modules of others.
        shared = next(file.parent.glob("*.dist-info"), None) is not None
        found = {file.name: str(file)} if shared else _tree(file.parent, file.parent)
    return found


def _tree(folder: Path, base: Path) -> dict[str, str]:
    """Names, from the base on, and paths of the sources and binaries in the folder and below it."""
    found = {}
    for place, inner, files in walk(folder):
        inner[:] = [name for name in inner if _belongs(place, name)]
        for name in files:
            if runs(name):
                path = os.path.join(place, name)  # noqa: PTH118 - thousands of them
                found[os.path.relpath(path, base)] = path
    return found


def _belongs(place: str, name: str) -> bool:
    """Whether a subfolder is the user's own: no cache, no virtual environment."""
    return not name.startswith(".") and name not in _SKIPPED and not exists(Path(place, name, "pyvenv.cfg"))


def _adapter_files(adapter: str) -> dict[str, str]:
    """Names and paths of an adapter of qualify and of the modules that it imports; empty where qualify has none."""
    root = Path(qualify.__file__).parent.parent
    found: dict[str, str] = {}
    waiting = [f"{_ADAPTERS}.{adapter}"]
    while waiting:
        name = f"{waiting.pop().replace('.', '/')}.py"
        path = root / name
        if name in found or not path.is_file():
            continue
        found[name] = str(path)
        waiting += _IMPORT.findall(path.read_text(encoding="utf-8", errors="replace"))
    return found


def _recorded(name: str, site: CodeSite) -> _Distribution:
    """What the installed distribution promises; files outside of its folder, and its dist-info, do not count."""
    distribution = site.installed(name)
    assert distribution is not None
    files = files_of(distribution.record, distribution.root)
    title = f"{name} {distribution.version}"
    files |= {label: (path, "") for label, path in _editable(title, distribution).items()}
    return _Distribution(title=title, files=files)


def _editable(title: str, distribution: Installed) -> dict[str, str]:
    """The sources of a distribution that was installed with ``pip install -e``."""
    try:
        described = json.loads(distribution.direct_url)
        url, editable = urlsplit(str(described.get("url", ""))), described.get("dir_info", {}).get("editable")
    except (ValueError, AttributeError, RecursionError) as error:
        raise InfrastructureError(
            f"{title} in {distribution.root}: its direct_url.json is damaged ({error}), so its sources cannot be "
            "found. Install it again."
        ) from error
    if not editable or url.scheme != "file":
        return {}
    project = Path(unquote(url.path))
    return _tree(project, project)
