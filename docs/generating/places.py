"""Paths of the documents and of the evidence that they show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
EVIDENCE = ROOT / "docs" / "evidence"
FIGURES = EVIDENCE / "2026-11-21-h100.json"
"""file with the figures that docs/kernels.md and docs/coverage.md show"""


def read(path: Path) -> Any:
    """The content of a JSON file."""
    return json.loads(path.read_text())
