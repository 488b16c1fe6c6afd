"""The matrix card: models × phases × shapes × dtypes × masks × kernels, with expectations and policy."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails

from qualify.cards.environments import EnvironmentEntry, EnvironmentName
from qualify.cards.incident import Incident
from qualify.cards.model import InlineGeometry, ModelCard
from qualify.cards.policy import Policy
from qualify.cards.words import (
    INT32_MAX,
    Card,
    Count,
    KernelName,
    Name,
    Several,
    Some,
    Text,
    Where,
    Whole,
    distinct,
    refuse,
)
from qualify.facts.dtypes import Dtype
from qualify.masks import ASKABLE, EXAMPLES

CONTIGUOUS = "contiguous"
PRODUCT = ("models", "phases", "dtypes")
"""axes that only make cases together"""
MASK = rf"^(model|{ASKABLE})$"


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


def _mask(value: str) -> str:
    if re.search(MASK, value):
        return value
    words = {re.sub(r"[0-9].*", "", label): label for label in ("model", *EXAMPLES)}
    close = difflib.get_close_matches(re.sub(r"[0-9].*", "", value), words, n=1)
    hint = f"; perhaps you meant {words[close[0]]}" if close and words[close[0]] != value else ""
    raise ValueError(f"must be model or the label of a mask with its size, like {', '.join(EXAMPLES)}{hint}")


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
Lengths = Annotated[tuple[Whole, ...], Field(min_length=1), AfterValidator(_some_token)]
MaskName = Annotated[str, AfterValidator(_mask), Field(json_schema_extra={"pattern": MASK})]


class ModelEntry(Card):
    """One model of the matrix."""

    model: Name
    """name of a model card, or of the model that geometry describes"""
    tensor_parallel: Some[Count] = (1,)
    """GPUs that share the heads, as serving engines divide them"""
    geometry: InlineGeometry | None = None
    """attention geometry of a model that has no card"""

    def card(self) -> ModelCard | None:
        """The model card that an explicit geometry stands for; None where the name refers to a card."""
        if self.geometry is None:
            return None
        written = self.geometry
        return ModelCard(
            model=self.model,
            hub=written.hub,
            pin=written.pin,
            layers=written.layers,
            groups=written.groups,
            without_attention=written.without_attention,
        )


def _entry(value: object) -> object:
    return {"model": value} if isinstance(value, str) else value


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
    page_size: Some[PageSize] = (0,)
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
    page_size: Some[PageSize] = (0,)
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
    page_size: Some[PageSize] = (0,)
    """keys per page of the cache, or contiguous"""


class RaggedDrafts(Card):
    """One call for drafts of different sequences: each has its own number of drafted tokens and its own context."""

    draft: Annotated[tuple[Whole, ...], Field(min_length=1)]
    """drafted tokens of each sequence; may be 0: the token before them is computed with them"""
    context: Annotated[tuple[Count, ...], Field(min_length=1)]
    """keys of each sequence, those of the drafted tokens not included"""
    page_size: Some[PageSize] = (0,)
    """keys per page of the cache, or contiguous"""

    @model_validator(mode="after")
    def _fits(self) -> RaggedDrafts:
        _same_count(self.draft, self.context, "draft")
        return self


class Verify(Card):
    """Drafted tokens checked in one call, as speculative decoding does: seqlen_q = draft + 1."""

    draft: Some[Count]
    """drafted tokens of each sequence; the token before them is computed with them"""
    context: Some[Count]
    """keys of each sequence, those of the drafted tokens not included: seqlen_k = context + draft"""
    batch: Some[Count] = (1,)
    """sequences in one call"""
    page_size: Some[PageSize] = (0,)
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


class Expectation(Card):
    """Which kernel shall serve the selected cases."""

    select: Text
    """glob over case ids: model/phase/shape/dtype/mask/kernel"""
    kernel: KernelName
    """kernel that shall serve them; KERNEL@NAME means it in an environment"""
    fallback: Text = "forbid"
    """forbid, record, or the kernel that may serve instead"""


def _repeated_incidents(incidents: tuple[Incident, ...]) -> list[tuple[Where, str]]:
    first: dict[str, int] = {}
    problems: list[tuple[Where, str]] = []
    for index, incident in enumerate(incidents):
        if incident.incident in first:
            earlier = first[incident.incident]
            message = f"names {incident.incident} again, after incidents[{earlier}]; add its calls there"
            problems.append((("incidents", index), message))
        first.setdefault(incident.incident, index)
    return problems


class MatrixCard(Card):
    """What shall be qualified: models, phases and dtypes, or incidents to replay, or both."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"required": list(PRODUCT)},
                {"required": ["traffic" if name == "phases" else name for name in PRODUCT]},
                {"required": ["incidents"]},
            ]
        }
    )

    matrix: Name
    """name of the matrix"""
    models: Annotated[
        tuple[Annotated[ModelEntry, BeforeValidator(_entry, json_schema_input_type=Name | ModelEntry)], ...],
        Field(min_length=1),
    ] = ()
    """names of model cards, or mappings with tensor_parallel and geometry"""
    phases: Phases | None = None
    """shapes of each phase"""
    dtypes: Some[Dtype] = ()
    """element types; bf16_kv_fp8_e4m3 and fp16_kv_fp8_e4m3: 16-bit queries beside an fp8 cache"""
    masks: Some[MaskName] = ("model",)
    """model (each layer's own), full, causal, window<N> (causal, N keys with the diagonal), a pattern and its size"""
    kernels: Some[Text]
    """names of kernel cards, or globs"""
    environments: Mapping[EnvironmentName, EnvironmentEntry] = Field(default_factory=dict)
    """other interpreters by name: in each of them every kernel runs a second time, as KERNEL@NAME"""
    expect: tuple[Expectation, ...] = ()
    """which kernel shall serve which cases"""
    exclude: Several[Text] = ()
    """globs over case ids that are left out"""
    incidents: Annotated[tuple[Incident, ...], Field(min_length=1)] = ()
    """public failures to replay, each with its calls"""
    policy: Policy = Policy()
    """how cases are run and judged"""
    waivers: Text | None = None
    """file of accepted failures, relative to this one"""
    traffic: Text | None = None
    """file that says how often production makes which calls, relative to this one; they are planned too"""

    @property
    def portable(self) -> bool:
        """Whether it takes whatever kernels a machine can run (``*``), and so also runs where there is no GPU."""
        return "*" in self.kernels

    @model_validator(mode="wrap")
    @classmethod
    def _complete(cls, data: Any, handler: ModelWrapValidatorHandler[MatrixCard]) -> MatrixCard:
        """Models need phases (or traffic) and dtypes, and back; a matrix of incidents alone needs none of them."""
        found: list[InitErrorDetails] = []
        if isinstance(data, dict) and (not data.get("incidents") or any(name in data for name in PRODUCT)):
            needed = [name for name in PRODUCT if name != "phases" or "traffic" not in data]
            found = [InitErrorDetails(type="missing", loc=(name,), input=data) for name in needed if name not in data]
        try:
            card = handler(data)
        except ValidationError as error:
            if not found:
                raise
            for item in error.errors(include_url=False):
                again = InitErrorDetails(type=item["type"], loc=item["loc"], input=item["input"])
                found.append(InitErrorDetails(**again, ctx=item["ctx"]) if "ctx" in item else again)
        if found:
            raise ValidationError.from_exception_data(cls.__name__, found)
        return card

    @model_validator(mode="after")
    def _fits(self) -> MatrixCard:
        first: dict[str, int] = {}
        problems = _repeated_incidents(self.incidents)
        for index, entry in enumerate(self.models):
            if entry.model in first:
                where: Where = ("models", index)
                earlier = first[entry.model]
                problems.append((where, f"names {entry.model} again, after models[{earlier}]; keep one"))
            first.setdefault(entry.model, index)
        if self.traffic is not None and self.masks != ("model",):
            problems.append((("masks",), "must be model where there is traffic: it weighs each layer's own mask"))
        refuse(problems)
        return self
