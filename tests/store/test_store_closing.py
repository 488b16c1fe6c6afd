"""No connection is left to the garbage collector, whenever other threads use a store that is closed."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from qualify.store.database import Database
from qualify.store.store import Store


def closed(driver: Any) -> bool:
    """Whether a connection of a driver is closed."""
    if not isinstance(driver, sqlite3.Connection):
        return bool(driver.closed)
    try:
        driver.execute("SELECT 1")
    except sqlite3.ProgrammingError:
        return True
    return False


def used(database: Database, meanwhile: Callable[[], None]) -> Any:
    """The driver's connection of a transaction that has ended; something else happens while it is open."""
    with database.reading() as connection:
        driver = connection.connection.driver_connection
        meanwhile()
    return driver


def test_a_store_that_is_closed_while_it_is_read(address: str) -> None:
    """Its pages are still rendered by threads when a site ends: each connection is closed by whoever used it last."""
    store = Store.open(address)
    assert closed(used(store._database, store.close))
    assert closed(used(store._database, lambda: None))


def test_connections_that_are_given_up(address: str) -> None:
    """An error of one thread has all connect anew: those that others use meanwhile are closed, later ones are kept."""
    with closing(Store.open(address)) as store:
        database = store._database
        assert closed(used(database, database.engine.dispose))
        assert not closed(used(database, lambda: None))


@pytest.mark.parametrize("kept", [True, False])
def test_a_connection_is_kept_for_the_next_transaction(address: str, kept: bool) -> None:
    """As long as the store is open."""
    with closing(Store.open(address)) as store:
        driver = used(store._database, lambda: None)
        if not kept:
            store.close()
        assert kept == (not closed(driver))
