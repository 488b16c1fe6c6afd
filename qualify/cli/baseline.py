"""``qualify baseline``: evidence that somebody accepted."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from qualify.cli.access import AccessOption, TokenFileOption, person_of
from qualify.cli.outputs import check_output
from qualify.cli.shared import (
    CardsOption,
    DbOption,
    JsonOption,
    RunArgument,
    WaiversOption,
    emit_json,
    open_store,
    typed,
)
from qualify.cli.terminal import emit, kept_elsewhere, say
from qualify.errors import NO_VERDICT

if TYPE_CHECKING:
    from qualify.facts.typed import Typed
    from qualify.judge.judged import Judged

ZIP = "PK"
"""how an exported baseline begins"""
NameOption = Annotated[
    str | None,
    typer.Option(
        "--name",
        metavar="NAME",
        help="Name of the baseline, for example a branch. Branches without one use the baseline without a name.",
    ),
]

app = typer.Typer(help="Evidence that somebody accepted.", no_args_is_help=True, rich_markup_mode=None)


@app.command("accept")
def baseline_accept(
    run_id: RunArgument,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why.")],
    by: Annotated[
        str | None,
        typer.Option("--by", metavar="NAME", help="Who accepts it, without a token: a name that is not proven."),
    ] = None,
    access: AccessOption = None,
    token_file: TokenFileOption = None,
    name: NameOption = None,
    waivers: WaiversOption = None,
    db: DbOption = "",
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Accept a qualified run as the baseline of its matrix.

    A baseline holds for one device model. A run whose kernels have other cards, code or checks now is refused.

    A token of the access file with the right to sign proves who accepts it. Without one the name is marked as unproven.
    """
    from qualify.cards.access import load_access
    from qualify.cards.load import load_kernels
    from qualify.judge.against import accepted
    from qualify.judge.beside import beside_baseline
    from qualify.judge.judged import judge
    from qualify.judge.newer import newer_failure
    from qualify.judge.signing import Tried
    from qualify.plan.code import code_of_cards
    from qualify.report.baselines import to_data, to_line
    from qualify.report.weaker import weaker_data, weaker_lines

    now, called = datetime.now(UTC), _name(name)
    card = load_access(access) if access else None
    with open_store(db, create=False) as store:
        kernels, given = load_kernels(tuple(cards or ())), typed(cards=cards, db=db, waivers=waivers)
        found = store.resolve(run_id)
        tried = Tried(action="accept", subject=f"run {found} as a baseline")
        person = person_of(store, by, token_file, card, "sign", tried, now)
        code = code_of_cards(cards or ())
        judged = judge(store, found, kernels, now=now, waivers=waivers, code=code, typed=given)
        weaker = beside_baseline(store, judged, called).weaker
        baseline = accepted(store, judged, by=person, reason=reason, now=now, name=called)
        notes = newer_failure(store, judged.run, kernels, now=now, waivers=waivers, typed=given) if baseline else []
    if baseline is None:
        _refuse(judged, given)
    with kept_elsewhere(f"Run {found} is accepted all the same: {typed(db=db).command('baseline', 'list')}"):
        if as_json:
            emit_json("baseline", to_data(baseline, current=True) | {"weaker": weaker_data(weaker), "notes": notes})
        else:
            more = (*(weaker_lines(weaker) if weaker else ()), *(f"note: {note}" for note in notes))
            emit("\n".join((to_line(baseline, current=True), *more)))


def _refuse(judged: Judged, here: Typed) -> NoReturn:
    """Ends the command where the run cannot become a baseline, with the exit code of its verdict."""
    from qualify.judge.against import why_not

    run = judged.run.id
    say(f"qualify: run {run} cannot become a baseline: {why_not(judged)}. See: {here.command('gate', '--run', run)}")
    raise typer.Exit(judged.conclusion.exit_code or NO_VERDICT)


@app.command("export")
def baseline_export(
    matrix: Annotated[str, typer.Argument(metavar="MATRIX", help="Name of the matrix.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="The file. Default: MATRIX.baseline.zip.")
    ] = None,
    name: NameOption = None,
    variant: Annotated[str, typer.Option("--variant", metavar="GLOB", help="Device model, as `list` prints it.")] = "*",
    db: DbOption = "",
    as_json: JsonOption = False,
) -> None:
    """Write the current baseline of a matrix into one file.

    The file holds its run, too. Another store can import it. A run that contradicts itself is refused.
    """
    from qualify.judge.exchange import send
    from qualify.report.baselines import to_data, to_line

    file = out or Path(f"{matrix}.baseline.zip")
    check_output("--out", file, db, "baseline.zip", begins=ZIP)
    with open_store(db, create=False) as store:
        baseline = send(store, matrix, variant, _name(name), file, typed(db=db))
    if as_json:
        emit_json("baseline", to_data(baseline, current=True) | {"file": str(file)})
    else:
        emit(f"{file}: {to_line(baseline, current=True)}")


@app.command("import")
def baseline_import(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `qualify baseline export` wrote.")],
    db: DbOption = "",
    as_json: JsonOption = False,
) -> None:
    """Add a baseline and its run to the store. A later baseline of the same name stays the current one.

    A run that contradicts itself is refused.
    """
    from qualify.judge.exchange import receive
    from qualify.report.baselines import to_data, to_line

    with open_store(db, create=True) as store:
        received = receive(store, file, now=datetime.now(UTC))
    if not received.new:
        say(f"qualify: {file}: the store has this baseline, or a later one, already; nothing was added")
    if as_json:
        emit_json("baseline", to_data(received.current, current=True) | {"new": received.new})
    else:
        emit(to_line(received.current, current=True))


def _name(name: str | None) -> str:
    """The name that was given, or none."""
    from qualify.judge.against import check_name

    if name is not None:
        check_name(name, f"--name {name}")
    return name or ""


@app.command("list")
def baseline_list(
    matrix: Annotated[str, typer.Option("--matrix", metavar="NAME", help="Only of the matrix of that name.")] = "",
    db: DbOption = "",
    as_json: JsonOption = False,
) -> None:
    """List every acceptance, the newest first.

    The current one of each matrix and device model is marked.
    """
    from qualify.judge.baselines import marked
    from qualify.report.baselines import to_data, to_line

    with open_store(db, create=False) as store:
        found = marked(store.baselines(matrix or None))
    if as_json:
        emit_json("baselines", {"baselines": [to_data(item, current=current) for item, current in found]})
    else:
        emit("\n".join(to_line(item, current=current) for item, current in found) or "no baseline")


@app.command("show")
def baseline_show(
    matrix: Annotated[str, typer.Argument(metavar="NAME", help="Name of the matrix.")],
    variant: Annotated[str, typer.Option("--variant", metavar="GLOB", help="Device model, as `list` prints it.")] = "*",
    waivers: WaiversOption = None,
    db: DbOption = "",
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the current baselines of a matrix: who accepted what, why.

    It also says how each one is judged today.
    """
    from qualify.cards.load import load_kernels
    from qualify.judge.baselines import current_of
    from qualify.judge.judged import judge
    from qualify.report.baselines import to_data, to_line
    from qualify.report.verdict_text import to_text

    now, kernels = datetime.now(UTC), load_kernels(tuple(cards or ()))
    with open_store(db, create=False) as store:
        given = typed(cards=cards, db=db, waivers=waivers)
        found = current_of(store, matrix, variant, given)
        judged = [judge(store, item.run_id, kernels, now=now, waivers=waivers, typed=given) for item in found]
    if as_json:
        pairs = zip(found, judged, strict=True)
        shown = [to_data(item, current=True) | {"verdict": run.conclusion.verdict} for item, run in pairs]
        emit_json("baselines", {"baselines": shown})
        return
    for item, run in zip(found, judged, strict=True):
        emit(f"{to_line(item, current=True)}\n{to_text(run, now)}")
