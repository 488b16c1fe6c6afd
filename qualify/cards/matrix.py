"""The matrix card: models × phases × shapes × dtypes × masks × kernels, with expectations and policy."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Annotated, Any

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
from qualify.cards.phases import Phases
from qualify.cards.policy import Policy
from qualify.cards.words import Card, Count, KernelName, Name, Several, Some, Text, Where, refuse
from qualify.facts.dtypes import Dtype
from qualify.masks import ASKABLE, EXAMPLES

PRODUCT = ("models", "phases", "dtypes")
"""axes that only make cases together"""
MASK = rf"^(model|{ASKABLE})$"


def _mask(value: str) -> str:
    if re.fullmatch(MASK, value):
        return value
    words = {re.sub(r"[0-9].*", "", label): label for label in ("model", *EXAMPLES)}
    close = difflib.get_close_matches(re.sub(r"[0-9].*", "", value), words, n=1)
    hint = f"; perhaps you meant {words[close[0]]}" if close and words[close[0]] != value else ""
    raise ValueError(f"must be model or the label of a mask with its size, like {', '.join(EXAMPLES)}{hint}")


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


class Expectation(Card):
    """Which kernel shall serve the selected cases."""

    select: Text
    """glob over case ids: model/phase/shape/dtype/mask/kernel"""
    kernel: KernelName
    """kernel that shall serve them; KERNEL@NAME = that kernel in the environment NAME"""
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


def _models(value: object) -> object:
    """One name may stand alone, as in other lists of names."""
    return [value] if isinstance(value, str) else value


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
        BeforeValidator(
            _models, json_schema_input_type=Name | Annotated[tuple[Name | ModelEntry, ...], Field(min_length=1)]
        ),
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
    """file, relative to this one, that says how often production makes which calls; qualify plans these calls, too"""

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
            why = (
                "must be model where the matrix names traffic, because traffic counts calls with each layer's own mask"
            )
            problems.append((("masks",), why))
        refuse(problems)
        return self
