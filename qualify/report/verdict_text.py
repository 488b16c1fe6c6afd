"""The verdict for a person: one line with the whole verdict, what to do now, then the worst failures."""

from __future__ import annotations

from datetime import datetime, timedelta

from qualify.assets import again_elsewhere
from qualify.facts.comparison import Slowdown
from qualify.facts.differing import stack_words
from qualify.facts.identity import UNMATCHED
from qualify.facts.typed import level_words
from qualify.facts.waiver import WaiverUse
from qualify.judge.judged import Against, Judged
from qualify.report.ages import shown_age
from qualify.report.differences import change_text, grouped, stack_change_text, told_topics
from qualify.report.environments import environment_views
from qualify.report.figures import counted
from qualify.report.incidents import counted_states, replays
from qualify.report.performance import headline as performance_headline
from qualify.report.performance import performance_actions, performance_lines
from qualify.report.signoffs import signoff_lines
from qualify.report.slower import headline, sentence, slower_actions
from qualify.report.troubles import Trouble, missing, troubles
from qualify.report.views import join
from qualify.report.waived import waived_words
from qualify.report.weaker import headline as weaker_headline
from qualify.report.weaker import weaker_actions, weaker_lines
from qualify.text import one_line
from qualify.verdict.compare import NAMED, changed_kernels
from qualify.verdict.lapsed import lapsed_cases

SHOWN = 12
"""most groups of failures that the text names; the report has all"""
SOON = timedelta(days=14)
"""how long before its end the text announces a waiver"""
EXPIRED = "remove it, or accept the failure again until another day"
WORDS = {"PASS": "qualified", "FAIL": "not qualified", "INCONCLUSIVE": "no verdict"}
DEMONSTRATION = "demonstration on a CPU"
"""name for a run on a CPU of a matrix whose kernels need a GPU"""


def to_text(judged: Judged, now: datetime) -> str:
    """The verdict, what to do, warnings, and the worst failures in groups that look alike."""
    found = troubles(judged)
    lines = [verdict_line(judged), stack_line(judged, now), *environment_lines(judged)]
    lines += against_lines(judged.against) if judged.against else []
    lines += [f"weaker: {weaker_headline(judged.weaker)}"] if judged.weaker else []
    lines += [f"slower: {headline(judged.slower)}"] if judged.slower else []
    lines += [f"time: {performance_headline(judged.performance)}"] if judged.performance else []
    lines += signoff_lines(judged.signoffs)
    lines += [f"do: {action}" for action in actions(judged, found)]
    lines += [f"note: {one_line(note)}" for note in notes(judged, now)]
    for trouble in found[:SHOWN]:
        lines += [f"{trouble.verdict:13}{one_line(trouble.first)}"]
        lines += [f"{'':13}{one_line(reason)}" for reason in (trouble.reason, *trouble.waivers)]
        if trouble.more:
            lines.append(f"{'':13}and {len(trouble.more):,} more like this")
    if judged.against:
        lines += forbidden_lines(judged.against)
    lines += weaker_lines(judged.weaker) if judged.weaker else []
    lines += slower_lines(judged.slower) if judged.slower else []
    lines += performance_lines(judged.performance) if judged.performance else []
    if len(found) > SHOWN:
        lines.append(f"{len(found) - SHOWN} other kinds of failure are in the report.")
    return "\n".join(lines)


def verdict_line(judged: Judged) -> str:
    """The verdict with the counts behind it."""
    run, conclusion = judged.run, judged.conclusion
    verdict = "passed" if run.narrowed and conclusion.verdict == "PASS" else WORDS[conclusion.verdict]
    if conclusion.demonstration:
        passed = "every case passed" if conclusion.verdict == "PASS" else verdict
        verdict = f"{DEMONSTRATION}, which proves nothing about a GPU: {passed}"
    if run.state != "completed":
        verdict += f", and the run is {'not finished' if run.state == 'running' else run.state}"
    if judged.future:
        verdict += ", and the evidence is dated in the future"
    if judged.failed_cards:
        verdict += f", and {counted(len(judged.failed_cards), 'card')} failed while it ran"
    if judged.stale:
        verdict += ", and the evidence is stale"
    if run.narrowed:
        verdict += ", in the selected part of the matrix"
    if judged.weaker:
        verdict += ", and its requirements are weaker than the accepted baseline's"
    if judged.performance and judged.performance.verdict == "FAIL":
        verdict += ", and a budget of time is exceeded"
    if judged.slower:
        verdict += f", and {counted(len(judged.slower.cases), 'case')} became slower"
    if conclusion.verdict == "PASS" and (waived := waived_words(conclusion)):
        verdict += f"; waived: {waived}"
    counts = ", ".join(f"{count:,} {name}" for name, count in conclusion.counts["verdicts"].items() if count)
    incidents = counted_states(replays(run, join((it for it in judged.records if it.case.incident), conclusion)))
    served = len(conclusion.required)
    parts = (
        [f"{conclusion.proven:,} of {served:,} production shapes have a proven path"] if served or not incidents else []
    )
    parts += [f"incidents: {incidents}"] if incidents else []
    runs = f"run {run.id}" if len(judged.runs) < 2 else f"{len(judged.runs)} runs, newest {run.id}"
    return f"{run.matrix}: {verdict} ({'; '.join(parts)}; {counted(len(judged.records), 'case')}: {counts}; {runs})"


def stack_line(judged: Judged, now: datetime) -> str:
    """What the evidence ran on, and how old it is."""
    run = judged.run
    if run.stack is None:
        return "on: no process that runs kernels reported its device, so nothing is known of the stack"
    stack = run.stack
    versions = [f"{name} {stack.version(name)}" for name in ("driver", "cuda", "torch") if stack.version(name)]
    age = f"{shown_age(now - judged.evidence_since)} old"
    if judged.future:
        age = f"dated {shown_age(judged.future - now)} ahead of now"
    return f"on: {one_line(', '.join([stack.device.name, *versions]))}; stack {stack.fingerprint[:12]}; {age}"


def environment_lines(judged: Judged) -> list[str]:
    """A line for each other environment of the evidence, with the components that differ there."""
    return [one_line(f"on {view.name}: {view.differs} ({view.python})") for view in environment_views(judged.run)]


def against_lines(against: Against) -> list[str]:
    """Which run the evidence was compared with, and how much changed: the stack first."""
    comparison, baseline = against.comparison, against.baseline
    accepted = f", accepted by {baseline.who} on {baseline.accepted_at:%Y-%m-%d}" if baseline else ""
    changes = [stack_change_text(change) for change in comparison.stack if change.kind != "binary"]
    return [
        one_line(line)
        for line in (
            f"against: run {comparison.before.id}{accepted}: {'; '.join(told_topics(comparison))}",
            f"stack: {'; '.join(changes) or 'no version changed'}",
            *(f"caveat: {caveat}" for caveat in comparison.caveats),
        )
    ]


def forbidden_lines(against: Against) -> list[str]:
    """Changes that the matrix's policy does not allow, in groups that look alike."""
    topics = dict.fromkeys(topic for topic, _ in against.forbidden)
    groups = [
        (topic, first, more)
        for topic in topics
        for first, more in grouped(topic, [change for its, change in against.forbidden if its == topic])
    ]
    lines = []
    for topic, first, more in groups[:SHOWN]:
        lines += [f"{'DRIFT':13}{one_line(first.id)}", f"{'':13}{one_line(change_text(topic, first))}"]
        lines += [f"{'':13}and {more} more like this"] if more else []
    return lines


def slower_lines(slower: Slowdown) -> list[str]:
    """The cases that became slower, the largest factor first."""
    lines = []
    for change in slower.cases[:SHOWN]:
        lines += [f"{'SLOWER':13}{one_line(change.id)}", f"{'':13}{sentence(change)}"]
    more = len(slower.cases) - SHOWN
    return [*lines, f"{'':13}and {more} more that are slower"] if more > 0 else lines


def actions(judged: Judged, found: list[Trouble]) -> list[str]:
    """What to do now, in order. Every command can be pasted as it stands."""
    run, verdict, typed = judged.run, judged.conclusion.verdict, judged.typed
    again = _again(judged)
    there = typed.command(*again_elsewhere(run.matrix_path))
    first = "keep the release back"
    if judged.conclusion.demonstration:
        first = f"this result says nothing about a GPU; run it on the GPU host: {there}"
        if verdict != "FAIL" and not found and run.state == "completed":
            return [first]
    if verdict == "PASS" and run.narrowed:
        return [f"promote nothing on a part of the matrix; run all of it: {again}"]
    if verdict == "PASS":
        return _promotion(judged)
    todo = [first]
    if judged.failed_cards:
        cards = ", ".join(judged.failed_cards)
        todo.append(f"look at {cards} before anything runs there: nvidia-smi -q, and the kernel's log (Xid)")
    if verdict == "FAIL" and judged.outdated:
        todo.append(f"see whether it fails with today's cards, code and checks, too: {again}")
    if verdict == "FAIL":
        todo += _after_failure(judged, found)
    elif judged.weaker and judged.weaker.forbidden and not (judged.stale or judged.future or missing(judged)):
        todo += weaker_actions(judged, judged.weaker)
    elif judged.failed_cards:
        todo.append(f"then make evidence on a card that is sound: {again}")
    elif judged.future:
        todo.append(f"set the clock that is wrong, then make fresh evidence: {again}")
    elif run.state != "completed" and not judged.stale:
        wait = "wait until the run has ended; where its process has gone, finish it"
        finish = wait if run.state == "running" else "finish the run"
        todo.append(f"{finish}: {typed.command('run', run.matrix_path, '--resume', run.id)}")
    elif judged.performance and judged.performance.verdict == "INCONCLUSIVE" and not (judged.stale or found):
        todo += performance_actions(judged, judged.performance)
    elif judged.unsealed:
        todo.append(f"make evidence that one of the keys seals, with QUALIFY_SIGNING_KEY naming it: {again}")
    elif judged.contradiction:
        todo.append(f"make evidence that nobody has edited: {again}")
    elif judged.stale or missing(judged):
        todo.append(f"make fresh evidence on that stack: {again}")
    elif judged.part == "PASS":
        whole = typed.command("gate", "--matrix", run.matrix_path, *level_words(run.level))
        todo.append(f"promote nothing on a part of the matrix; judge all of it: {whole}")
    else:
        todo += _where_nothing_failed(judged, found)
    return todo


def _where_nothing_failed(judged: Judged, found: list[Trouble]) -> list[str]:
    """What to do where nothing failed, the evidence counts, and there is no verdict all the same."""
    if found and not _only_unmatched(found):
        undecided = "nothing failed, but not everything was decided: see what the inconclusive checks say below"
        return [undecided, "see what disturbs the machine: qualify doctor"]
    if found:
        compare = "compare the launched names below with must_match of the kernel card (docs/recipes/own-kernel.md)"
        return [f"nothing failed, but nothing proves which kernel ran: {compare}"]
    if all(item.verdict == "NOT_REQUIRED" for item in judged.conclusion.judgements):
        why = "every case is refused, or beyond the claims of its card"
        see = judged.typed.command("report", judged.run.id)
        return [f"nothing failed, and nothing was proven: {why}. See why: {see}"]
    other = judged.against.comparison.before.id if judged.against else ""
    told = f"a caveat of the comparison with run {other}, or a note below, says" if other else "a note below says"
    return [f"nothing failed: {told} why there is no verdict"]


def _only_unmatched(found: list[Trouble]) -> bool:
    """Whether all that stays open is which kernel ran: what was launched has another name than the card says."""
    reasons = [trouble.reason for trouble in found if trouble.is_case]
    return bool(reasons) and all(reason.startswith(f"UNPROVEN: {UNMATCHED}") for reason in reasons)


def _again(judged: Judged) -> str:
    """The command that makes evidence that counts; for a run that the nodes of a fleet shared, the fleet's command."""
    run, typed = judged.run, judged.typed
    if run.placement is None or not run.placement.is_whole:
        return typed.command("run", run.matrix_path, *judged.again)
    if judged.stale or judged.future or judged.failed_cards:
        return typed.command("fleet", run.matrix_path, "--spread", "shard", *level_words(run.level))
    return typed.command("fleet", run.matrix_path, "--again", run.placement.fleet)


def _promotion(judged: Judged) -> list[str]:
    """The advice to promote; where cases became slower, to look at these first."""
    waived = waived_words(judged.conclusion)
    with_it = f"; this accepts the waived failures: {waived}" if waived else ""
    if judged.slower is None:
        return [f"promote{with_it}"]
    worst = judged.slower.cases[0].id
    changes = judged.typed.command("diff", judged.slower.run, judged.source(worst))
    return [
        f"before you promote, look at what became slower: {changes}",
        f"promote only if somebody accepts the slowdown{with_it}",
    ]


def _after_failure(judged: Judged, found: list[Trouble]) -> list[str]:
    """How to look at the failures, how to find their cause, and how to accept a failure for some time."""
    run, typed, expired = judged.run, judged.typed, judged.conclusion.expired
    todo = weaker_actions(judged, judged.weaker) if judged.weaker and judged.weaker.forbidden else []
    if judged.performance and judged.performance.verdict == "FAIL":
        todo += performance_actions(judged, judged.performance)
    if judged.slower and judged.matrix.policy.drift.times == "fail":
        todo += slower_actions(judged, judged.slower)
    if todo and not found and not expired and not (judged.against and judged.against.forbidden):
        return todo
    worst = next((trouble.first for trouble in found if trouble.is_case and trouble.verdict == "FAIL"), "")
    if worst:
        todo.append(f"repeat the worst failure: {typed.command('repro', worst, '--run', judged.source(worst))}")
    failed = [item.case_id for item in judged.conclusion.judgements if item.verdict == "FAIL"]
    runs = list(dict.fromkeys(map(judged.source, failed))) or [run.id]
    todo += [
        f"see {f'those of run {name}' if runs[1:] else 'all of them'}: {typed.command('report', name)}"
        for name in runs[:NAMED]
    ]
    if judged.against:
        todo += _against_actions(judged, judged.against, runs[0])
    todo += [f"{use.waiver.place}: waiver {use.waiver.id} has expired: {EXPIRED}" for use in expired]
    if not expired:
        where = judged.waivers_path or "a file that the matrix names with its key waivers"
        todo.append(f"to accept a failure for some time: write a waiver with an owner and an expiry date into {where}")
    return todo


def _against_actions(judged: Judged, against: Against, failed: str) -> list[str]:
    """How to find what changed. Going back to the accepted stack is no advice where the run already has that stack.

    Args:
        failed: the run that the first failure is from.
    """
    before, run, typed = against.comparison.before, judged.run, judged.typed
    if before.id == failed and against.baseline is None:
        return [f"the first failure is from run {failed} itself, which this was compared with: nothing changed since"]
    if before.id == failed:
        return [f"run {failed} is the baseline itself: a waiver, a card or a check changed since it was accepted"]
    names = {item.case_id for item in judged.conclusion.judgements if item.verdict == "FAIL"}
    since = {change.id for change in against.comparison.verdicts}
    if names and names <= lapsed_cases(judged.records, judged.conclusion) - since:
        return [f"no stack is to blame since run {before.id}: what fails was accepted until its waiver expired"]
    todo = [f"see what changed: {typed.command('diff', before.id, failed)}"]
    if before.stack and run.stack and run.stack.agrees_with(before.stack):
        told = f"the stack is that of run {before.id}, so no other stack would help"
        changed = changed_kernels(before, run, dict.fromkeys(record.case.kernel for record in judged.records))
        if changed:
            return [*todo, f"{told}: look first at what changed in the code of {', '.join([*changed][:NAMED])}"]
        return [*todo, f"{told}: suspect the device, the matrix and the cards, or a failure that comes and goes"]
    todo.append(f"find the component to blame: {typed.command('bisect', before.id, failed, '--plan')}")
    if against.baseline and before.stack:
        todo.append(f"or go back to the accepted stack of run {before.id} ({stack_words(run.stack, before.stack)})")
    return todo


def notes(judged: Judged, now: datetime) -> list[str]:
    """Notes beside the verdict: the limits of the evidence, then waivers that need attention."""
    told = (waiver_note(use, now, partial=judged.partial) for use in judged.conclusion.waivers)
    return [*judged.notes, *(note for note in told if note)]


def waiver_note(use: WaiverUse, now: datetime, *, partial: bool = False) -> str:
    """A note about a waiver that needs attention; empty where it covers failures only and does not end soon.

    Args:
        partial: not all of the matrix has evidence that counts, so an unused waiver may cover a case without evidence.
    """
    waiver = use.waiver
    name = f"{waiver.place}: waiver {waiver.id}"
    match use.state:
        case "expired":
            return f"{name} of {waiver.owner} expired on {waiver.expires}, so the gate fails; {EXPIRED}"
        case "unused" | "passing" if use.failing:
            cases = f"{counted(len(use.failing), 'case')}, first {use.failing[0]}"
            return f"{name} does not cover all that fails in {cases}: see what is left, and correct its checks"
        case "passing":
            return f"{name} is no longer needed: {len(use.passing)} of its cases pass; remove it"
        case "unused" if not partial:
            return f"{name} covers no failure and no case that passes; remove it, or correct its glob or its checks"
        case "used" if use.passing:
            covered = counted(len(use.waived), "failure")
            return f"{name} covers {covered}, and {len(use.passing)} of its cases pass: narrow it"
        case "used" if waiver.expires - now.date() <= SOON:
            return f"{name} of {waiver.owner} ends on {waiver.expires}: from the day after, the gate fails"
    return ""
