"""Calls beyond a text model's: prompts with an image, cross-attention, and stacks with phases of their own."""

from __future__ import annotations

from typing import Any

import pytest
from builders import geometry, make_kernel, make_matrix

from qualify.errors import UsageError
from qualify.facts.case import Case
from qualify.plan.plan import make_plan

PROMPTS: dict[str, Any] = {
    "prefill": {"seqlen": [8, 64]},
    "chunked": {"chunk": 32, "context": 96},
    "decode": {"context": [64, 128]},
}


def cases(*groups: dict[str, Any], **matrix: Any) -> dict[str, Case]:
    """The cases of one model by phase/shape/mask."""
    made = make_matrix(models=[geometry(*groups)], **{"phases": PROMPTS} | matrix)
    found = make_plan(made, {"under-test": make_kernel()}).cases
    return {f"{case.phase}/{case.shape}/{case.mask}": case for case in found}


def test_a_prompt_that_has_room_comes_once_with_an_image() -> None:
    """Its tokens see each other; a decode step has none, and evidence of text does not stand for it."""
    found = cases({"image_tokens": 16})
    spans = {name: case.workload.spans for name, case in found.items()}
    assert {
        "prefill/b1.q8.k8/causal": (),
        "prefill/b1.q64.k64/causal": (),
        "chunked/b1.q32.k128/causal": (),
        "decode/b1.q1.k64/causal": (),
        "decode/b1.q1.k128/causal": (),
        "prefill/b1.q64.k64/causal.image16": ((0, 24, 40),),
        "chunked/b1.q32.k128/causal.image16": ((0, 104, 120),),
    } == spans
    assert len(found) == len({case.content_hash for case in found.values()})


def test_a_step_of_a_decode_is_no_image() -> None:
    """However small the image is; layers that have prompts alone see it there."""
    names = cases({"image_tokens": 1, "phases": ["prefill"]}, {"layers": [0], "phases": ["decode"], "head_dim": 32})
    assert ["prefill", "prefill"] == [name.partition("/")[0] for name in names if name.endswith(".image1")]
    assert {"prefill", "chunked"} == {
        name.partition("/")[0] for name in cases({"image_tokens": 1}) if name.endswith(".image1")
    }


def test_another_mask_of_the_matrix_has_no_image() -> None:
    """The model's layers alone see images."""
    names = cases({"image_tokens": 16}, masks=["model", "full"], phases={"prefill": {"seqlen": 64}})
    assert ["causal", "full", "causal.image16"] == sorted(
        (name.rpartition("/")[2] for name in names), key=lambda mask: ("image" in mask, mask)
    )


def test_cross_attention_has_the_keys_of_the_other_sequence() -> None:
    """Once for each number of queries, whatever the context; the masks of the matrix are not asked of it."""
    found = cases({}, {"mask": "cross", "cross_keys": 1500}, masks=["model", "full"])
    crossing = {name: case.workload for name, case in found.items() if name.endswith("/cross")}
    assert ["prefill/b1.q8.k1500", "prefill/b1.q64.k1500", "chunked/b1.q32.k1500", "decode/b1.q1.k1500"] == [
        name.rpartition("/")[0] for name in crossing
    ]
    assert {(1500,)} == {workload.seqlens_k for workload in crossing.values()}
    assert {False} == {workload.mask.causal for workload in crossing.values()}


@pytest.mark.parametrize(
    ("phases", "label", "keys"),
    [
        ({"decode": {"context": 64, "batch": 2, "page_size": 16}}, "b2.q1.k1500.p16", (1500, 1500)),
        ({"varlen": {"lengths": [[3, 5]]}}, "l3-5.k1500", (1500, 1500)),
    ],
)
def test_labels_of_cross_attention(phases: dict[str, Any], label: str, keys: tuple[int, ...]) -> None:
    """The queries' lengths, the keys, and the pages."""
    (case,) = cases({"mask": "cross", "cross_keys": 1500}, phases=phases).values()
    assert (label, keys) == (case.shape, case.workload.seqlens_k)


def test_the_workload_is_that_of_the_layers() -> None:
    """Chunks and latent values reach the call: without them the kernel is asked another question."""
    (chunked,) = cases({"mask": "chunked", "chunk": 16}, phases={"prefill": {"seqlen": 64}}).values()
    assert (16, True, "chunked") == (
        chunked.workload.mask.size,
        chunked.workload.mask.causal,
        chunked.workload.mask.kind,
    )
    latent = {"heads_kv": 1, "head_dim_v": 32, "latent": True}
    (absorbed,) = cases(latent, phases={"prefill": {"seqlen": 64}}).values()
    assert (True, 32) == (absorbed.workload.latent, absorbed.workload.head_dim_v)


def test_a_stack_has_its_own_mask_in_its_own_phases() -> None:
    """An encoder reads prompts alone, under its label, whatever mask the matrix asks of the main stack."""
    encoder = {"stack": "encoder", "layers": [0], "mask": "full", "phases": ["prefill"], "head_dim": 32}
    found = cases({}, encoder, masks=["causal"])
    own = [name for name in found if name.endswith("/encoder.full")]
    assert ["prefill/b1.q8.k8/encoder.full", "prefill/b1.q64.k64/encoder.full"] == own
    assert 5 == sum(name.endswith("/causal") for name in found)


@pytest.mark.parametrize(
    ("group", "count"),
    [({}, 5), ({"image_tokens": 16}, 8), ({"phases": ["decode"]}, 2), ({"image_tokens": 16, "phases": ["decode"]}, 2)],
    ids=["text", "images", "decode", "decode of images"],
)
def test_the_limit_counts_images_and_phases(group: dict[str, Any], count: int) -> None:
    """Prompts twice where they may hold an image; phases that the layers do not have, not at all."""
    rest = {"layers": [0], "phases": ["prefill", "chunked"], "head_dim": 32} if "phases" in group else None
    groups = [{"layers": [0], **group}, *([rest] if rest else [])]
    total = count + (3 if rest else 0)
    assert cases(*groups, policy={"limit_cases": total})
    with pytest.raises(UsageError, match=f"expands to {total} cases"):
        cases(*groups, policy={"limit_cases": total - 1})
