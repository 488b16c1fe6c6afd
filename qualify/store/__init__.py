"""The evidence store: one SQL database, SQLite by default, PostgreSQL for a fleet.

``store.py`` is the interface; ``tables/`` the schema and ``migrations/`` its history; ``mapping/`` turns
facts into rows and back; ``address.py`` says where a database is; ``database.py`` owns connections and
transactions, and ``sqlite.py`` what is SQLite's own of them; ``failures.py`` explains errors.
Nothing outside this package imports SQLAlchemy or Alembic.
"""

from __future__ import annotations

from qualify.store.address import DEFAULT_PATH
from qualify.store.store import Store

__all__ = ["DEFAULT_PATH", "Store"]
