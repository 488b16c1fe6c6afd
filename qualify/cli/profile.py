"""``qualify profile``: what Nsight Compute counts while a case's kernel runs."""

from __future__ import annotations

from typing import Annotated

import typer

from qualify.cli.shared import (
    DEFAULT_DB,
    CardsOption,
    DbOption,
    EnvironmentOption,
    JsonOption,
    emit_json,
    open_store,
    typed,
)
from qualify.cli.terminal import emit, say


def profile(
    case_id: Annotated[str, typer.Argument(metavar="CASE", help="Case id: model/phase/shape/dtype/mask/kernel.")],
    run_id: Annotated[
        str, typer.Option("--run", metavar="RUN", help="Run id, prefix or `latest`. Default: newest with the case.")
    ] = "",
    environment: EnvironmentOption = None,
    db: DbOption = "",
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count the device memory that a case's kernel moves, and its use of the tensor cores; needs Nsight Compute."""
    from qualify.cards.environments import parse_environments
    from qualify.cards.load import load_kernels
    from qualify.fleet.profile import profile_case
    from qualify.fleet.repro import find_wanted
    from qualify.report.counters import to_data, to_text

    kernels = load_kernels(tuple(cards or ()))
    with open_store(db, create=False) as store:
        given = typed(cards=cards, db=db or DEFAULT_DB)
        wanted = find_wanted(store, case_id, run_id, kernels, given, parse_environments(environment or ()))
        found = profile_case(store, wanted, say)
    if as_json:
        emit_json("profile", to_data(found))
    else:
        emit(to_text(found))
