"""``qualify db``: the evidence store."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qualify.cli.shared import DbOption, JsonOption, emit_json, login_name, open_store
from qualify.cli.terminal import emit, say
from qualify.errors import UsageError

if TYPE_CHECKING:
    from qualify.store.archive import Archive, Moved
    from qualify.store.store import Store

app = typer.Typer(help="The evidence store.", no_args_is_help=True, rich_markup_mode=None)


@app.command("upgrade")
def db_upgrade(db: DbOption = "", as_json: JsonOption = False) -> None:
    """Bring the evidence store's schema to this program's; opening a store does the same."""
    with open_store(db, create=True) as store:
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
        bool, typer.Option("--without-people", help="No sign-off and no comment: they hold names.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="The file. Default: ID.jsonl.gz, of the run or else the duel."),
    ] = None,
    db: DbOption = "",
    as_json: JsonOption = False,
) -> None:
    """Write a run with all its evidence, or duels, into one file, which another store can import."""
    if run_id is None and not duel:
        raise UsageError("db export: give RUN, or --duel ID. `qualify history` and the site list what is stored")
    with open_store(db, create=False) as store:
        duels = list(dict.fromkeys(store.resolve_duel(it) for it in duel or ()))
        run = store.resolve(run_id) if run_id is not None else None
        file = out or Path(f"{run or duels[0]}.jsonl.gz")
        if run:
            moved = store.export_run(run, file, duels=duels, people=not without_people)
        else:
            moved = store.export_duels(duels, file)
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
    """Add what an exported file holds to the store; what is there already stays as it is.

    A duel whose verdicts are not those that its times give is refused. A run that was deleted here comes back, and a
    note says who deleted it.
    """
    with open_store(db, create=True) as store:
        moved, where = store.import_run(file, partial(_check, store, file)), store.where
    if as_json:
        emit_json("db-import", _moved_data(moved) | {"store": where})
    else:
        emit("\n".join(f"{where}: {text}" for text in _moved_lines(moved, imported=True)))


def _check(store: Store, file: Path, given: Archive, _: str) -> None:
    """Tells what is known of a run or a duel before it is added. Raises UsageError where a duel was edited."""
    from qualify.cli.verify import duel_checked
    from qualify.store.archive import DuelArchive

    if told := store.deleted(given.id):
        say(f"note: {told}. It comes back with this import.")
    if not isinstance(given, DuelArchive):
        return
    found, unchecked = duel_checked(given.duel)
    if found:
        more = f", and {len(found) - 1} more" if found[1:] else ""
        raise UsageError(
            f"{file}: duel {given.id} contradicts itself: {found[0]}{more}. Nothing was imported. It was probably "
            f"edited: qualify verify {file}"
        )
    if unchecked:
        say(f"note: duel {given.id}: {unchecked}")


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
        counts = f"{moved.cases} cases, {moved.outcomes} outcomes"
        yield f"run {moved.run}{became(moved.new)}, {counts}, sha256 {moved.sha256}"
    if moved.signoffs or moved.comments:
        yield f"{counted(moved.signoffs, 'sign-off')} and {counted(moved.comments, 'comment')}{became(True)}"
    for it in moved.duels:
        sealed = "sealed" if it.sealed else "not sealed"
        yield f"duel {it.duel}{became(it.new)}, {it.cells} cells, {sealed}, sha256 {it.sha256}"


@app.command("prune")
def db_prune(
    keep_days: Annotated[int, typer.Option(min=1, metavar="N", help="Keep runs that ended in the last N days.")],
    keep_last: Annotated[int, typer.Option(min=0, metavar="N", help="Keep the newest N runs of each matrix.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be removed.")] = False,
    by: Annotated[str, typer.Option("--by", metavar="NAME", help="Who removes them. Default: your login name.")] = "",
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why. Default: their age.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    db: DbOption = "",
    as_json: JsonOption = False,
) -> None:
    """Remove old runs and duels with all their evidence; what a baseline, a sign-off or a hold needs stays.

    Who removed which run, when and why stays in the store: `qualify db deletions`.
    """
    from datetime import UTC, datetime, timedelta

    with open_store(db, create=False) as store:
        where, before = store.where, datetime.now(UTC) - timedelta(days=keep_days)
        old, held = store.old_runs(before, keep_last)
        duels, needed = store.old_duels(before, keep_last)
        goes = "would go" if dry_run else "goes"
        for what, runs, fought in ((goes, old, duels), ("held", held, needed)):
            for run in runs:
                say(f"{what:9}{run.id}  {run.matrix}  {run.started_at:%Y-%m-%d}  {run.state}")
            for duel in fought:
                say(f"{what:9}{duel.id}  {duel.matrix}  {duel.started_at:%Y-%m-%d}")
        if (old or duels) and not (dry_run or yes) and not _confirmed(len(old) + len(duels), where):
            old, duels = [], []
        note = {"by": by.strip() or login_name(), "how": _policy(keep_days, keep_last)}
        why = reason.strip() or f"it ended more than {keep_days} days before"
        removed = [run.id for run in old if dry_run or store.remove_run(run.id, **note, reason=why)]
        gone = [duel.id for duel in duels if dry_run or store.remove_duel(duel.id, **note, reason=why)]
    if as_json:
        kept = {"held": [run.id for run in held], "duels_held": [duel.id for duel in needed]}
        emit_json("db-prune", {"store": where, "dry_run": dry_run, "removed": removed, "duels_removed": gone, **kept})
    else:
        would = "would be removed" if dry_run else "removed"
        of_duels = f"; {len(gone)} of duels {would}, {len(needed)} held" if duels or needed else ""
        emit(f"{where}: {len(removed)} {'run' if len(removed) == 1 else 'runs'} {would}, {len(held)} held{of_duels}")


def _policy(keep_days: int, keep_last: int) -> str:
    """The command as the note of a deletion has it."""
    last = f" --keep-last {keep_last}" if keep_last else ""
    return f"qualify db prune --keep-days {keep_days}{last}"


@app.command("deletions")
def db_deletions(
    limit: Annotated[int, typer.Option("--limit", min=1, metavar="N", help="The newest N.")] = 50,
    db: DbOption = "",
    as_json: JsonOption = False,
) -> None:
    """List runs and duels that were deleted, newest first: when, by whom, how and why."""
    from qualify.facts import codec
    from qualify.facts.deletion import deletion_words

    with open_store(db, create=False) as store:
        found = store.deletions(limit)
    if as_json:
        emit_json("db-deletions", {"deletions": [codec.to_data(it) for it in found]})
    else:
        emit("\n".join(map(deletion_words, found)) or "nothing was deleted")


def _confirmed(count: int, where: str) -> bool:
    """Whether the person at the terminal says yes; where nobody sits, --yes must be on the command line."""
    if not sys.stdin.isatty():
        raise UsageError("nobody is here to confirm the removal. Look at it with --dry-run, then give --yes.")
    return typer.confirm(f"Remove {count} from {where} for ever?", err=True)
