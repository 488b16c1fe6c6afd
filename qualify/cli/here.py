"""``qualify kernels`` and ``qualify doctor``: what this machine has."""

from __future__ import annotations

import typer

from qualify.cli.shared import (
    DEFAULT_DB,
    CardsOption,
    DbOption,
    EnvironmentOption,
    JsonOption,
    emit_json,
    reading_only,
    typed,
)
from qualify.cli.terminal import emit
from qualify.errors import DeviceError


def kernels(environment: EnvironmentOption = None, cards: CardsOption = None, as_json: JsonOption = False) -> None:
    """List every kernel: available here or not, and why."""
    from qualify.cards.environments import parse_environments
    from qualify.fleet.probe import list_kernels

    found = list_kernels(tuple(cards or ()), parse_environments(environment or ()))
    if as_json:
        emit_json("kernels", {"kernels": found})
        return
    width = max(22, *(len(kernel["kernel"]) for kernel in found))
    for kernel in found:
        state = f"available ({kernel['version']})" if kernel["available"] else "; ".join(kernel["reasons"])
        emit(f"{kernel['kernel']:{width}} {state}")


def doctor(environment: EnvironmentOption = None, db: DbOption = "", as_json: JsonOption = False) -> None:
    """Say whether this machine is ready for a run, and what it has.

    It names what would make a run untrustworthy, or keep it from storing evidence, and ends with a verdict.
    """
    reading_only()
    from qualify.cards.environments import parse_environments
    from qualify.facts import codec
    from qualify.fleet import readiness
    from qualify.fleet.doctor import examine, to_lines
    from qualify.fleet.probe import list_kernels

    environments = parse_environments(environment or ())
    found = examine(environments)
    answering = {one.name: one.python for one in found.environments}
    listed = list_kernels((), answering)
    found = readiness.with_store(readiness.with_idle(found, listed), db or DEFAULT_DB)
    groups = readiness.grouped(listed)
    verdict = readiness.verdict_on(found, groups, typed(db=db, environments=environment))
    if as_json:
        emit_json("doctor", codec.to_data(found) | {"kernels": groups, "verdict": verdict})
    else:
        emit("\n".join([*to_lines(found), *readiness.to_lines(groups, verdict)]))
    if any(item.severity == "error" for item in found.concerns):
        raise typer.Exit(DeviceError.exit_code)
