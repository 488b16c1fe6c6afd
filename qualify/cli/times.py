"""``qualify history`` and ``qualify best``: how a time moved over many runs, and which kernel is the fastest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from qualify.cli.outputs import check_kind, check_output
from qualify.cli.shared import (
    LARGEST,
    CardsOption,
    DbOption,
    JsonOption,
    MatrixArgument,
    emit_json,
    open_store,
    reading_only,
    typed,
)
from qualify.cli.terminal import emit, say
from qualify.errors import InfrastructureError, NoVerdict, UsageError
from qualify.files import is_file
from qualify.text import one_line, shell_word


def history(
    case: Annotated[
        str,
        typer.Argument(
            metavar="CASE", help="Case id, a glob over ids, or words as for --select. Default with --matrix: all."
        ),
    ] = "",
    matrix: Annotated[str, typer.Option("--matrix", metavar="NAME", help="Only runs of this matrix.")] = "",
    anchor: Annotated[
        str,
        typer.Option(
            "--anchor", metavar="CASE", help="Times relative to this case. Default: the median of all others."
        ),
    ] = "",
    last: Annotated[int, typer.Option("--last", min=1, max=LARGEST, metavar="N", help="Newest runs to look at.")] = 200,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Also write every point to this file.")
    ] = None,
    otava: Annotated[
        Path | None, typer.Option("--otava", metavar="DIR", help="Also write files for Apache Otava into this folder.")
    ] = None,
    db: DbOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show how the time of a case moved over the stored runs.

    It names the runs at which the level changed.

    It finds slow drift. It is no gate: a duel decides whether a release is slower.
    """
    reading_only()
    from qualify.statistics.installed import check_installed

    check_installed("qualify history")
    from qualify.judge.history import histories
    from qualify.report.history import to_csv, to_data, to_text, write_otava
    from qualify.report.replacing import write_output
    from qualify.report.written import COLUMNS, OTAVA, OTAVA_BEGINS

    if not case and not matrix:
        raise UsageError("give a case (an id, or a glob), or a matrix: --matrix NAME. Try: qualify history --help")
    if csv:
        check_output("--csv", csv, db, "history.csv", begins=COLUMNS[0])
    if otava:
        if is_file(otava):
            raise UsageError(f"--otava {otava}: is a file. Give a folder, which need not exist.")
        check_kind("--otava", otava / OTAVA, "another folder", begins=OTAVA_BEGINS)
    with open_store(db, create=False) as store:
        found = histories(
            store, matrix or None, case, anchor=anchor, limit=last, tell=lambda told: say(f"qualify: {told}")
        )
    if csv:
        with _written(f"--csv {csv}"):
            write_output(csv, to_csv(found))
        say(f"wrote {one_line(str(csv))}")
    if otava:
        with _written(f"--otava {otava}"):
            otava.mkdir(parents=True, exist_ok=True)
            config = write_otava(otava, found)
        say(f"for Otava: otava --config-file {shell_word(str(config))} list-tests")
    if as_json:
        emit_json("history", to_data(found))
    else:
        emit(to_text(found))


@contextmanager
def _written(place: str) -> Iterator[None]:
    """Names the place as it was typed, where it cannot be written: the error names a file that is renamed into it."""
    try:
        yield
    except OSError as error:
        told = f"{place}: the history cannot be written: {error.strerror or error}. Choose another place."
        raise InfrastructureError(told) from error


def best(
    matrix: MatrixArgument,
    db: DbOption = "",
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Name the fastest proven kernel for each production shape.

    It reads the newest run of the matrix, and gives the interval of each time.
    """
    reading_only()
    from qualify.cards.load import load_kernels, load_matrix
    from qualify.judge.best import best_kernels
    from qualify.judge.judged import judge
    from qualify.plan.code import code_of_cards
    from qualify.report import best as best_report

    extra, now = tuple(cards or ()), datetime.now(UTC)
    kernels, loaded = load_kernels(extra), load_matrix(matrix, extra)
    given = typed(cards=cards, db=db)
    with open_store(db, create=False) as store:
        run = store.latest(loaded.card.matrix)
        if run is None:
            raise NoVerdict(f"no run of {loaded.card.matrix} is stored: {given.command('run', loaded.typed)}")
        judged = judge(store, run.id, kernels, now=now, part=True, code=code_of_cards(extra), typed=given)
    found = best_kernels(judged)
    if why := best_report.why_partial(judged):
        say(f"qualify: {why}")
    if as_json:
        emit_json("best", best_report.to_data(judged, found, now))
    else:
        emit(best_report.to_text(judged, found, now))
