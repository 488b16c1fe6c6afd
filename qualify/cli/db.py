"""``qualify db``: the evidence store."""

from __future__ import annotations

import sys
from collections.abc import Container, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qualify.cli.outputs import check_output
from qualify.cli.shared import DEFAULT_DB, LARGEST, DbOption, JsonOption, emit_json, login_name, open_store, typed
from qualify.cli.terminal import emit, say
from qualify.errors import UsageError
from qualify.text import one_line

if TYPE_CHECKING:
    from qualify.facts.duel import Duel
    from qualify.facts.run import Run
    from qualify.store.archive import Archive, Moved
    from qualify.store.retention import Retention
    from qualify.store.store import Store

LONGEST_DAYS = 36_500
GZIP = "\x1f\x8b"
"""how an exported file begins"""

app = typer.Typer(help="The evidence store.", no_args_is_help=True, rich_markup_mode=None)


@app.command("upgrade")
def db_upgrade(db: DbOption = "", as_json: JsonOption = False) -> None:
    """Bring the store to this program's schema.

    Every command that opens a store does the same.
    """
    from qualify.store.store import Store

    with Store.open(db or DEFAULT_DB) as store:
        where = store.where
    if as_json:
        emit_json("db", {"store": where})
    else:
        emit(f"{where} is up to date")


@app.command("export")
def db_export(
    run_id: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Run id, a unique prefix of one, or `latest`.")
    ] = None,
    duel: Annotated[
        list[str] | None,
        typer.Option("--duel", metavar="ID", help="A duel, alone or beside the run, or `latest`; may be repeated."),
    ] = None,
    without_people: Annotated[
        bool, typer.Option("--without-people", help="Leave out sign-offs and comments: they hold names.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="The file. Default: ID.jsonl.gz, of the run or else the duel."),
    ] = None,
    db: DbOption = "",
    as_json: JsonOption = False,
) -> None:
    """Write a run or duels with all evidence into one file.

    Another store can import the file. A run or a duel that contradicts itself is refused.
    """
    from qualify.judge.edits import refuse_contradicting

    if run_id is None and not duel:
        raise UsageError("db export: give RUN, or --duel ID. `qualify history` and the site list what is stored")
    with open_store(db, create=False) as store:
        duels = list(dict.fromkeys(store.resolve_duel(it) for it in duel or ()))
        run = store.resolve(run_id) if run_id is not None else None
        file = out or Path(f"{run or duels[0]}.jsonl.gz")
        check_output("--out", file, db, "run.jsonl.gz", begins=GZIP)

        def vouch(given: Archive) -> None:
            refuse_contradicting(given, typed=typed(db=db))
            _tell_unfinished(given)

        if run:
            moved = store.export_run(run, file, duels=duels, people=not without_people, vouch=vouch)
        else:
            moved = store.export_duels(duels, file, vouch)
    if as_json:
        emit_json("db-export", _moved_data(moved) | {"file": str(file)})
    else:
        emit(f"{file}: " + "; ".join(_moved_lines(moved)))


@app.command("import")
def db_import(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `qualify db export` wrote.")],
    db: DbOption = "",
    as_json: JsonOption = False,
) -> None:
    """Add what an exported file holds to the store.

    What is there already stays as it is. An unfinished run gets what the file has more.

    A run that contradicts itself is refused, and so is a duel whose verdicts do not follow from its times. A run that
    was deleted here comes back, and a note says who deleted it.
    """
    from qualify.facts.clock import ahead_words

    with open_store(db, create=True) as store:
        moved, where = store.import_run(file, partial(_check, store, file)), store.where
    if moved.ahead:
        say(f"note: {ahead_words(moved.run, moved.ahead)}")
    if as_json:
        emit_json("db-import", _moved_data(moved) | {"store": where})
    else:
        emit("\n".join(f"{where}: {text}" for text in _moved_lines(moved, imported=True)))


def _check(store: Store, file: Path, given: Archive, _: str) -> None:
    """Tells what is known of a run or a duel before it is added. Raises UsageError where it was edited."""
    from qualify.judge.edits import refuse_edited

    if told := store.retention.deleted(given.id):
        say(f"note: {told}. It comes back with this import.")
    if unchecked := refuse_edited(file, given):
        say(f"note: duel {given.id}: {unchecked}")
    _tell_unfinished(given)


def _tell_unfinished(given: Archive) -> None:
    """Tells of a run that may go on what becomes of it where its file is imported."""
    from qualify.store.archive import RunArchive

    if isinstance(given, RunArchive) and given.run.state != "completed":
        state = f"run {given.id} is {given.run.state}"
        say(f"note: {state}. Once it has gone on, export it again: an import then adds the rest.")


def _moved_data(moved: Moved) -> dict[str, Any]:
    """The run and each duel of a file, for a program."""
    from qualify.facts import codec

    data: dict[str, Any] = codec.to_data(moved)
    return data | {"run": moved.run or None}


def _moved_lines(moved: Moved, *, imported: bool = False) -> Iterator[str]:
    """The run, what people said of it, and each duel of a file, in words."""
    from qualify.report.figures import counted

    def became(new: bool) -> str:
        return (" added" if new else " was there already") if imported else ""

    if moved.run:
        counts = f"{counted(moved.cases, 'case')}, {counted(moved.outcomes, 'outcome')}"
        how = " was there in part and has all of the file now" if moved.grown else became(moved.new)
        yield f"run {moved.run}{how}, {counts}, sha256 {moved.sha256}"
    if moved.signoffs or moved.comments:
        yield f"{counted(moved.signoffs, 'sign-off')} and {counted(moved.comments, 'comment')}{became(True)}"
    for it in moved.duels:
        sealed = "sealed" if it.sealed else "not sealed"
        yield f"duel {it.duel}{became(it.new)}, {counted(it.cells, 'cell')}, {sealed}, sha256 {it.sha256}"


@app.command("prune")
def db_prune(
    keep_days: Annotated[
        int, typer.Option(min=1, max=LONGEST_DAYS, metavar="N", help="Keep what ended in the last N days.")
    ],
    keep_last: Annotated[
        int, typer.Option(min=0, max=LARGEST, metavar="N", help="Keep the newest N of each matrix.")
    ] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be removed.")] = False,
    by: Annotated[str, typer.Option("--by", metavar="NAME", help="Who removes them. Default: your login name.")] = "",
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why. Default: their age.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    db: DbOption = "",
    as_json: JsonOption = False,
) -> None:
    """Remove old runs and duels with all their evidence.

    What a baseline, a sign-off or a hold needs stays, and so does a run that is being run.

    Who removed which run, when and why stays in the store: `qualify db deletions`.
    """
    from datetime import timedelta

    with open_store(db, create=False) as store:
        # By the store's clock, as its leases are: the clock of this machine may be wrong by months.
        where, before = store.where, store.canaries.now() - timedelta(days=keep_days)
        old, held = store.retention.old_runs(before, keep_last)
        duels, needed = store.retention.old_duels(before, keep_last)
        _say_each("would go" if dry_run else "goes", old, duels)
        _say_each("held", held, needed, store.retention.being_run())
        if (old or duels) and not (dry_run or yes) and not _confirmed(_many(len(old), len(duels)), where):
            old, duels = [], []
        removed, gone = [run.id for run in old], [duel.id for duel in duels]
        if not dry_run:
            note = {
                "by": by.strip() or login_name(),
                "how": _policy(keep_days, keep_last),
                "reason": reason.strip() or f"it ended more than {keep_days} days before",
            }
            removed, gone = _removed(store.retention, removed, gone, note)
    if as_json:
        kept = {"held": [run.id for run in held], "duels_held": [duel.id for duel in needed]}
        emit_json("db-prune", {"store": where, "dry_run": dry_run, "removed": removed, "duels_removed": gone, **kept})
        return
    would = "would be removed" if dry_run else "removed"
    stay = _many(len(held), len(needed)) if duels or needed else str(len(held))
    emit(f"{where}: {_many(len(removed), len(gone) if duels or needed else None)} {would}, {stay} held")


def _many(runs: int, duels: int | None) -> str:
    """How many runs and duels, in words; duels None = the words leave duels out."""
    from qualify.report.figures import counted

    return counted(runs, "run") + ("" if duels is None else f" and {counted(duels, 'duel')}")


def _removed(
    retention: Retention, runs: Iterable[str], duels: Iterable[str], note: dict[str, str]
) -> tuple[list[str], list[str]]:
    """Remove runs and duels; returns those that went. What a baseline, a sign-off or a hold needs by now stays."""
    gone = [name for name in runs if retention.remove_run(name, **note)]
    return gone, [name for name in duels if retention.remove_duel(name, **note)]


def _say_each(what: str, runs: Iterable[Run], duels: Iterable[Duel], busy: Container[str] = ()) -> None:
    """One line for each run and each duel, on stderr; ``busy``: the ids of runs that are being run."""
    for run in runs:
        state = "being run" if run.id in busy else run.state
        say(f"{what:9}{run.id}  {run.matrix}  {run.started_at:%Y-%m-%d}  {state}")
    for duel in duels:
        say(f"{what:9}{duel.id}  {duel.matrix}  {duel.started_at:%Y-%m-%d}")


def _policy(keep_days: int, keep_last: int) -> str:
    """The command as the note of a deletion has it."""
    last = f" --keep-last {keep_last}" if keep_last else ""
    return f"qualify db prune --keep-days {keep_days}{last}"


@app.command("deletions")
def db_deletions(
    limit: Annotated[int, typer.Option("--limit", min=1, max=LARGEST, metavar="N", help="The newest N.")] = 50,
    db: DbOption = "",
    as_json: JsonOption = False,
) -> None:
    """List deleted runs and duels: when, by whom, how and why.

    The newest comes first.
    """
    from qualify.facts import codec
    from qualify.facts.deletion import deletion_words

    with open_store(db, create=False) as store:
        found = store.retention.deletions(limit)
    if as_json:
        emit_json("db-deletions", {"deletions": [codec.to_data(it) for it in found]})
    else:
        emit("\n".join(one_line(deletion_words(it)) for it in found) or "nothing was deleted")


def _confirmed(what: str, where: str) -> bool:
    """Whether the person at the terminal says yes; where nobody sits, --yes must be on the command line."""
    if not sys.stdin.isatty():
        raise UsageError(f"nobody is here to confirm the removal of {what}. Look with --dry-run, then give --yes.")
    return typer.confirm(f"Remove {what} from {where} for ever?", err=True)
