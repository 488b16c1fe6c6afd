"""``qualify model``: a config.json, from a path or the hub, becomes a model card with its pin and findings."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Container, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qualify.cards.config.groups import read_groups
from qualify.cards.config.hub import HubConfig, fetch, is_hub
from qualify.cards.config.keys import ConfigNote, Keys
from qualify.cards.config.mistaken_files import refuse_mistaken
from qualify.cards.config.precision import read_dtype
from qualify.cards.config.suspicion import suspicious
from qualify.cards.folders import keys_of
from qualify.cards.model import LayerGroup, ModelCard, Pin
from qualify.cards.places import dotted
from qualify.cards.problems import in_order, name_words
from qualify.cards.source import Source, read_config
from qualify.cards.words import LONGEST_NAME, NAME, Where
from qualify.errors import CardError, UsageError
from qualify.facts.dtypes import Dtype
from qualify.files import is_folder
from qualify.text import shell_word

MOST_HEADS = 1 << 16
"""heads, and elements of a head, that a config may have: hundreds of times as many as any model has"""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadModel:
    """What a config.json says about attention."""

    card: ModelCard
    dtype: Dtype
    """in which an engine serves it, unless it is told another one"""
    findings: tuple[ConfigNote, ...]


def read_model(config: str, name: str = "", taken: Container[str] = ()) -> ReadModel:
    """Read ``hf://organisation/name@revision``, a config.json, or a folder that holds one.

    Args:
        config: as it was typed.
        name: what to call the model; empty = after the repository, or the folder of the file.
        taken: names of models that have cards. Where ``name`` is empty and the found name is taken, the beginning of
            the hash is appended.

    Raises:
        CardError: the file cannot be read, its family is not known, or a key is missing or wrong.
        UsageError: a wrong ``hf://`` reference or name.
        InfrastructureError: the hub cannot be reached, or does not have the revision.
    """
    hub = fetch(config) if is_hub(config) else None
    path = hub.path if hub else Path(config)
    if not hub:
        refuse_mistaken(path)
    if path.suffix in (".yaml", ".yml") and "matrix" in (keys_of(path) or ()):
        raise UsageError(
            f"{path}: is a matrix, and no config of a model. `qualify run {shell_word(str(path))}` runs it"
        )
    source = read_config(path / "config.json" if is_folder(path) else path)
    data = source.data
    if not isinstance(data, dict) or source.problems:
        message = "must be a mapping of keys and values, as a config.json is"
        raise CardError(list(source.problems) or [(source.place(()), message)])
    if {"model", "groups"} <= data.keys():
        message = f"is a model card of qualify, and no config.json. Take it by its name: {data['model']}"
        raise CardError([(source.place(()), message)])
    keys = Keys(source=source, data=data)
    groups = read_groups(keys)
    _refuse_large(keys, groups)
    if keys.problems:
        raise CardError(in_order(keys.problems))
    biased = sum(len(group.layers) for group in groups if group.positions == "alibi")
    if biased:
        detail = f"ALiBi adds a bias to the scores of {biased} layers, which the attention call cannot carry"
        keys.note("unread", "model_type", f"{detail}: every kernel refuses them")
    dtype = read_dtype(keys)
    main = {layer for group in groups if group.stack == "main" for layer in group.layers} | keys.idle
    digest = canonical_hash(data)
    named = _name(name, hub, source)
    card = ModelCard(
        model=f"{named[:91]}-{digest[:8]}" if named in taken and not name else named,
        hub=hub.repository if hub else "",
        model_type=keys.text("model_type"),
        layers=max(main) + 1,
        groups=tuple(groups),
        without_attention=tuple(sorted(keys.idle)),
        pin=Pin(config_sha256=digest, revision=hub.revision if hub else None),
    )
    return ReadModel(card=card, dtype=dtype, findings=(*suspicious(data), *keys.findings))


def _refuse_large(keys: Keys, groups: Iterable[LayerGroup]) -> None:
    """Remember a number of heads, or of elements of one, that no model has: it is a slip, and nothing can run it."""
    for group in groups:
        numbers = (
            (group.heads_q, "query heads"),
            (group.heads_kv, "KV heads"),
            (group.head_dim, "elements of a head"),
            (group.head_dim_v, "elements of a value head"),
        )
        number, what = next((each for each in numbers if each[0] > MOST_HEADS), (0, ""))
        if what:
            where = _where(keys, number)
            told = f"gives {number} {what}; no more than {MOST_HEADS} are read. Check the number"
            keys.problems.append((keys.source.place(where), f"{dotted(where) or 'the config'}: {told}"))


def _where(keys: Keys, number: int) -> Where:
    """Where the number stands, else the whole file: it may be computed from several keys."""
    for where in keys.source.values:
        value: Any = keys.data
        for part in where:
            value = value[part]
        if type(value) is int and value == number:
            return where
    return ()


def canonical_hash(data: object) -> str:
    """sha256 over canonical JSON: sorted keys, no spaces, no escapes beyond JSON's own; notation does not matter.

    Infinity and NaN, which Python writes and JSON does not know, are hashed as these words.
    """
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _name(asked: str, hub: HubConfig | None, source: Source) -> str:
    """The asked name, or one that the place of the file suggests."""
    if asked:
        if not re.fullmatch(NAME, asked) or len(asked) > LONGEST_NAME:
            raise UsageError(f"--name {asked}: {name_words(asked)}; at most {LONGEST_NAME} characters")
        return asked
    if hub:
        given = hub.repository.rpartition("/")[2]
    else:
        path = source.path.resolve()
        given = path.parent.name if path.name == "config.json" else path.stem
    plain = re.sub(r"[^a-z0-9.-]+", "-", given.lower()).strip("-.")[:100]
    return plain or "model"
