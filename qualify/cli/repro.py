"""``qualify repro``: a script that repeats one case without this program."""

from __future__ import annotations

from typing import Annotated

import typer

from qualify.cli.shared import (
    DEFAULT_DB,
    CardsOption,
    CaseArgument,
    DbOption,
    EnvironmentOption,
    JsonOption,
    QuietOption,
    RunWithCaseOption,
    detail_of,
    emit_json,
    log_of,
    open_store,
    talk_of,
    typed,
)
from qualify.cli.terminal import emit


def repro(
    case_id: CaseArgument,
    run_id: RunWithCaseOption = "",
    shrink: Annotated[
        bool, typer.Option("--minimise", help="Shrink the workload while it fails in the same way (at most 60 trials).")
    ] = False,
    environment: EnvironmentOption = None,
    db: DbOption = "",
    cards: CardsOption = None,
    quiet: QuietOption = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="A line for every step of each attempt.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print a Python script that repeats a failed case.

    The script needs no matrix and no store, and exits 1 while the case fails.
    """
    from qualify.cards.environments import parse_environments
    from qualify.cards.load import load_kernels
    from qualify.facts import codec
    from qualify.fleet.repro import find_wanted, reproduce

    talk = talk_of(quiet=quiet, verbose=verbose)
    kernels = load_kernels(tuple(cards or ()))
    with open_store(db, create=False) as store:
        given = typed(cards=cards, db=db or DEFAULT_DB)
        wanted = find_wanted(store, case_id, run_id, kernels, given, parse_environments(environment or ()))
    made = reproduce(wanted, shrink=shrink, say=log_of(quiet=quiet), detail=detail_of(talk))
    if as_json:
        emit_json("repro", codec.to_data(made))
    else:
        emit(made.script, plain=True)
