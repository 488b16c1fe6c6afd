"""Finds a canary whose fire could only fail, before the night, and the key of its card that is the cause."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from qualify.canary.duels import BASELINE
from qualify.cards.load import LoadedCanary, LoadedKernel, LoadedMatrix, load_kernels, load_matrix
from qualify.cards.places import dotted
from qualify.cards.source import read
from qualify.cards.words import Where
from qualify.errors import CardError, NothingSelected, UsageError
from qualify.plan.plan import Plan, make_plan
from qualify.plan.selection import Selection


def refuse_idle(loaded: LoadedCanary, folders: tuple[Path, ...]) -> None:
    """Refuse a canary that would run nothing on any machine, or whose duel could never begin.

    Args:
        folders: the ``--cards`` folders.

    Raises:
        UsageError: its matrix is wrong; a CardError where a key of its own card is the cause.
        NothingSelected: its matrix excludes all of its cases.
    """
    matrix, kernels = load_matrix(loaded.matrix, folders), load_kernels(folders)
    found = next(_problems(loaded, matrix, kernels), None)
    if found is not None:
        where, message = found
        raise CardError([(read(loaded.path).place(where), f"{dotted(where)}: {message}")])


def _problems(
    loaded: LoadedCanary, matrix: LoadedMatrix, kernels: Mapping[str, LoadedKernel]
) -> Iterator[tuple[Where, str]]:
    card = loaded.card
    narrowed: list[tuple[str, Selection]] = [("matrix", Selection())]
    if card.kernel:
        narrowed.append(("kernel", Selection(kernel=card.kernel)))
    if card.select:
        narrowed.append(("select", Selection(select=card.select, kernel=card.kernel or "")))
    if _why_idle(matrix, kernels, narrowed[-1][1]):  # a plan of a large matrix takes a second: one does, usually
        for key, selection in narrowed:
            if why := _why_idle(matrix, kernels, selection):
                yield (key,), why
    known = (BASELINE, *matrix.environments)
    if card.duel and card.duel.against not in known:
        lacks = f"{matrix.card.matrix} has no environment {card.duel.against}, so no duel could run"
        yield ("duel", "against"), f"{lacks}; write {BASELINE}, or name it under environments of the matrix"


def _why_idle(matrix: LoadedMatrix, kernels: Mapping[str, LoadedKernel], selection: Selection) -> str:
    """Why no case of a selection can run anywhere; empty where one can. What is wrong in the matrix is raised."""
    try:
        return _why_nothing(make_plan(matrix, dict(kernels), selection=selection))
    except (NothingSelected, UsageError) as error:
        if selection == Selection():
            raise
        return str(error)


def _why_nothing(plan: Plan) -> str:
    """Why no case of the plan can run anywhere; empty where one can."""
    if plan.cases:
        return ""
    count = len(plan.refused)
    which = "its only case is" if count == 1 else f"all of its {count} cases are"
    return f"{which} refused on every machine: {plan.why_refused()}"
