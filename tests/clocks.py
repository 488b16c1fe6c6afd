"""A database server whose clock is wrong."""

from __future__ import annotations

from sqlalchemy import create_engine, make_url, text

BEHIND = """
CREATE SCHEMA earlier;
CREATE FUNCTION earlier.clock_timestamp() RETURNS timestamptz LANGUAGE sql
    AS $$ SELECT pg_catalog.clock_timestamp() - interval '{0}' $$;
"""


def turn_back(address: str, by: str) -> None:
    """From now on the server's own clock function answers too early."""
    name = make_url(address).database
    engine = create_engine(address)
    with engine.begin() as connection:
        connection.execute(text(BEHIND.format(by)))
        connection.execute(text(f"ALTER DATABASE {name} SET search_path = earlier, pg_catalog, public"))
    engine.dispose()
