"""Stores on both databases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import store_examples as examples

from qualify.store import Store


@pytest.fixture
def store(empty_store: str) -> Iterator[Store]:
    """An empty store."""
    with Store.open(empty_store) as opened:
        yield opened


@pytest.fixture
def planned(store: Store) -> Store:
    """A store with one run of ten cases and no outcome."""
    store.begin(examples.run())
    store.add_cases(examples.run().id, examples.cases(10))
    return store
