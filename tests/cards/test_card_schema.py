"""The generated JSON Schemas: valid draft-07, tied to every shipped card, and strict."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator
from pydantic import TypeAdapter

from generating.keys import default_of
from qualify import assets
from qualify.cards.matrix import MatrixCard
from qualify.cards.schema import KINDS, schema
from qualify.cards.source import parse, read
from qualify.cards.words import Card
from qualify.errors import UsageError

SHIPPED = [
    *(("kernel", path) for path in sorted(assets.shipped("kernels").glob("*.yaml"))),
    *(("matrix", path) for path in sorted(assets.shipped("matrices").glob("*.yaml"))),
    *(("canary", path) for path in sorted(assets.shipped("canaries").glob("*.yaml"))),
    *(("model", path) for path in sorted((assets.shipped("matrices") / "models").glob("*.json"))),
]


@cache
def validator(kind: str) -> Draft7Validator:
    """Reader of a schema, which takes a tenth of a second to make."""
    return Draft7Validator(schema(kind))


def errors(kind: str, data: object) -> list[str]:
    """What the schema says against the data."""
    return [error.message for error in validator(kind).iter_errors(data)]


@pytest.mark.parametrize("kind", ["kernel", "matrix", "model", "waivers", "canary"])
def test_schema_is_draft_07(kind: str) -> None:
    """The schema is itself valid, says its dialect and uses no word of a newer one."""
    generated = schema(kind)
    Draft7Validator.check_schema(generated)
    assert "http://json-schema.org/draft-07/schema#" == generated["$schema"]
    text = json.dumps(generated)
    assert [] == [
        word for word in ("$defs", "prefixItems", "unevaluatedProperties", "dependentRequired") if word in text
    ]


ORDERED = {
    "AlertTarget.command",
    "RaggedChunks.chunk",
    "RaggedChunks.context",
    "RaggedDrafts.context",
    "RaggedDrafts.draft",
    "IncidentCall.window",
}
"""lists whose places have a meaning: arguments, a value for each sequence of a batch, the two sides of a window"""


def test_every_list_of_words_or_numbers_may_be_one_entry_alone() -> None:
    """In each kind of card, whatever key is added later; docs/cards.md says so."""
    closed = {
        f"{name}.{key}"
        for card, whole in [(card, schema(kind)) for kind, card in KINDS]
        for name, body in {card.__name__: whole, **whole.get("definitions", {})}.items()
        for key, value in body.get("properties", {}).items()
        if _only_as_list(value, whole)
    }
    assert ORDERED == closed


def _only_as_list(value: dict[str, Any], whole: dict[str, Any]) -> bool:
    """Whether a key takes a list of words or numbers, and none of them alone."""
    ways = [_meant(way, whole) for way in value.get("anyOf", (value,))]
    items = [_meant(way["items"], whole) for way in ways if way.get("type") == "array" and "items" in way]
    return any(map(_is_plain, items)) and not any(map(_is_plain, ways))


def _is_plain(way: dict[str, Any]) -> bool:
    plain = way.get("type") in ("string", "integer", "number") or "enum" in way or "const" in way
    return plain or any(map(_is_plain, way.get("anyOf", ())))


def _meant(way: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    """What a reference leads to."""
    found: dict[str, Any] = whole["definitions"][way["$ref"].rpartition("/")[2]] if "$ref" in way else way
    return found


@pytest.mark.parametrize("written", ["toy", ["toy"]])
def test_one_model_may_stand_alone(matrix: Any, written: object) -> None:
    """As one kernel and one dtype may."""
    data = matrix({"models": written})
    assert [] == errors("matrix", data)
    assert ["toy"] == [entry.model for entry in MatrixCard.model_validate(data).models]


def test_references_have_no_siblings() -> None:
    """Draft-07 ignores what stands beside a $ref, so nothing does, and every $ref leads somewhere."""

    def walk(node: Any) -> list[dict[str, Any]]:
        inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        own = [node] if isinstance(node, dict) and "$ref" in node else []
        return own + [found for item in inner for found in walk(item)]

    for kind in ("kernel", "matrix", "model", "waivers", "canary"):
        generated = schema(kind)
        references = walk(generated)
        assert references
        assert all(set(reference) == {"$ref"} for reference in references)
        targets = {reference["$ref"].removeprefix("#/definitions/") for reference in references}
        assert targets <= set(generated["definitions"])


@pytest.mark.parametrize(("kind", "path"), SHIPPED, ids=[path.name for _, path in SHIPPED])
def test_shipped_cards_fit_their_schema(kind: str, path: Path) -> None:
    """Every shipped card passes the schema that editors get."""
    assert [] == errors(kind, read(path).data)


def test_every_key_has_a_description() -> None:
    """An editor can explain each key."""
    for kind in ("kernel", "matrix", "model", "waivers", "canary"):
        generated = schema(kind)
        for mapping in (generated, *generated["definitions"].values()):
            missing = [key for key, value in mapping["properties"].items() if not value.get("description")]
            assert [] == missing, mapping["title"]


@pytest.mark.parametrize(
    "changes",
    [
        {"adapter": "call"},
        {"entry": "a:b"},
        {"shipped_by": ...},
        {"claims.dtypes": ["fp8"]},
        {"claims.dtypes": []},
        {"claims.dtypes": ["bf16", "bf16"]},
        {"claims.unknown": 1},
        {"claims.head_dim": {}},
        {"claims.head_dim.max": "256"},
        {"claims.empty_row.out": 1},
        {"claims.empty_row.lse": 0},
        {"accuracy.fp8": "bf16"},
        {"witness": ...},
        {"options": {"a": [1]}},
        {"options": {"fa_version": 4}},
        {"options": {"fa_versoin": 3}},
        {"adapter": "tiled_torch", "options": {"tile_q": 0}},
        {"adapter": "torch_sdpa", "options": {"backend": "autoo"}},
        {"requires.compute_capability": [9.0]},
    ],
)
def test_wrong_kernel_cards_fail_the_schema(kernel: Any, changes: dict[str, Any]) -> None:
    """What the loader refuses, an editor underlines."""
    assert [] == errors("kernel", kernel())
    assert [] != errors("kernel", kernel(changes))


@pytest.mark.parametrize(
    ("changes", "valid"),
    [
        ({}, True),
        ({"models": ["a", {"model": "b", "tensor_parallel": 2}]}, True),
        ({"phases": {"decode": {"context": 4, "page_size": ["contiguous", 16]}}}, True),
        ({"phases": {"decode": {"context": [4], "page_size": "contiguous"}}}, True),
        ({"phases": {"varlen": {"lengths": [[1, 0]]}}}, True),
        ({"dtypes": "bf16", "masks": "window4096", "exclude": "x"}, True),
        ({"phases": {"varlen": {"lengths": [1, 2]}}}, False),
        ({"phases": {}}, False),
        ({"phases": {"decode": {"context": 4, "page_size": 0}}}, False),
        ({"masks": "window0"}, False),
        ({"models": [5]}, False),
        ({"traffic": "x"}, True),
        ({"policy": {"timeout_s": 0}}, False),
    ],
)
def test_matrix_schema_agrees_with_the_loader(matrix: Any, changes: dict[str, Any], *, valid: bool) -> None:
    """The schema takes scalars and lists where the loader does, and refuses what it refuses."""
    assert valid == (errors("matrix", matrix(changes)) == [])


def test_model_schema_refuses_a_wrong_model(model: Any) -> None:
    """A wrong mask and a missing field are found by the schema."""
    assert [] == errors("model", model())
    assert 1 == len(errors("model", model({"groups.0.mask": "local"})))
    assert 1 == len(errors("model", model({"groups.0.head_dim": ...})))


def test_unknown_kind() -> None:
    """Another word than the kinds of card is a usage error with the near one."""
    with pytest.raises(
        UsageError,
        match=r"perhaps you meant kernel\. There are: kernel, matrix, model, waivers, traffic, canary, access",
    ):
        schema("kernels")


def subclasses(kind: type[Card]) -> dict[str, type[Card]]:
    """Every mapping of a card by its name in the schemas."""
    below = kind.__subclasses__()
    return {each.__name__: each for each in below} | {k: v for each in below for k, v in subclasses(each).items()}


@pytest.mark.parametrize("kind", [kind for kind, _ in KINDS])
def test_every_default_loads(kind: str) -> None:
    """What the page of keys shows is YAML that means the default; of a mapping it says that its keys have their own."""
    whole = schema(kind)
    known = {**whole.get("definitions", {}), whole["title"]: whole}
    for name, mapping in known.items():
        for key, found in mapping.get("properties", {}).items():
            shown, default = default_of(found), found.get("default")
            if isinstance(default, dict):
                (inner,) = (known[each["$ref"].rpartition("/")[2]]["properties"] for each in found["allOf"])
                assert ("each key's own", default) == (shown, {part: inner[part]["default"] for part in inner}), key
            elif shown != "–":
                data = parse(Path("card.yaml"), f"{key}: {shown.strip('`')}").data[key]
                assert data == default, (name, key)
                TypeAdapter(subclasses(Card)[name].model_fields[key].rebuild_annotation()).validate_python(data)
                assert [] == [*Draft7Validator(found | {"definitions": known}).iter_errors(data)], (name, key)
