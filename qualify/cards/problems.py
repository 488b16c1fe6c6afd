"""Pydantic's errors to sentences: where, what is wrong, the value, what is allowed, what was perhaps meant."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from qualify.cards.mistaken import mistaken
from qualify.cards.places import dotted
from qualify.cards.source import Source
from qualify.cards.words import CAPABILITY, ENTRY, NAME, PATH_GLOB, VARIABLE, Misfit, Where, descriptions
from qualify.errors import CardError, Place
from qualify.facts.dtypes import TORCH_NAMES

C = TypeVar("C", bound=BaseModel)
Problem = tuple[Place, str]

RULES = (
    ("greater_than_equal", "be at least {ge:.15g}"),
    ("greater_than", "be more than {gt:.15g}"),
    ("less_than_equal", "be at most {le:.10g}"),
    ("finite_number", "be a finite number"),
    ("too_short", "hold at least {min_length} value"),
    ("string_too_short", "not be empty"),
    ("string_too_long", "have at most {max_length} characters"),
    ("int_type", "be a whole number"),
    ("int_parsing", "be a whole number"),
    ("int_from_float", "be a whole number"),
    ("float_type", "be a number"),
    ("float_parsing", "be a number"),
    ("bool_type", "be true or false"),
    ("string_type", "be text"),
    ("tuple_type", "be a list"),
    ("model_type", "be a mapping of keys and values"),
    ("mapping_type", "be a mapping of keys and values"),
    ("dict_type", "be a mapping of keys and values"),
)
"""What a value must do, by pydantic's error type; the rest keeps pydantic's own sentence."""
PATTERNS = (
    (VARIABLE, "write the name of an environment variable, such as MY_VARIABLE"),
    (PATH_GLOB, "write an absolute path, such as /opt/kernels/*.so"),
    (ENTRY, "write MODULE:FUNCTION, such as mypackage.attention:attend"),
    (CAPABILITY, "write both numbers in quotes, such as '9.0'"),
)
"""What to write where a value must match a pattern."""
EMPTY = "give it a value, or remove the key"
LINE_END = re.compile(r"\r\n|[\n\r]")
"""what ends a line for the parser, which counts them"""
LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")


def validate(source: Source, kind: type[C]) -> C:
    """The card in a file. Raises CardError with every problem of the file, in the order of its lines."""
    problems = list(source.problems)
    card = None
    if isinstance(source.data, dict) and (other := mistaken(source.data, kind)):
        key, told = other
        raise CardError([(source.key_place((key,)), told)])
    if not isinstance(source.data, dict):
        problems.append((source.place(()), _not_a_mapping(source.data, kind)))
    else:
        try:
            card = kind.model_validate(source.data)
        except ValidationError as error:
            problems += explain(source, kind, error)
    if card is None or problems:
        raise CardError(in_order(problems))
    return card


def refuse_doubtful(source: Source) -> None:
    """Raise CardError for what a valid card of YAML probably means differently. Stored cards are read without this.

    A key without a value would mean the same as no key: a phase whose lines were lost would drop out of the plan. A
    number with a leading zero is the rest of one with a comma, or octal to other programs.
    """
    lines = LINE_END.split(source.text)
    found = [
        (source.place(where), f"{dotted(where)}: {doubt}")
        for where, value in _scalars(source.data, ())
        if (doubt := _doubt(value, source.place(where), lines))
    ]
    if found:
        raise CardError(in_order(found))


def _doubt(value: object, place: Place, lines: Sequence[str]) -> str:
    """Why a value probably means something else; empty where it does not."""
    if value is None:
        return f"is empty; {EMPTY}"
    if isinstance(value, str) and value.isspace():
        return f"holds only spaces; {EMPTY}"
    if type(value) is int and (written := LEADING_ZERO.match(lines[place.line - 1], place.column - 1)):
        return f"is written {written[0]}, which counts as {value}; write {value}, and thousands without a comma"
    return ""


def _scalars(data: object, where: Where) -> Iterator[tuple[Where, object]]:
    """The values that hold no others, each with the way to it."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _scalars(value, (*where, key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _scalars(value, (*where, index))
    else:
        yield where, data


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """Sorted by place, without repeats."""
    return sorted(dict.fromkeys(problems), key=lambda problem: (problem[0].path, problem[0].line, problem[0].column))


def _not_a_mapping(data: object, kind: type[BaseModel]) -> str:
    required = [name for name, field in kind.model_fields.items() if field.is_required()]
    keys = f"a mapping with the keys {', '.join(required)}"
    if data is None:
        return f"is empty; it must hold {keys}"
    return f"holds {shown(data)}; it must hold {keys}"


def explain(source: Source, kind: type[BaseModel], error: ValidationError) -> list[Problem]:
    """One problem, with its place, for each error that pydantic found in the data of ``source``."""
    problems: list[Problem] = []
    items = error.errors(include_url=False)
    mistyped = {_stands_for(kind, tuple(item["loc"])) for item in items if item["type"] == "extra_forbidden"}
    for item in items:
        where: Where = tuple(item["loc"])
        match item["type"]:
            case "default_factory_not_called":
                continue  # a consequence of another error in the same mapping
            case "missing" if where in mistyped:
                continue  # it is there, and its name has another letter
            case "too_short" if item["input"]:
                continue  # pydantic counts only the valid entries, and reports the others anyway
            case "missing":
                problems.append((source.place(where[:-1]), _missing(kind, where)))
            case "extra_forbidden":
                problems.append((source.key_place(where), _unknown_key(kind, where)))
            case "value_error":
                problems += _rejected(source, where, item)
            case _:
                place = source.key_place(where[:-1]) if where[-1:] == ("[key]",) else source.place(where)
                message = sentence(item["type"], item.get("ctx", {}), item["msg"], item["input"])
                if item["type"] == "model_type" and (keys := fields_at(kind, where)):
                    message += f"; its keys are {', '.join(keys)}"
                problems.append((place, _at(source, where, message)))
    return problems


def _at(source: Source, where: Where, message: str) -> str:
    path = dotted(source.nearest(where))
    return f"{path}: {message}" if path else message


def _rejected(source: Source, where: Where, item: Mapping[str, Any]) -> list[Problem]:
    """What one of qualify's own validators said."""
    error = item["ctx"]["error"]
    if not isinstance(error, Misfit):
        rule, semicolon, hint = str(error).partition("; ")
        message = f"{rule}, but is {shown(item['input'])}{semicolon}{hint}"
        return [(source.place(where), _at(source, where, message))]
    return [
        (source.place((*where, *inside)), _at(source, (*where, *inside), message)) for inside, message in error.problems
    ]


def _missing(kind: type[BaseModel], where: Where) -> str:
    fields = fields_at(kind, where[:-1])
    meaning = " ".join(fields.get(str(where[-1]), "").split())
    return f"{dotted(where)}: is missing{f' ({meaning})' if meaning else ''}; add it"


def _unknown_key(kind: type[BaseModel], where: Where) -> str:
    fields = fields_at(kind, where[:-1])
    hint = "; a list needs brackets" if str(where[-1]).isdecimal() else meant(str(where[-1]), fields)
    return f"{dotted(where)}: unknown key{hint}. Allowed here: {', '.join(fields)}"


def fields_at(kind: type[BaseModel], where: Where) -> dict[str, str]:
    """Names and descriptions of the keys allowed in the mapping at ``where``."""
    for part in where:
        if isinstance(part, str) and part in kind.model_fields:  # else the name of an entry in a mapping
            inner = _model_in(kind.model_fields[part].annotation)
            if inner is None:
                return {}
            kind = inner
    return descriptions(kind)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part))), None)


def _stands_for(kind: type[BaseModel], where: Where) -> Where:
    """Where the key would be that an unknown one was probably meant to be; without a name where none is near."""
    return (*where[:-1], meant(str(where[-1]), fields_at(kind, where[:-1])).rpartition(" ")[2])


def meant(given: str, known: Iterable[str]) -> str:
    """``; perhaps you meant X`` for the nearest known word, in any case of letters; empty where none is near."""
    words = {word.lower(): word for word in known}
    if (own := TORCH_NAMES.get(given.lower())) in words:
        return f"; perhaps you meant {own}"
    near = difflib.get_close_matches(given.lower(), list(words), n=1, cutoff=0.7)
    return f"; perhaps you meant {words[near[0]]}" if near else ""


def shown(value: object) -> str:
    """A value as a message quotes it: on one line, of bounded length."""
    if value is None:
        return "empty"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, Mapping):
        return f"a mapping of {len(value)} keys"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}…"


def sentence(kind: str, context: Mapping[str, Any], message: str, value: object) -> str:
    """What is wrong with one value, by pydantic's error type."""
    if kind == "literal_error":
        allowed = re.findall(r"'([^']*)'", context["expected"])
        return f"must be one of {', '.join(allowed)}, but is {shown(value)}{meant(str(value), allowed)}"
    if kind == "string_pattern_mismatch":
        words = name_words(str(value)) if context["pattern"] == NAME else dict(PATTERNS).get(context["pattern"])
        return f"must match {context['pattern']}, but is {shown(value)}{f'; {words}' if words else ''}"
    rule = dict(RULES).get(kind)
    expected = f"must {rule.format(**context)}" if rule else f"{message[:1].lower()}{message[1:]}"
    return f"{expected}, but is {shown(value)}{_hint(kind, value)}"


def name_words(given: str) -> str:
    """What to write as a name: the last part of what was given, where that becomes one, for example of a hub's."""
    name = re.sub(r"[\s_]+", "-", given.rpartition("/")[2].lower())
    return f"write small letters, digits, . and -, such as {name if re.fullmatch(NAME, name) else 'my-kernel'}"


def _hint(kind: str, value: object) -> str:
    """The likely cause, where the value gives it away."""
    if kind in ("int_type", "float_type") and isinstance(value, str) and re.fullmatch(r"[-+]?[0-9][0-9_,.]*", value):
        return "; write it without quotes, commas and underscores"
    if kind == "float_type" and isinstance(value, str) and (percent := re.fullmatch(r"([0-9]+)\s*%", value)):
        return f"; write {int(percent[1]) / 100:g}"
    if kind == "bool_type" and value in ("yes", "no", "on", "off"):
        return "; YAML 1.2 reads yes, no, on and off as text"
    if kind == "string_type" and isinstance(value, int | float):
        return "; put it in quotes"
    if kind == "tuple_type" and value is None:
        return "; write one line with a dash for each entry"
    if kind == "tuple_type" and isinstance(value, Mapping):
        return "; begin each entry with a dash"
    if kind == "tuple_type":
        return f"; write [{shown(value)}], or one line with a dash for each entry"
    return ""
