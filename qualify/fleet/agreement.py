"""Whether a node's run is evidence of what its fleet had to run, and of the same thing as the runs of other nodes.

A run that is evidence of something else never counts beside the others: what it covers would look as if it had run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from qualify import __version__
from qualify.cards.load import LoadedKernel, LoadedMatrix, in_environments, load_kernels, load_matrix
from qualify.facts.checks import CHECK_VERSION
from qualify.facts.code import code_change
from qualify.facts.differing import stack_words
from qualify.facts.environment import Environment
from qualify.facts.fleet import NodePlan
from qualify.facts.run import Run
from qualify.facts.stack import Stack
from qualify.plan.plan import make_plan
from qualify.plan.selection import Selection, selected_by
from qualify.store.store import Store

T = TypeVar("T")


class AskedCases:
    """The cases that a fleet is asked to run, as they are planned here."""

    def __init__(self, plan: NodePlan) -> None:
        """Nothing is read before a run is compared.

        Args:
            plan: what all nodes are told: matrix, cards and selection.
        """
        self._told = plan

    @cached_property
    def matrix(self) -> LoadedMatrix:
        """The matrix as it is here."""
        return load_matrix(self._told.matrix, tuple(map(Path, self._told.cards)), {})

    @cached_property
    def kernels(self) -> dict[str, LoadedKernel]:
        """The kernels as they are here."""
        return in_environments(load_kernels(tuple(map(Path, self._told.cards))), self.matrix.environments)

    def plan(self) -> None:
        """Plan the cases now. Raises NothingSelected where there are none: then no node has to start."""
        _ = self.calls

    @cached_property
    def calls(self) -> Mapping[str, str]:
        """Content hashes of all cases by their ids, also of those that the plan refuses.

        Raises:
            NothingSelected: there are none.
        """
        selection = Selection(select=self._told.select or "", kernel=self._told.kernel or "")
        plan = make_plan(self.matrix, self.kernels, selection=selection)
        return {case.id: case.content_hash for case in (*plan.cases, *(case for case, _ in plan.refused))}

    def lacking(self, store: Store, run: Run, select: str = "") -> str:
        """Why a run is no evidence of all the cases that it was asked for; empty where it is.

        Args:
            select: which of them its node was told to run, as for ``--select``; empty = all.
        """
        if run.matrix_hash != self.matrix.content_hash:
            return other_matrix(run, self.matrix)
        if run.check_version != CHECK_VERSION:
            there = f"version {run.check_version} of the checks (qualify {run.qualify_version})"
            here = f"version {CHECK_VERSION} (qualify {__version__})"
            return f"its node has {there}, and here they are {here}: install the same version of qualify on all nodes"
        mine, ran = selected_by(select), store.calls(run.id)
        lacking = [name for name, call in self.calls.items() if (not mine or mine(name)) and ran.get(name) != call]
        if not lacking:
            return ""
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        return f"its run lacks {lacking[0]}{more} as planned here: a kernel card on that node probably differs"


def other_matrix(run: Run, loaded: LoadedMatrix) -> str:
    """How the matrix of a run differs from the one that is here."""
    return f"it ran another matrix (sha256 {run.matrix_hash[:12]}, now {loaded.content_hash[:12]})"


def other_evidence(run: Run, first: Run, loaded: LoadedMatrix) -> str:
    """Why a run is evidence of something else than the first one; empty where it is of the same."""
    if run.matrix_hash != loaded.content_hash:
        return other_matrix(run, loaded)
    for name in ("level", "kernel", "device", "check_version", "qualify_version"):
        if getattr(run, name) != getattr(first, name):
            return (
                f"its {name.replace('_', ' ')} is {getattr(run, name)!r}, and that of others {getattr(first, name)!r}"
            )
    for environment in ("", *run.environments):
        there, here = run.stack_of(environment), first.stack_of(environment)
        if there and here and not there.agrees_with(here):
            return f"it is of another stack{f' of {environment}' * bool(environment)}: {stack_words(here, there)}"
    for kernel, code in (run.code or {}).items():
        if changed := code_change((first.code or {}).get(kernel, code), code):
            return f"{kernel}: {changed}"
    return ""


def odd_ones(parts: Sequence[tuple[T, Run]], weight: Callable[[T], int], loaded: LoadedMatrix) -> list[tuple[T, str]]:
    """The parts whose runs are not evidence of the same thing as most runs, each with what differs.

    Args:
        parts: for example shares, each with its run.
        weight: how much a part counts.
    """
    kinds: list[tuple[Run, list[T]]] = []
    for part, run in parts:
        for number, (first, some) in enumerate(kinds):
            if not other_evidence(run, first, loaded):
                kinds[number] = (known_with(first, run), [*some, part])
                break
        else:
            kinds.append((run, [part]))
    if len(kinds) < 2:
        return []
    usual, most = max(kinds, key=lambda kind: sum(map(weight, kind[1])))
    return [(part, other_evidence(run, usual, loaded)) for part, run in parts if part not in most]


def known_with(first: Run, run: Run) -> Run:
    """The first run, with kernels, environments and mapped files added that only ``run`` has.

    A third run must agree with both.
    """
    known = replace(
        first,
        stack=_joined(first.stack, run.stack),
        environments={**run.environments, **{name: _with(it, run, name) for name, it in first.environments.items()}},
    )
    if first.code is None or run.code is None:
        return known
    return replace(known, code={**run.code, **first.code})


def _with(environment: Environment, run: Run, name: str) -> Environment:
    """An environment of the first run, with what only ``run`` knows of its stack."""
    return replace(environment, stack=_joined(environment.stack, run.stack_of(name)))


def _joined(one: Stack | None, other: Stack | None) -> Stack | None:
    return one.with_parts_of(other) if one and other else one or other
