"""The model card: an attention geometry, as a config.json gives it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from qualify.cards.words import Card, Count, Flag, Mask, Name, Positive, Some, Where, Whole, content_hash, refuse

Positions = Literal["none", "rope", "mrope", "alibi"]


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
    mask: Mask
    """full, causal or window"""
    window: Count | None = None
    """only and always with mask: window: keys that a query sees, itself included"""
    softcap: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] = 0.0
    """scores become softcap * tanh(score / softcap); 0 = off"""
    sinks: Flag = False
    """whether each query head has an extra logit in its denominator"""
    scale: Positive = Field(default_factory=_default_scale)
    """multiplies q·k; left out = 1 / sqrt(head_dim)"""
    positions: Positions = "none"
    """none, rope, mrope or alibi: what is applied before or inside the kernel"""

    @model_validator(mode="after")
    def _fits(self) -> LayerGroup:
        problems: list[tuple[Where, str]] = []
        if self.heads_q % self.heads_kv:
            problems.append((("heads_kv",), f"is {self.heads_kv} and does not divide heads_q = {self.heads_q}"))
        if self.mask == "window" and self.window is None:
            problems.append((("mask",), "is window, so window must say how many keys a query sees, itself included"))
        if self.mask != "window" and self.window is not None:
            problems.append((("window",), f"is used only with mask: window, and the mask is {self.mask}"))
        refuse(problems)
        return self


def _layer_problems(groups: tuple[LayerGroup, ...], layers: int) -> list[tuple[Where, str]]:
    """Why the groups are not a partition of layers 0 to ``layers`` - 1."""
    problems: list[tuple[Where, str]] = []
    owner: dict[int, int] = {}
    for number, group in enumerate(groups):
        for index, layer in enumerate(group.layers):
            where = ("groups", number, "layers", index)
            if layer >= layers:
                problems.append((where, f"is layer {layer}, but the layers are 0 to {layers - 1}"))
            elif layer in owner:
                problems.append((where, f"is layer {layer}, which groups[{owner[layer]}] has already"))
            owner.setdefault(layer, number)
    missing = list(islice((layer for layer in range(layers) if layer not in owner), 5))
    if missing:
        listed = ", ".join(map(str, missing))
        problems.append((("groups",), f"leave out layers {listed}{' …' if len(missing) == 5 else ''} of {layers}"))
    return problems


Groups = Annotated[tuple[LayerGroup, ...], Field(min_length=1)]


class Geometry(Card):
    """An attention geometry written into a matrix."""

    groups: Groups
    """layer groups; together they have the layers from 0 on, each once"""

    @model_validator(mode="after")
    def _fits(self) -> Geometry:
        refuse(_layer_problems(self.groups, self.layers))
        return self

    @property
    def layers(self) -> int:
        """Layers of the model: one more than the highest number."""
        return max(layer for group in self.groups for layer in group.layers) + 1


class ModelCard(Card):
    """The attention geometry of one model."""

    model: Name
    """name of the model; equals the file's name without .json"""
    hub: str = ""
    """organisation/name on the Hugging Face hub"""
    model_type: str = ""
    """model_type of its config.json"""
    layers: Count
    """number of layers"""
    groups: Groups
    """layer groups; together they have the layers 0 to layers - 1, each once"""

    @model_validator(mode="after")
    def _fits(self) -> ModelCard:
        refuse(_layer_problems(self.groups, self.layers))
        return self

    @property
    def content_hash(self) -> str:
        """sha256 over the canonical JSON of the geometry."""
        return content_hash(self)
