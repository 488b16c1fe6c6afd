"""Source text for scripts that call a library as an adapter does, without qualify.

An adapter's ``source`` returns Python that defines ``attend(call)``: one :class:`AttentionCall` in, ``(out, lse)`` of
the contract out, with ``lse`` None where the library gives none. Helpers of qualify travel as their own source.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Sourced(Protocol):
    """An adapter that can say what it does as a script."""

    def source(self) -> str:
        """Python that defines ``attend(call)``, imports included; nothing in it imports qualify."""
        ...


def source_of(*things: type | Callable[..., Any]) -> str:
    """The source of functions and classes, one after another."""
    return "\n\n".join(inspect.getsource(thing).rstrip() for thing in things) + "\n"


def constants(**values: object) -> str:
    """Assignments of plain values."""
    return "".join(f"{name} = {value!r}\n" for name, value in values.items())
