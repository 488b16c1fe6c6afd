"""Tests of small tensors run side by side: more than one thread in each process only waits for the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import forking
import pytest
import torch
from cli_process import server

from qualify.run.process import child

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def spawn() -> Iterator[Callable[..., Any]]:
    """What forks judges and hosts for this process."""
    asking, alive = server().nursery()
    with asking, alive:
        yield forking.spawn_from(asking)


@pytest.fixture
def forked(spawn: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Judges and hosts that this test starts are forked from a Python that has imported torch."""
    if not forking.GPU.exists():
        monkeypatch.setattr(child, "_spawn", spawn)
