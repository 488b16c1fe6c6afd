"""Why a card does not claim a case: every reason has the value that made it so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import CAUSAL, alter, geometry, make_card, make_kernel, make_matrix
from pydantic import ValidationError

from qualify.cards.load import load_matrix
from qualify.plan.geometry import Geometry
from qualify.plan.host import Host, device_refusals, install_refusals, installed_version, shipped_version
from qualify.plan.plan import make_plan
from qualify.plan.refusals import length_refusals, shape_refusals
from qualify.plan.shapes import Shape

CPU = Host(kind="cpu", name="a CPU", compute_capability="")
H100 = Host(kind="cuda", name="NVIDIA H100", compute_capability="9.0")


def reasons(matrix: dict[str, Any] | None = None, group: dict[str, Any] | None = None, **claims: Any) -> list[str]:
    """Reasons for which the one case of a matrix is refused."""
    made = make_matrix(models=[geometry(group or {})], **(matrix or {}))
    plan = make_plan(made, {"under-test": make_kernel(**claims)})
    assert 1 == len(plan.cases) + len(plan.refused)
    return [reason for _, found in plan.refused for reason in found]


def decode(page_size: int, batch: int = 1) -> dict[str, Any]:
    """One decode shape."""
    return {"phases": {"decode": {"batch": batch, "context": 64, "page_size": page_size or "contiguous"}}}


CHUNKS: dict[str, Any] = {"chunk": [5, 1], "context": [40, 9], "page_size": 16}
RAGGED: dict[str, Any] = {"phases": {"chunked": {"chunk": 1, "context": 1, "ragged": [CHUNKS]}}, "exclude": ["*b1.*"]}
VARLEN: dict[str, Any] = {"phases": {"varlen": {"lengths": [[5, 0, 7, 7]]}}}
CHUNKED: dict[str, Any] = {"phases": {"chunked": {"chunk": 16, "context": 48}}}


@pytest.mark.parametrize(
    ("matrix", "group", "claims", "expected"),
    [
        ({}, {"head_dim": 320}, {}, ["head_dim=320 > 256 (under-test claims ≤ 256)"]),
        ({}, {"head_dim": 16}, {"head_dim": {"min": 32, "max": 64}}, ["head_dim=16 < 32 (under-test claims ≥ 32)"]),
        (
            {},
            {"head_dim": 20},
            {"head_dim": {"max": 64, "multiple_of": 8}},
            ["head_dim=20 (under-test claims multiples of 8)"],
        ),
        ({}, {"head_dim": 48}, {"head_dim": {"max": 64, "excluded": [48]}}, ["head_dim=48 (under-test excludes it)"]),
        (
            {},
            {"head_dim_v": 32},
            {"head_dim_v": "same"},
            ["head_dim_v=32 ≠ head_dim=64 (under-test claims equal ones)"],
        ),
        (
            {},
            {"head_dim_v": 32},
            {"head_dim_v": "latent"},
            ["values of their own (under-test takes the first elements of the keys for them: latent attention)"],
        ),
        (
            {},
            {"head_dim_v": 32, "latent": True},
            {"head_dim_v": "latent"},
            ["heads_kv=2 (under-test claims one latent KV head)"],
        ),
        (
            {},
            {"head_dim": 320, "head_dim_v": 32},
            {"head_dim_v": "latent"},
            [
                "head_dim=320 > 256 (under-test claims ≤ 256)",
                "values of their own (under-test takes the first elements of the keys for them: latent attention)",
            ],
        ),
        ({}, {"head_dim": 32}, {"head_dim": {"min": 32, "max": 64}}, []),
        ({}, {"head_dim_v": 32, "latent": True, "heads_kv": 1}, {"head_dim_v": "latent"}, []),
        ({}, {"head_dim_v": 32, "latent": True}, {"head_dim_v": "any"}, []),
        (
            {},
            {"mask": "window", "window": 9},
            {"masks": ["full", "causal"]},
            ["mask=window (under-test claims full, causal)"],
        ),
        ({}, {"mask": "full"}, {"masks": ["causal"]}, ["mask=full (under-test claims causal)"]),
        ({}, {}, {"masks": ["full"]}, ["mask=causal (under-test claims full)"]),
        ({}, {}, {"features": []}, ["heads_q=8, heads_kv=2 (under-test does not claim gqa)"]),
        ({}, {"softcap": 50.0}, {"features": ["gqa"]}, ["softcap=50 (under-test does not claim softcap)"]),
        ({}, {"sinks": True}, {"features": ["gqa"]}, ["sinks=true (under-test does not claim sinks)"]),
        (
            {"dtypes": ["fp32"]},
            {},
            {"dtypes": ["bf16"], "accuracy": {"bf16": "bf16"}},
            ["dtype=fp32 (under-test claims bf16)"],
        ),
        (
            {"dtypes": ["bf16_kv_fp8_e4m3"]},
            {},
            {"dtypes": ["bf16"], "accuracy": {"bf16": "bf16"}},
            ["dtype=bf16_kv_fp8_e4m3: bf16 queries beside an fp8_e4m3 cache (under-test claims bf16)"],
        ),
        (decode(16), {}, {"layouts": ["packed"]}, ["layout=paged (under-test claims packed)"]),
        (decode(0), {}, {"layouts": ["paged"]}, ["layout=packed (under-test claims paged)"]),
        (decode(24), {}, {"page_size": {"multiple_of": 16}}, ["page_size=24 (under-test claims multiples of 16)"]),
        (decode(512), {}, {"page_size": {"max": 256}}, ["page_size=512 > 256 (under-test claims ≤ 256)"]),
        (decode(8), {}, {"page_size": {"min": 16}}, ["page_size=8 < 16 (under-test claims ≥ 16)"]),
        (decode(16, 65536), {}, {"batch": {"max": 65535}}, ["batch=65536 > 65535 (under-test claims ≤ 65535)"]),
        (
            VARLEN,
            {},
            {"features": ["gqa", "empty"]},
            ["3 different lengths in one batch (under-test does not claim ragged)"],
        ),
        (
            RAGGED,
            {},
            {"queries": "equal"},
            ["1 to 5 queries in one batch (under-test claims as many in every sequence)"],
        ),
        (VARLEN, {}, {"features": ["gqa", "ragged"]}, ["an empty sequence (under-test does not claim empty)"]),
        (
            {"phases": {"prefill": {"batch": 1, "seqlen": 20000000}}},
            {},
            {"elements": {"max": 1 << 31}},
            ["20000000 keys, 2560000000 elements (under-test claims ≤ 2147483648)"],
        ),
        (
            {"phases": {"prefill": {"batch": 1, "seqlen": 5000000}}},
            {},
            {"elements": {"max": 1 << 31}},
            ["5000000 queries, 2560000000 elements (under-test claims ≤ 2147483648)"],
        ),
        (
            CHUNKED,
            {},
            {"alignment": "top_left"},
            ["seqlen_q=16 ≠ seqlen_k=64 (under-test aligns its mask to the top left)"],
        ),
        (
            {},
            {"head_dim": 512, "softcap": 5.0},
            {"features": ["gqa"]},
            ["head_dim=512 > 256 (under-test claims ≤ 256)", "softcap=5 (under-test does not claim softcap)"],
        ),
    ],
)
def test_a_claim_that_is_missing_is_a_reason(
    matrix: dict[str, Any], group: dict[str, Any], claims: dict[str, Any], expected: list[str]
) -> None:
    """Each claim alone, and two together."""
    assert expected == reasons(matrix, group, **claims)


@pytest.mark.parametrize(
    ("matrix", "group", "claims"),
    [
        ({}, {"head_dim": 256}, {}),
        ({}, {"heads_kv": 8}, {"features": []}),
        (decode(16), {}, {"page_size": {"multiple_of": 16, "min": 16, "max": 16}}),
        (decode(16), {}, {"layouts": ["paged"], "features": ["gqa"]}),
        (decode(0, 3), {}, {"features": ["gqa"], "batch": {"max": 3}}),
        (CHUNKED, {"mask": "full"}, {"alignment": "top_left"}),
        ({}, {}, {"alignment": "top_left"}),
        (VARLEN, {}, {"alignment": "top_left"}),
    ],
)
def test_what_is_claimed_is_not_refused(matrix: dict[str, Any], group: dict[str, Any], claims: dict[str, Any]) -> None:
    """Limits belong to the claim; a corner matters only where a mask meets unequal lengths."""
    assert [] == reasons(matrix, group, **claims)


def test_a_kernel_of_equal_queries_takes_equal_ones() -> None:
    """The fewest and the most queries of other batches are named."""
    card = make_card(queries="equal")
    assert [] == shape_refusals(card, lengths((3, 3), (5, 9)))
    expected = ["1 to 7 queries in one batch (under-test claims as many in every sequence)"]
    assert expected == shape_refusals(card, lengths((4, 7, 1), (9, 9, 9)))


def test_images_are_refused_where_no_spans_are_claimed() -> None:
    """And nowhere else."""
    shape = replace(lengths((40,), (40,)), spans=((0, 3, 19),))
    assert [] == shape_refusals(make_card(), shape)
    expected = ["1 image spans (under-test does not claim spans)"]
    assert expected == shape_refusals(make_card(masks=["full", "causal"]), shape)


def test_more_queries_than_keys_are_refused_under_masks_that_do_not_claim_them() -> None:
    """Under the others, and where there are enough keys, they are not."""
    card = make_card(longer_queries=["full", "window"])
    expected = ["mask=causal, seqlen_q=9 > seqlen_k=4 (under-test claims more queries than keys under full, window)"]
    assert expected == length_refusals(card, causal(), lengths((4, 9), (4, 4)))
    assert [] == length_refusals(card, causal(), lengths((4, 9), (4, 9)))
    assert [] == length_refusals(card, alter(causal(), causal=False), lengths((9,), (4,)))
    assert [] == length_refusals(card, alter(causal(), window=(3, 0)), lengths((9,), (4,)))
    assert [] == length_refusals(make_card(), causal(), lengths((9,), (4,)))
    plan = make_plan(load_matrix("incidents"), {"under-test": make_kernel(longer_queries=["full"])})
    (refused,) = {why for case, why in plan.refused if case.incident == "flash-attention-1778"}
    assert ("mask=causal, seqlen_q=40 > seqlen_k=17 (under-test claims more queries than keys under full)",) == refused
    with pytest.raises(ValidationError, match="is band, which masks does not claim"):
        make_card(masks=["causal"], longer_queries=["band"])


def test_chunks_are_a_mask_of_their_own_for_longer_queries() -> None:
    """A card that claims more queries than keys under a causal mask has not claimed them under chunks."""
    card = make_card(longer_queries=["causal"])
    expected = ["mask=chunked, seqlen_q=9 > seqlen_k=4 (under-test claims more queries than keys under causal)"]
    assert expected == length_refusals(card, alter(causal(), chunk=16), lengths((9,), (4,)))


@pytest.mark.parametrize(("fewer", "refused"), [(0, False), (1, True)])
def test_a_tensor_may_have_as_many_elements_as_the_card_claims(fewer: int, refused: bool) -> None:
    """Packed keys are not rounded up to pages."""
    call, tokens = replace(causal(), heads_kv=8), (1 << 22) + 1
    card = make_card(elements={"max": tokens * call.heads_kv * call.head_dim - fewer})
    assert refused == bool(length_refusals(card, call, lengths((tokens,), (tokens,))))


@pytest.mark.parametrize(("queries", "keys"), [((0, 0), (5, 9)), ((3, 4), (0, 0))])
def test_a_call_of_nothing_is_refused_where_it_is_not_claimed(queries: tuple[int, ...], keys: tuple[int, ...]) -> None:
    """Neither of no query nor of no key."""
    expected = ["no query or no key in the whole batch (under-test does not claim empty_batch)"]
    assert expected == shape_refusals(make_card(features=["gqa", "ragged", "empty"]), lengths(queries, keys))
    assert [] == shape_refusals(make_card(), lengths(queries, keys))


@pytest.mark.parametrize(
    ("queries", "keys", "reason"),
    [
        ((3, 4), (9, 9), "2 different lengths in one batch (under-test does not claim ragged)"),
        ((3, 3), (9, 8), "2 different lengths in one batch (under-test does not claim ragged)"),
        ((3, 3), (9, 9), ""),
        ((0, 0), (9, 9), "an empty sequence (under-test does not claim empty)"),
        ((3, 3), (0, 0), "an empty sequence (under-test does not claim empty)"),
        ((1, 1), (1, 1), ""),
    ],
)
def test_lengths_of_queries_and_of_keys_count_alone(
    queries: tuple[int, ...], keys: tuple[int, ...], reason: str
) -> None:
    """A batch is ragged, or has an empty sequence, by either of them."""
    assert ([reason] if reason else []) == shape_refusals(make_card(features=["gqa"]), lengths(queries, keys))


def causal() -> Geometry:
    """A causal layer."""
    heads: dict[str, Any] = {"heads_q": 8, "heads_kv": 2, "head_dim": 64, "head_dim_v": 64, "scale": 0.125}
    mask: dict[str, Any] = {"label": "causal", "mask": CAUSAL, "softcap": 0.0, "sinks": False}
    return Geometry(model="small", layers=1, refusals=(), **heads, **mask)


def lengths(seqlens_q: tuple[int, ...], seqlens_k: tuple[int, ...]) -> Shape:
    """A packed batch."""
    return Shape(phase="varlen", label="", seqlens_q=seqlens_q, seqlens_k=seqlens_k, page_size=0, where=())


def test_a_device_of_another_kind_is_refused() -> None:
    """A CUDA kernel on a CPU, and a CPU kernel on a GPU; "any" runs on both."""
    cuda, cpu, either = (make_card(requires={"device": kind}) for kind in ("cuda", "cpu", "any"))
    assert ["device=cpu (under-test requires cuda)"] == device_refusals(cuda, CPU)
    assert ["device=cuda (under-test requires cpu)"] == device_refusals(cpu, H100)
    assert [[], []] == [device_refusals(either, CPU), device_refusals(either, H100)]


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        (["9.0"], []),
        (["8.0", "9.0"], []),
        ([], []),
        (["10.0"], ["compute_capability=9.0 (under-test requires 10.0)"]),
        (["8.0", "8.6"], ["compute_capability=9.0 (under-test requires 8.0 or 8.6)"]),
    ],
)
def test_a_card_of_another_generation_is_refused(capabilities: list[str], expected: list[str]) -> None:
    """The capability that the device has, and those that the kernel needs."""
    requires: dict[str, Any] = {"device": "cuda"} | ({"compute_capability": capabilities} if capabilities else {})
    assert expected == device_refusals(make_card(requires=requires), H100)


TORCH = installed_version("torch")


@pytest.mark.parametrize(
    ("shipped_by", "expected"),
    [
        (["torch>=2"], []),
        (["no-such-distribution>=1", "torch"], []),
        (["torch>=99"], [f"torch {TORCH} is installed, under-test needs >=99"]),
        (["no-such-distribution>=1", "torch<1"], [f"torch {TORCH} is installed, under-test needs <1"]),
        (
            ["no-such-distribution>=1", "no-such-other"],
            ["not installed (pip install 'no-such-distribution>=1' or pip install 'no-such-other')"],
        ),
    ],
)
def test_what_carries_the_kernel_must_be_installed(shipped_by: list[str], expected: list[str]) -> None:
    """Any one of the distributions, new enough; otherwise what is there, or what to install."""
    assert expected == install_refusals(make_card(shipped_by=shipped_by))


def test_a_nightly_build_is_a_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Release engineers qualify what is not released yet."""
    (tmp_path / "kernels_of_tonight-3.1.0.dev20261101.dist-info").mkdir()
    (tmp_path / "kernels_of_tonight-3.1.0.dev20261101.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: kernels-of-tonight\nVersion: 3.1.0.dev20261101\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert [] == install_refusals(make_card(shipped_by=["kernels-of-tonight>=3"]))


def test_a_third_partys_function_needs_no_distribution() -> None:
    """An entry may live in a plain folder."""
    card = make_card(adapter="call", entry="mine:attend", shipped_by=...)
    assert [] == install_refusals(card)
    assert "" == shipped_version(card)


def test_the_version_that_carries_a_kernel_is_found() -> None:
    """The first installed distribution of the card's list."""
    assert f"torch {TORCH}" == shipped_version(make_card(shipped_by=["no-such-distribution", "torch>=99"]))


def test_refusals_of_the_machine_come_first_and_only_once() -> None:
    """The device, or what is not installed, then the claims."""
    kernel = make_kernel(requires={"device": "cuda"}, shipped_by=["no-such-distribution"], head_dim={"max": 32})
    plan = make_plan(make_matrix(models=[geometry()]), {"under-test": kernel}, host=CPU)
    assert [("device=cpu (under-test requires cuda)", "head_dim=64 > 32 (under-test claims ≤ 32)")] == [
        found for _, found in plan.refused
    ]
    plan = make_plan(make_matrix(models=[geometry()]), {"under-test": kernel}, host=H100)
    assert ("not installed (pip install 'no-such-distribution')", "head_dim=64 > 32 (under-test claims ≤ 32)") == (
        plan.refused[0][1]
    )


def test_without_a_host_nothing_is_said_about_the_machine() -> None:
    """A plan can be made anywhere."""
    kernel = make_kernel(requires={"device": "cuda"}, shipped_by=["no-such-distribution"])
    assert 1 == len(make_plan(make_matrix(models=[geometry()]), {"under-test": kernel}).cases)


@pytest.mark.parametrize(("host", "text"), [(CPU, "cpu (a CPU)"), (H100, "NVIDIA H100 (9.0)")])
def test_a_host_in_words(host: Host, text: str) -> None:
    """Name and capability."""
    assert text == str(host)
