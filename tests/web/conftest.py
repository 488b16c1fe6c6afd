"""One server for all tests that only read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from web_examples import Served, fill, serving

from qualify.store import Store


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The server of a store with everything in it."""
    folder = tmp_path_factory.mktemp("web")
    address = str(folder / "evidence.db")
    with Store.open(address) as store:
        runs = fill(store, folder)
    with serving(address, folder) as url:
        yield Served(url, address, runs)
