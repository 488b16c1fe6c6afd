"""What the tests of the selftest share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def as_examined() -> Iterator[None]:
    """Kernels run in inference mode, as in the battery's processes (``examine``): small operators take less time."""
    with torch.inference_mode():
        yield
