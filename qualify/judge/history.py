"""History of times: series of each case on each card, relative to an anchor, and where their level moved.

A card is slower on a warm day, and its speed differs from month to month. Both change the time of the anchor in the
same run as much. So the ratio to the anchor's time shows a change of the kernel, and not one of the day. A change that
the anchor shares stays unseen. That is why only a duel decides.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from qualify.cards.problems import meant
from qualify.errors import NoVerdict, UsageError
from qualify.facts.differing import stack_words
from qualify.facts.environment import environment_of
from qualify.facts.history import HistoryChange, HistoryPoint, HistorySeries
from qualify.facts.run import Run
from qualify.judge.alike import Timed, alike
from qualify.judge.anchored import Anchors, CaseTime, times_of_runs
from qualify.plan.selection import selected_by
from qualify.statistics.history import LEAST_POINTS, change_points
from qualify.store.store import Store
from qualify.verdict.compare import changed_kernels


def histories(
    store: Store,
    matrix: str | None,
    select: str = "",
    *,
    anchor: str = "",
    limit: int = 200,
    tell: Callable[[str], None] = lambda _: None,
) -> list[HistorySeries]:
    """The series of the selected cases, of one matrix or of all.

    Args:
        select: an id, a glob over ids, or words as for ``--select``; empty = every case.
        anchor: id of the case that the times are relative to; empty = the median of all other cases of the same runs.
        limit: newest runs that are looked at.
        tell: takes a sentence about each kind of times that do not count: edited ones, and those of another call or
            measured in another way.

    Raises:
        NoVerdict: no run has timed anything.
        UsageError: no case matches, or the anchor was never timed.
    """
    runs = [run for run in reversed(store.runs(matrix, limit=limit)) if run.stack is not None]
    found, edited = times_of_runs((run.id, store.records(run.id, "times")) for run in runs)
    timed, left_out = alike(
        (_card(run, time), run.id, name, time) for run in runs for name, time in found[run.id].items()
    )
    for told in filter(None, (edited, *left_out)):
        tell(told)
    known = list(dict.fromkeys(case for own in timed.values() for times in own.values() for case in times))
    if not known:
        raise NoVerdict(_untimed(store, matrix))
    wanted, made = _wanted(known, select, anchor), {run.id: run for run in runs}
    return [
        series
        for card, times in timed.items()
        for series in _of_card(card, [made[run] for run in times], times, wanted, anchor)
    ]


def _of_card(
    card: str, runs: Sequence[Run], timed: Mapping[str, Timed], wanted: Sequence[str], anchor: str
) -> Iterator[HistorySeries]:
    """The series of the wanted cases on one card."""
    others = Anchors(timed)
    for case in wanted:
        if own := [run for run in runs if case in timed[run.id]]:
            yield _series(case, card, own, timed, anchor, others)


def _untimed(store: Store, matrix: str | None) -> str:
    """The message that there is no time to show; it names the stored matrices where one was probably mistyped."""
    known = sorted({run.matrix for run in store.runs(limit=None)})
    if matrix is None or not known:
        return f"no run in {store.where} has timed anything yet: qualify run MATRIX"
    near = meant(matrix, set(known) - {matrix})
    return (
        f"no run of matrix {matrix} in {store.where} has timed anything{near}. Runs are stored of: {', '.join(known)}"
    )


def _wanted(known: Sequence[str], select: str, anchor: str) -> list[str]:
    """The timed cases that are selected. Raises UsageError where there is none, or the anchor is none of them."""
    chosen = selected_by(select)
    wanted = [case for case in known if not select or fnmatch.fnmatchcase(case, select)]
    wanted = wanted or [case for case in known if chosen and chosen(case)]
    if not wanted:
        raise UsageError(f"no case that was timed matches {select!r}; there are {len(known)}, for example {known[0]}")
    if anchor and anchor not in known:
        raise UsageError(f"--anchor {anchor}: it was never timed; there are {len(known)} cases, for example {known[0]}")
    return wanted


def _card(run: Run, time: CaseTime) -> str:
    """The card that a case was timed on: cards that share a run time different cases of it."""
    assert run.stack is not None, "runs without a stack were left out"
    device = run.stack.device
    uuid = time.card or device.uuid
    return f"{device.name} {uuid}" if uuid != device.name else device.name


def _series(
    case: str, card: str, runs: Sequence[Run], timed: Mapping[str, Timed], anchor: str, others: Anchors
) -> HistorySeries:
    """The series of a case over the runs of one card that have timed it."""
    name, anchors = _anchor(case, runs, timed, anchor, others)
    kernel, made = case.rpartition("/")[2], {run.id: run for run in runs}
    points = []
    for run in runs:
        if name and run.id not in anchors:
            continue
        stack = run.stack_of(environment_of(kernel))
        points.append(
            HistoryPoint(
                run=run.id,
                at=run.started_at,
                stack=stack.fingerprint if stack else "",
                us=timed[run.id][case],
                anchor_us=anchors.get(run.id),
            )
        )
    few = f"not enough history: {len(points)} of at least {LEAST_POINTS} runs on this card"
    if without := len(runs) - len(points):
        few += f"; {without} more {'has' if without == 1 else 'have'} no time of {name}"
    return HistorySeries(
        case=case,
        card=card,
        anchor=name,
        points=tuple(points),
        changes=tuple(_changes(points, made, kernel)),
        why_not=few if len(points) < LEAST_POINTS else "",
    )


def _anchor(
    case: str, runs: Sequence[Run], timed: Mapping[str, Timed], anchor: str, others: Anchors
) -> tuple[str, Mapping[str, float]]:
    """What the times of a case are relative to, in words, and its time by run in µs; both empty without an anchor."""
    if anchor == case:
        return "", {}
    if anchor:
        return anchor, {run.id: timed[run.id][anchor] for run in runs if anchor in timed[run.id]}
    count, found = others.of(case, [run.id for run in runs])
    return (f"the median of {count} other case{'s' if count > 1 else ''}", found) if count else ("", {})


def _changes(points: Sequence[HistoryPoint], made: Mapping[str, Run], kernel: str) -> Iterable[HistoryChange]:
    for found in change_points([point.ratio for point in points]):
        point, earlier = points[found.index], points[found.index - 1]
        same = point.stack == earlier.stack
        before, after, name = made[earlier.run], made[point.run], environment_of(kernel)
        yield HistoryChange(
            run=point.run,
            at=point.at,
            change=found.change,
            p=found.p,
            stack="" if same else stack_words(before.stack_of(name), after.stack_of(name)),
            code=changed_kernels(before, after, [kernel]).get(kernel, ""),
        )
