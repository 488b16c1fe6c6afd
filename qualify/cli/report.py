"""``qualify report``: the page of a stored run."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from qualify.cli.shared import (
    AgainstOption,
    CardsOption,
    DbOption,
    JsonOption,
    OutOption,
    RunArgument,
    WaiversOption,
    emit_json,
    open_store,
    reading_only,
    typed,
)
from qualify.cli.terminal import emit, say
from qualify.errors import NO_VERDICT

CliffsOption = Annotated[
    list[Path] | None,
    typer.Option("--cliffs", metavar="FILE", help="Show kernel maps that `qualify cliffs` wrote; may be repeated."),
]


def report(
    run_id: RunArgument = "latest",
    against: AgainstOption = None,
    waivers: WaiversOption = None,
    db: DbOption = "",
    out: OutOption = Path("out"),
    cliffs: CliffsOption = None,
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the HTML report of a stored run, and the same as JSON.

    The page is one file that loads nothing from elsewhere. Exit 5 where the
    run contradicts itself: somebody probably edited it.
    """
    reading_only()
    from qualify.cards.load import load_kernels
    from qualify.judge.against import compare_with
    from qualify.judge.beside import beside_baseline
    from qualify.judge.edits import contradictions_in, edited_message
    from qualify.judge.judged import judge
    from qualify.judge.timed import with_performance
    from qualify.report.beside import beside_of
    from qualify.report.cliffs import read_maps
    from qualify.report.files import clear_report, write_report

    other, now = against or "", datetime.now(UTC)
    with open_store(db, create=False) as store:
        resolved = store.resolve(run_id)
        clear_report(out / resolved)
        maps = [read_maps(path) for path in cliffs or ()]
        kernels = load_kernels(tuple(cards or ()))
        here = typed(cards=cards, db=db, waivers=waivers)
        judged = judge(store, resolved, kernels, now=now, waivers=waivers, typed=here)
        if other:
            judged = compare_with(store, judged, other, kernels, now=now, waivers=waivers)
        judged = with_performance(store, beside_baseline(store, judged), now=now, max_age=None)
        found = contradictions_in(store.evidence(judged.run.id, even_edited=True)) if judged.contradiction else ()
    run = judged.run
    path = write_report(out / run.id, run, judged.records, judged.conclusion, beside_of(judged, maps))
    if as_json:
        emit_json("report", {"run": run.id, "report": str(path), "contradictions": list(found)})
    else:
        emit(str(path))
    if found:
        say(f"qualify: {edited_message('run', run.id, found, here)}")
        raise typer.Exit(NO_VERDICT)
