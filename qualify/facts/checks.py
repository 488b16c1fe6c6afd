"""The version of the checks: what evidence, and the selftest's result, were made with."""

from __future__ import annotations

CHECK_VERSION = 15
"""Raised whenever a check's meaning or limits change: evidence of another version is not comparable."""
