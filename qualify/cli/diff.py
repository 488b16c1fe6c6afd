"""``qualify diff`` and ``qualify bisect``: what changed between two runs, and which component to blame."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qualify.cli.shared import (
    CardsOption,
    DbOption,
    JsonOption,
    WaiversOption,
    emit_json,
    open_store,
    reading_only,
    typed,
)
from qualify.cli.terminal import emit
from qualify.errors import UsageError
from qualify.text import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qualify.cards.load import LoadedKernel
    from qualify.facts.comparison import Comparison
    from qualify.facts.typed import Typed
    from qualify.store.store import Store


def diff(
    before: Annotated[str, typer.Argument(metavar="A", help="Run id, prefix, `latest` or `baseline` (that of B).")],
    after: Annotated[str, typer.Argument(metavar="B", help="Run id, a unique prefix, or `latest`.")] = "latest",
    waivers: WaiversOption = None,
    db: DbOption = "",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Also write DIR/A..B/diff.html and diff.json.")
    ] = None,
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two runs: stack, verdicts, kernels, numbers and times."""
    reading_only()
    from qualify.cards.load import load_kernels
    from qualify.report.differences import to_data, to_text

    with open_store(db, create=False) as store:
        if out:
            _clear(store, out, before, after)
        kernels, now = load_kernels(tuple(cards or ())), datetime.now(UTC)
        given = typed(cards=cards, db=db, waivers=waivers)
        comparison = _compared(store, before, after, kernels, waivers, now, given)
    path = _write(out, comparison) if out else None
    if as_json:
        emit_json("diff", to_data(comparison) | ({"report": str(path)} if path else {}))
    else:
        emit(to_text(comparison) + (f"\nreport: {one_line(str(path))}" if path else ""))


def _clear(store: Store, out: Path, before: str, after: str) -> None:
    """Removes the page that an earlier command wrote of the two runs; where no baseline is accepted, there is none."""
    from qualify.judge.against import BASELINE
    from qualify.judge.beside import baseline_of
    from qualify.report.files import clear_diff

    if after.partition(":")[0] == BASELINE:  # the comparison refuses it
        return
    later, (word, _, name) = store.run(store.resolve(after)), before.partition(":")
    baseline = baseline_of(store, later, name) if word == BASELINE else None
    earlier = baseline.run_id if baseline else "" if word == BASELINE else store.resolve(before)
    clear_diff(out, earlier, later.id)


def _write(out: Path, comparison: Comparison) -> Path:
    """Writes the page, and its data as JSON; returns the path of the page."""
    from qualify.report.files import write_diff

    return write_diff(out, comparison)


def _compared(
    store: Store,
    before: str,
    after: str,
    kernels: Mapping[str, LoadedKernel],
    waivers: Path | None,
    now: datetime,
    given: Typed,
) -> Comparison:
    """Two stored runs, judged and compared."""
    from qualify.judge.against import BASELINE, compare_with, the_same_run
    from qualify.judge.judged import judge
    from qualify.judge.notes import ahead_note, contradiction_note

    if after.partition(":")[0] == BASELINE:
        raise UsageError(f"B is the run that is compared, and A may be the baseline: give {after} first, then the run")
    judged = judge(store, store.resolve(after), kernels, now=now, waivers=waivers, typed=given)
    compared = compare_with(store, judged, before, kernels, now=now, waivers=waivers).against
    assert compared is not None, "it was just compared"
    if compared.baseline and compared.baseline.run_id == judged.run.id:
        raise the_same_run(store, judged.run, "is the accepted baseline itself", given)
    comparison = compared.comparison
    doubts = [*ahead_note(judged.future, now), *contradiction_note(judged.run, judged.contradiction)]
    return replace(comparison, caveats=(*comparison.caveats, *doubts))


def bisect(
    before: Annotated[str, typer.Argument(metavar="A", help="The run before: id, prefix or `baseline` (that of B).")],
    after: Annotated[str, typer.Argument(metavar="B", help="The run in which something got worse.")],
    plan: Annotated[
        bool, typer.Option("--plan", help="Required: list the stacks to test. qualify installs none of them.")
    ] = False,
    select: Annotated[str, typer.Option("--select", metavar="GLOB", help="Look only at the cases that match.")] = "*",
    waivers: WaiversOption = None,
    db: DbOption = "",
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the fewest stacks to test, to find the component to blame.

    Stored runs of these stacks count as tests.
    """
    from qualify.cards.load import load_kernels
    from qualify.judge.bisection import plan_bisection
    from qualify.report.bisection import to_data, to_text

    if not plan:
        raise UsageError("qualify installs no stack by itself: add --plan, and it lists the stacks to test")
    kernels, now = load_kernels(tuple(cards or ())), datetime.now(UTC)
    with open_store(db, create=False) as store:
        given = typed(cards=cards, db=db, waivers=waivers)
        comparison = _compared(store, before, after, kernels, waivers, now, given)
        made = plan_bisection(store, comparison, kernels, select=select, now=now, waivers=waivers, typed=given)
    if as_json:
        emit_json("bisect", to_data(made))
    else:
        emit(to_text(made, given))
