"""What the advice hears of a judged run: the verdict in words, and what changed against the baseline."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from qualify.canary.messages import DuelSeen, Order, Seen
from qualify.cards.load import load_kernels
from qualify.errors import NoVerdict
from qualify.facts.comparison import Bucket, Change, Comparison, Topic
from qualify.facts.typed import level_words
from qualify.facts.waiver import WaiverUse
from qualify.judge.against import BASELINE, compare_with
from qualify.judge.beside import beside_baseline
from qualify.judge.judged import Judged, judge
from qualify.report.differences import change_text
from qualify.report.figures import limit_percent, signed_percent
from qualify.report.waived import waived_words
from qualify.report.weaker import sentence
from qualify.store.store import Store
from qualify.text import clipped, one_line
from qualify.verdict.compare import changed_kernels
from qualify.verdict.lapsed import lapsed_cases
from qualify.verdict.slower import factor

NAMED = 3
"""failures and changes that an alert names"""
LONGEST = 300
"""characters of each"""


def judge_run(order: Order, store: Store, run_id: str) -> Judged:
    """The verdict on the run, compared with the accepted baseline where there is one.

    It is now by the clock of the store, which all machines share: a machine whose own clock is wrong would believe what
    nobody else does.
    """
    kernels, now = load_kernels(tuple(map(Path, order.cards))), store.canaries.now()
    judged = judge(store, run_id, kernels, now=now, part=True)
    # The canary's own verdict stays: weaker requirements say nothing about the stack.
    judged = replace(judged, weaker=beside_baseline(store, judged).weaker)
    with suppress(NoVerdict):  # nobody accepted one, which the advice says
        return compare_with(store, judged, BASELINE, kernels, now=now)
    return judged


def seen_of(judged: Judged, slower: float, duel: DuelSeen | None = None) -> Seen:
    """What the advice needs of a verdict.

    Args:
        slower: share by which a time must have grown to count.
        duel: where it and two stored runs disagree, the duel counts.
    """
    run = judged.run
    against = judged.against
    comparison = against.comparison if against else None
    acquitted = duel.acquitted if duel else ()
    failing = _failing(judged)
    return Seen(
        run_id=run.id,
        matrix=run.matrix,
        variant=run.stack.device.variant if run.stack else "",
        verdict=judged.conclusion.verdict,
        failing=failing,
        expired=_expired(judged),
        weaker=_weaker(judged),
        waived=_short(waived_words(judged.conclusion)),
        doubt=_doubt(judged),
        demonstration=judged.conclusion.demonstration,
        baseline=comparison.before.id if comparison else None,
        stack=comparison.stack if comparison else (),
        regressions=_counted(comparison, "regression", ("verdicts", "kernels", "numbers", "times")),
        suspicious=_counted(comparison, "suspicious", ("verdicts", "kernels", "numbers", "bits")),
        slower=sum(_grew(change) > slower and change.id not in acquitted for change in comparison.times)
        if comparison
        else 0,
        examples=_examples(comparison, failing) if comparison else (),
        code=_changed_code(judged, comparison) if comparison else (),
        duel=replace(duel, within=_within(judged, duel)) if duel else None,
        whole=(run.matrix_path, *level_words(run.level), "--device", run.device) if run.narrowed else (),
    )


def _changed_code(judged: Judged, comparison: Comparison) -> tuple[str, ...]:
    """The kernels of the run whose own files changed since the baseline."""
    kernels = dict.fromkeys(record.case.kernel for record in judged.records)
    return tuple(changed_kernels(comparison.before, judged.run, kernels))


def _doubt(judged: Judged) -> str:
    """Why the whole evidence does not count, whatever it shows; empty where it is dated right."""
    if judged.future is None:
        return ""
    dated = f"it is dated {judged.future:%Y-%m-%d %H:%M} UTC, in the future of the store"
    return f"{dated}: the clock of that machine or of the store is wrong"


def _within(judged: Judged, duel: DuelSeen) -> bool:
    """Whether the matrix has budgets of time, and this duel keeps them all."""
    found = judged.performance
    return bool(found and found.duel == duel.id and found.budgets and found.verdict == "PASS")


def _over_budget(judged: Judged) -> list[tuple[str, tuple[str, ...]]]:
    """The budgets of time that a duel breaks, each with its reason."""
    found = judged.performance
    broken = [use for use in found.budgets if use.verdict == "FAIL"] if found else []
    return [
        (f"budget of {use.name}", (f"{share(use.change)} of {limit_percent(use.allowed)} % allowed, by {found.duel}",))
        for use in broken
        if found
    ]


def share(value: float | None) -> str:
    """A share in per cent."""
    return "an unknown change" if value is None else signed_percent(value)


def _failing(judged: Judged) -> tuple[str, ...]:
    """The first failing budgets, cases or shapes with their first reason, without those that a waiver accepted."""
    lapsed = lapsed_cases(judged.records, judged.conclusion)
    shapes = {record.case.cell for record in judged.records if record.case.id in lapsed}
    failed = [item for item in judged.conclusion.judgements if item.verdict == "FAIL" and item.case_id not in lapsed]
    cases = [(item.case_id, item.reasons) for item in failed]
    cells = [
        (cell.cell, cell.reasons)
        for cell in judged.conclusion.cells
        if cell.verdict == "FAIL" and cell.cell not in shapes
    ]
    found = [*_over_budget(judged), *(cases or cells)][:NAMED]
    return tuple(_short(f"{name}: {reasons[0] if reasons else 'failed'}") for name, reasons in found)


def _expired(judged: Judged) -> tuple[str, ...]:
    """The waivers past their end with what they accepted, where nothing else fails."""
    if _failing(judged) or (judged.against and judged.against.forbidden):
        return ()
    return tuple(map(_ended, judged.conclusion.expired))


def _ended(use: WaiverUse) -> str:
    told = f"{use.waiver.place}: waiver {use.waiver.id} has expired"
    if not use.failing:
        return told
    count = len(use.failing)
    fail = "case that it accepted fails" if count == 1 else "cases that it accepted fail"
    return _short(f"{told}, and {count:,} {fail}, first {use.failing[0]}")


def _weaker(judged: Judged) -> tuple[str, ...]:
    """The first requirements that are weaker than the policy allows."""
    if judged.weaker is None or not judged.weaker.forbidden:
        return ()
    points = [less for less in judged.weaker.changes if less.kind != "level"]
    more = [f"and {len(points) - NAMED} more"] if len(points) > NAMED else []
    return (*(_short(sentence(less)) for less in points[:NAMED]), *more)


def _counted(comparison: Comparison | None, bucket: Bucket, topics: Iterable[Topic]) -> dict[Topic, int]:
    lists = dict(comparison.topics()) if comparison else {}
    return {topic: sum(change.bucket == bucket for change in lists.get(topic, ())) for topic in topics}


def _grew(change: Change) -> float:
    """Share by which a suspicious time grew; 0.0 for any other change."""
    if change.bucket not in ("suspicious", "regression"):
        return 0.0
    return factor(change) - 1


def _examples(comparison: Comparison, failing: tuple[str, ...]) -> tuple[str, ...]:
    """The first changes that a reader must see.

    Args:
        failing: failures with their reasons, which are said anyway; a change to one of these does not repeat it.
    """
    worst = [
        (topic, change)
        for bucket in ("regression", "suspicious")
        for topic, changes in comparison.topics()
        for change in changes
        if change.bucket == bucket
    ]
    first = [(topic, _without_reason(it, failing) if topic == "verdicts" else it) for topic, it in worst[:NAMED]]
    return tuple(_short(f"{change.id}: {topic}: {change_text(topic, change)}") for topic, change in first)


def _without_reason(change: Change, failing: tuple[str, ...]) -> Change:
    """The change of a verdict, without the reason of a failure that is among these."""
    if not any(text.startswith(f"{change.id}: ") for text in failing):
        return change
    return replace(change, detail=change.detail.partition(": ")[0])


def _short(text: str) -> str:
    return clipped(one_line(text), LONGEST)
