"""Geometries: tensor parallelism, masks, and layer groups that make the same call."""

from __future__ import annotations

from typing import Any

import pytest
from builders import GROUP, geometry, make_matrix
from hypothesis import given, settings
from hypothesis import strategies as st

from qualify.cards.model import LayerGroup
from qualify.plan.geometry import Geometry, divide, expand_geometries

WINDOW: dict[str, Any] = {"mask": "window", "window": 128}


def geometries(*groups: dict[str, Any], parallel: Any = 1, masks: Any = "model") -> list[Geometry]:
    """The geometries of one model."""
    entry = geometry(*groups) | {"tensor_parallel": parallel}
    matrix = make_matrix(models=[entry], masks=masks)
    return list(expand_geometries(matrix.card, matrix.models))


def divided(parallel: int, **group: Any) -> Geometry:
    """One layer group on one of some GPUs."""
    return divide(LayerGroup.model_validate(GROUP | group), "m.tp1", "model", parallel)


@pytest.mark.parametrize(
    ("heads", "parallel", "expected"),
    [((32, 8), 1, (32, 8)), ((32, 8), 4, (8, 2)), ((32, 8), 8, (4, 1)), ((32, 8), 16, (2, 1)), ((32, 2), 8, (4, 1))],
)
def test_heads_are_divided_and_few_kv_heads_replicated(
    heads: tuple[int, int], parallel: int, expected: tuple[int, int]
) -> None:
    """Each GPU has its share of the query heads and at least one KV head."""
    found = divided(parallel, heads_q=heads[0], heads_kv=heads[1])
    assert ((), expected) == (found.refusals, (found.heads_q, found.heads_kv))


def test_heads_that_cannot_be_divided_are_refused_with_values() -> None:
    """Neither whole query heads nor whole KV heads."""
    found = divided(3, heads_q=32, heads_kv=8)
    expected = (
        "tensor_parallel=3 does not divide heads_q=32",
        "tensor_parallel=3 neither divides nor is divided by heads_kv=8",
    )
    assert (expected, (32, 8)) == (found.refusals, (found.heads_q, found.heads_kv))
    assert ("tensor_parallel=4 neither divides nor is divided by heads_kv=6",) == divided(
        4, heads_q=24, heads_kv=6
    ).refusals


@given(heads_kv=st.integers(1, 16), group=st.integers(1, 8), parallel=st.integers(1, 32))
def test_a_division_without_refusal_is_a_valid_geometry(heads_kv: int, group: int, parallel: int) -> None:
    """Query heads are a multiple of the KV heads, and no head is lost."""
    found = divided(parallel, heads_q=heads_kv * group, heads_kv=heads_kv)
    assert 0 == found.heads_q % found.heads_kv
    if not found.refusals:
        assert heads_kv * group == found.heads_q * parallel
        assert found.heads_kv * parallel >= heads_kv


def test_a_window_counts_its_diagonal() -> None:
    """A window of 4096 keys is the query itself and 4095 to its left."""
    (found,) = geometries({"mask": "window", "window": 4096})
    assert ("window4096", True, (4095, 0)) == (found.label, found.mask.causal, found.mask.window)


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ("model", ("causal", True, (-1, -1))),
        ("causal", ("causal", True, (-1, -1))),
        ("full", ("full", False, (-1, -1))),
        ("window1", ("window1", True, (0, 0))),
    ],
)
def test_masks_of_a_matrix(mask: str, expected: Any) -> None:
    """The model's own, or one that the matrix asks for instead."""
    (found,) = geometries({}, masks=mask)
    assert expected == (found.label, found.mask.causal, found.mask.window)


def test_everything_else_is_taken_over() -> None:
    """Dimensions, softcap, sinks and scale of the layer group."""
    (found,) = geometries({"head_dim": 192, "head_dim_v": 128, "softcap": 30.0, "sinks": True, "scale": 0.1})
    assert (192, 128, 30.0, True, 0.1) == (found.head_dim, found.head_dim_v, found.softcap, found.sinks, found.scale)
    assert "small.tp1" == found.model


@pytest.mark.parametrize(
    "change",
    [
        {"heads_q": 16},
        {"heads_kv": 4},
        {"head_dim": 128, "scale": 0.125},
        {"head_dim_v": 32},
        {"mask": "full"},
        {"mask": "window", "window": 64},
        {"mask": "band", "window": 65},
        {"mask": "chunked", "chunk": 64},
        {"softcap": 30.0},
        {"sinks": True},
        {"scale": 0.5},
        {"heads_kv": 1, "head_dim_v": 32, "latent": True},
    ],
)
def test_whatever_a_kernel_sees_is_part_of_the_content(change: dict[str, Any]) -> None:
    """Evidence of one call never stands for another; how many layers make it does not matter."""
    assert divided(1).canonical != divided(1, **change).canonical
    assert divided(1, **change).canonical == divided(1, **change, layers=[3, 4]).canonical


def test_chunks_of_two_sizes_and_latents_are_told_apart() -> None:
    """By the size of the chunks, and latent values from values of their own."""
    one, other = (divided(1, mask="chunked", chunk=chunk) for chunk in (64, 128))
    assert (64, 128, True) == (one.mask.size, other.mask.size, one.canonical != other.canonical)
    latent: dict[str, Any] = {"heads_kv": 1, "head_dim_v": 32}
    assert divided(1, **latent).canonical != divided(1, **latent, latent=True).canonical


def test_a_band_is_half_on_each_side() -> None:
    """And the query itself between them."""
    (found,) = geometries({"mask": "band", "window": 129})
    assert ("band129", False, (64, 64)) == (found.label, found.mask.causal, found.mask.window)


def test_a_matrix_may_ask_for_chunks() -> None:
    """Of any model, like for a window."""
    (found,) = geometries({"mask": "causal"}, masks=["chunked64"])
    assert ("chunked64", "chunked", 64) == (found.label, found.mask.kind, found.mask.size)


def test_another_mask_leaves_the_chunks_behind() -> None:
    """A model with chunked layers, asked for a causal mask, sees all keys to the left."""
    own, causal = geometries({"mask": "chunked", "chunk": 64}, masks=["model", "causal"])
    assert [("chunked64", True, 64), ("causal", True, 0)] == [
        (it.label, it.mask.causal, it.mask.size) for it in (own, causal)
    ]


def test_equal_groups_become_one_and_their_layers_add_up() -> None:
    """Layers 0 to 2 and 4 make the same call as layer 3."""
    found = geometries({"layers": [0, 1, 2, 4]}, {"layers": [3]})
    assert [5] == [each.layers for each in found]


def test_groups_of_different_masks_keep_plain_labels() -> None:
    """Alternating layers: a window and a causal mask."""
    found = geometries({"layers": [0, 2], **WINDOW}, {"layers": [1]})
    assert [("window128", 2), ("causal", 1)] == [(each.label, each.layers) for each in found]


def test_a_mask_asked_for_twice_counts_its_layers_once() -> None:
    """The model's own mask is causal, and the matrix names causal as well: one call, 3 layers."""
    found = geometries({"layers": [0, 1, 2]}, masks=["model", "causal"])
    assert [("causal", 3)] == [(each.label, each.layers) for each in found]
    found = geometries({"layers": [0, 1], **WINDOW}, {"layers": [2]}, masks=["model", "causal", "window128"])
    assert {"window128": 3, "causal": 3} == {each.label: each.layers for each in found}


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        ({"heads_kv": 4}, "h8x4.d64x64.c0.s0.125"),
        ({"head_dim": 128}, "h8x2.d128x128.c0.s0.0883883"),
        ({"softcap": 50.0}, "h8x2.d64x64.c50.s0.125"),
        ({"scale": 0.5}, "h8x2.d64x64.c0.s0.5"),
        ({"sinks": True}, "h8x2.d64x64.c0.s0.125.sinks"),
    ],
)
def test_groups_that_differ_under_one_label_are_told_apart(change: dict[str, Any], detail: str) -> None:
    """What differs is appended, so that ids stay unique."""
    found = geometries({}, change)
    assert ["causal.h8x2.d64x64.c0.s0.125", f"causal.{detail}"] == [each.label for each in found]


def test_groups_that_differ_beyond_the_printed_digits_are_told_apart() -> None:
    """Two scales that print alike are two calls, with two labels."""
    found = geometries({"scale": 0.0883883}, {"scale": 0.08838834764831845})
    assert 2 == len(found) == len({each.label for each in found})


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_refused_division_is_not_lost_in_a_merge(order: tuple[int, int]) -> None:
    """On four GPUs a group of eight heads has two; a group of two heads cannot be divided, whatever comes first."""
    groups = [{"heads_q": 8, "heads_kv": 1}, {"heads_q": 2, "heads_kv": 1}]
    found = geometries(*(groups[index] for index in order), parallel=4)
    assert any("tensor_parallel=4 does not divide heads_q=2" in each.refusals for each in found)


@settings(deadline=None, max_examples=60)
@given(
    groups=st.lists(
        st.fixed_dictionaries(
            {"heads_kv": st.sampled_from([1, 2, 4]), "head_dim": st.sampled_from([64, 128])},
            optional={"softcap": st.sampled_from([0.0, 30.0]), "sinks": st.booleans(), "scale": st.floats(0.01, 1)},
        ),
        min_size=1,
        max_size=6,
    ),
    parallel=st.lists(st.sampled_from([1, 2, 3, 4, 8]), min_size=1, max_size=3, unique=True),
    masks=st.lists(st.sampled_from(["model", "causal", "full", "window64"]), min_size=1, unique=True),
)
def test_labels_are_unique_and_no_layer_is_lost(
    groups: list[dict[str, Any]], parallel: list[int], masks: list[str]
) -> None:
    """Whatever the groups: (model, label) is unique, and every mask covers each layer once."""
    found = geometries(*groups, parallel=parallel, masks=masks)
    labels = [(each.model, each.label) for each in found]
    assert len(labels) == len(set(labels))
    asked = len({"causal" if mask == "model" else mask for mask in masks})
    for number in parallel:
        assert asked * len(groups) == sum(each.layers for each in found if each.model == f"small.tp{number}")
