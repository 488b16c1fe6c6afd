"""``qualify hold``: what a canary advises against, and what people did about it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qualify.cli.access import AccessOption, TokenFileOption, person_of
from qualify.cli.shared import LARGEST, DbOption, JsonOption, emit_json, open_store
from qualify.cli.terminal import emit
from qualify.text import one_line

if TYPE_CHECKING:
    from qualify.facts.people import HoldActionKind

app = typer.Typer(
    help="Nodes that a canary holds back: list, acknowledge, release.", no_args_is_help=True, rich_markup_mode=None
)
NOBODY_TOLD = ". No alert is sent: if a program cordoned the machine because of this hold, uncordon it yourself"
HoldArgument = Annotated[
    int, typer.Argument(min=1, max=LARGEST, metavar="HOLD", help="Number of a hold, as `list` prints it.")
]
ByOption = Annotated[
    str | None, typer.Option("--by", metavar="NAME", help="Who does it, without a token: a name that is not proven.")
]
ReasonOption = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why.")]


@app.command("list")
def hold_list(
    every: Annotated[bool, typer.Option("--all", help="Also those that ended.")] = False,
    db: DbOption = "",
    as_json: JsonOption = False,
) -> None:
    """List the open holds, and what people did about each.

    The newest comes first.
    """
    from qualify.report.sitepages.canaries import hold_lines, holds_data

    with open_store(db, create=False) as store:
        holds = store.canaries.holds(released=every)
        actions = store.people.hold_actions([hold.id for hold in holds])
    if as_json:
        emit_json("holds", {"holds": holds_data(holds, actions)})
    else:
        nothing = "no hold" if every else "no open hold; --all also lists those that ended"
        emit("\n".join(hold_lines(holds, actions)) or nothing)


@app.command("acknowledge")
def hold_acknowledge(
    hold: HoldArgument,
    reason: ReasonOption,
    by: ByOption = None,
    access: AccessOption = None,
    token_file: TokenFileOption = None,
    db: DbOption = "",
    as_json: JsonOption = False,
) -> None:
    """Say that somebody looks after a hold; it stays open."""
    _act(hold, "acknowledge", (by, token_file, access), reason, db, as_json=as_json)


@app.command("release")
def hold_release(
    hold: HoldArgument,
    reason: ReasonOption,
    by: ByOption = None,
    access: AccessOption = None,
    token_file: TokenFileOption = None,
    db: DbOption = "",
    as_json: JsonOption = False,
) -> None:
    """End a hold by hand, without a pass of its canary. The next fire that does not pass holds again."""
    _act(hold, "release", (by, token_file, access), reason, db, as_json=as_json)


def _act(
    hold: int,
    kind: HoldActionKind,
    who: tuple[str | None, Path | None, Path | None],
    reason: str,
    db: str,
    *,
    as_json: bool,
) -> None:
    """Acknowledge or release a hold.

    Args:
        who: the values of --by, --token-file and --access.
    """
    from qualify.cards.access import load_access
    from qualify.judge.signing import Tried, act_on_hold
    from qualify.report.sitepages.canaries import action_data

    (by, token_file, access), now = who, datetime.now(UTC)
    card = load_access(access) if access else None
    with open_store(db, create=False) as store:
        tried = Tried(action=kind, subject=f"hold {hold}")
        person = person_of(store, by, token_file, card, "comment", tried, now)
        done = act_on_hold(store, hold, kind, person, reason=reason, now=now)
    if as_json:
        emit_json("hold-action", action_data(done))
    else:
        emit(f"hold {hold}: {kind}d by {one_line(done.who)}{NOBODY_TOLD if kind == 'release' else ''}")
