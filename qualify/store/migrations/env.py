"""Alembic runs this for every migration; the transaction belongs to the caller (see ``schema.py``)."""

from __future__ import annotations

from alembic import context

from qualify.store.schema import VERSION_TABLE
from qualify.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,
)
context.run_migrations()
