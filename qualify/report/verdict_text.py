"""The verdict for a person: one line with the whole verdict, what to do now, then the worst failures."""

from __future__ import annotations

from datetime import datetime, timedelta

from qualify.facts.comparison import Slowdown
from qualify.facts.waiver import WaiverUse
from qualify.judge.judged import Against, Judged
from qualify.report.ages import shown_age
from qualify.report.differences import change_text, grouped, told_topics
from qualify.report.environments import environment_views
from qualify.report.figures import counted, proven_paths
from qualify.report.incidents import counted_states, replays
from qualify.report.next_steps import EXPIRED, next_steps
from qualify.report.performance import headline as performance_headline
from qualify.report.performance import performance_lines
from qualify.report.signoffs import signoff_lines
from qualify.report.since import changed, earlier
from qualify.report.slower import headline, sentence
from qualify.report.troubles import troubles
from qualify.report.views import join
from qualify.report.waived import waived_words
from qualify.report.weaker import headline as weaker_headline
from qualify.report.weaker import weaker_lines
from qualify.text import one_line

SHOWN = 12
"""most groups of failures that the text names; the report has all"""
SOON = timedelta(days=14)
"""how long before its end the text announces a waiver"""
WORDS = {"PASS": "qualified", "FAIL": "not qualified", "INCONCLUSIVE": "no verdict"}
DEMONSTRATION = "demonstration on a CPU"
"""name for a run on a CPU of a matrix whose kernels need a GPU"""


def to_text(judged: Judged, now: datetime) -> str:
    """The verdict, what to do, warnings, and the worst failures in groups that look alike."""
    found = troubles(judged)
    lines = [verdict_line(judged), stack_line(judged, now), *environment_lines(judged)]
    lines += against_lines(judged.against) if judged.against else []
    lines += since_lines(judged)
    lines += [f"weaker: {weaker_headline(judged.weaker)}"] if judged.weaker else []
    lines += [f"slower: {headline(judged.slower)}"] if judged.slower else []
    lines += [f"time: {performance_headline(judged.performance)}"] if judged.performance else []
    lines += signoff_lines(judged.signoffs)
    lines += [f"do: {step.line}" for step in next_steps(judged, found)]
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
    parts = [proven_paths(conclusion.proven, served)] if served or not incidents else []
    parts += [f"incidents: {incidents}"] if incidents else []
    parts += [f"{counted(len(judged.records), 'case')}: {counts}"]
    runs = f"run {run.id}" if len(judged.runs) < 2 else f"{len(judged.runs)} runs, newest {run.id}"
    told = "; ".join(parts) if judged.records else "none of its cases is stored yet"
    return f"{run.matrix}: {verdict} ({told}; {runs})"


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
    """Which run the evidence was compared with, how much changed, and what limits the comparison."""
    comparison = against.comparison
    return [
        one_line(line)
        for line in (
            f"against: {earlier(comparison.before, against.baseline)}: {'; '.join(told_topics(comparison))}",
            *(f"caveat: {caveat}" for caveat in comparison.caveats),
        )
    ]


def since_lines(judged: Judged) -> list[str]:
    """What changed under the kernels since the run of the comparison, or since the accepted baseline."""
    if judged.since is None:
        return []
    since, words = judged.since, changed(judged.since, judged.run)
    return [
        one_line(f"changed: {words}" if judged.against else f"since: {earlier(since.before, since.baseline)}: {words}")
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
