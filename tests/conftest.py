"""Options and fixtures that all tests share."""

from __future__ import annotations

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
