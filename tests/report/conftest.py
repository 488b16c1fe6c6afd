"""Fixtures of the report tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from report_examples import Facts, damaged, facts_of, grid, wide_head

from qualify.facts.case import Phase
from qualify.facts.run import Record


def pytest_configure(config: pytest.Config) -> None:
    """Declares the marker of the tests that need a browser."""
    config.addinivalue_line("markers", "browser: opens the page in a real Chromium")


@pytest.fixture
def facts() -> Facts:
    """Three models, five kernels, and one of each thing that can go wrong."""
    phases: tuple[Phase, ...] = ("prefill", "varlen", "decode")
    records = damaged(grid(("llama-3.1-8b.tp1",), (1024, 8192), phases))
    return facts_of(records + grid(("gemma-2-9b.tp1",), (1024, 4096), ("prefill", "decode")) + wide_head())


@pytest.fixture
def build() -> Callable[[list[Record]], Facts]:
    """Makes a run from records."""
    return facts_of
