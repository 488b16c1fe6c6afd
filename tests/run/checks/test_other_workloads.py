"""Workloads beside a case's own: each differs in what its name says, and only as far as the card claims it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from builders import make_card, make_workload
from subjects import make_subject

from qualify.facts.case import Workload
from qualify.run.checks.other_workloads import differing, lengthened, other_parameters, shortened

Changes = dict[str, Any]
FP8_CACHE = {"descale": "sequence"}
CHUNK, WINDOW, IMAGE = {"mask": "chunked25"}, {"mask": "window64"}, {"spans": ((0, 0, 35),)}
OF_70_TOKENS: dict[str, Changes] = {
    "scale": {"scale": 0.375 / 8},
    "length (longer)": {"seqlens_q": (140,), "seqlens_k": (140,)},
    "length (shorter)": {"seqlens_q": (35,), "seqlens_k": (35,)},
    "batch": {"seqlens_q": (70, 70), "seqlens_k": (70, 70)},
    "mask": {"mask": "full"},
    "window": WINDOW,
    "window (left side of 0)": {"mask": "full.window0.16"},
    "window (right side of 0)": {"mask": "full.window16.0"},
    "image": IMAGE,
    "image (its place)": {"spans": ((0, 1, 36),)},
    "sinks and image": {"sinks": True} | IMAGE,
    "window (beyond 2^16)": {"mask": f"window{2**16 + 4}"},
    "chunked mask": CHUNK,
    "chunked mask (its size)": {"mask": "chunked41"},
    "chunked mask and sinks": {"sinks": True} | CHUNK,
    "chunked mask and image": CHUNK | IMAGE,
    "softcap": {"softcap": 2.0},
    "sinks": {"sinks": True},
    "window and softcap": {"softcap": 2.0} | WINDOW,
    "window and sinks": {"sinks": True} | WINDOW,
    "window and image": WINDOW | IMAGE,
    "dtype (fp16)": {"dtype": "fp16"},
    "dtype (fp32)": {"dtype": "fp32"},
    "dtype (bf16_kv_fp8_e4m3)": {"dtype": "bf16_kv_fp8_e4m3"} | FP8_CACHE,
    "dtype (fp16_kv_fp8_e4m3)": {"dtype": "fp16_kv_fp8_e4m3"} | FP8_CACHE,
    "layout": {"page_size": 16},
}


def changes(own: Workload, other: Workload) -> Changes:
    """What differs between two workloads, by field; of masks their labels."""
    names = [field.name for field in fields(Workload) if getattr(own, field.name) != getattr(other, field.name)]
    return {name: other.mask.label if name == "mask" else getattr(other, name) for name in names}


def asked(card: Changes | None = None, **workload: Any) -> dict[str, Changes]:
    """What differs in each of the workloads, by its name."""
    subject = make_subject(card=make_card(**card or {}), level="full", **workload)
    return {name: changes(subject.workload, other) for name, other in differing(subject)}


def test_each_differs_in_what_its_name_says() -> None:
    """All that a kernel of every mask and feature is asked beside one causal sequence."""
    assert OF_70_TOKENS == asked()


PAGES = {"seqlens_q": (1, 1), "seqlens_k": (90, 41), "page_size": 16}


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        (
            PAGES,
            {
                "length (longer)": {"seqlens_k": (180, 82)},
                "length (shorter)": {"seqlens_k": (45, 21)},
                "batch": {"seqlens_q": (1,) * 4, "seqlens_k": (90, 41) * 2},
                "order of sequences": {"seqlens_k": (41, 90)},
                "page size": {"page_size": 32},
                "layout": {"page_size": 0},
                "window": WINDOW,
                "chunked mask": {"mask": "chunked31"},
                "image": None,
                "chunked mask and image": None,
                "window and image": None,
            },
        ),
        (
            {"seqlens_q": (9, 30), "seqlens_k": (60, 60)},
            {"order of sequences": {"seqlens_q": (30, 9)}},
        ),
        ({"seqlens_q": (1,), "seqlens_k": (64,)}, {"window": {"mask": "window22"}}),
        ({"seqlens_q": (1,), "seqlens_k": (65,)}, {"window": {"mask": "window64"}}),
        ({"seqlens_q": (9, 9)}, {"order of sequences": None}),
        ({"seqlens_q": (1,), "seqlens_k": (2,)}, {"chunked mask": None}),
        ({"seqlens_q": (3,), "seqlens_k": (3,)}, {"chunked mask": {"mask": "chunked1"}, "image": None}),
        ({"seqlens_q": (3, 9), "seqlens_k": (30, 20)}, {"image": {"spans": ((1, 11, 15),)}}),
        ({"seqlens_q": (4,), "seqlens_k": (4,)}, {"image (its place)": {"spans": ((0, 1, 3),)}}),
        ({"seqlens_q": (9,), "seqlens_k": (8,)}, {"image": None}),
        (
            {"window": (40, 0), "sinks": True},
            {
                "mask": None,
                "window": {"mask": "window21"},
                "window (right side)": {"mask": "window41"},
                "window (left side)": None,
                "window (beyond 2^16)": None,
                "sinks": {"sinks": False},
                "image": None,
                "window and softcap": {"mask": "window21", "softcap": 2.0},
                "chunked mask": None,
            },
        ),
        ({"window": (0, 0)}, {"window (right side)": None, "window and softcap": None, "window and sinks": None}),
        (
            {"causal": False, "window": (9, 5), "softcap": 30.0},
            {
                "mask": None,
                "window": {"mask": "window5"},
                "window (left side)": {"mask": "full.window4.5"},
                "window (right side)": {"mask": "full.window9.2"},
                "softcap": {"softcap": 15.0},
                "chunked mask": None,
            },
        ),
        (
            {"causal": False},
            {
                "mask": None,
                "window (left side)": None,
                "window (right side)": None,
                "image": None,
                "chunked mask": None,
            },
        ),
        ({"causal": False, "window": (9, 0)}, {"window (right side)": None}),
        ({"window": (1, 0)}, {"window (right side)": {"mask": "window2"}}),
        ({"window": (9, -1)}, {"window (right side)": None}),
        ({"chunk": 20, "window": (40, 0)}, {"chunked mask": {"mask": "window41.chunked11"}}),
        (
            {"chunk": 20},
            {
                "chunked mask": {"mask": "chunked11"},
                "chunked mask (its size)": {"mask": "chunked27"},
                "chunked mask and image": None,
                "mask": None,
                "window": None,
                "window (left side of 0)": None,
                "window (beyond 2^16)": None,
                "image": None,
            },
        ),
        ({"spans": ((0, 3, 20),)}, {"image": IMAGE, "window (left side of 0)": None, "chunked mask": CHUNK}),
        ({"dtype": "fp8_e4m3"}, {"dtype (bf16)": None, "dtype (bf16_kv_fp8_e4m3)": None}),
    ],
    ids=str,
)
def test_a_workload_is_asked_what_it_leaves_room_for(workload: Changes, expected: dict[str, Changes | None]) -> None:
    """None: nobody asks that, because it would be the same call, or a call that no model makes."""
    found = asked(**workload)
    assert expected == {name: found.get(name) for name in expected}


@pytest.mark.parametrize(
    ("key", "claim", "gone"),
    [
        ("masks", "full", {"mask"}),
        (
            "masks",
            "window",
            {"window", "window (right side of 0)", "window (beyond 2^16)"}
            | {f"window and {other}" for other in ("softcap", "sinks", "image")},
        ),
        ("masks", "band", {"window (left side of 0)"}),
        ("masks", "chunked", {name for name in OF_70_TOKENS if name.startswith("chunked")}),
        ("masks", "spans", {name for name in OF_70_TOKENS if "image" in name}),
        ("features", "softcap", {"softcap", "window and softcap"}),
        ("features", "sinks", {name for name in OF_70_TOKENS if "sinks" in name}),
        ("layouts", "paged", {"layout"}),
    ],
)
def test_nobody_asks_what_the_card_does_not_claim(key: str, claim: str, gone: set[str]) -> None:
    """A call beyond the claims would be the check's fault."""
    left = [word for word in getattr(make_card().claims, key) if word != claim]
    assert {name: other for name, other in OF_70_TOKENS.items() if name not in gone} == asked({key: left})


def test_an_image_lies_under_no_mask_with_gaps() -> None:
    """Neither one that the check adds nor the case's own."""
    dilated = {"masks": ["causal", "spans", "dilated"]}
    expected = {
        "dilated mask": {"mask": "causal.dilated2"},
        "dilated mask (its size)": {"mask": "causal.dilated3"},
        "dilated mask and sinks": {"mask": "causal.dilated2", "sinks": True},
    }
    assert expected == {name: other for name, other in asked(dilated).items() if "dilated" in name}
    assert [] == [name for name in asked(dilated, spans=((0, 3, 20),)) if "dilated" in name]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"multiple_of": 64}, 64),
        ({"min": 20, "multiple_of": 8}, 24),
        ({"max": 8}, 8),
        ({"max": 32}, 16),
    ],
    ids=str,
)
def test_pages_are_of_a_size_that_the_card_claims(sizes: Changes, expected: int) -> None:
    """The least one of 16 keys or more, or the largest."""
    assert {"page_size": expected} == asked({"page_size": sizes})["layout"]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [({"max": 32}, {"page_size": 32}), ({"max": 31}, None), ({"multiple_of": 16}, {"page_size": 32})],
    ids=str,
)
def test_twice_the_page_is_asked_up_to_the_largest_claimed(sizes: Changes, expected: Changes | None) -> None:
    """Of pages of 16."""
    assert expected == asked({"page_size": sizes}, **PAGES).get("page size")


def test_a_kernel_of_pages_alone_is_asked_no_other_layout() -> None:
    """It claims none."""
    assert "layout" not in asked({"layouts": ["paged"]}, **PAGES)


def test_what_would_be_compiled_is_not_asked() -> None:
    """Lengths, scales and batches are arguments of a compiled kernel; masks are not."""
    assert ["scale", "length (longer)", "length (shorter)", "batch"] == list(asked({"jit": "kernels"}))
    subject = make_subject(card=make_card(jit="kernels"))
    assert {"scale": 0.375 / 8} == changes(subject.workload, other_parameters(subject))


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        ({}, {"scale": 0.375 / 8, "mask": "window64", "softcap": 2.0}),
        ({"masks": ["causal"]}, {"scale": 0.375 / 8, "softcap": 2.0}),
        ({"features": ["lse"]}, {"scale": 0.375 / 8, "mask": "window64"}),
    ],
    ids=str,
)
def test_other_parameters_change_together(card: Changes, expected: Changes) -> None:
    """Scale, window and softcap at once, as far as the card claims them."""
    subject = make_subject(card=make_card(**card))
    assert expected == changes(subject.workload, other_parameters(subject))


@pytest.mark.parametrize(
    ("queries", "keys", "expected"),
    [
        ((96,), (96,), ((96,), (96,))),
        ((97,), (97,), ((96,), (96,))),
        ((50,), (200,), ((24,), (96,))),
        ((1, 0, 1), (200, 3, 0), ((1, 0, 1), (96, 2, 0))),
        ((1,) * 6, (50,) * 6, ((1,) * 4, (50,) * 4)),
        ((2, 1), (192, 1), ((1, 1), (96, 1))),
    ],
)
def test_calls_are_cut_to_96_keys(
    queries: tuple[int, ...], keys: tuple[int, ...], expected: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    """Four sequences at most; all shrink alike, none vanishes, and one query stays one."""
    found = shortened(make_workload(seqlens_q=queries, seqlens_k=keys))
    assert expected == (found.seqlens_q, found.seqlens_k)


def test_prefill_becomes_longer_with_its_cache_and_decode_by_its_cache_alone() -> None:
    """A single query among longer ones doubles as they do."""
    prefill, decode = (lengthened(make_workload(seqlens_q=queries, seqlens_k=(70, 9))) for queries in ((1, 9), (1, 1)))
    assert ((2, 18), (140, 18), (1, 1), (140, 18)) == (
        *(prefill.seqlens_q, prefill.seqlens_k, decode.seqlens_q, decode.seqlens_k),
    )


@pytest.mark.parametrize("own", [{}, {"sinks": True}, {"window": (40, 0)}, {"sinks": True, "window": (40, 0)}])
def test_no_workload_is_asked_twice(own: Changes) -> None:
    """Where a workload has sinks, each of its masks has them too: the kernel is called once for both names."""
    found = list(asked(seqlens_q=(70,), seqlens_k=(70,), **own).values())
    assert len(found) == len({str(sorted(it.items(), key=str)) for it in found})
    assert {} not in found
