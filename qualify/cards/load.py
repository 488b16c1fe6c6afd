"""Names and paths to loaded cards."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from pydantic import BaseModel

from qualify import assets
from qualify.cards.environments import interpreters_of
from qualify.cards.folders import almost_cards, keys_of
from qualify.cards.kernel import KernelCard
from qualify.cards.matrix import MatrixCard
from qualify.cards.model import ModelCard
from qualify.cards.named import (
    OWN,
    canary_paths,
    kernel_names,
    kernel_paths,
    matrix_names,
    matrix_path,
    model_paths,
    unknown_card,
)
from qualify.cards.options import option_problems
from qualify.cards.plain_text import text_of
from qualify.cards.problems import Problem, in_order, refuse_doubtful, validate
from qualify.cards.references import reference_problems
from qualify.cards.shadows import shadow_problems
from qualify.cards.source import Source, parse, read
from qualify.cards.traffic import TrafficCard, load_traffic
from qualify.cards.waivers import load_waivers
from qualify.cards.words import Where, content_hash
from qualify.errors import CardError, UsageError
from qualify.facts.environment import in_environment
from qualify.facts.waiver import Waiver
from qualify.files import beside, exists
from qualify.text import shell_word

if TYPE_CHECKING:
    from qualify.cards.canary import CanaryCard

NO_ENVIRONMENTS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedKernel:
    """A kernel card and where it came from."""

    card: KernelCard
    path: Path
    content_hash: str
    """sha256 over the card's canonical JSON"""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedModel:
    """A model card and where it came from."""

    card: ModelCard
    path: Path
    content_hash: str
    """sha256 over the card's canonical JSON"""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedMatrix:
    """A matrix whose models and kernels all exist, with its text."""

    card: MatrixCard
    path: Path
    source: str
    """the text as it was read"""
    content_hash: str
    """sha256 of the text, and of the traffic file's where there is one"""
    models: Mapping[str, ModelCard]
    """geometry of each model that the matrix names, explicit geometries included"""
    lines: Mapping[Where, int]
    """line of every value in the file, from 1"""
    waivers: tuple[Waiver, ...] = ()
    """accepted failures, from the waivers file that the matrix names"""
    traffic: TrafficCard | None = None
    """content of the traffic file that the matrix names"""
    traffic_source: str = ""
    """text of the traffic file, as it was read"""
    environments: Mapping[str, str] = field(default_factory=dict)
    """interpreters by name, of the file and of the command line: each kernel runs in each of them too"""

    @property
    def typed(self) -> str:
        """What a command line calls it: the name of a shipped matrix, the path of any other."""
        return self.card.matrix if self.path.is_relative_to(assets.shipped("matrices")) else str(self.path)

    def line(self, where: Where) -> int:
        """Line of a value, or of what encloses it: ``line(("phases", "prefill", "seqlen", 2))``."""
        while where not in self.lines and where:
            where = where[:-1]
        return self.lines.get(where, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedCanary:
    """A canary card whose matrix exists, and where it came from."""

    card: CanaryCard
    path: Path
    content_hash: str
    """sha256 over the card's canonical JSON"""

    @property
    def matrix(self) -> str:
        """The matrix as a run takes it: a name or a path."""
        return self.card.matrix_beside(self.path)


def load_kernels(extra: tuple[Path, ...] = ()) -> dict[str, LoadedKernel]:
    """All kernel cards by name: the shipped ones and those in the ``--cards`` folders.

    Raises CardError with the problems of all cards, for two cards of one name, and for code that would never run.
    """
    loaded: dict[str, LoadedKernel] = {}
    problems: list[Problem] = []
    for name, path in sorted(kernel_paths(extra).items()):
        try:
            loaded[name] = _kernel(path)
        except CardError as error:
            problems += error.problems
    problems += shadow_problems(((one.card, one.path) for one in loaded.values()), extra)
    if problems:
        raise CardError(in_order(problems))
    return loaded


def in_environments(kernels: Mapping[str, LoadedKernel], environments: Iterable[str]) -> dict[str, LoadedKernel]:
    """The kernels, and after them a copy of each for every environment; what is there already stays as it is."""
    own = {name: kernel for name, kernel in kernels.items() if not kernel.card.environment}
    made = dict(kernels)
    for environment in environments:
        for name, kernel in own.items():
            called = in_environment(name, environment)
            if called not in made:
                made[called] = _copy(kernel, called)
    return made


def _copy(kernel: LoadedKernel, called: str) -> LoadedKernel:
    """The kernel under the name that it has in an environment; its cases share no evidence with the kernel's own."""
    card = kernel.card.model_copy(update={"kernel": called})
    return replace(kernel, card=card, content_hash=content_hash(card))


def load_models(extra: tuple[Path, ...] = ()) -> dict[str, LoadedModel]:
    """All model cards by name. Raises CardError with the problems of all."""
    loaded: dict[str, LoadedModel] = {}
    problems: list[Problem] = []
    for name, path in sorted(model_paths(extra).items()):
        try:
            loaded[name] = _model(path)
        except CardError as error:
            problems += error.problems
    if problems:
        raise CardError(in_order(problems))
    return loaded


def load_model(name: str, extra: tuple[Path, ...] = ()) -> LoadedModel:
    """One model card by name. Raises UsageError for an unknown name, CardError for a wrong card."""
    paths = model_paths(extra)
    if name not in paths:
        raise UsageError(unknown_card("model", name, paths, f"{OWN}; docs/cards.md says how to write one"))
    return _model(paths[name])


def load_canary(path: Path, matrices: list[str]) -> LoadedCanary:
    """One canary card. Raises CardError where it is wrong, or names a matrix that is not among ``matrices``."""
    from qualify.cards.canary import CanaryCard, matrix_problems

    source = read(path)
    card = validate(source, CanaryCard)
    _check_stem(source, "canary", card.canary)
    refuse_doubtful(source)
    if problems := matrix_problems(card, source, matrices):
        raise CardError(problems)
    return LoadedCanary(card=card, path=path, content_hash=content_hash(card))


def load_canaries(extra: tuple[Path, ...] = ()) -> dict[str, LoadedCanary]:
    """All canary cards by name. Raises CardError with the problems of all."""
    loaded: dict[str, LoadedCanary] = {}
    problems: list[Problem] = []
    matrices = matrix_names(extra)
    for name, path in sorted(canary_paths(extra).items()):
        try:
            loaded[name] = load_canary(path, matrices)
        except CardError as error:
            problems += error.problems
    if problems:
        raise CardError(in_order(problems))
    return loaded


def load_matrix(
    name_or_path: str, extra: tuple[Path, ...] = (), environments: Mapping[str, str] = NO_ENVIRONMENTS
) -> LoadedMatrix:
    """A matrix by its name or by the path of its file.

    Args:
        environments: interpreters by name that the command line adds; they replace the matrix's of the same name.

    Raises UsageError for an unknown name, CardError for a file that is wrong or that names unknown
    models or kernels, or a wrong file of waivers.
    """
    path = matrix_path(name_or_path, extra)
    text = text_of(path)
    try:
        source, card = _matrix_of(str(path), text)
    except CardError:
        keys = keys_of(path) or ()
        if "model_type" in keys and "matrix" not in keys:
            typed = shell_word(str(path))
            writes = f"`qualify model {typed} --matrix NEW.yaml` writes a matrix of it"
            what = f"is the config of a model, and no matrix. `qualify check {typed}` checks the model, {writes}"
            raise UsageError(f"{path}: {what}") from None
        raise
    refuse_doubtful(source)
    kernels, models = kernel_names(extra), model_paths(extra)
    interpreters = {**interpreters_of(card.environments, source.path), **environments}
    if problems := reference_problems(card, source, kernels, sorted(models), interpreters):
        load_kernels(extra)  # a card that is wrong, or in a file of another name, is the cause
        raise CardError([*_almost_cards(extra), *in_order(problems)])
    waivers = _waivers(card, source)
    traffic, traffic_source = _traffic(card, source)
    geometries = {entry.model: entry.card() or _model(models[entry.model]).card for entry in card.models}
    return LoadedMatrix(
        card=card,
        path=source.path,
        source=source.text,
        content_hash=hashlib.sha256(f"{source.text}{traffic_source}".encode()).hexdigest(),
        models=MappingProxyType(geometries),
        lines=MappingProxyType({where: line for where, (line, _) in source.values.items()}),
        waivers=waivers,
        traffic=traffic,
        traffic_source=traffic_source,
        environments=MappingProxyType(interpreters),
    )


def _almost_cards(extra: tuple[Path, ...]) -> list[Problem]:
    """What is wrong with files in the folders that are meant as cards of kernels or models, and lack that key."""
    problems: list[Problem] = []
    for path in almost_cards("kernel", KernelCard.model_fields, extra):
        problems += _wrong_in(path, KernelCard)
    for path in almost_cards("model", ModelCard.model_fields, extra):
        problems += _wrong_in(path, ModelCard)
    return in_order(problems)


def _wrong_in(path: Path, kind: type[BaseModel]) -> list[Problem]:
    try:
        validate(read(path), kind)
    except CardError as error:
        return error.problems
    return []


def _waivers(card: MatrixCard, source: Source) -> tuple[Waiver, ...]:
    if card.waivers is None:
        return ()
    path = beside(source.path, card.waivers)
    if not exists(path):
        message = f"waivers: no such file {path}; the path counts from the matrix's own folder"
        raise CardError([(source.place(("waivers",)), message)])
    return load_waivers(path, card.policy.waivers)


def _traffic(card: MatrixCard, source: Source) -> tuple[TrafficCard | None, str]:
    if card.traffic is None:
        return None, ""
    path = beside(source.path, card.traffic)
    if not exists(path):
        message = f"traffic: no such file {path}; the path counts from the matrix's own folder"
        raise CardError([(source.place(("traffic",)), message)])
    return load_traffic(path)


def parse_matrix(text: str, path: str) -> MatrixCard:
    """A matrix from its stored text, without looking up what it names: the policy that a past run was made under."""
    return _matrix_of(path, text)[1]


@lru_cache(maxsize=64)
def _matrix_of(path: str, text: str) -> tuple[Source, MatrixCard]:
    """The matrix of a text, parsed once: many runs have the same text, and a run is judged by its own text."""
    source = parse(Path(path), text)
    return source, validate(source, MatrixCard)


def _kernel(path: Path) -> LoadedKernel:
    return _kernel_of(path, text_of(path))


@lru_cache(maxsize=256)
def _kernel_of(path: Path, text: str) -> LoadedKernel:
    """The card of a text, parsed once: a command needs all cards several times, a service again and again."""
    source = parse(path, text)
    card = validate(source, KernelCard)
    if card.environment:
        hint = "--environment NAME=PYTHON adds KERNEL@NAME by itself, so take the @ out of the name"
        raise CardError([(source.place(("kernel",)), f"kernel: is {card.kernel}, and @ names an environment; {hint}")])
    _check_stem(source, "kernel", card.kernel)
    refuse_doubtful(source)
    if problems := option_problems(card, source):
        raise CardError(in_order(problems))
    return LoadedKernel(card=card, path=path, content_hash=content_hash(card))


def _model(path: Path) -> LoadedModel:
    return _model_of(path, text_of(path))


@lru_cache(maxsize=256)
def _model_of(path: Path, text: str) -> LoadedModel:
    """The card of a text, parsed once: a site and a canary load the same matrices again and again."""
    source = parse(path, text)
    card = validate(source, ModelCard)
    _check_stem(source, "model", card.model)
    return LoadedModel(card=card, path=path, content_hash=card.content_hash)


def _check_stem(source: Source, key: str, name: str) -> None:
    """Cards are found by file name, so the name inside must be the same."""
    if name != source.path.stem:
        message = f"{key}: is {name}, but the file is {source.path.name}; call the file {name}{source.path.suffix}"
        raise CardError([(source.place((key,)), message)])
