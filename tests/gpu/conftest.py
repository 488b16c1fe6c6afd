"""What the tests on a GPU share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from qualify.cards.kernel import KernelCard
from qualify.run.adapters.interface import Adapter
from qualify.run.adapters.registry import create_adapter

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What libraries warn of is theirs to mend: flash-attn-4 alone would fail most of these tests.

    Tests that need an unused card come first.
    """
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.filterwarnings("default"))
    items.sort(key=lambda item: unused_card.__name__ not in getattr(item, "fixturenames", ()))


@pytest.fixture
def unused_card() -> None:
    """This process does not use the card yet: NVML would list it among the others."""
    assert not torch.cuda.is_initialized()


@pytest.fixture(scope="session")
def adapter_of() -> Callable[[KernelCard], Adapter]:
    """Gives the adapter of a card, one for all tests, as in a worker; skips where it does not fit this machine."""
    adapters: dict[str, Adapter] = {}

    def get(card: KernelCard) -> Adapter:
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")
        major, minor = torch.cuda.get_device_capability()
        wanted = card.requires.compute_capability
        if wanted and f"{major}.{minor}" not in wanted:
            pytest.skip(f"compute capability {major}.{minor} is not one of {', '.join(wanted)}")
        if card.kernel not in adapters:
            try:
                adapters[card.kernel] = create_adapter(card)
            except ImportError as error:
                pytest.skip(f"{card.adapter}: {error}")
        return adapters[card.kernel]

    return get
