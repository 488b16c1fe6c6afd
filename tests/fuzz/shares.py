"""How many inputs of each kind are tried."""

from __future__ import annotations

import pytest

SHORT = 8
"""inputs of each kind where nobody asks for more"""
PARTS = 8
"""that many inputs of a kind are tried in, so that several processes share them"""
SHARES = {"matrix": 3, "kernel": 2, "config": 5, "waivers": 3, "canary": 1, "log": 4, "traffic": 2}
SHARES |= {"export": 3, "database": 3, "command": 4}
"""how the inputs are shared among the kinds"""


def inputs_of(config: pytest.Config, kind: str) -> int:
    """Inputs to try of a kind, in one of its parts."""
    asked = config.getoption("inputs")
    return -(-asked * SHARES[kind] // (sum(SHARES.values()) * PARTS)) if asked else SHORT
