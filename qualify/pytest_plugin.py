"""The pytest plugin: ``--qualify-level``, ``--qualify-device`` and the fixture ``qualify_kernel`` that heeds them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from qualify.testing import QualifiedKernel
from qualify.testing import qualify_kernel as qualified


def pytest_addoption(parser: pytest.Parser) -> None:
    """How much evidence the fixture gathers, and where."""
    group = parser.getgroup("qualify", "attention kernels under qualify_kernel")
    group.addoption(
        "--qualify-level", choices=("smoke", "full"), default="smoke", help="how much evidence the fixture gathers"
    )
    group.addoption(
        "--qualify-device", choices=("auto", "cpu", "cuda"), default="auto", help="where the fixture runs kernels"
    )


@pytest.fixture
def qualify_kernel(pytestconfig: pytest.Config) -> Callable[..., QualifiedKernel]:
    """:func:`qualify.testing.qualify_kernel` at the level and on the device that the command line asks for."""
    level, device = pytestconfig.getoption("--qualify-level"), pytestconfig.getoption("--qualify-device")
    return partial(qualified, level=level, device=device)
