"""The tables of docs/keys.md: every key of every kind of card, from the JSON Schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from generating.tables import table
from qualify.cards.schema import KINDS, schema

Schema = Mapping[str, Any]
HEADS = ("key", "value", "default", "meaning")


def keys_tables() -> str:
    """A chapter for each kind of card, with a table for the card and one for each mapping within it."""
    parts = []
    for kind, _ in KINDS:
        whole = schema(kind)
        said = _sentence(whole.get("description", ""))
        parts.append(f"\n## {kind.capitalize()}\n\n{said}[JSON Schema](schema/{kind}.json)\n\n")
        parts.append(table(HEADS, _rows(whole, whole)))
        for name, inner in sorted(whole.get("definitions", {}).items()):
            if "properties" in inner:
                parts.append(f"\n### {kind.capitalize()}: {name}\n\n{_sentence(inner.get('description', ''))}")
                parts.append(table(HEADS, _rows(inner, whole)))
    return "".join(parts)


def _rows(mapping: Schema, whole: Schema) -> Iterator[list[str]]:
    needed = mapping.get("required", ())
    for name, found in mapping["properties"].items():
        default = "required" if name in needed else default_of(found)
        yield [f"`{name}`", _kind(found, whole), default, _cell(found.get("description", ""))]


def _kind(found: Schema, whole: Schema) -> str:
    """The allowed values of a key, in words."""
    if "$ref" in found:
        return _referred(found["$ref"], whole)
    if "const" in found or "enum" in found:
        return ", ".join(dict.fromkeys(f"`{value}`" for value in found.get("enum", [found.get("const")])))
    for several in ("anyOf", "oneOf", "allOf"):
        if several in found:
            kinds = dict.fromkeys(_kind(each, whole) for each in found[several] if each.get("type") != "null")
            return " or ".join(kinds)
    if found.get("type") == "array":
        return f"list of {_kind(found.get('items', {}), whole)}"
    if found.get("type") == "object" and isinstance(found.get("additionalProperties"), Mapping):
        return f"mapping to {_kind(found['additionalProperties'], whole)}"
    return f"{found.get('type', 'any')}"


def _referred(reference: str, whole: Schema) -> str:
    """The name of a referred mapping, or the allowed values of a referred plain value."""
    name = reference.rpartition("/")[2]
    inner = whole["definitions"][name]
    return name if "properties" in inner else _kind(inner, whole)


def default_of(found: Schema) -> str:
    """What a card that leaves the key out could say in its place, in YAML; of a mapping, in words."""
    value = found.get("default")
    if value is None or value == "":
        return "–"
    if isinstance(value, dict):
        return "each key's own"
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _sentence(text: str) -> str:
    return f"{_cell(text)}\n\n" if text else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
