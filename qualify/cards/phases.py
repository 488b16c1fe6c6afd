"""The shapes of a matrix: what each phase of serving calls attention with."""

from __future__ import annotations

import difflib
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from qualify.cards.words import INT32_MAX, Card, Count, Some, Where, Whole, distinct, refuse

CONTIGUOUS = "contiguous"


def _page_size(value: object) -> object:
    """A page size as the workload has it: 0 where the cache is contiguous."""
    if value == CONTIGUOUS:
        return 0
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    hint = f"; perhaps you meant {CONTIGUOUS}" if difflib.get_close_matches(str(value), [CONTIGUOUS]) else ""
    raise ValueError(f"must be {CONTIGUOUS} or the keys per page, at least 1{hint}")


def _nested(value: object) -> object:
    if isinstance(value, list) and any(isinstance(item, int) for item in value):
        raise ValueError("must be a list of lists, one for each packed batch; write [[1, 17, 4096]]")
    return value


def _some_token(lengths: tuple[int, ...]) -> tuple[int, ...]:
    total = sum(lengths)
    if not 1 <= total <= INT32_MAX:
        raise ValueError(f"must add up to 1 to {INT32_MAX} tokens, and the sum is {total}")
    return lengths


PageSize = Annotated[
    int,
    BeforeValidator(_page_size, json_schema_input_type=Literal["contiguous"] | Count),
    Field(le=INT32_MAX),
]
Pages = Annotated[Some[PageSize], Field(json_schema_extra={"default": CONTIGUOUS})]
"""page sizes; the schema has their default as a card has it"""
Lengths = Annotated[tuple[Whole, ...], Field(min_length=1), AfterValidator(_some_token)]


class Prefill(Card):
    """Whole prompts: seqlen_q = seqlen_k = seqlen."""

    batch: Some[Count] = (1,)
    """sequences in one call"""
    seqlen: Some[Count]
    """tokens of each sequence"""


def _same_count(new: tuple[int, ...], context: tuple[int, ...], name: str) -> None:
    """Refuse a ragged batch whose two lists do not fit, or whose sequences are all alike."""
    if len(new) != len(context):
        sizes = f"has {len(context)} sequences, and {name} has {len(new)}"
        refuse([(("context",), f"{sizes}; give each sequence one entry in both")])
    if len(set(zip(new, context, strict=True))) == 1:
        axes = f"{name}: {new[0]}, context: {context[0]}, batch: {len(new)}"
        refuse([((), f"is a batch of equal sequences; write it above, {axes}")])


def _repeated_batches(batches: tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]], ...]) -> None:
    """Refuse a ragged batch that an earlier entry has with the same pages."""
    first: dict[tuple[object, ...], int] = {}
    problems: list[tuple[Where, str]] = []
    for index, (new, context, pages) in enumerate(batches):
        for call in ((new, context, page) for page in pages):
            if call in first:
                problems.append((("ragged", index), f"has a call of ragged[{first[call]}]; keep one of them"))
                break
            first[call] = index
    refuse(problems)


class RaggedChunks(Card):
    """One call for chunks of different prompts: each sequence has its own new tokens and its own context."""

    chunk: Lengths
    """new tokens of each sequence; may be 0"""
    context: Annotated[tuple[Whole, ...], Field(min_length=1)]
    """tokens of each sequence that are in the cache already"""
    page_size: Pages = (0,)
    """keys per page of the cache, or contiguous"""

    @model_validator(mode="after")
    def _fits(self) -> RaggedChunks:
        _same_count(self.chunk, self.context, "chunk")
        return self


class Chunked(Card):
    """A chunk of a prompt after its context: seqlen_q = chunk, seqlen_k = context + chunk."""

    chunk: Some[Count]
    """new tokens of each sequence"""
    context: Some[Whole]
    """tokens that are in the cache already"""
    batch: Some[Count] = (1,)
    """sequences in one call"""
    page_size: Pages = (0,)
    """keys per page of the cache, or contiguous"""
    ragged: tuple[RaggedChunks, ...] = ()
    """batches whose sequences differ, each with its own lists and pages"""

    @model_validator(mode="after")
    def _fits(self) -> Chunked:
        _repeated_batches(tuple((entry.chunk, entry.context, entry.page_size) for entry in self.ragged))
        return self


class Varlen(Card):
    """Packed batches of whole prompts: seqlens_q = seqlens_k = lengths."""

    lengths: Annotated[tuple[Lengths, ...], Field(min_length=1), BeforeValidator(_nested), AfterValidator(distinct)]
    """one list of sequence lengths for each packed batch; a length may be 0"""


class Decode(Card):
    """One new token for each sequence: seqlen_q = 1, seqlen_k = context."""

    batch: Some[Count] = (1,)
    """sequences in one call"""
    context: Some[Count]
    """keys of each sequence, the new token's included"""
    page_size: Pages = (0,)
    """keys per page of the cache, or contiguous"""


class RaggedDrafts(Card):
    """One call for drafts of different sequences: each has its own number of drafted tokens and its own context."""

    draft: Annotated[tuple[Whole, ...], Field(min_length=1)]
    """drafted tokens of each sequence; may be 0, because the call also computes the token before them"""
    context: Annotated[tuple[Count, ...], Field(min_length=1)]
    """keys of each sequence, those of the drafted tokens not included"""
    page_size: Pages = (0,)
    """keys per page of the cache, or contiguous"""

    @model_validator(mode="after")
    def _fits(self) -> RaggedDrafts:
        _same_count(self.draft, self.context, "draft")
        return self


class Verify(Card):
    """Drafted tokens checked in one call, as speculative decoding does: seqlen_q = draft + 1."""

    draft: Some[Count]
    """drafted tokens of each sequence; the call also computes the token before them"""
    context: Some[Count]
    """keys of each sequence, those of the drafted tokens not included: seqlen_k = context + draft"""
    batch: Some[Count] = (1,)
    """sequences in one call"""
    page_size: Pages = (0,)
    """keys per page of the cache, or contiguous"""
    ragged: tuple[RaggedDrafts, ...] = ()
    """batches whose sequences differ, each with its own lists and pages"""

    @model_validator(mode="after")
    def _fits(self) -> Verify:
        _repeated_batches(tuple((entry.draft, entry.context, entry.page_size) for entry in self.ragged))
        return self


class Phases(Card):
    """The shapes of each phase; at least one phase."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    prefill: Prefill | None = None
    """whole prompts"""
    chunked: Chunked | None = None
    """chunks of prompts"""
    varlen: Varlen | None = None
    """packed batches of different lengths"""
    decode: Decode | None = None
    """one token at a time"""
    verify: Verify | None = None
    """tokens that a draft model proposed, checked together"""

    @model_validator(mode="after")
    def _fits(self) -> Phases:
        if not (self.prefill or self.chunked or self.varlen or self.decode or self.verify):
            refuse([((), "has no phase; give at least one of prefill, chunked, varlen, decode, verify")])
        return self
