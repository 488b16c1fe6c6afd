"""Alembic migrations; one module in ``versions`` for each released schema."""
