"""How the production shapes of a matrix are shared among nodes: whoever is free takes the next ones.

Where nothing leads the nodes they are cut into shards beforehand, and every node knows its own by its number.

All kernels of a shape stay together, because their times are compared, and times of two cards never are. A node takes
large shares first and small ones at last, so that all nodes end at about the same time and few processes are started.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from qualify.cards.load import LoadedMatrix, in_environments, load_kernels, load_matrix
from qualify.errors import UsageError
from qualify.facts.fleet import NodePlan
from qualify.plan.plan import Plan, make_plan
from qualify.plan.selection import Selection

PART = 0.75
"""a node takes this share of its part of the waiting shapes at once"""
LEAST = 0.25
"""but at least this share of its part of all shapes: each time it starts new processes, half a minute on a GPU"""
ATTEMPTS = 3
"""nodes that may be lost with a shape, before it counts as the shape's fault"""


def cells_of(plan: Plan, *, selected: bool) -> tuple[str, ...]:
    """What ``--select`` takes for each production shape of a plan, in the plan's order.

    Args:
        selected: whether only a part of the cases is selected; then each id stands there by itself.
    """
    cells: dict[str, list[str]] = {}
    for case in (*plan.cases, *(case for case, _ in plan.refused)):
        cells.setdefault(case.cell, []).append(case.id)
    if not selected:
        return tuple(f"{cell}/*" for cell in cells)
    # A word without a glob would match longer ids too.
    return tuple(" ".join(f"{case_id[:-1]}[{case_id[-1]}]" for case_id in ids) for ids in cells.values())


def cells_to_share(loaded: LoadedMatrix, plan: NodePlan) -> tuple[str, ...]:
    """What ``--select`` takes for each production shape that nodes share; none where every card runs all.

    Raises:
        NothingSelected: the plan selects no case.
        UsageError: its cards are not here, or its matrix does not have its kernel.
    """
    kernels = in_environments(load_kernels(tuple(map(Path, plan.cards))), loaded.environments)
    selection = Selection(select=plan.select or "", kernel=plan.kernel or "")
    found = make_plan(loaded, kernels, selection=selection)
    return cells_of(found, selected=bool(plan.select)) if plan.spread == "shard" else ()


def shards_of(loaded: LoadedMatrix, plan: NodePlan) -> tuple[tuple[str, ...], ...]:
    """The production shapes of each shard, as ``--select`` takes them; the same wherever this matrix is planned.

    Raises:
        NothingSelected: the plan selects no case.
        UsageError: the plan has no shards, or more of them than production shapes.
    """
    if plan.spread != "shard" and plan.shards:
        raise UsageError(
            f'{plan.matrix}: {plan.shards} shards need "spread": "shard" in the plan. It has "{plan.spread}", which is '
            "the default, and then every card runs all shapes. Add the field, or leave out `shards` and `shard`."
        )
    if plan.shards < 1:
        raise UsageError(
            f'{plan.matrix}: the plan has no shards. For 16 nodes it needs "spread": "shard", "shards": 16'
        )
    cells = sorted(cells_to_share(loaded, plan))
    if len(cells) < plan.shards:
        raise UsageError(
            f"{plan.matrix}: {plan.shards} shards are too many: the plan has {len(cells)} production shapes, and each "
            "shard needs one."
        )
    return tuple(tuple(cells[number :: plan.shards]) for number in range(plan.shards))


def of_shard(plan: NodePlan) -> NodePlan:
    """The plan of one node, which selects its shard; a plan without shards as it is.

    Raises:
        NothingSelected: the plan selects no case.
        UsageError: the plan has no such shard, names none of those that it has, or cannot be planned at all.
    """
    shared = bool(plan.shards or plan.shard)
    if not shared and plan.matrix_hash:  # whoever knows the hash has planned it, and thousands of ids take seconds
        return plan
    loaded = load_matrix(plan.matrix, tuple(map(Path, plan.cards)), {})
    if not shared:
        cells_to_share(loaded, plan)  # refuses what no card could run, before anything starts
        return plan
    shards = shards_of(loaded, plan)
    if not 1 <= plan.shard <= len(shards):
        raise UsageError(
            f"{plan.matrix}: the plan has shards 1 to {len(shards)}, and not {plan.shard}. --shard says which one this "
            "node runs; an array has as many tasks as its plan has shards."
        )
    return replace(plan, select=" ".join(shards[plan.shard - 1]))


class Shapes:
    """The production shapes that wait for a card."""

    def __init__(self, cells: Sequence[str], cards: int) -> None:
        """All of them wait.

        Args:
            cards: that share them.
        """
        self._waiting = deque(cells)
        self.total, self._cards = len(cells), max(1, cards)
        self._lost: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def take(self, cards: int) -> tuple[str, ...]:
        """The next shapes for a node of so many cards; none where all are taken."""
        part = cards / self._cards
        size = max(math.ceil(len(self._waiting) * part * PART), math.ceil(self.total * part * LEAST))
        return tuple(self._waiting.popleft() for _ in range(min(size, len(self._waiting))))

    def give_back(self, cells: Sequence[str]) -> tuple[str, ...]:
        """Put the shapes of a lost node first in line. Returns those given up: too many nodes were lost with them."""
        self._lost.update(cells)
        given_up = tuple(cell for cell in cells if self._lost[cell] >= ATTEMPTS)
        self._waiting.extendleft(reversed([cell for cell in cells if cell not in given_up]))
        return given_up

    def again(self, cells: Sequence[str]) -> None:
        """Put shapes last in line, without counting it against them."""
        self._waiting.extend(cells)
