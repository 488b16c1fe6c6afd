"""Finds the adapters that nothing provides: neither qualify, nor a distribution of the interpreter that would run them.

Such a distribution may be installed only where the run is, so a plan for no machine in particular just mentions it::

    qualify plan           a note
    qualify plan --here    an error where the rest of the kernel is installed here: its cases could only crash
    qualify run            the same
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import metadata

from qualify.cards.kernel import CALL
from qualify.cards.load import LoadedKernel
from qualify.cards.problems import Problem, in_order, meant
from qualify.cards.source import read
from qualify.errors import CardError, Place
from qualify.facts.adapters import ADAPTERS, ENTRY_POINTS, options_of
from qualify.plan.interpreter import Interpreter


def unoffered(kernels: Iterable[LoadedKernel], interpreters: Iterable[Interpreter] = ()) -> list[Problem]:
    """A problem for each card whose adapter nothing provides, with the adapter that was perhaps meant.

    Args:
        interpreters: those of the environments, in which kernels run beside this one.
    """
    foreign = [kernel for kernel in kernels if _is_foreign(kernel.card.adapter)]
    if not foreign:
        return []
    offered = sorted({*_offered_here(), *(name for one in interpreters for name in one.adapters)})
    return in_order(
        (_place(kernel), f"adapter: {_unknown(kernel.card.adapter, offered)}")
        for kernel in foreign
        if kernel.card.adapter not in offered
    )


def adapter_refusals(kernel: LoadedKernel, interpreter: Interpreter | None = None) -> list[str]:
    """Why nothing provides the kernel's adapter in an interpreter.

    Args:
        interpreter: of the kernel's environment; None = this one.
    """
    adapter = kernel.card.adapter
    if not _is_foreign(adapter):
        return []
    offered = sorted(interpreter.adapters if interpreter else _offered_here())
    return [] if adapter in offered else [f"{_unknown(adapter, offered)} ({_place(kernel)})"]


def _is_foreign(adapter: str) -> bool:
    """Whether qualify does not ship the adapter."""
    return adapter != CALL and options_of(adapter) is None


def _offered_here() -> set[str]:
    return {entry.name for entry in metadata.entry_points(group=ENTRY_POINTS)}


def _unknown(adapter: str, offered: Sequence[str]) -> str:
    shipped = [known.name for known in ADAPTERS]
    near = meant(adapter, [*shipped, *offered])
    others = f"distributions here offer {', '.join(offered)}" if offered else "no distribution here offers another"
    return f"unknown adapter {adapter}{near}. qualify ships {', '.join(shipped)}; {others}"


def _place(kernel: LoadedKernel) -> Place:
    """File, line and column of the card's ``adapter``; the file alone where it cannot be read any more."""
    try:
        return read(kernel.path).place(("adapter",))
    except CardError:
        return Place(path=str(kernel.path))
