"""``qualify profile``: what Nsight Compute counts while a case's kernel runs."""

from __future__ import annotations

from qualify.cli.shared import (
    DEFAULT_DB,
    CardsOption,
    CaseArgument,
    DbOption,
    EnvironmentOption,
    JsonOption,
    RunWithCaseOption,
    emit_json,
    open_store,
    typed,
)
from qualify.cli.terminal import emit, say


def profile(
    case_id: CaseArgument,
    run_id: RunWithCaseOption = "",
    environment: EnvironmentOption = None,
    db: DbOption = "",
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a kernel's memory traffic and tensor cores with Nsight.

    Nsight Compute counts the device memory that the kernel of a case moves, and how busy the tensor cores are.
    """
    from qualify.cards.environments import parse_environments
    from qualify.cards.load import load_kernels
    from qualify.fleet.profile import profile_case
    from qualify.fleet.repro import find_wanted
    from qualify.report.counters import to_data, to_text

    kernels = load_kernels(tuple(cards or ()))
    with open_store(db, create=False) as store:
        given = typed(cards=cards, db=db or DEFAULT_DB)
        wanted = find_wanted(store, case_id, run_id, kernels, given, parse_environments(environment or ()), "profile")
        found = profile_case(store, wanted, say)
    if as_json:
        emit_json("profile", to_data(found))
    else:
        emit(to_text(found))
