"""The verdict for a person: one line that says it all, what to do now, then the worst failures."""

from __future__ import annotations

import shlex
from datetime import datetime, timedelta

from qualify.facts.case import INCIDENTS
from qualify.facts.waiver import WaiverUse
from qualify.judge.judged import Against, Judged
from qualify.report.ages import shown_age
from qualify.report.differences import change_text, grouped, stack_change_text, told_topics
from qualify.report.incidents import counted_states, replays
from qualify.report.troubles import Trouble, missing, troubles
from qualify.report.views import join
from qualify.text import one_line

SHOWN = 12
"""groups of failures that the text names; the report has all"""
SOON = timedelta(days=14)
"""how long before its end a waiver is announced"""
EXPIRED = "remove it, or accept the failure again until another day"
WORDS = {"PASS": "qualified", "FAIL": "not qualified", "INCONCLUSIVE": "no verdict"}


def to_text(judged: Judged, now: datetime) -> str:
    """The verdict, what to do, warnings, and the worst failures, alike ones together."""
    found = troubles(judged)
    lines = [verdict_line(judged), stack_line(judged, now)]
    lines += against_lines(judged.against) if judged.against else []
    lines += [f"do: {action}" for action in actions(judged, found)]
    lines += [f"note: {one_line(note)}" for note in notes(judged, now)]
    for trouble in found[:SHOWN]:
        lines += [f"{trouble.verdict:13}{one_line(trouble.first)}"]
        lines += [f"{'':13}{one_line(reason)}" for reason in (trouble.reason, *trouble.expired)]
        if trouble.more:
            lines.append(f"{'':13}and {len(trouble.more)} more like this")
    if judged.against:
        lines += forbidden_lines(judged.against)
    if len(found) > SHOWN:
        lines.append(f"{len(found) - SHOWN} other kinds of failure are in the report.")
    return "\n".join(lines)


def verdict_line(judged: Judged) -> str:
    """The verdict with the counts behind it."""
    run, conclusion = judged.run, judged.conclusion
    verdict = WORDS[conclusion.verdict]
    if run.state != "completed":
        verdict += f", and the run is {'not finished' if run.state == 'running' else run.state}"
    if judged.stale:
        verdict += ", and the evidence is stale"
    if run.narrowed:
        verdict += ", of the part of the matrix that was selected"
    counts = ", ".join(f"{count} {name}" for name, count in conclusion.counts["verdicts"].items() if count)
    served = [cell for cell in conclusion.cells if not cell.cell.startswith(f"{INCIDENTS}/")]
    proven = sum(bool(cell.proven_by) for cell in served)
    incidents = counted_states(replays(run, join(judged.records, conclusion)))
    parts = [f"{proven} of {len(served)} production shapes have a proven path"] if served or not incidents else []
    parts += [f"incidents: {incidents}"] if incidents else []
    runs = f"run {run.id}" if len(judged.runs) < 2 else f"{len(judged.runs)} runs, newest {run.id}"
    return f"{run.matrix}: {verdict} ({'; '.join(parts)}; {len(judged.records)} cases: {counts}; {runs})"


def stack_line(judged: Judged, now: datetime) -> str:
    """What the evidence ran on, and how old it is."""
    run = judged.run
    if run.stack is None:
        return "on: no worker reported, so nothing is known of the stack"
    stack = run.stack
    versions = [f"{name} {stack.version(name)}" for name in ("driver", "cuda", "torch") if stack.version(name)]
    age = shown_age(now - judged.evidence_since)
    return f"on: {one_line(', '.join([stack.device.name, *versions]))}; stack {stack.fingerprint[:12]}; {age} old"


def against_lines(against: Against) -> list[str]:
    """What the evidence was compared with, and how much changed: the stack first."""
    comparison, baseline = against.comparison, against.baseline
    accepted = f", accepted by {baseline.accepted_by} on {baseline.accepted_at:%Y-%m-%d}" if baseline else ""
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
    """Changes that the matrix's policy does not allow, alike ones together."""
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


def actions(judged: Judged, found: list[Trouble]) -> list[str]:
    """What to do now, the first thing first; every command can be typed as it stands."""
    run, verdict = judged.run, judged.conclusion.verdict
    if verdict == "PASS" and run.narrowed:
        whole = shlex.join(["qualify", "gate", "--matrix", run.matrix_path])
        return [f"promote nothing on a part of the matrix; judge all of it: {whole}"]
    if verdict == "PASS":
        waived = judged.conclusion.counts["verdicts"]["WAIVED"]
        return [f"promote; waived failures that go with it: {waived}" if waived else "promote"]
    todo, expired = ["keep the release back"], judged.conclusion.expired
    if verdict == "FAIL":
        worst = next((trouble.first for trouble in found if trouble.is_case and trouble.verdict == "FAIL"), "")
        if worst:
            todo.append(f"repeat the worst failure: {shlex.join(['qualify', 'repro', worst, '--run', run.id])}")
        todo.append(f"see all of them: qualify report {run.id}")
        if judged.against:
            todo += _against_actions(judged, judged.against)
        todo += [f"{use.waiver.place}: waiver {use.waiver.id} has expired: {EXPIRED}" for use in expired]
        if not expired:
            where = judged.waivers_path or "a file that the matrix names with its key waivers"
            todo.append(f"if its owner accepts a failure until a day: write a waiver into {where}")
        return todo
    if run.state != "completed":
        todo.append(f"finish the run: {shlex.join(['qualify', 'run', run.matrix_path, '--resume', run.id])}")
    elif judged.stale or missing(judged):
        todo.append(f"make fresh evidence on that stack: {shlex.join(['qualify', 'run', run.matrix_path])}")
    else:
        todo.append("nothing failed, but not everything was decided: see what the inconclusive checks say below")
        todo.append("see what disturbs the machine: qualify doctor")
    return todo


def _against_actions(judged: Judged, against: Against) -> list[str]:
    before = against.comparison.before
    both = shlex.join([before.id, judged.run.id])
    todo = [f"see what changed: qualify diff {both}", f"find the component to blame: qualify bisect {both} --plan"]
    if against.baseline and before.stack:
        todo.append(f"or go back to the accepted stack {before.stack.fingerprint[:12]} of run {before.id}")
    return todo


def notes(judged: Judged, now: datetime) -> list[str]:
    """What a reader must know beside the verdict: the evidence's limits, then the state of the waivers."""
    told = (waiver_note(use, now, partial=judged.run.narrowed) for use in judged.conclusion.waivers)
    return [*judged.notes, *(note for note in told if note)]


def waiver_note(use: WaiverUse, now: datetime, *, partial: bool = False) -> str:
    """What must be said of a waiver; empty where it does what it is for, and for a while yet.

    Args:
        partial: the evidence is of a part of the matrix only, so a waiver may cover what is not there.
    """
    waiver = use.waiver
    name = f"{waiver.place}: waiver {waiver.id}"
    match use.state:
        case "expired":
            return f"{name} of {waiver.owner} expired on {waiver.expires}, so the gate fails; {EXPIRED}"
        case "passing":
            return f"{name} is no longer needed: {len(use.passing)} of its cases pass; remove it"
        case "unused":
            return (
                "" if partial else f"{name} covers no failure and no case that passes; remove it, or correct its glob"
            )
        case "used" if use.passing:
            return f"{name} covers {len(use.waived)} failures, and {len(use.passing)} of its cases pass: narrow it"
        case "used" if waiver.expires - now.date() <= SOON:
            return f"{name} of {waiver.owner} ends on {waiver.expires}: from the day after, the gate fails"
    return ""
