"""Frozen records that cross process, database and page. Plain data: no torch, no YAML, no SQL."""
