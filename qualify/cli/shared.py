"""What several commands share: their options, how a store is opened, how a result is printed."""

from __future__ import annotations

import atexit
import gc
import json
import os
import pwd
import re
import sys
import tempfile
from contextlib import suppress
from enum import Enum
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from qualify.cli import completion
from qualify.cli.terminal import emit, say
from qualify.errors import CardError, InfrastructureError, UsageError
from qualify.facts.devices import DeviceKind
from qualify.text import LINE_BREAKS, one_line, unsaid, without_password

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from qualify.facts.typed import Typed
    from qualify.store.store import Store


DEFAULT_DB = ".qualify/evidence.db"
LARGEST = 2**31 - 1
"""the largest number that cards and every database take"""
SERVICES = ("canary serve", "web")
"""commands that programs start and leave running"""


DeviceOption = Literal["auto", DeviceKind]
"""Where to run."""
Talk = Literal["quiet", "usual", "verbose"]
"""How much a command says on stderr while it works."""


class Level(str, Enum):
    """How much evidence to gather."""

    smoke = "smoke"
    full = "full"


LevelToRunOption = Annotated[
    Level | None, typer.Option("--level", help="smoke (default): seconds per kernel; full: everything.")
]
MatrixArgument = Annotated[
    str,
    typer.Argument(
        metavar="MATRIX", help="Path of a matrix, or the name of a shipped one.", autocompletion=completion.matrices
    ),
]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Run id, a unique prefix of one, or `latest`.")]
CaseArgument = Annotated[str, typer.Argument(metavar="CASE", help="Case id: model/phase/shape/dtype/mask/kernel.")]
RunWithCaseOption = Annotated[
    str, typer.Option("--run", metavar="RUN", help="Run id, prefix or `latest`. Default: newest with the case.")
]
SelectOption = Annotated[
    list[str] | None,
    typer.Option(
        "--select",
        metavar="WORDS",
        help="Only cases whose id has one of these words, like decode, or matches a glob; !fp16 leaves fp16 out. "
        "May be repeated.",
    ),
]
KernelOption = Annotated[
    str | None,
    typer.Option(
        "--kernel",
        metavar="NAME",
        help="Only this kernel, or these (a glob).",
        autocompletion=completion.kernels,
    ),
]


def _told_of_strangers(cards: list[Path] | None) -> list[Path] | None:
    """The folders. A note names each file that looks like a card and is not read as one, or that does not run."""
    if cards:
        from qualify.cards.folders import strangers
        from qualify.cards.load import load_kernels
        from qualify.cards.shadows import hidden_by_installed

        lines = strangers(tuple(cards))
        with suppress(CardError):  # the command itself says what is wrong with a card
            lines += hidden_by_installed(((one.card, one.path) for one in load_kernels(tuple(cards)).values()), cards)
        for line in lines:
            say(f"note: {one_line(line)}")
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
        "--db",
        metavar="URL",
        envvar="QUALIFY_DB",
        help=f"SQLAlchemy URL or SQLite path. Default: {DEFAULT_DB}",
    ),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no log: the result and errors.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="A line for every case that ends.")]
SignedByOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--signed-by",
        metavar="KEYS",
        help="A public key, or a folder of them: one of these keys must have sealed it; may be repeated.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
AlwaysJsonOption = Annotated[bool, typer.Option("--json", help="No effect: this command always prints JSON.")]
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
        help="Compare with a run, with the accepted `baseline`, or with a branch's baseline, `baseline:NAME`.",
    ),
]


def joined(select: Iterable[str] | None) -> str | None:
    """All values of ``--select`` as one, which is how a run keeps them; None where none was given.

    Raises:
        UsageError: one holds no word: it would select everything.
    """
    if select is None:
        return None
    words = list(select)
    if not all(it.replace(",", " ").strip() for it in words):
        raise UsageError("--select is empty: the variable that it comes from is probably not set")
    return " ".join(words)


def talk_of(*, quiet: bool, verbose: bool) -> Talk:
    """How much a command says on stderr. Raises UsageError for both options together."""
    if quiet and verbose:
        raise UsageError("--quiet and --verbose: give one of them")
    return "quiet" if quiet else "verbose" if verbose else "usual"


def log_of(*, quiet: bool) -> Callable[[str], None]:
    """The function that takes the lines of a command's log: they go to stderr, or nowhere with ``--quiet``."""
    return unsaid if quiet else say


def detail_of(talk: Talk) -> Callable[[str], None]:
    """The function that takes the lines that only ``--verbose`` shows."""
    return say if talk == "verbose" else unsaid


def refuse_empty(words: Sequence[str], groups: Collection[str]) -> None:
    """Raises UsageError for a value that is empty or of spaces: it would silently mean the default, or this folder.

    Args:
        words: the command line, without the program's name.
        groups: commands that are followed by a second one.
    """
    named = words[: 2 if words[:1] and words[0] in groups else 1]
    command = " ".join(["qualify", *(word for word in named if word and not word.startswith("-")), "--help"])
    for before, word in pairwise(words):
        option, sign, value = word.partition("=")
        if not word.strip():
            what = before if before.startswith("-") else "an argument"
        elif option.startswith("--") and sign and not value.strip():
            what = option
        else:
            continue
        raise UsageError(f"{what} is empty: the variable that it comes from is probably not set. Try: {command}")


def login_name() -> str:
    """The login of this process's user, whatever variables say; or the user's number."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


def _escaped(breaks: re.Match[str]) -> str:
    """Line breaks as they are written in a string of Python."""
    return breaks[0].encode("unicode_escape").decode()


def fail(message: str, code: int) -> NoReturn:
    """End the program with a message on stderr. With ``--json`` an object on stdout says it, too; GitHub is told.

    A service says it on stdout only: its stderr is a log.
    """
    words, message = sys.argv[1:], without_password(message)
    for value in filter(LINE_BREAKS.search, (part for word in words for part in (word, word.partition("=")[2]))):
        message = message.replace(value, LINE_BREAKS.sub(_escaped, value))  # its lines must not look like ours
    if wants_object(words):
        with suppress(InfrastructureError):  # stdout cannot be written, and stderr may be
            emit_line("error", {"error": message, "exit_code": code})
        if is_service(words):
            sys.exit(code)
    elif words[:1] == ["gate"] and "--github" in words:
        from qualify.cli.outputs import tell_github

        with suppress(InfrastructureError):
            tell_github(message, code)
    say(f"qualify: {message}")
    sys.exit(code)


def is_service(words: Sequence[str]) -> bool:
    """Whether a command line, without the program's name, starts a service."""
    return " ".join(words).startswith(SERVICES)


def wants_object(words: Sequence[str]) -> bool:
    """Whether a command line asks for one JSON object on stdout.

    Args:
        words: the command line, without the program's name.
    """
    if words[:1] == ["gate"]:
        return bool(alone(words))
    return "--json" in words


def alone(words: Sequence[str]) -> list[int]:
    """Where ``--json`` stands without a file behind it, on the command line of a command that takes options only."""
    following = zip_longest(words, words[1:], fillvalue="-")
    return [at for at, (word, after) in enumerate(following) if word == "--json" and after.startswith("-")]


def emit_json(kind: str, data: dict[str, Any]) -> None:
    """One strict JSON object, versioned by ``schema``; not-a-number and infinities become null."""
    from qualify.facts import codec

    emit(codec.to_pieces({"schema": f"qualify.{kind}/1", **data}), plain=True)


def emit_line(kind: str, data: dict[str, Any]) -> None:
    """The same on one line, for a program that starts a service and reads the line while the service goes on."""
    emit(json.dumps({"schema": f"qualify.{kind}/1", **data}), plain=True)


def reading_only() -> None:
    """Switch garbage collection off, for commands that read evidence or a machine, answer once and end.

    Collecting would only look through millions of records again and again, which takes a third of the time. A command
    calls this before its imports, because they make many objects that stay: torch's are a million. Python collects once
    more as it ends, disabled or not, except among frozen objects: that saves a fifth of the time of a small gate.
    """
    gc.disable()
    atexit.register(gc.freeze)


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
        from qualify.store.address import passwordless

        shown = passwordless(db)
        if shown != db and os.environ.get("QUALIFY_DB") == db:
            shown = ""
    return Typed(
        cards=tuple(map(str, cards or ())),
        db=shown,
        waivers=str(waivers or ""),
        environments=tuple(environments or ()),
    )


def check_folder(directory: Path) -> None:
    """Make the folder that ``--out`` names and try to write a file there, before a run that needs the folder.

    Raises:
        InfrastructureError: it cannot be made or written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise InfrastructureError(
            f"--out {directory}: nothing can be written there: {error.strerror or error}. Nothing was run. Choose "
            "another folder with --out DIR."
        ) from error


def open_store(db: str, *, create: bool) -> Store:
    """The store that --db names, or the default one.

    Args:
        create: whether the command's first write makes a missing file; otherwise a missing one is a StoreError.
    """
    from qualify.store.store import Store

    return Store.open(db or DEFAULT_DB, create="late" if create else False)
