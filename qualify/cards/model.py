"""The model card: an attention geometry, as a config.json gives it."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, model_validator

from qualify.cards.words import Card, Count, Flag, Name, Positive, Several, Some, Where, Whole, content_hash, refuse
from qualify.facts.case import Phase

Positions = Literal["none", "rope", "mrope", "alibi"]
LayerMask = Literal["full", "causal", "window", "band", "chunked", "cross"]
Stack = Literal["main", "encoder", "vision"]
PHASES: tuple[Phase, ...] = get_args(Phase)
SIZES: tuple[tuple[LayerMask, str, str], ...] = (
    ("window", "window", "how many keys a query sees, itself included"),
    ("band", "window", "how many keys a query sees, itself in their middle"),
    ("chunked", "chunk", "how many tokens a chunk has"),
    ("cross", "cross_keys", "how many keys the other sequence has"),
)
"""masks that need a size: its key, and what the key must say"""


def _same_head_dim(data: Mapping[str, Any]) -> int:
    return int(data.get("head_dim", 1))


def _default_scale(data: Mapping[str, Any]) -> float:
    return 1.0 / math.sqrt(data.get("head_dim", 1))


class LayerGroup(Card):
    """Layers that make the same attention call."""

    layers: Some[Whole]
    """numbers of the layers, from 0"""
    heads_q: Count
    """query heads"""
    heads_kv: Count
    """key/value heads; divides heads_q"""
    head_dim: Count
    """elements per query and key vector"""
    head_dim_v: Count = Field(default_factory=_same_head_dim)
    """elements per value vector; left out = head_dim"""
    mask: LayerMask
    """full, causal, window, band (a window on both sides), chunked, or cross (keys of another sequence)"""
    window: Count | None = None
    """only and always with mask: window or band: keys that a query sees, itself included"""
    chunk: Count | None = None
    """only and always with mask: chunked: tokens of a chunk; a query sees the earlier keys of its own chunk"""
    cross_keys: Count | None = None
    """only and always with mask: cross: keys of each sequence, for example what an encoder gives"""
    image_tokens: Count | None = None
    """tokens of one image, which see each other whatever the mask says; prompts come with and without an image"""
    softcap: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] = 0.0
    """scores become softcap * tanh(score / softcap); 0 = off"""
    sinks: Flag = False
    """whether each query head has an extra logit in its denominator"""
    scale: Positive = Field(default_factory=_default_scale)
    """multiplies q·k; left out = 1 / sqrt(head_dim)"""
    positions: Positions = "none"
    """none, rope, mrope or alibi: what is applied before or inside the kernel"""
    latent: Flag = Field(default=False, exclude_if=operator.not_)
    """whether values are the first head_dim_v elements of the keys, stored once: latent attention"""
    stack: Stack = "main"
    """main, encoder or vision: which of the model's stacks the layer numbers belong to"""
    phases: Several[Phase] = ()
    """phases in which the layers make this call; left out = every phase"""

    @model_validator(mode="after")
    def _fits(self) -> LayerGroup:
        problems: list[tuple[Where, str]] = []
        if self.heads_q % self.heads_kv:
            problems.append((("heads_kv",), f"is {self.heads_kv} and does not divide heads_q = {self.heads_q}"))
        problems += self._size_problems()
        if self.latent and self.head_dim_v >= self.head_dim:
            message = f"is true, so head_dim_v = {self.head_dim_v} must be less than head_dim = {self.head_dim}"
            problems.append((("latent",), message))
        if self.mask == "band" and self.window is not None and self.window % 2 == 0:
            problems.append((("window",), f"is {self.window} and must be odd: as many keys before a query as after it"))
        if self.image_tokens is not None and self.mask not in {"causal", "window"}:
            message = f"is used only with mask: causal or window, and the mask is {self.mask}"
            problems.append((("image_tokens",), message))
        refuse(problems)
        return self

    def _size_problems(self) -> Iterator[tuple[Where, str]]:
        """Problems where the size of the mask is missing, or where the size of another mask is given."""
        for key in dict.fromkeys(key for _, key, _ in SIZES):
            masks = {mask: meaning for mask, needed, meaning in SIZES if needed == key}
            if self.mask in masks and getattr(self, key) is None:
                yield ("mask",), f"is {self.mask}, so {key} must say {masks[self.mask]}"
            if self.mask not in masks and getattr(self, key) is not None:
                yield (key,), f"is used only with mask: {' or '.join(masks)}, and the mask is {self.mask}"


def _layer_problems(groups: tuple[LayerGroup, ...], without: tuple[int, ...], layers: int) -> list[tuple[Where, str]]:
    """Why the groups do not give each layer its attention.

    In each phase a layer attends at most once to its own sequence and at most once to another one. The layers of the
    main stack are 0 to ``layers`` - 1, those of another stack 0 to the highest that is named. Every layer is in a
    group, except those ``without`` attention.
    """
    beyond = [(("without_attention", index), layer) for index, layer in enumerate(without) if layer >= layers]
    return [
        *((where, f"is layer {layer}, but the layers are 0 to {layers - 1}") for where, layer in beyond),
        *_wrong_layers(groups, without, layers),
        *_left_out(groups, without, layers),
    ]


def _wrong_layers(groups: tuple[LayerGroup, ...], without: tuple[int, ...], layers: int) -> Iterator[tuple[Where, str]]:
    """The layers of a group that the model lacks, that have no attention, or that an earlier group has."""
    owner: dict[tuple[str, bool, str, int], int] = {}
    for number, group in enumerate(groups):
        for index, layer in enumerate(group.layers):
            where = ("groups", number, "layers", index)
            places = [(group.stack, group.mask == "cross", phase, layer) for phase in group.phases or PHASES]
            taken = [owner[place] for place in places if place in owner]
            if group.stack == "main" and layer >= layers:
                yield where, f"is layer {layer}, but the layers are 0 to {layers - 1}"
            elif group.stack == "main" and layer in without:
                yield where, f"is layer {layer}, which without_attention names too"
            elif taken:
                yield where, f"is layer {layer}, which groups[{taken[0]}] has already"
            for place in places:
                owner.setdefault(place, number)


def _left_out(groups: tuple[LayerGroup, ...], without: tuple[int, ...], layers: int) -> Iterator[tuple[Where, str]]:
    """The stacks that have a layer in no group."""
    named: dict[str, set[int]] = {"main": set(without)}
    for group in groups:
        named.setdefault(group.stack, set()).update(group.layers)
    for stack, found in named.items():
        count = layers if stack == "main" else max(found) + 1
        missing = list(islice((layer for layer in range(count) if layer not in found), 5))
        if missing:
            listed = f"{', '.join(map(str, missing))}{' …' if len(missing) == 5 else ''} of {count}"
            yield ("groups",), f"leave out layers {listed}{'' if stack == 'main' else f' ({stack})'}"


Groups = Annotated[tuple[LayerGroup, ...], Field(min_length=1)]


class Pin(Card):
    """Which config.json a geometry was read from."""

    config_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """sha256 over its canonical JSON: sorted keys, no spaces"""
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] | None = None
    """commit on the hub, where it came from there"""


class InlineGeometry(Card):
    """An attention geometry written into a matrix."""

    hub: str = ""
    """organisation/name on the Hugging Face hub"""
    pin: Pin | None = None
    """the config.json that it was read from"""

    groups: Groups
    """layer groups; together they have the layers from 0 on"""
    without_attention: Several[Whole] = ()
    """layers of the main stack that have no attention, such as the state-space and linear layers of a hybrid"""

    @model_validator(mode="after")
    def _fits(self) -> InlineGeometry:
        refuse(_layer_problems(self.groups, self.without_attention, self.layers))
        return self

    @property
    def layers(self) -> int:
        """Layers of the main stack: one more than the highest number."""
        named = (layer for group in self.groups if group.stack == "main" for layer in group.layers)
        return max(*named, *self.without_attention, 0, 0) + 1


class ModelCard(Card):
    """The attention geometry of one model."""

    model: Name
    """name of the model; equals the file's name without .json"""
    hub: str = ""
    """organisation/name on the Hugging Face hub"""
    model_type: str = ""
    """model_type of its config.json"""
    pin: Pin | None = None
    """the config.json that it was read from"""
    layers: Count
    """number of layers, without those of an encoder or a vision tower"""
    groups: Groups
    """layer groups; together they have the layers 0 to layers - 1"""
    without_attention: Several[Whole] = ()
    """layers of the main stack that have no attention, such as the state-space and linear layers of a hybrid"""

    @model_validator(mode="after")
    def _fits(self) -> ModelCard:
        refuse(_layer_problems(self.groups, self.without_attention, self.layers))
        return self

    @property
    def content_hash(self) -> str:
        """sha256 over the canonical JSON of the geometry."""
        return content_hash(self)
