"""``qualify ingest``: the runs of many files, into one store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qualify.cli.shared import (
    DbOption,
    JsonOption,
    QuietOption,
    SignedByOption,
    Talk,
    emit_json,
    open_store,
    talk_of,
)
from qualify.cli.terminal import emit, say
from qualify.errors import QUALIFIED, UsageError

if TYPE_CHECKING:
    from qualify.fleet.intake import Taken
    from qualify.seal.keys import PublicKey
    from qualify.store.store import Store

TOLD = 100
"""files between two lines of the log"""


def ingest(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE", help="Files of `qualify node` or `db export`, or folders that hold such."),
    ],
    signed_by: SignedByOption = None,
    interim: Annotated[
        bool,
        typer.Option("--interim", help="Also take interim files: what lost nodes had measured until then."),
    ] = False,
    db: DbOption = "",
    quiet: QuietOption = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="A line for every file that is taken.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Add the runs of many files to the store.

    A run that is there already stays. A run that contradicts itself, or whose seal does not fit, is refused: then the
    exit code is 2, and the other files are still taken. If the command ends early, give the same files again.
    """
    from qualify.fleet.ingest import files_of
    from qualify.seal.keys import public_keys

    talk = talk_of(quiet=quiet, verbose=verbose)
    keys = public_keys(signed_by) if signed_by else []
    given = files_of(files, interim=interim)
    with open_store(db, create=True) as store:
        taken = _taken(store, given.files, keys, talk)
        where = store.where
    for path in given.unfinished:
        say(f"{path}: its node has not ended the run, so it is left out. If the node is lost, take it by --interim.")
    code = _show_taken(where, taken, given.unfinished, as_json=as_json)
    raise typer.Exit(code)


def _taken(store: Store, files: Sequence[Path], keys: Sequence[PublicKey], talk: Talk) -> list[Taken]:
    """What became of each file, in the order of the files."""
    from qualify.facts.clock import ahead_words
    from qualify.fleet.intake import Intake
    from qualify.fleet.patience import Patience

    found: dict[Path, Taken] = {}
    with Intake(store, keys, Patience(say)) as intake:
        for one in intake.take(files):
            found[one.file] = one
            if one.refused:
                say(one.refused)
            elif one.moved and one.moved.grown and talk != "quiet":
                say(f"{one.file}: run {one.moved.run} was there in part and has all of the file now")
            elif one.moved and talk == "verbose":
                say(f"{one.file}: run {one.moved.run} {'is added' if one.moved.new else 'was there already'}")
            if one.moved and one.moved.ahead:
                say(f"{one.file}: {ahead_words(one.moved.run, one.moved.ahead)}")
            if len(found) % TOLD == 0 and talk != "quiet":
                say(f"{len(found)} of {len(files)} files")
    return [found[file] for file in files]


def _show_taken(where: str, taken: Sequence[Taken], unfinished: Sequence[Path], *, as_json: bool) -> int:
    """Print what became of all files; returns the exit code."""
    from qualify.facts import codec
    from qualify.report.figures import counted

    moved = [one.moved for one in taken if one.moved]
    refused = {str(one.file): one.refused for one in taken if one.refused}
    new = sum(one.new for one in moved)
    if as_json:
        runs = [codec.to_data(one) for one in moved]
        left_out = [str(path) for path in unfinished]
        emit_json("ingest", {"store": where, "runs": runs, "new": new, "refused": refused, "left_out": left_out})
    else:
        old = f"{counted(len(moved) - new, 'run')} there already"
        more = f", {counted(len(unfinished), 'unfinished run')} left out" if unfinished else ""
        emit(f"{where}: {counted(new, 'run')} added, {old}, {counted(len(refused), 'file')} refused{more}")
    return UsageError.exit_code if refused else QUALIFIED
