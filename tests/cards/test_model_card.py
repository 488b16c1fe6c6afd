"""The model card, and the shipped geometries against values checked by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from qualify.cards.load import load_model
from qualify.cards.model import LayerGroup, ModelCard
from qualify.cards.problems import validate
from qualify.cards.source import read
from qualify.errors import CardError


def load(path: Any) -> ModelCard:
    """The card in a file."""
    return validate(read(path), ModelCard)


def facts(group: LayerGroup) -> tuple[object, ...]:
    """Everything of a group but its layers."""
    heads = (group.heads_q, group.heads_kv, group.head_dim, group.head_dim_v)
    return (*heads, group.mask, group.window, group.softcap, group.sinks, group.scale, group.positions)


# model, hub, type, layers, then per group: layers, (heads q, kv, dims, mask, window, softcap, sinks, scale, positions)
GEOMETRIES = [
    (
        "llama-3.1-8b", "meta-llama/Llama-3.1-8B", "llama", 32,
        [(range(32), (32, 8, 128, 128, "causal", None, 0.0, False, 1 / math.sqrt(128), "rope"))],
    ),
    (
        "mistral-7b-v0.1", "mistralai/Mistral-7B-v0.1", "mistral", 32,
        [(range(32), (32, 8, 128, 128, "window", 4096, 0.0, False, 1 / math.sqrt(128), "rope"))],
    ),
    (
        "gemma-2-9b", "google/gemma-2-9b", "gemma2", 42,
        [
            (range(0, 42, 2), (16, 8, 256, 256, "window", 4096, 50.0, False, 0.0625, "rope")),
            (range(1, 42, 2), (16, 8, 256, 256, "causal", None, 50.0, False, 0.0625, "rope")),
        ],
    ),
    (
        "gpt-oss-20b", "openai/gpt-oss-20b", "gpt_oss", 24,
        [
            (range(0, 24, 2), (64, 8, 64, 64, "window", 128, 0.0, True, 0.125, "rope")),
            (range(1, 24, 2), (64, 8, 64, 64, "causal", None, 0.0, True, 0.125, "rope")),
        ],
    ),
    (
        "qwen3-8b", "Qwen/Qwen3-8B", "qwen3", 36,
        [(range(36), (32, 8, 128, 128, "causal", None, 0.0, False, 1 / math.sqrt(128), "rope"))],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "hub", "kind", "layers", "groups"), GEOMETRIES, ids=[row[0] for row in GEOMETRIES])
def test_shipped_geometry(name: str, hub: str, kind: str, layers: int, groups: list[Any]) -> None:
    """Each shipped model has the geometry of its public config.json."""
    card = load_model(name).card
    assert (name, hub, kind, layers) == (card.model, card.hub, card.model_type, card.layers)
    assert [(tuple(numbers), values) for numbers, values in groups] == [(g.layers, facts(g)) for g in card.groups]


def test_defaults(write: Any, model: Any) -> None:
    """What a group leaves out: head_dim_v as head_dim, scale 1 / sqrt(head_dim), nothing special."""
    group = load(write(model({"groups.0.head_dim": 128}))).groups[0]
    assert (8, 2, 128, 128, "causal", None, 0.0, False, 1 / math.sqrt(128), "none") == facts(group)


def test_explicit_values_win(write: Any, model: Any) -> None:
    """head_dim_v and scale are used as written."""
    group = load(write(model({"groups.0.head_dim_v": 32, "groups.0.scale": 1}))).groups[0]
    assert (32, 1.0) == (group.head_dim_v, group.scale)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"groups.0.heads_kv": 3}, "groups[0].heads_kv: is 3 and does not divide heads_q = 8"),
        ({"groups.0.mask": "window"}, "groups[0].mask: is window, so window must say how many keys"),
        ({"groups.0.window": 4096}, "groups[0].window: is used only with mask: window or band, and the mask is causal"),
        ({"groups.0.mask": "local"}, "groups[0].mask: must be one of full, causal, window"),
        ({"groups.0.head_dim": ...}, "groups[0].head_dim: is missing (elements per query and key vector); add it"),
        ({"groups.0.scale": 0}, "groups[0].scale: must be more than 0, but is 0"),
        ({"groups.0.softcap": -1}, "groups[0].softcap: must be at least 0, but is -1"),
        ({"groups.0.layers": [0, 0]}, "groups[0].layers[1]: repeats entry 0 of the list"),
        ({"groups.0.layers": [-1]}, "groups[0].layers[0]: must be at least 0, but is -1"),
        ({"groups": []}, "groups: must hold at least 1 value, but is a list of 0"),
        ({"layers": 3}, "groups: leave out layers 1, 2 of 3"),
        ({"layers": 2**31 - 1}, "groups: leave out layers 1, 2, 3, 4, 5 … of 2147483647"),
        ({"groups.0.layers": [0, 4]}, "groups[0].layers[1]: is layer 4, but the layers are 0 to 0"),
        ({"layrs": 3}, "layrs: unknown key; perhaps you meant layers"),
    ],
)
def test_refusals(write: Any, model: Any, changes: dict[str, Any], expected: str) -> None:
    """A geometry that is wrong or incomplete is refused with the value."""
    with pytest.raises(CardError) as caught:
        load(write(model(changes), "small.json"))
    assert expected in str(caught.value)


def test_groups_share_no_layer(write: Any, model: Any) -> None:
    """A layer that two groups have is reported at its second place."""
    group = model()["groups"][0]
    path = write(model({"groups": [group, {**group, "layers": [1, 0]}], "layers": 2}))
    with pytest.raises(CardError) as caught:
        load(path)
    ((place, text),) = caught.value.problems
    assert "groups[1].layers[1]: is layer 0, which groups[0] has already" == text
    assert "0" == path.read_text().splitlines()[place.line - 1].strip()


def test_content_hash_ignores_notation(write: Any, model: Any) -> None:
    """Writing a default out does not change the hash, another value does."""
    plain = load(write(model())).content_hash
    assert plain == load(write(model({"groups.0.scale": 0.125}))).content_hash
    assert plain != load(write(model({"groups.0.scale": 0.25}))).content_hash
    assert 64 == len(plain)
