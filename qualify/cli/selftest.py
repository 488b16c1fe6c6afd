"""``qualify selftest``: which planted faults the checks find."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from qualify.cli.shared import (
    LARGEST,
    DbOption,
    JsonOption,
    OutOption,
    QuietOption,
    check_folder,
    emit_json,
    open_store,
    talk_of,
)
from qualify.cli.terminal import emit, kept_elsewhere
from qualify.errors import NOT_QUALIFIED, QUALIFIED
from qualify.text import one_line


class SelfTestLevel(str, Enum):
    """At which level faults are planted."""

    smoke = "smoke"
    full = "full"
    both = "both"


def selftest(
    level: Annotated[
        SelfTestLevel, typer.Option(help="Where to plant faults; the result tells the levels apart.")
    ] = SelfTestLevel.both,
    runs: Annotated[
        int,
        typer.Option(
            min=0, max=LARGEST, metavar="N", help="Run at least so many correct cases; no check may fail on them."
        ),
    ] = 1000,
    fault: Annotated[str, typer.Option("--fault", metavar="GLOB", help="Only faults whose name matches.")] = "",
    db: DbOption = "",
    out: OutOption = Path("out"),
    quiet: QuietOption = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="A line for every fault and every correct kernel that ends.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Plant faults in a simulated kernel: do the checks find them?

    The exit code is 1 where a fault is missed.
    """
    from qualify.cli.counter import counter
    from qualify.facts import codec
    from qualify.facts.case import Level as CaseLevel
    from qualify.report.selftest import to_data, to_text, write_selftest
    from qualify.selftest.battery import SelftestOptions, chosen, run_battery

    talk = talk_of(quiet=quiet, verbose=verbose)
    chosen(fault)
    check_folder(out)
    levels = codec.from_data(tuple[CaseLevel, ...], ["smoke", "full"] if level is SelfTestLevel.both else [level.value])
    with open_store(db, create=True) as store:
        with counter("selftest", talk) as progress:
            result = run_battery(SelftestOptions(levels=levels, runs=runs, select=fault), progress)
        store.add_selftest(result)
    path = write_selftest(out, result)
    with kept_elsewhere(f"The result is stored, and its report is {one_line(str(path))}"):
        if as_json:
            emit_json("selftest", to_data(result) | {"report": str(path)})
        else:
            emit(f"{to_text(result)}\nreport: {one_line(str(path))}")
    raise typer.Exit(QUALIFIED if result.holds else NOT_QUALIFIED)
