"""Fixtures of the report tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from chromium import launched
from report_examples import Facts, everything, facts_of

from qualify.facts.run import Record


def pytest_configure(config: pytest.Config) -> None:
    """Declares the marker of the tests that need a browser."""
    config.addinivalue_line("markers", "browser: opens the page in a real Chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One browser for all tests of a module."""
    with launched() as browser:
        yield browser


@pytest.fixture(scope="module")
def tab(browser: Any) -> Any:
    """A page that the tests of a module open their pages in: each new one would start a process of its own."""
    return browser.new_context(viewport={"width": 1280, "height": 900}).new_page()


@pytest.fixture(scope="module")
def unscripted(browser: Any) -> Any:
    """The same without JavaScript."""
    return browser.new_context(viewport={"width": 1280, "height": 900}, java_script_enabled=False).new_page()


@pytest.fixture
def facts() -> Facts:
    """Three models, five kernels, and one of each thing that can go wrong."""
    return everything()


@pytest.fixture
def build() -> Callable[[list[Record]], Facts]:
    """Makes a run from records."""
    return facts_of
