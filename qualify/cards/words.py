"""What the cards share: strict scalar types, lists that may be written as one value, hashes."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import re
import textwrap
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, JsonValue
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from qualify.facts.accuracy import CLASSES
from qualify.facts.environment import AT, ENVIRONMENT, is_environment_name
from qualify.masks import MaskKind

T = TypeVar("T")
Where = tuple[str | int, ...]
"""The way to a value in a file: keys and list indices from the top."""

INT32_MAX = 2**31 - 1
NAME = r"^[a-z0-9][a-z0-9.-]*$"
ENTRY = r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$"
"""a function in a module"""
CAPABILITY = r"^[0-9]+\.[0-9]$"
"""a GPU's compute capability"""
VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
"""an environment variable"""
PATH_GLOB = r"^/[^\x00]+$"
"""an absolute path, which may hold * and ?"""
LONGEST_NAME = 100
NAME_SCHEMA: dict[str, JsonValue] = {"pattern": NAME, "maxLength": LONGEST_NAME}
"""what a schema says of a name in a file"""

ClaimedMask = Literal[MaskKind, "spans"]
"""a family of masks, or images whose tokens see each other whatever the mask says"""


def _kernel_name(text: str) -> str:
    """A kernel's name, or KERNEL@NAME for the kernel in an environment."""
    kernel, at, environment = text.partition(AT)
    if not re.fullmatch(NAME, kernel):
        hint = "; name one kernel: this key takes no glob" if re.search(r"[*?\[]", kernel) else ""
        raise ValueError(f"must match {NAME}{hint}")
    if len(kernel) > LONGEST_NAME:
        raise ValueError(f"must have at most {LONGEST_NAME} characters")
    if at and not is_environment_name(environment):
        raise ValueError("must name an environment after its @, as in flash-attn-2@next")
    return text


Name = Annotated[str, Field(pattern=NAME, max_length=LONGEST_NAME)]
KernelName = Annotated[
    str,
    AfterValidator(_kernel_name),
    Field(json_schema_extra={"pattern": f"{NAME[:-1]}({AT}{ENVIRONMENT[1:-1]})?$"}),
]
"""A kernel, or the kernel in an environment."""
Text = Annotated[str, Field(min_length=1, max_length=1000)]
Count = Annotated[int, Field(strict=True, ge=1, le=INT32_MAX)]
Whole = Annotated[int, Field(strict=True, ge=0, le=INT32_MAX)]
Flag = Annotated[bool, Field(strict=True)]
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]


class OneOf:
    """Annotation of a str: one of the words of a table."""

    def __init__(self, words: Iterable[str]) -> None:
        self.words = list(words)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """As a Literal of these words."""
        return core_schema.literal_schema(self.words)


AccuracyClass = Annotated[str, OneOf(known.name for known in CLASSES)]
"""What a kernel may round on the way (docs/numerics.md), tightest first."""


class Misfit(ValueError):
    """Values that are right alone and wrong together; each problem has the way to the value to change."""

    def __init__(self, *problems: tuple[Where, str]) -> None:
        self.problems = problems
        super().__init__("; ".join(message for _, message in problems))


def refuse(problems: list[tuple[Where, str]]) -> None:
    """Raise one :class:`Misfit` with all problems; do nothing where there are none."""
    if problems:
        raise Misfit(*problems)


def _as_list(value: object) -> object:
    return value if isinstance(value, list | tuple) else [value]


def distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values. Raises Misfit where one is repeated."""
    first: dict[Any, int] = {}
    problems: list[tuple[Where, str]] = []
    for index, value in enumerate(values):
        if value in first:
            problems.append(((index,), f"repeats entry {first[value]} of the list; remove one of them"))
        first.setdefault(value, index)
    refuse(problems)
    return values


class ScalarOrList:
    """Annotation of a tuple: the file may hold one value instead of a list; no value twice."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Wrap a lone value before the tuple's own validation, look for repeats after it."""
        wrapped = core_schema.no_info_before_validator_function(_as_list, handler(source))
        return core_schema.no_info_after_validator_function(distinct, wrapped)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Either one item or the array."""
        array = handler(schema)
        return {"anyOf": [array["items"], {**array, "uniqueItems": True}]}


Some = Annotated[tuple[T, ...], Field(min_length=1), ScalarOrList()]
"""At least one value."""
Several = Annotated[tuple[T, ...], ScalarOrList()]
"""Perhaps none."""


class Card(BaseModel):
    """Base of every mapping in a card: frozen, no unknown keys; the docstring under a field is its description.

    pydantic builds a model when a card is first read, not when a command starts. To build every model and read all
    docstrings takes a tenth of the time of a gate, which needs a few models and no description.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The model's schema, with its descriptions, and without defaults that a card may not say."""
        found = handler(core)
        schema = handler.resolve_ref_schema(found)
        for key in schema["properties"].values():
            if key.get("default") == [] and any("minItems" in each for each in (key, *key.get("anyOf", ()))):
                del key["default"]
        for name, text in descriptions(cls).items():
            if text:
                schema["properties"][name].setdefault("description", text)
        return found


def descriptions(kind: type[BaseModel]) -> dict[str, str]:
    """What each key of a mapping means: the docstring under its field, or ""."""
    meant = dict.fromkeys(kind.model_fields, "")
    for part in reversed(kind.__mro__):
        if issubclass(part, Card) and part is not Card:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(part))).body
            assert isinstance(tree, ast.ClassDef)
            meant |= dict(_documented(tree.body))
    return meant


def _documented(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Fields with the text under them."""
    for field, below in pairwise(body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, inspect.cleandoc(text)


def content_hash(card: BaseModel) -> str:
    """sha256 over the card's canonical JSON: sorted keys, no spaces, defaults written out."""
    text = json.dumps(card.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
