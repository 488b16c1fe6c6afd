"""A model by whatever somebody calls it: a repository of the hub, a folder, a config.json, or a shipped name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qualify.cards.config.hub import FILE, SCHEME, is_hub, is_repository, latest, repository_at
from qualify.cards.config.keys import ConfigNote
from qualify.cards.config.reading import read_model
from qualify.cards.load import load_model
from qualify.cards.model import ModelCard
from qualify.cards.named import model_names
from qualify.cards.problems import meant
from qualify.errors import InfrastructureError, UsageError
from qualify.facts.dtypes import USUAL, Dtype
from qualify.files import exists


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundModel:
    """A model, and where it came from."""

    card: ModelCard
    origin: str
    """in words: the repository with its commit, the file, or the shipped card"""
    shipped: bool
    """whether qualify ships its card, so that a matrix can name it"""
    dtype: Dtype = USUAL
    """in which its config.json has it served; a card does not say it"""
    findings: tuple[ConfigNote, ...] = ()
    """what its config.json says that a reader should know"""

    @property
    def untested(self) -> tuple[str, ...]:
        """The parts of the model that make no attention call, in words: no case tests them."""
        without = len(self.card.without_attention)
        layers = [f"{without} of {self.card.layers} layers, which have no attention"] if without else []
        return (*layers, *(f"{each.where}: {each.detail}" for each in self.findings if each.kind == "unread"))


def find_model(typed: str, extra: tuple[Path, ...] = ()) -> FoundModel:
    """The model that somebody means.

    A file or folder comes first, then the name of a model card in any case of letters, then the hub.

    Raises:
        UsageError: it is none of them.
        CardError: its config.json cannot be read as attention.
        InfrastructureError: the hub does not have it; or the hub cannot be reached, and the cache does not have it.
    """
    names = model_names(extra)
    if not is_hub(typed) and exists(Path(typed)):
        read = read_model(typed, taken=names)
        file = Path(typed, FILE) if Path(typed).is_dir() else Path(typed)
        origin = f"{read.card.model}, from {file}"
        return FoundModel(card=read.card, origin=origin, shipped=False, dtype=read.dtype, findings=read.findings)
    card = next((name for name in names if name.lower() == typed.lower()), None)
    if card:
        found = load_model(card, extra)
        return FoundModel(card=found.card, origin=f"model card {found.path.name}", shipped=True)
    if is_repository(typed):
        return _on_hub(typed, names)
    if name := repository_at(typed):
        raise UsageError(f"{typed}: is a web address. Give the model by its name on the hub: {name}")
    raise UsageError(
        f"{typed}: is no file, no folder, no model card and no repository{meant(typed.lower(), names)}. Give one of: "
        "organisation/name on the Hugging Face hub, a folder with a config.json, a config.json, or a model card "
        f"({', '.join(names[:4])}, …; docs/models.md has all)"
    )


def _on_hub(typed: str, names: list[str]) -> FoundModel:
    try:
        config, asked = latest(typed)
    except InfrastructureError as error:
        own = typed.partition("@")[0].rpartition("/")[2].lower()
        if own not in names:
            raise
        raise type(error)(f"{error}. qualify has a model card of that name, which needs no hub: {own}") from None
    pinned = f"{config.repository}@{config.revision}"
    read = read_model(f"{SCHEME}{pinned}", taken=names)
    said = "" if asked else ", as the local cache has it: the hub gave no answer"
    origin = f"{pinned}{said}"
    return FoundModel(card=read.card, origin=origin, shipped=False, dtype=read.dtype, findings=read.findings)
