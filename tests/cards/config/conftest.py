"""Reading a config that a test writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qualify.cards.config.reading import ReadModel, read_model


@pytest.fixture
def read(tmp_path: Path) -> Callable[[Any], ReadModel]:
    """Write a config.json and read it."""

    def from_data(data: Any) -> ReadModel:
        path = tmp_path / "config.json"
        path.write_text(json.dumps(data, indent=1))
        return read_model(str(path))

    return from_data
