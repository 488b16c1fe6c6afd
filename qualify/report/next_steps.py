"""What to do after a verdict, in order: for the terminal, for Markdown and for the head of the report."""

from __future__ import annotations

from collections.abc import Sequence

from qualify.assets import again_elsewhere
from qualify.facts.comparison import Change, Since
from qualify.facts.differing import stack_words
from qualify.facts.identity import UNMATCHED
from qualify.facts.typed import level_words
from qualify.judge.judged import Against, Judged
from qualify.report.next_step import NextStep
from qualify.report.performance import performance_steps
from qualify.report.slower import slower_steps
from qualify.report.troubles import Trouble, missing
from qualify.report.waived import waived_words
from qualify.report.weaker import weaker_steps
from qualify.verdict.compare import NAMED
from qualify.verdict.lapsed import lapsed_cases

EXPIRED = "remove it, or accept the failure again until another day"
"""what to do about a waiver that has expired"""


def next_steps(judged: Judged, found: Sequence[Trouble]) -> list[NextStep]:
    """What to do now, in order.

    Args:
        found: what failed or stayed open, the worst first.
    """
    run, verdict = judged.run, judged.conclusion.verdict
    first = NextStep("keep the release back")
    if judged.conclusion.demonstration:
        there = judged.typed.command(*again_elsewhere(run.matrix_path, run.matrix_source))
        first = NextStep("this result says nothing about a GPU; run it on the GPU host", there)
        if verdict != "FAIL" and not found and run.state == "completed":
            return [first]
    if verdict == "PASS" and run.narrowed:
        return [NextStep("promote nothing on a part of the matrix; run all of it", _again(judged))]
    if verdict == "PASS":
        return _promotion(judged)
    todo = [first]
    if judged.failed_cards:
        cards = ", ".join(judged.failed_cards)
        todo.append(NextStep(f"look at {cards} before anything runs there: nvidia-smi -q, and the kernel's log (Xid)"))
    if verdict == "FAIL":
        return [*todo, *_after_failure(judged, found)]
    return [*todo, *_without_verdict(judged, found)]


def _without_verdict(judged: Judged, found: Sequence[Trouble]) -> list[NextStep]:
    """What to do where nothing failed, and the evidence gives no verdict all the same."""
    run, typed = judged.run, judged.typed
    if judged.weaker and judged.weaker.forbidden and not (judged.stale or judged.future or missing(judged)):
        return weaker_steps(judged, judged.weaker)
    if judged.failed_cards:
        return [NextStep("then make evidence on a card that is sound", _again(judged))]
    if judged.future:
        return [NextStep("set the clock that is wrong, then make fresh evidence", _again(judged))]
    if run.state != "completed" and not (judged.stale or judged.below):  # a resumed run keeps its level
        wait = "wait until the run has ended; where its process has gone, finish it"
        finish = wait if run.state == "running" else "finish the run"
        return [NextStep(finish, typed.command("run", run.matrix_path, "--resume", run.id))]
    if judged.performance and judged.performance.verdict == "INCONCLUSIVE" and not (judged.stale or found):
        return performance_steps(judged, judged.performance)
    if judged.unsealed:
        return [
            NextStep("make evidence that one of the keys seals, with QUALIFY_SIGNING_KEY naming it", _again(judged))
        ]
    if judged.contradiction:
        return [NextStep("make evidence that nobody has edited", _again(judged))]
    if judged.stale or missing(judged):
        return [NextStep("make fresh evidence on that stack", _again(judged))]
    if judged.below:
        return [NextStep(f"make evidence at level {judged.below}", _again(judged))]
    if judged.part == "PASS":
        whole = typed.command("gate", "--matrix", run.matrix_path, *level_words(run.level))
        return [NextStep("promote nothing on a part of the matrix; judge all of it", whole)]
    return _undecided(judged, found)


def _undecided(judged: Judged, found: Sequence[Trouble]) -> list[NextStep]:
    """What to do where nothing failed, the evidence counts, and there is no verdict all the same."""
    if found and not _only_unmatched(found):
        undecided = NextStep(
            "nothing failed, but not everything was decided: see what the inconclusive checks say below"
        )
        return [undecided, NextStep("see what disturbs the machine", "qualify doctor")]
    if found:
        compare = "compare the launched names below with must_match of the kernel card (docs/recipes/own-kernel.md)"
        return [NextStep(f"nothing failed, but nothing proves which kernel ran: {compare}")]
    if all(item.verdict == "NOT_REQUIRED" for item in judged.conclusion.judgements):
        why = "every case is refused, or beyond the claims of its card"
        see = judged.typed.command("report", judged.run.id)
        return [NextStep(f"nothing failed, and nothing was proven: {why}. See why", see)]
    other = judged.against.comparison.before.id if judged.against else ""
    told = f"a caveat of the comparison with run {other}, or a note below, says" if other else "a note below says"
    return [NextStep(f"nothing failed: {told} why there is no verdict")]


def _only_unmatched(found: Sequence[Trouble]) -> bool:
    """Whether all that stays open is which kernel ran: what was launched has another name than the card says."""
    reasons = [trouble.reason for trouble in found if trouble.is_case]
    return bool(reasons) and all(reason.startswith(f"UNPROVEN: {UNMATCHED}") for reason in reasons)


def _again(judged: Judged) -> str:
    """The command that makes evidence that counts; for a run that the nodes of a fleet shared, the fleet's command."""
    run, typed = judged.run, judged.typed
    if run.placement is None or not run.placement.is_whole:
        return typed.command("run", run.matrix_path, *judged.again)
    if judged.stale or judged.future or judged.failed_cards or judged.below:
        return typed.command("fleet", run.matrix_path, "--spread", "shard", *level_words(judged.below or run.level))
    return typed.command("fleet", run.matrix_path, "--again", run.placement.fleet)


def _promotion(judged: Judged) -> list[NextStep]:
    """The advice to promote; where cases became slower, to look at these first."""
    waived = waived_words(judged.conclusion)
    with_it = f"; this accepts the waived failures: {waived}" if waived else ""
    if judged.slower is None:
        return [NextStep(f"promote{with_it}")]
    changes = judged.typed.command("diff", judged.slower.run, judged.source(judged.slower.cases[0].id))
    return [
        NextStep("before you promote, look at what became slower", changes),
        NextStep(f"promote only if somebody accepts the slowdown{with_it}"),
    ]


def _after_failure(judged: Judged, found: Sequence[Trouble]) -> list[NextStep]:
    """How to look at the failures, how to find their cause, and how to accept a failure for some time."""
    run, typed, expired = judged.run, judged.typed, judged.conclusion.expired
    todo = []
    if judged.outdated:
        todo.append(NextStep("see whether it fails with today's cards, code and checks, too", _again(judged)))
    beside = _beside_cases(judged)
    todo += beside
    if beside and not found and not expired and not (judged.against and judged.against.forbidden):
        return todo
    worst = next((trouble.first for trouble in found if trouble.is_case and trouble.verdict == "FAIL"), "")
    if worst:
        todo.append(NextStep("repeat the worst failure", typed.command("repro", worst, "--run", judged.source(worst))))
    failed = [item.case_id for item in judged.conclusion.judgements if item.verdict == "FAIL"]
    runs = list(dict.fromkeys(map(judged.source, failed))) or [run.id]
    for name in runs[:NAMED] if found else ():  # an expired waiver fails a run in which nothing else does
        todo.append(
            NextStep(f"see {f'those of run {name}' if runs[1:] else 'all of them'}", typed.command("report", name))
        )
    todo += _since_steps(judged, runs[0])
    todo += [NextStep(f"{use.waiver.place}: waiver {use.waiver.id} has expired: {EXPIRED}") for use in expired]
    if not expired:
        where = judged.waivers_path or "a file that the matrix names with its key waivers"
        write = f"write a waiver with an owner and an expiry date into {where}"
        todo.append(NextStep(f"to accept a failure for some time: {write}"))
    return todo


def _beside_cases(judged: Judged) -> list[NextStep]:
    """What to do about requirements and times that fail the gate without a failed case."""
    todo = weaker_steps(judged, judged.weaker) if judged.weaker and judged.weaker.forbidden else []
    if judged.performance and judged.performance.verdict == "FAIL":
        todo += performance_steps(judged, judged.performance)
    if judged.slower and judged.matrix.policy.drift.times == "fail":
        todo += slower_steps(judged, judged.slower)
    return todo


def _since_steps(judged: Judged, failed: str) -> list[NextStep]:
    """How to find the change behind a failure: since the run of the comparison, or else since the accepted baseline.

    Args:
        failed: the run that the first failure is from.
    """
    if judged.against:
        return _against_steps(judged, judged.against, failed)
    since = judged.since
    if since is None or since.before.id == failed or _only_lapsed(judged, ()):
        return []
    look = judged.typed.command("diff", since.before.id, failed)
    return [NextStep("see what changed since the accepted baseline", look), *_to_blame(judged, since, failed)]


def _against_steps(judged: Judged, against: Against, failed: str) -> list[NextStep]:
    before = against.comparison.before
    if before.id == failed and against.baseline is None:
        why = "which this was compared with: nothing changed since"
        return [NextStep(f"the first failure is from run {failed} itself, {why}")]
    if before.id == failed:
        return [
            NextStep(f"run {failed} is the baseline itself: a waiver, a card or a check changed since it was accepted")
        ]
    if _only_lapsed(judged, against.comparison.verdicts):
        why = "what fails was accepted until its waiver expired"
        return [NextStep(f"no stack is to blame since run {before.id}: {why}")]
    look = NextStep("see what changed", judged.typed.command("diff", before.id, failed))
    return [look, *(_to_blame(judged, judged.since, failed) if judged.since else ())]


def _only_lapsed(judged: Judged, changed: Sequence[Change]) -> bool:
    """Whether all that fails is what a waiver accepted until it expired.

    Args:
        changed: verdicts that changed since the run of the comparison.
    """
    failed = {item.case_id for item in judged.conclusion.judgements if item.verdict == "FAIL"}
    lapsed = lapsed_cases(judged.records, judged.conclusion) - {change.id for change in changed}
    return bool(failed) and failed <= lapsed


def _to_blame(judged: Judged, since: Since, failed: str) -> list[NextStep]:
    """Where to look first. Going back to the accepted stack is no advice where the run already has that stack."""
    run, before = judged.run, since.before
    if before.stack and run.stack and run.stack.agrees_with(before.stack):
        told = f"the stack is that of run {before.id}, so no other stack would help"
        if since.code:
            return [NextStep(f"{told}: look first at what changed in the code of {', '.join([*since.code][:NAMED])}")]
        return [NextStep(f"{told}: suspect the device, the matrix and the cards, or a failure that comes and goes")]
    todo = [NextStep("find the component to blame", judged.typed.command("bisect", before.id, failed, "--plan"))]
    if since.baseline and before.stack:
        words = stack_words(run.stack, before.stack)
        todo.append(NextStep(f"or go back to the accepted stack of run {before.id} ({words})"))
    return todo
