"""Matrices, cards and plans for the tests of nodes and fleets: logical CPU devices stand for cards."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

SPOILING = Path(__file__).parent / "fleet" / "spoiling.py"

CARD = """\
kernel: spoiling
generation: portable
adapter: call
entry: spoiling:attend
requires: {device: any}
claims:
  dtypes: [fp32, bf16]
  head_dim: {max: 128}
  layouts: [packed]
  masks: [causal]
  features: [ragged]
  deterministic: true
  queries: any
  empty_row: {out: any, lse: any}
accuracy: {fp32: fp32, bf16: bf16}
witness: {must_match: [".+"]}
"""

MATRIX = """\
matrix: toy
models:
  - model: toy
    geometry: {{groups: [{{layers: [0], heads_q: 2, heads_kv: 2, head_dim: 32, mask: causal}}]}}
phases:
  prefill: {{seqlen: {seqlens}}}
dtypes: [fp32]
kernels: [{kernel}]
policy: {{timeout_s: 60, compile_timeout_s: 60}}
"""


def write_spoiling(folder: Path) -> Path:
    """A --cards folder with the kernel that is wrong on one card."""
    folder.mkdir(exist_ok=True)
    shutil.copy(SPOILING, folder / "spoiling.py")
    (folder / "spoiling.yaml").write_text(CARD)
    return folder


def write_toy(folder: Path, *seqlens: int, kernel: str = "tiled-torch") -> Path:
    """A matrix of tiny prefills."""
    path = folder / "toy.yaml"
    path.write_text(MATRIX.format(seqlens=list(seqlens or (8,)), kernel=kernel))
    return path


def write_plan(folder: Path, matrix: Path, **changes: Any) -> Path:
    """A plan for ``qualify node``, on two logical CPU devices."""
    path = folder / "plan.json"
    path.write_text(json.dumps({"matrix": str(matrix), "device": "cpu:2", "node": "n1", **changes}))
    return path
