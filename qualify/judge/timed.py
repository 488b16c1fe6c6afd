"""The verdict about time: the newest duel that counts, or the history of runs, and the budgets of the matrix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from qualify.cards.traffic import TrafficCard, parse_traffic
from qualify.facts.case import Case
from qualify.facts.clock import is_future
from qualify.facts.code import code_change
from qualify.facts.duel import Duel
from qualify.facts.performance import BudgetUse, CellChange, Performance
from qualify.facts.run import Run
from qualify.facts.stack import Stack
from qualify.facts.typed import Typed
from qualify.judge.duels import check_duel
from qualify.judge.judged import Judged
from qualify.plan.shapes import asks, bucket_shapes
from qualify.seal.duel_form import duel_lines
from qualify.seal.keys import PublicKey
from qualify.seal.sealed import check_seal
from qualify.statistics.installed import check_installed, install, missing
from qualify.store.store import Store
from qualify.verdict.gate import forbid_regression
from qualify.verdict.performance import Weights, duel_changes, gone_since, use_budgets, without_budgets, worst_first

if TYPE_CHECKING:
    from qualify.judge.levels import Levels

LOOKED_AT = 50
"""how many of a matrix's newest duels are searched for one that counts"""


def with_performance(
    store: Store,
    judged: Judged,
    *,
    now: datetime,
    max_age: timedelta | None,
    required: bool = False,
    keys: Sequence[PublicKey] = (),
) -> Judged:
    """The verdict with what is known about time; unchanged where the matrix has no budget and no duel is required.

    Args:
        max_age: an older duel does not count; None = however old.
        required: no verdict without a duel that counts, whatever the policy says.
        keys: one of these must have sealed the duel, and each run of the history; empty = no seal is needed.
    """
    policy = judged.matrix.policy.performance
    required = required or policy.require == "duel"
    if not policy.budgets and not required:
        return judged
    accepted = "duel" if required and policy.evidence == "history" else policy.evidence
    heads = () if accepted == "history" else store.duels(judged.run.matrix, limit=LOOKED_AT, times=False)
    duel, no_duel = (None, "") if accepted == "history" else _newest_duel(store, judged, heads, now, max_age, keys)
    wanted = accepted != "duel" and bool(policy.budgets)
    past = _of_history(store, judged, now, keys, only=accepted == "history") if wanted else None
    old, lost, before, told = (past.cells, past.gone, past.before, past.notes) if past else ((), (), "", ())
    if no_duel and accepted == "either" and wanted and (names := missing()):
        no_duel += f"; history needs {' and '.join(names)}, which this interpreter lacks: {install()}"
    cells = _together(duel, old)
    found = Performance(
        accepted=accepted,
        duel=duel.id if duel else "",
        at=duel.finished_at if duel else None,
        against=duel.a if duel else "the runs before" if before else "",
        stack_a=duel.stack_a.fingerprint if duel else before,
        budgets=_judged(cells, judged, _gone(duel, lost), required=required) if cells else (),
        cells=tuple(sorted(cells, key=worst_first)),
        why_not=_no_evidence(cells, no_duel, required=required),
        required=required or bool(policy.budgets),
    )
    notes = (*judged.notes, *told, *(_ahead(store, judged.run, heads, now) if duel else ()))
    return replace(judged, notes=notes, performance=found, conclusion=forbid_regression(judged.conclusion, found))


def _gone(duel: Duel | None, lost: Sequence[CellChange]) -> list[CellChange]:
    """The cells that could be run before and cannot now; history, where it knows one, knows how fast it was."""
    known = {cell.cell for cell in lost}
    return [*lost, *(cell for cell in (gone_since(duel) if duel else ()) if cell.cell not in known)]


def _judged(
    cells: Sequence[CellChange], judged: Judged, gone: Sequence[CellChange], *, required: bool
) -> tuple[BudgetUse, ...]:
    """The result for each budget; where a duel is required and there is no budget, the result of its cells."""
    budgets = judged.matrix.policy.performance.budgets
    if required and not budgets:
        from qualify.statistics.verdicts import margin_of  # noqa: PLC0415 - it needs scipy, as the duel did

        return (without_budgets(cells, margin_of),)
    return use_budgets(cells, budgets, weights_of(judged), gone)


def _of_history(store: Store, judged: Judged, now: datetime, keys: Sequence[PublicKey], *, only: bool) -> Levels | None:
    """What history says of each case; None where scipy is missing and a duel may do instead.

    Importing scipy takes longer than a whole gate, and a base install lacks it: only budgets need it.
    """
    if only:
        check_installed("policy.performance.evidence: history")
    elif missing():
        return None
    from qualify.judge.levels import levels  # noqa: PLC0415 - as said above

    return levels(store, judged, now=now, keys=keys)


def _together(duel: Duel | None, past: Sequence[CellChange]) -> list[CellChange]:
    """What the duel says of each cell that it timed, and what history says of the others."""
    fought = duel_changes(duel) if duel else ()
    cases = {cell.name: cell.b for cell in duel.cells} if duel else {}
    old = {cell.cell: cell for cell in past}
    found = []
    for cell in fought:
        instead = old.pop(cases[cell.cell], None)
        found.append(instead if cell.change is None and instead and instead.change is not None else cell)
    return [*found, *old.values()]


def _no_evidence(cells: Sequence[CellChange], no_duel: str, *, required: bool) -> str:
    """Why no evidence counts that may judge the times; empty where some does."""
    if no_duel and (required or not cells):
        return no_duel
    if any(cell.change is not None for cell in cells):
        return ""
    told = next((cell.reason for cell in cells), "no case of the run was timed")
    return f"{no_duel}; {told}" if no_duel else told


def _newest_duel(
    store: Store,
    judged: Judged,
    heads: Sequence[Duel],
    now: datetime,
    max_age: timedelta | None,
    keys: Sequence[PublicKey],
) -> tuple[Duel | None, str]:
    """The newest duel that says something about the run's stack; or None, and why not.

    Where that duel was edited, or its verdicts could not be computed again, no older one takes its place: perhaps the
    newest one said that the stack is slower.

    Args:
        heads: the duels of the matrix without their times, newest first.
    """
    run, accepted, reasons = judged.run, _accepted_stack(store, judged), list[str]()
    for head in heads:
        why = _why_not(head, run, now, max_age) or _shows_nothing(head, run, accepted) or _other(head, judged)
        if why:
            reasons.append(f"{head.id} does not count: {why}")
            continue
        found = store.duel(head.id)
        checked = check_seal(found.seal, duel_lines(found.duel), head.id, keys, what="duel") if keys else None
        why = (checked.why_not if checked else "") or _unproven(found.duel, judged.typed)
        if not why:
            return found.duel, ""
        reasons.append(f"{head.id} does not count: {why}")
        if checked is None or not checked.why_not or checked.differences:
            return None, reasons[-1]
    return None, reasons[0] if reasons else f"no duel of {run.matrix} is stored"


def _unproven(duel: Duel, typed: Typed) -> str:
    """Why a duel proves nothing about any time; empty where it does."""
    found = check_duel(duel)
    if found.contradictions:
        return f"{found.why_not}. What differs: {typed.command('verify', duel.id)}"
    return found.unchecked or ("" if any(cell.ratio for cell in duel.cells) else "no cell of it was timed")


def _ahead(store: Store, run: Run, heads: Iterable[Duel], now: datetime) -> tuple[str, ...]:
    """A note on the newest duel of a run that is dated in the future, where an older one counts: it may be newer."""
    for duel in (*heads, *store.duels(run.matrix, limit=LOOKED_AT, times=False, ahead=True)):
        if is_future(duel.finished_at, now) and not _of_something_else(duel, run):
            found = ", ".join(f"{count} {verdict}" for verdict, count in duel.counts().items() if count)
            dated = f"it is dated in the future ({duel.finished_at:%Y-%m-%d %H:%M} UTC), because a clock was wrong"
            told = f"{duel.id} does not count, though it may be the newest: {dated}. Its cells: {found}. Fight it again"
            return (told,)
    return ()


def _why_not(duel: Duel, run: Run, now: datetime, max_age: timedelta | None) -> str:
    """Why a duel says nothing about a run now; empty where it does."""
    if is_future(duel.finished_at, now):
        return "it is dated in the future"
    if max_age is not None and now - duel.ended_by > max_age:
        return f"it is older than {max_age}"
    return _of_something_else(duel, run)


def _of_something_else(duel: Duel, run: Run) -> str:
    """Why a duel says nothing about a run, whenever it was; empty where it does."""
    if duel.null or duel.planted:
        return "it compares a side with itself"
    if duel.select:
        return f"it was narrowed by --select {duel.select!r}"
    if any(cell.name == cell.b.rpartition("/")[0] for cell in duel.cells):
        return (
            f"it compares two kernels, {duel.a} and {duel.b}; only a duel of the earlier environment with this one "
            "counts"
        )
    if duel.matrix_hash != run.matrix_hash:
        return "the matrix has changed since"
    if not any(stack.agrees_with(duel.stack_b) for stack in run.stacks):
        return f"its side B ({duel.b}) ran on another stack than the run"
    return ""


def _shows_nothing(duel: Duel, run: Run, accepted: Stack | None) -> str:
    """Why a duel cannot show what changed since the accepted baseline; empty where it can, or nothing changed.

    Args:
        accepted: the stack of the baseline; None where nobody accepted one.
    """
    if accepted is None or run.stack is None or accepted.agrees_with(run.stack):
        return ""
    if duel.stack_a.agrees_with(duel.stack_b):
        return (
            f"its sides, {duel.a} and {duel.b}, ran on equal stacks, but the run's stack is not the baseline's. Fight "
            "a duel with the baseline's libraries; none can compare drivers, firmware or settings of one card"
        )
    if duel.stack_b.agrees_with(accepted):
        return (
            f"its side B ({duel.b}) ran on the baseline's stack, so it asks whether that one is slower. Fight it with "
            f"the sides exchanged: {duel.b} {duel.a}"
        )
    return ""


def _other(duel: Duel, judged: Judged) -> str:
    """Why a duel timed another kernel, or another call of it, than the evidence is of; empty where it did not."""
    for kernel, now in (judged.run.code or {}).items():
        if kernel in duel.code and code_change(duel.code[kernel], now):
            return f"it timed other code of {kernel}"
    cases = (record.case for record in judged.records)
    changed = next((it for it in cases if duel.content.get(it.id, it.content_hash) != it.content_hash), None)
    return f"the card of {changed.kernel}, or the call, has changed since: {changed.id}" if changed else ""


def _accepted_stack(store: Store, judged: Judged) -> Stack | None:
    """The stack of the run that the gate compares with, or else of the accepted baseline; None where there is none."""
    run = judged.run
    if judged.against:
        return judged.against.comparison.before.stack
    baseline = store.baseline(run.matrix, run.stack.device.variant) if run.stack else None
    before = store.runs_of([baseline.run_id]).get(baseline.run_id) if baseline else None
    return before.stack if before else None


def weights_of(judged: Judged) -> Weights:
    """How often the traffic of the run's matrix makes the call of each production shape; empty where it names none."""
    if not judged.run.traffic_source:
        return {}
    traffic = parse_traffic(judged.run.traffic_source, judged.run.matrix_path)
    return weights(traffic, [record.case for record in judged.records])


def weights(traffic: TrafficCard, cases: Iterable[Case]) -> Weights:
    """How often a traffic makes the call of each production shape; 0 where no bucket does."""
    asked = [
        (shape, bucket.weight)
        for bucket in traffic.buckets
        for shape in bucket_shapes(traffic.model_copy(update={"buckets": (bucket,)}))
    ]
    distinct = {case.cell: case for case in cases}
    return {cell: sum(weight for shape, weight in asked if asks(shape, case)) for cell, case in distinct.items()}
