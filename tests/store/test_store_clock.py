"""How far this machine's clock is from the store's."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine, make_url, text

from qualify.facts.clock import skew_note
from qualify.store.store import Store

BEHIND = """
CREATE SCHEMA earlier;
CREATE FUNCTION earlier.clock_timestamp() RETURNS timestamptz LANGUAGE sql
    AS $$ SELECT pg_catalog.clock_timestamp() - interval '40 seconds' $$;
"""


def test_one_clock_is_no_skew(empty_store: str) -> None:
    """Both databases of this test are on this machine."""
    with Store.open(empty_store) as store:
        assert abs(store.clock_skew_s()) < 5


def test_the_clock_of_a_server_that_is_behind(empty_postgres: str) -> None:
    """A server whose own clock function answers 40 s too early: this machine is ahead of it."""
    name = make_url(empty_postgres).database
    engine = create_engine(empty_postgres)
    with engine.begin() as connection:
        connection.execute(text(BEHIND))
        connection.execute(text(f"ALTER DATABASE {name} SET search_path = earlier, pg_catalog, public"))
    engine.dispose()
    with Store.open(empty_postgres) as store:
        skew_s = store.clock_skew_s()
    assert 35 < skew_s < 45
    told = "in run r was 40 s ahead of the store's clock, so the evidence seems 40 s younger than it is"
    assert told in skew_note("r", 40.4)


@pytest.mark.parametrize("skew_s", [None, 0.0, 5.0, -5.0])
def test_a_few_seconds_are_not_told(skew_s: float | None) -> None:
    """Nor what nobody measured."""
    assert "" == skew_note("r", skew_s)
