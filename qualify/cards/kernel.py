"""The kernel card: a claim about one shipped attention kernel."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from packaging.requirements import InvalidRequirement, Requirement
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from qualify.cards.words import (
    CAPABILITY,
    ENTRY,
    NAME_SCHEMA,
    AccuracyClass,
    Card,
    ClaimedMask,
    Count,
    Flag,
    KernelName,
    Positive,
    Several,
    Some,
    Text,
    Where,
    refuse,
)
from qualify.facts.adapters import ADAPTERS, AdapterFacts
from qualify.facts.devices import HOST, DeviceKind
from qualify.facts.dtypes import DTYPES, Dtype
from qualify.facts.environment import environment_of

Generation = Literal["ampere", "hopper", "blackwell", "portable", "cpu"]
Layout = Literal["packed", "paged"]
Feature = Literal["gqa", "softcap", "sinks", "lse", "ragged", "empty", "empty_batch", "graph"]
CALL = "call"
JSON_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}


def _requirement(text: str) -> str:
    try:
        Requirement(text)
    except InvalidRequirement as error:
        cause = str(error).partition("\n")[0]
        raise ValueError(f"must be a PEP 508 requirement such as vllm>=0.24 ({cause})") from None
    return text


def _regex(text: str) -> str:
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        hint = "put a backslash before a character that is meant as it is"
        raise ValueError(f"must be a regular expression ({error}); {hint}") from None
    return text


def _scalar(value: object) -> object:
    if not isinstance(value, str | int | float):
        raise ValueError("must be one text, number, true or false")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("must be a finite number")
    return value


def _as_word(value: object) -> object:
    """YAML reads 0, .nan and -.inf as numbers; the card means the words."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return str(int(value)) if math.isfinite(value) and value == int(value) else str(float(value))


Regex = Annotated[Text, AfterValidator(_regex)]
Scalar = Annotated[str | int | float | bool, BeforeValidator(_scalar)]
Capability = Annotated[str, Field(pattern=CAPABILITY)]
EmptyOut = Annotated[
    Literal["0", "nan", "any"],
    BeforeValidator(_as_word, json_schema_input_type=Literal[0, "0", "nan", "any"]),
]
EmptyLse = Annotated[Literal["-inf", "inf", "any"], BeforeValidator(_as_word)]


class Requires(Card):
    """The hardware that the kernel needs."""

    device: Literal[DeviceKind, "any"]
    """cpu, cuda or any"""
    compute_capability: Some[Capability] = ()
    """CUDA compute capabilities as quoted text, for example "9.0"; left out = every one"""


class HeadDimClaim(Card):
    """Elements per query and key vector."""

    min: Count = 1
    """smallest head_dim"""
    max: Count
    """largest head_dim"""
    multiple_of: Count = 1
    """head_dim is a multiple of this"""
    excluded: Several[Count] = ()
    """head dimensions between min and max that are not claimed"""


class PageSizeClaim(Card):
    """Keys per page of a paged KV cache."""

    min: Count = 1
    """smallest page"""
    max: Count | None = None
    """largest page; left out = no limit"""
    multiple_of: Count = 1
    """page_size is a multiple of this"""


class BatchClaim(Card):
    """Sequences in one call."""

    max: Count
    """most sequences in one call"""


class ElementsClaim(Card):
    """Elements of one tensor of a call."""

    max: Annotated[int, Field(strict=True, ge=1 << 31)]
    """most elements of a tensor, from the first to the last that the kernel addresses; at least 2^31"""


class LseClaim(Card):
    """How exact the returned log-sum-exp is."""

    rel: Annotated[Positive, Field(le=1)] = 1e-5
    """worst |lse - golden| / max(1, |golden|)"""


class Fp8Claim(Card):
    """How the kernel computes in fp8."""

    descale: Literal["sequence", "head", "tensor"] = "sequence"
    """sequence: a descale factor for each sequence and KV head; head: one for each KV head, shared by the batch;
    tensor: one for all keys and one for all values, as serving engines store them"""
    weight_scale: Annotated[Positive, Field(ge=1)] = 1.0
    """the kernel multiplies the weights P, at most 1, by this factor before it rounds them to e4m3"""
    value_factor: Literal["inside", "after_rounding"] = "inside"
    """after_rounding: the values' factor multiplies the rounded output, which is then rounded a second time"""
    cache: Literal["exact", "rounded"] = "exact"
    """rounded: with 16-bit queries, the kernel multiplies keys and values by their factors and rounds them to the
    queries' type"""


class EmptyRow(Card):
    """What a query row that sees no key gives."""

    out: EmptyOut
    """0, nan or any"""
    lse: EmptyLse
    """-inf, inf or any"""


class Claims(Card):
    """What the kernel claims to compute; qualify refuses anything else before it uses the device."""

    dtypes: Some[Dtype]
    """element types of q, k, v and out; bf16_kv_fp8_e4m3: bf16 queries beside an fp8 cache"""
    head_dim: HeadDimClaim
    """range of head_dim"""
    head_dim_v: Literal["same", "any", "latent"] = "same"
    """same: value vectors are as long as key vectors. any: they need not be. latent: values are the first elements of
    one KV head's keys, stored once; no other call is served"""
    layouts: Some[Layout]
    """packed, paged or both"""
    page_size: PageSizeClaim | None = None
    """range of page sizes; left out = every size"""
    batch: BatchClaim | None = None
    """limit of the batch; left out = none"""
    queries: Literal["any", "equal"] = "any"
    """equal: every sequence of a call has as many queries as the others; any: they may have different numbers"""
    elements: ElementsClaim | None = None
    """limit of the elements that queries, keys or values span; left out = none"""
    masks: Some[ClaimedMask]
    """full, causal, window, band (a window open to later keys), patterns, spans (images whose tokens see each other)"""
    longer_queries: Some[ClaimedMask] | None = None
    """masks under which a sequence may have more queries than keys; left out = under every one of masks"""
    features: Several[Feature]
    """gqa, softcap, sinks, lse (returns it), ragged (lengths differ), empty (a sequence may have length 0),
    empty_batch (a call may have no query, or no key), graph"""
    lse: LseClaim = LseClaim()
    """accuracy of the returned log-sum-exp"""
    fp8: Fp8Claim = Fp8Claim()
    """descale factors and weights, where dtypes has fp8_e4m3 or an fp8 cache"""
    split_outputs: Literal["exact", "rounded"] = "exact"
    """rounded: a call whose keys are split over thread blocks (split-KV) rounds the output of each part to the output's
    type before it merges them; exact: parts stay in float32"""
    deterministic: Flag
    """equal inputs give equal bits"""
    batch_invariant: Flag = False
    """a sequence's result does not depend on the others in the batch"""
    memory: Literal["linear", "mask", "quadratic"] = "linear"
    """how temporary memory grows with the sequence; quadratic = all scores are held at once; mask = only the mask is
    held at once, where it is neither full nor causal"""
    alignment: Literal["bottom_right", "top_left"] = "bottom_right"
    """corner of the causal diagonal where seqlen_q differs from seqlen_k"""
    empty_row: EmptyRow
    """result of a row that sees no key"""
    hidden_score: Annotated[float, Field(lt=0, allow_inf_nan=False)] | None = None
    """score of a hidden key before the scale; left out = -inf. A finite score gives the key weight where the scale is
    small"""
    nan: Literal["propagates", "any"] = "any"
    """propagates: a NaN in a query, key or value shows in every row that sees it; level full checks this"""

    @model_validator(mode="after")
    def _fits(self) -> Claims:
        dims = self.head_dim
        problems = _range_problems("head_dim", dims.min, dims.max, dims.multiple_of)
        for index, dim in enumerate(dims.excluded):
            if dim % dims.multiple_of or not dims.min <= dim <= dims.max:
                problems.append((("head_dim", "excluded", index), f"is {dim}, which is not claimed anyway"))
        if self.page_size:
            page = self.page_size
            problems += _range_problems("page_size", page.min, page.max, page.multiple_of)
            if "paged" not in self.layouts:
                problems.append((("page_size",), "is claimed although layouts has no paged; add paged or remove it"))
        if "empty_batch" in self.features and "empty" not in self.features:
            problems.append((("features",), "has empty_batch, which needs empty; add empty"))
        for index, mask in enumerate(self.longer_queries or ()):
            if mask not in self.masks:
                problems.append((("longer_queries", index), f"is {mask}, which masks does not claim"))
        refuse(problems)
        return self


def _range_problems(name: str, low: int, high: int | None, step: int) -> list[tuple[Where, str]]:
    if high is not None and high < low:
        return [((name, "max"), f"is {high}, which is less than min = {low}")]
    if high is not None and high // step * step < low:
        return [((name, "max"), f"leaves no {name}: none from {low} to {high} is a multiple of {step}")]
    return []


class WitnessRules(Card):
    """Names that prove that this kernel ran: regular expressions for the profiler's demangled names."""

    must_match: Some[Regex]
    """regular expressions of the attention kernels that prove it"""
    may_match: Several[Regex] = ()
    """regular expressions of auxiliary kernels that may run beside it"""


def _options_schema(known: AdapterFacts) -> dict[str, Any]:
    """JSON Schema of the options of cards with this adapter."""
    properties: dict[str, Any] = {}
    for option in known.options:
        rule: dict[str, Any] = {"type": JSON_TYPES[type(option.default)]}
        if option.choices:
            rule["enum"] = list(option.choices)
        if option.at_least is not None:
            rule["minimum"] = option.at_least
        properties[option.name] = {**rule, "default": option.default, "description": option.meaning}
    options = {"properties": properties, "additionalProperties": False}
    chosen = {"properties": {"adapter": {"const": known.name}}}
    return {"if": chosen, "then": {"properties": {"options": options}}}


class KernelCard(Card):
    """A claim about one shipped attention kernel."""

    model_config = ConfigDict(
        json_schema_extra={
            "if": {"properties": {"adapter": {"const": CALL}}},
            "then": {"required": ["entry"]},
            "else": {"required": ["shipped_by"], "not": {"required": ["entry"]}},
            "allOf": [_options_schema(known) for known in ADAPTERS],
        }
    )

    kernel: Annotated[KernelName, Field(json_schema_extra=NAME_SCHEMA)]
    """name of the kernel; equals the file's name without .yaml"""
    generation: Generation
    """ampere, hopper, blackwell, portable or cpu"""
    shipped_by: Some[Annotated[Text, AfterValidator(_requirement)]] = ()
    """PEP 508 requirements; whatever meets one of them brings the kernel; may be left out with adapter: call"""
    adapter: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_]*$")]
    """name of an adapter module, or call together with entry"""
    entry: Annotated[str, Field(pattern=ENTRY)] | None = None
    """only with adapter: call: package.module:function that takes one AttentionCall"""
    options: Mapping[str, Scalar] = Field(default_factory=dict)
    """settings that the adapter understands"""
    jit: Literal["never", "kernels", "shapes"] = "never"
    """what the library compiles at a first call, into a cache on disk; a run compiles it ahead. shapes = it compiles
    every shape anew"""
    requires: Requires
    """hardware that it needs"""
    claims: Claims
    """what it claims to compute"""
    accuracy: Mapping[Dtype, AccuracyClass]
    """accuracy class of each claimed dtype"""
    witness: WitnessRules
    """how to prove that it ran"""

    @property
    def environment(self) -> str:
        """The environment that it runs in: its name says it. Empty for this interpreter, as in every file."""
        return environment_of(self.kernel)

    @model_validator(mode="after")
    def _fits(self) -> KernelCard:
        problems: list[tuple[Where, str]] = []
        if self.adapter == CALL and self.entry is None:
            problems.append((("adapter",), 'is call, so entry: "package.module:function" must say what to call'))
        if self.adapter != CALL and self.entry is not None:
            problems.append((("entry",), f"is used only with adapter: call, and the adapter is {self.adapter}"))
        if self.adapter != CALL and not self.shipped_by:
            needs = "so shipped_by must name the distribution that brings the kernel"
            problems.append((("adapter",), f"is {self.adapter}, {needs}"))
        if self.requires.device == HOST and self.requires.compute_capability:
            problems.append((("requires", "compute_capability"), "belongs to CUDA devices, and device is cpu"))
        refuse(problems + self._entry_problems() + self._accuracy_problems())
        return self

    def _entry_problems(self) -> list[tuple[Where, str]]:
        module, _, function = (self.entry or "").partition(":")
        if self.adapter != CALL or not module.endswith(".py"):
            return []
        wanted = f"{module.removesuffix('.py')}:{function}"
        return [(("entry",), f"names a file, and Python imports modules; write {wanted}")]

    def _accuracy_problems(self) -> list[tuple[Where, str]]:
        claimed = set(self.claims.dtypes)
        extra = [dtype for dtype in self.accuracy if dtype not in claimed]
        missing = [dtype for dtype in self.claims.dtypes if dtype not in self.accuracy]
        problems: list[tuple[Where, str]] = [
            (("accuracy", dtype), "has no counterpart in claims.dtypes; add it there or remove it") for dtype in extra
        ]
        lacks = "lacks {0}, which claims.dtypes names; add {0}: {1}"
        return problems + [(("accuracy",), lacks.format(dtype, DTYPES[dtype].usual_class)) for dtype in missing]
