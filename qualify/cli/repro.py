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
    emit_json,
    log_of,
    open_store,
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
    as_json: JsonOption = False,
) -> None:
    """Print a standalone Python script that repeats a failed case and exits 1 while it fails."""
    from qualify.cards.environments import parse_environments
    from qualify.cards.load import load_kernels
    from qualify.facts import codec
    from qualify.fleet.repro import find_wanted, reproduce

    kernels = load_kernels(tuple(cards or ()))
    with open_store(db, create=False) as store:
        given = typed(cards=cards, db=db or DEFAULT_DB)
        wanted = find_wanted(store, case_id, run_id, kernels, given, parse_environments(environment or ()))
    made = reproduce(wanted, shrink=shrink, say=log_of(quiet=quiet))
    if as_json:
        emit_json("repro", codec.to_data(made))
    else:
        emit(made.script, plain=True)
