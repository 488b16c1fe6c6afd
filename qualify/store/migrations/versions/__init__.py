"""Revisions, oldest first: ``r0001_…``, ``r0002_…``. A released one is never changed."""
