"""``qualify db``: the evidence store."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from qualify.cli.shared import DbOption, JsonOption, RunArgument, emit_json, open_store
from qualify.cli.terminal import emit, say
from qualify.errors import UsageError

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
    run_id: RunArgument,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="The file. Default: RUN.jsonl.gz, with the run's id.")
    ] = None,
    db: DbOption = "",
    as_json: JsonOption = False,
) -> None:
    """Write a run with all its evidence into one file, which another store can import."""
    from qualify.facts import codec

    with open_store(db, create=False) as store:
        run = store.resolve(run_id)
        file = out or Path(f"{run}.jsonl.gz")
        moved = store.export_run(run, file)
    if as_json:
        emit_json("db-export", codec.to_data(moved) | {"file": str(file)})
    else:
        emit(f"{file}: run {moved.run}, {moved.cases} cases, {moved.outcomes} outcomes, sha256 {moved.sha256}")


@app.command("import")
def db_import(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `qualify db export` wrote.")],
    db: DbOption = "",
    as_json: JsonOption = False,
) -> None:
    """Add the run of an exported file to the store; one that is there already stays as it is."""
    from qualify.facts import codec

    with open_store(db, create=True) as store:
        moved, where = store.import_run(file), store.where
    if as_json:
        emit_json("db-import", codec.to_data(moved) | {"store": where})
    else:
        done = "added" if moved.new else "was there already"
        emit(f"{where}: run {moved.run} {done}, {moved.cases} cases, {moved.outcomes} outcomes, sha256 {moved.sha256}")


@app.command("prune")
def db_prune(
    keep_days: Annotated[int, typer.Option(min=1, metavar="N", help="Keep runs that ended in the last N days.")],
    keep_last: Annotated[int, typer.Option(min=0, metavar="N", help="Keep the newest N runs of each matrix.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be removed.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    db: DbOption = "",
    as_json: JsonOption = False,
) -> None:
    """Remove old runs with all their evidence; what a baseline or a sign-off holds stays."""
    from datetime import UTC, datetime, timedelta

    with open_store(db, create=False) as store:
        where, before = store.where, datetime.now(UTC) - timedelta(days=keep_days)
        old, held = store.old_runs(before, keep_last)
        for what, some in (("would go" if dry_run else "goes", old), ("held", held)):
            for run in some:
                say(f"{what:9}{run.id}  {run.matrix}  {run.started_at:%Y-%m-%d}  {run.state}")
        if old and not (dry_run or yes) and not _confirmed(len(old), where):
            old = []
        removed = [run.id for run in old if dry_run or store.remove_run(run.id)]
    if as_json:
        kept = [run.id for run in held]
        emit_json("db-prune", {"store": where, "dry_run": dry_run, "removed": removed, "held": kept})
    else:
        would = "would be removed" if dry_run else "removed"
        emit(f"{where}: {len(removed)} {'run' if len(removed) == 1 else 'runs'} {would}, {len(held)} held")


def _confirmed(count: int, where: str) -> bool:
    """Whether the person at the terminal says yes; where nobody sits, --yes must be on the command line."""
    if not sys.stdin.isatty():
        raise UsageError("nobody is here to confirm the removal. Look at it with --dry-run, then give --yes.")
    return typer.confirm(f"Remove {count} from {where} for ever?", err=True)
