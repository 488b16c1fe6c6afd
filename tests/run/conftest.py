"""What the tests of kernels and checks share."""

from __future__ import annotations

import gc

import pytest
import torch

# Tests of small tensors run side by side: more than one thread in each process only waits for the others.
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def settled() -> None:
    """What other modules' tests have left is not looked through each time that a test of this one collects garbage."""
    gc.collect()
    gc.freeze()
