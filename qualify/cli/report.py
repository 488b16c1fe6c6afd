"""``qualify report``: the page of a stored run."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from qualify.cli.shared import (
    AgainstOption,
    CardsOption,
    DbOption,
    JsonOption,
    OutOption,
    RunArgument,
    WaiversOption,
    emit_json,
    given,
    open_store,
    reading_only,
    typed,
)
from qualify.cli.terminal import emit


def report(
    run_id: RunArgument = "latest",
    against: AgainstOption = None,
    waivers: WaiversOption = None,
    db: DbOption = "",
    out: OutOption = Path("out"),
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the self-contained HTML report of a stored run, and its JSON twin."""
    reading_only()
    from qualify.cards.load import load_kernels
    from qualify.judge.against import compare_with
    from qualify.judge.beside import beside_baseline
    from qualify.judge.judged import judge
    from qualify.report.files import write_report

    other = given("--against", against)
    kernels, now = load_kernels(tuple(cards or ())), datetime.now(UTC)
    with open_store(db, create=False) as store:
        here = typed(cards=cards, db=db, waivers=waivers)
        judged = judge(store, store.resolve(run_id), kernels, now=now, waivers=waivers, typed=here)
        if other:
            judged = compare_with(store, judged, other, kernels, now=now, waivers=waivers)
        judged = beside_baseline(store, judged)
    run, shown = judged.run, (judged.selftest, judged.against, judged.slower, here, judged.weaker)
    path = write_report(out / run.id, run, judged.records, judged.conclusion, *shown)
    if as_json:
        emit_json("report", {"run": run.id, "report": str(path)})
    else:
        emit(str(path))
