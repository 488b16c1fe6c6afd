"""Incidents in a matrix: public failures of attention kernels, the calls that trigger them, and what shows them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from qualify.cards.words import Card, Count, Flag, Name, OneOf, Positive, Several, Some, Text, Where, Whole, refuse
from qualify.facts.checks import FINDINGS
from qualify.facts.dtypes import Dtype
from qualify.masks import EVERYWHERE, Mask

Ending = Literal["crash", "hang", "refusal", "substitution"]
"""outcomes that may show an incident"""
Inputs = Literal[
    "normal", "peaked", "peaked8", "negative", "positive", "outliers", "offset", "same_sign", "sink", "rising"
]
"""kinds of input values that a finding may be about"""
ENDINGS: tuple[Ending, ...] = get_args(Ending)
Failure = Annotated[str, OneOf((*FINDINGS, *ENDINGS))]
"""findings and outcomes that may show an incident, and whose failure a waiver may accept"""


def _lengths(value: object) -> object:
    return [value] if isinstance(value, int) else value


def _two(sides: tuple[int, ...]) -> tuple[int, ...]:
    if len(sides) != 2:
        raise ValueError("must be the two numbers [left, right]")
    return sides


def _same_heads(data: Mapping[str, Any]) -> int:
    return int(data.get("heads_q", 1))


def _same_dim(data: Mapping[str, Any]) -> int:
    return int(data.get("head_dim", 1))


def _default_scale(data: Mapping[str, Any]) -> float:
    return 1.0 / math.sqrt(data.get("head_dim", 1))


def _same_lengths(data: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(data.get("seqlens_q", ()))


Lengths = Annotated[
    tuple[Whole, ...],
    Field(min_length=1),
    BeforeValidator(_lengths, json_schema_input_type=Whole | list[Whole]),
]
Side = Annotated[int, Field(strict=True, ge=-1, le=2**31 - 1)]


Window = Annotated[tuple[Side, ...], AfterValidator(_two), Field(json_schema_extra={"minItems": 2, "maxItems": 2})]


class IncidentCall(Card):
    """One attention call, written out."""

    heads_q: Count
    """query heads"""
    heads_kv: Count = Field(default_factory=_same_heads)
    """key/value heads; divides heads_q; left out = heads_q"""
    head_dim: Count
    """elements per query and key vector"""
    head_dim_v: Count = Field(default_factory=_same_dim)
    """elements per value vector; left out = head_dim"""
    seqlens_q: Lengths
    """queries of each sequence; a single number is for every sequence"""
    seqlens_k: Lengths = Field(default_factory=_same_lengths)
    """keys of each sequence; a single number is for every sequence; left out = seqlens_q"""
    batch: Count = 1
    """how many times the list of lengths is repeated"""
    page_size: Whole = 0
    """keys per page; 0 = packed"""
    causal: Flag = True
    """whether keys after the query are hidden, aligned to the bottom right corner"""
    window: Window = EVERYWHERE
    """[left, right] inclusive distances in keys, -1 = unbounded"""
    softcap: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] = 0.0
    """scores become softcap * tanh(score / softcap); 0 = off"""
    sinks: Flag = False
    """whether each query head has an extra logit in its denominator"""
    scale: Positive = Field(default_factory=_default_scale)
    """multiplies q·k; left out = 1 / sqrt(head_dim)"""

    @model_validator(mode="after")
    def _fits(self) -> IncidentCall:
        problems: list[tuple[Where, str]] = []
        if self.heads_q % self.heads_kv:
            problems.append((("heads_kv",), f"is {self.heads_kv} and does not divide heads_q = {self.heads_q}"))
        count_q, count_k = len(self.seqlens_q), len(self.seqlens_k)
        if count_k not in {1, count_q}:
            problems.append((("seqlens_k",), f"has {count_k} lengths, and seqlens_q has {count_q}"))
        if not sum(self.seqlens_q):
            problems.append((("seqlens_q",), "has no query at all"))
        refuse(problems)
        return self

    @property
    def mask(self) -> Mask:
        """Which keys each query sees."""
        return Mask(causal=self.causal, window=(self.window[0], self.window[1]))

    @property
    def lengths(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Queries and keys of every sequence of the batch."""
        queries, keys = self._listed
        return queries * self.batch, keys * self.batch

    @property
    def _listed(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Queries and keys of the list of lengths, before the batch repeats it."""
        return self.seqlens_q, self.seqlens_k * (len(self.seqlens_q) if len(self.seqlens_k) == 1 else 1)

    @property
    def meant(self) -> tuple[object, ...]:
        """What the call is, equal for every way to write it; a large batch stays a number."""
        pairs = list(zip(*self._listed, strict=True))
        count = len(pairs)
        sizes = (size for size in range(1, count + 1) if count % size == 0)
        period = next(size for size in sizes if pairs[:size] * (count // size) == pairs)
        rest = self.model_dump_json(exclude={"seqlens_q", "seqlens_k", "batch"})
        return tuple(pairs[:period]), count // period * self.batch, rest


class Incident(Card):
    """A public failure, and how to see whether it happens here."""

    incident: Name
    """its name in case ids: the repository's name and the number, for example pytorch-195910"""
    issue: Some[Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+#[0-9]+$")]]
    """where it was reported: owner/repository#number"""
    title: Text
    """what went wrong, in one sentence"""
    trigger: Text
    """what a call must have for it to happen"""
    shown_by: Some[Failure]
    """findings (census, poison, ...) or outcomes (crash, hang, refusal, substitution) that show it"""
    inputs: Several[Inputs] = ()
    """only findings on these input kinds count; left out = all"""
    dtypes: Some[Dtype] = ("bf16",)
    """element types to try"""
    kernels: Some[Text] = ("*",)
    """kernels to try, among those of the matrix: names or globs"""
    calls: Annotated[tuple[IncidentCall, ...], Field(min_length=1)]
    """the calls that trigger it"""

    @model_validator(mode="after")
    def _fits(self) -> Incident:
        seen: dict[tuple[object, ...], int] = {}
        problems: list[tuple[Where, str]] = []
        for index, call in enumerate(self.calls):
            meant = call.meant
            if meant in seen:
                problems.append((("calls", index), f"repeats calls[{seen[meant]}]; remove one of them"))
            seen.setdefault(meant, index)
        refuse(problems)
        return self
