"""Guards over the folders that people edit: every shipped card loads, and no code lives there."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from qualify import assets
from qualify.cards import load
from qualify.cards.kernel import KernelCard
from qualify.cards.matrix import MatrixCard
from qualify.cards.problems import validate
from qualify.cards.source import read
from qualify.facts.dtypes import Dtype

KERNELS = sorted(assets.shipped("kernels").glob("*"))
MATRICES = sorted(path for path in assets.shipped("matrices").glob("*") if path.is_file())


@pytest.mark.parametrize("path", KERNELS, ids=[path.name for path in KERNELS])
def test_every_shipped_kernel_loads(path: Path) -> None:
    """Each file in kernels/ is a valid card that is called like its file."""
    assert f"{validate(read(path), KernelCard).kernel}.yaml" == path.name


@pytest.mark.parametrize("path", MATRICES, ids=[path.name for path in MATRICES])
def test_every_shipped_matrix_loads(path: Path) -> None:
    """Each file in matrices/ is a valid matrix, called like its file, whose models and kernels exist."""
    assert f"{validate(read(path), MatrixCard).matrix}.yaml" == path.name
    assert path == load.load_matrix(path.stem).path


def test_every_shipped_canary_loads() -> None:
    """Each file in canaries/ is a valid canary, called like its file, of a matrix that exists."""
    files = sorted(assets.shipped("canaries").iterdir())
    assert [path.name for path in files] == [f"{name}.yaml" for name in load.load_canaries()]


def test_every_shipped_model_loads() -> None:
    """Each file in matrices/models/ is a valid model called like its file."""
    files = sorted((assets.shipped("matrices") / "models").iterdir())
    assert [path.name for path in files] == [f"{name}.json" for name in load.load_models()]


@pytest.mark.parametrize("folder", assets.FOLDERS)
def test_no_code_among_the_cards(folder: str) -> None:
    """No Python file lives in a card folder: a package named kernels would shadow another library."""
    assert [] == sorted(assets.shipped(folder).rglob("*.py"))


def test_tiled_torch_claims_everything() -> None:
    """The portable kernel refuses no mask, layout, feature or dtype, so every shape has a candidate anywhere."""
    card = load.load_kernels()["tiled-torch"].card
    claims = card.claims
    assert ("any", "tiled_torch", "portable") == (card.requires.device, card.adapter, card.generation)
    assert get_args(Dtype) == claims.dtypes
    assert (1, 1024, 1, "any") == (
        claims.head_dim.min,
        claims.head_dim.max,
        claims.head_dim.multiple_of,
        claims.head_dim_v,
    )
    assert (("packed", "paged"), None, None) == (claims.layouts, claims.page_size, claims.batch)
    assert ("full", "causal", "window", "band", "chunked", "dilated", "spans") == claims.masks
    assert ("gqa", "softcap", "sinks", "lse", "ragged", "empty", "empty_batch") == claims.features
    assert (True, "bottom_right", "0", "-inf") == (
        claims.deterministic,
        claims.alignment,
        claims.empty_row.out,
        claims.empty_row.lse,
    )
    mixed = {"bf16_kv_fp8_e4m3": "fp8kv", "fp16_kv_fp8_e4m3": "fp8kv"}
    assert {"bf16": "bf16", "fp16": "fp16", "fp32": "fp32", "fp8_e4m3": "bf16"} | mixed == card.accuracy
    assert ("qualify::tiled_attention", "(?i)gemm|gemv|nvjet|cutlass") == card.witness.must_match
