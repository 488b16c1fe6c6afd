"""The traffic file: which calls production makes, and how often, as a histogram over the shapes of a matrix."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from qualify.cards.phases import PageSize, Phases
from qualify.cards.problems import refuse_doubtful, validate
from qualify.cards.source import parse, read
from qualify.cards.words import Card, Count, Name, Positive, Text, Where, Whole, refuse
from qualify.facts.case import Phase

LENGTHS: dict[Phase, tuple[str, ...]] = {
    "prefill": ("seqlen",),
    "chunked": ("chunk", "context"),
    "decode": ("context",),
    "verify": ("draft", "context"),
}
"""keys that say how long the sequences of a phase are"""
PAGED: tuple[Phase, ...] = ("chunked", "decode", "verify")
"""phases whose cache may have pages"""


class Bucket(Card):
    """One kind of call: its phase and lengths, and how often it is made."""

    phase: Annotated[Phase, Field(json_schema_extra={"enum": list(LENGTHS)})]
    """prefill, chunked, decode or verify, with the keys that a matrix has for the phase"""
    weight: Positive
    """calls of each layer, in any unit: only ratios matter"""
    batch: Count = 1
    """sequences in one call"""
    seqlen: Count | None = None
    """prefill: tokens of each sequence"""
    chunk: Count | None = None
    """chunked: new tokens of each sequence"""
    draft: Count | None = None
    """verify: drafted tokens of each sequence"""
    context: Whole | None = None
    """chunked, decode, verify: keys of each sequence, as in a matrix"""
    page_size: PageSize | None = None
    """chunked, decode, verify: keys per page of the cache, or contiguous"""

    @model_validator(mode="after")
    def _fits(self) -> Bucket:
        problems: list[tuple[Where, str]] = []
        if self.phase not in LENGTHS:
            refuse([(("phase",), f"must be one of {', '.join(LENGTHS)}, but is {self.phase}: a batch has one length")])
        for key in ("seqlen", "chunk", "draft", "context"):
            given, needed = getattr(self, key) is not None, key in LENGTHS[self.phase]
            if needed and not given:
                problems.append(((), f"is a bucket of {self.phase}, which needs {key}; add it"))
            if given and not needed:
                keys = ", ".join(LENGTHS[self.phase])
                problems.append(((key,), f"has no meaning in {self.phase}, which has {keys}; remove it"))
        if self.page_size is not None and self.phase not in PAGED:
            problems.append((("page_size",), f"has no meaning in {self.phase}; remove it"))
        if self.context == 0 and self.phase in {"decode", "verify"}:
            problems.append((("context",), "must be at least 1, but is 0"))
        refuse(problems)
        return self

    @property
    def phases(self) -> Phases:
        """The bucket as a matrix asks for it."""
        keys = {key: getattr(self, key) for key in LENGTHS[self.phase]} | {"batch": self.batch}
        if self.page_size:
            keys["page_size"] = self.page_size
        return Phases.model_validate({self.phase: keys})


class TrafficCard(Card):
    """How often production makes which calls; a matrix names the file with its key traffic."""

    traffic: Name
    """name of the traffic"""
    source: Text
    """where the weights are from"""
    buckets: Annotated[tuple[Bucket, ...], Field(min_length=1)]
    """the histogram; no call twice"""

    @model_validator(mode="after")
    def _fits(self) -> TrafficCard:
        first: dict[tuple[object, ...], int] = {}
        problems: list[tuple[Where, str]] = []
        for index, bucket in enumerate(self.buckets):
            call = tuple(bucket.model_dump(exclude={"weight"}).values())
            if call in first:
                message = f"is the same call as buckets[{first[call]}]; add the weights up in one of them"
                problems.append((("buckets", index), message))
            first.setdefault(call, index)
        refuse(problems)
        return self


def load_traffic(path: Path) -> tuple[TrafficCard, str]:
    """A traffic file and its text. Raises CardError with every problem of it."""
    source = read(path)
    card = validate(source, TrafficCard)
    refuse_doubtful(source)
    return card, source.text


def parse_traffic(text: str, path: str) -> TrafficCard:
    """Traffic from its stored text."""
    return validate(parse(Path(path), text), TrafficCard)
