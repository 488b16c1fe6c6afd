"""What several commands share: their options, how a store is opened, how a result is printed."""

from __future__ import annotations

import gc
import os
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from qualify.cli.terminal import emit, say
from qualify.errors import UsageError
from qualify.facts.devices import DeviceKind
from qualify.text import without_password

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qualify.facts.typed import Typed
    from qualify.store.store import Store


DEFAULT_DB = ".qualify/evidence.db"


DeviceOption = Literal["auto", DeviceKind]
"""Where to run."""


class Level(str, Enum):
    """How much evidence to gather."""

    smoke = "smoke"
    full = "full"


MatrixArgument = Annotated[
    str, typer.Argument(metavar="MATRIX", help="Path of a matrix, or the name of a shipped one.")
]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Run id, a unique prefix of one, or `latest`.")]
SelectOption = Annotated[str | None, typer.Option("--select", metavar="GLOB", help="Only cases whose id matches.")]
KernelOption = Annotated[
    str | None, typer.Option("--kernel", metavar="NAME", help="Only this kernel, or these (a glob).")
]


def _told_of_strangers(cards: list[Path] | None) -> list[Path] | None:
    """The folders; what lies in them and is read as no card is told, because it was probably meant as one."""
    if cards:
        from qualify.cards.folders import strangers

        for line in strangers(tuple(cards)):
            say(f"note: {line}")
    return cards


CardsOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--cards",
        metavar="DIR",
        help="Folder with your own cards; may be repeated.",
        callback=_told_of_strangers,
    ),
]
EnvironmentOption = Annotated[
    list[str] | None,
    typer.Option(
        "--environment",
        metavar="NAME=PYTHON",
        help="Another interpreter, in which every kernel runs too, as KERNEL@NAME; may be repeated.",
    ),
]
DbOption = Annotated[
    str,
    typer.Option(
        "--db", metavar="URL", envvar="QUALIFY_DB", help=f"SQLAlchemy URL or SQLite path. Default: {DEFAULT_DB}"
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
OutOption = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for reports.")]
WaiversOption = Annotated[
    Path | None,
    typer.Option("--waivers", metavar="FILE", help="Waivers to judge by, instead of the file that the matrix names."),
]
AgainstOption = Annotated[
    str | None,
    typer.Option(
        "--against",
        metavar="RUN",
        help="Compare with a run, with the accepted `baseline`, or with that of a branch, `baseline:NAME`.",
    ),
]


def given(option: str, value: str | None) -> str:
    """The option's value, or "" where it is not there; one that is there and empty would silently mean its default."""
    if value == "":
        raise UsageError(f"{option} is empty: the variable that it comes from is probably not set")
    return value or ""


def fail(message: str, code: int) -> NoReturn:
    """End the program with a message."""
    say(f"qualify: {without_password(message)}")
    sys.exit(code)


def emit_json(kind: str, data: dict[str, Any]) -> None:
    """One strict JSON object, versioned by ``schema``; not-a-number and infinities become null."""
    from qualify.facts import codec

    emit(codec.to_json({"schema": f"qualify.{kind}/1", **data}))


def reading_only() -> None:
    """For commands that read evidence, answer once and end: nothing that they make becomes garbage before.

    Collecting it would only look through millions of records again and again: a third of the time. It stands before the
    command's imports, which make a lot that stays, too.
    """
    gc.disable()


def typed(
    *,
    cards: Iterable[Path] | None = None,
    db: str = "",
    waivers: Path | None = None,
    environments: Iterable[str] | None = None,
) -> Typed:
    """What printed commands repeat. An address with a password is left to QUALIFY_DB, or loses its password."""
    from qualify.facts.typed import Typed

    shown = db
    if db:
        from qualify.store.database import passwordless

        shown = passwordless(db)
        if shown != db and os.environ.get("QUALIFY_DB") == db:
            shown = ""
    return Typed(
        cards=tuple(map(str, cards or ())),
        db=shown,
        waivers=str(waivers or ""),
        environments=tuple(environments or ()),
    )


def open_store(db: str, *, create: bool) -> Store:
    """The store that --db names, or the default one."""
    from qualify.store.store import Store

    return Store.open(db or DEFAULT_DB, create=create)
