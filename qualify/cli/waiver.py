"""``qualify waiver``: accepted failures."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from qualify.cli.shared import CardsOption, JsonOption, emit_json
from qualify.cli.terminal import emit
from qualify.errors import NOT_QUALIFIED, QUALIFIED

app = typer.Typer(
    help="Accepted failures, with an owner and an expiry date.", no_args_is_help=True, rich_markup_mode=None
)


@app.command("check")
def waiver_check(
    target: Annotated[str, typer.Argument(metavar="FILE|MATRIX", help="A waivers file, or a matrix that names one.")],
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say of every waiver whether it is in force.

    The exit code is 1 where one has expired.
    """
    from qualify.report.waivers import check_waivers, to_data, to_lines

    checked = check_waivers(target, tuple(cards or ()), datetime.now(UTC))
    if as_json:
        emit_json("waivers", to_data(checked))
    else:
        emit("\n".join(to_lines(checked)))
    raise typer.Exit(NOT_QUALIFIED if checked.expired else QUALIFIED)
