"""Valid cards to start from, and a way to write variations of them into files."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

KERNEL: dict[str, Any] = {
    "kernel": "flash-attn-3",
    "generation": "hopper",
    "shipped_by": ["vllm>=0.24", "flash-attn-3>=3.0.0b1"],
    "adapter": "vllm_flash_attn",
    "options": {"fa_version": 3},
    "requires": {"device": "cuda", "compute_capability": ["9.0"]},
    "claims": {
        "dtypes": ["bf16", "fp16"],
        "head_dim": {"min": 8, "max": 256, "multiple_of": 8},
        "layouts": ["packed", "paged"],
        "page_size": {"min": 1, "max": 512, "multiple_of": 16},
        "batch": {"max": 65535},
        "masks": ["full", "causal", "window"],
        "features": ["gqa", "lse"],
        "deterministic": True,
        "empty_row": {"out": 0, "lse": "-inf"},
    },
    "accuracy": {"bf16": "bf16", "fp16": "fp16"},
    "witness": {"must_match": ["FlashAttnFwdSm90"]},
}

GROUP: dict[str, Any] = {"layers": [0], "heads_q": 8, "heads_kv": 2, "head_dim": 64, "mask": "causal"}

MODEL: dict[str, Any] = {"model": "small", "layers": 1, "groups": [GROUP]}

MATRIX: dict[str, Any] = {
    "matrix": "example",
    "models": ["llama-3.1-8b"],
    "phases": {"prefill": {"seqlen": 128}},
    "dtypes": ["bf16"],
    "kernels": ["tiled-torch"],
}

Vary = Callable[..., dict[str, Any]]
Write = Callable[..., Path]


def _vary(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A deep copy with changes by dotted path; the value ``...`` removes the key."""
    card = copy.deepcopy(base)
    for path, value in changes.items():
        *way, last = (int(part) if part.isdigit() else part for part in path.split("."))
        inner: Any = card
        for part in way:
            inner = inner[part]
        if value is ...:
            del inner[last]
        else:
            inner[last] = value
    return card


@pytest.fixture
def kernel() -> Vary:
    """A valid kernel card with the given changes."""
    return lambda changes=None: _vary(KERNEL, changes or {})


@pytest.fixture
def model() -> Vary:
    """A valid model card with the given changes."""
    return lambda changes=None: _vary(MODEL, changes or {})


@pytest.fixture
def matrix() -> Vary:
    """A valid matrix card with the given changes."""
    return lambda changes=None: _vary(MATRIX, changes or {})


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write text, bytes or data (as JSON, which is YAML) under a name below tmp_path."""

    def to_file(content: object, name: str = "card.yaml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content, indent=1))
        return path

    return to_file
