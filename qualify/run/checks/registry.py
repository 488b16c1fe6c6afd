"""The checks of the table (qualify.facts.checks) with the code behind them, in the order in which they run."""

from __future__ import annotations

from importlib import import_module

from qualify.facts import checks
from qualify.run.checks.interface import Check


def _made(name: str) -> Check:
    """The check of the module of that name; its class has the same name in CamelCase."""
    module = import_module(f"qualify.run.checks.{name}")
    made: Check = getattr(module, name.title().replace("_", ""))()
    return made


CHECKS: tuple[Check, ...] = tuple(_made(known.name) for known in checks.CHECKS)


def check_named(name: str) -> Check:
    """The check of that name. Raises KeyError where there is none."""
    return {check.name: check for check in CHECKS}[name]
