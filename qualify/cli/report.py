"""``qualify report``: the page of a stored run."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from qualify.cli.shared import (
    CardsOption,
    DbOption,
    JsonOption,
    OutOption,
    RunArgument,
    WaiversOption,
    emit_json,
    open_store,
    reading_only,
)
from qualify.fleet.terminal import emit


def report(
    run_id: RunArgument = "latest",
    waivers: WaiversOption = None,
    db: DbOption = "",
    out: OutOption = Path("out"),
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the self-contained HTML report of a stored run, and its JSON twin."""
    from qualify.cards.load import load_kernels
    from qualify.report.files import write_report
    from qualify.report.judged import judge

    reading_only()
    kernels = load_kernels(tuple(cards or ()))
    with open_store(db, create=False) as store:
        judged = judge(store, store.resolve(run_id), kernels, now=datetime.now(UTC), waivers=waivers)
    path = write_report(out / judged.run.id, judged.run, judged.records, judged.conclusion, judged.selftest)
    if as_json:
        emit_json("report", {"run": judged.run.id, "report": str(path)})
    else:
        emit(str(path))
