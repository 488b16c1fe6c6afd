"""The entry of the selftest's kernel cards: a function of one call, as third parties write it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from qualify.run.adapters.interface import AttentionCall
from qualify.selftest.correct import VARIANTS
from qualify.selftest.faults.registry import FAULTS
from qualify.selftest.specimen import Fault, Simulated, Variant


def attend(call: AttentionCall, *, specimen: str) -> Any:
    """The result of the planted fault, or correct variant, of that name; what it keeps, it keeps between calls."""
    return _kernel(specimen).launch(call)


def forget() -> None:
    """Drop all state, as the end of a process would: the next call uses fresh kernels."""
    _kernel.cache_clear()


def specimen_named(name: str) -> Fault | Variant:
    """The fault or variant of that name; KeyError where there is none."""
    specimens: tuple[Fault | Variant, ...] = (*FAULTS, *VARIANTS)
    return {known.name: known for known in specimens}[name]


@lru_cache(maxsize=8)
def _kernel(name: str) -> Simulated:
    return specimen_named(name).make()
