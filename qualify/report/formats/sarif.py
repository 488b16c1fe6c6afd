"""The verdict as SARIF 2.1.0 for code scanning: one result for each failure of a case, shape or waiver.

A rule is a check, or another way to fail. The fingerprint of a result is made of the matrix's name, the rule and the
case. So the same failure is the same result in another run, on another machine, and after lines of the matrix moved.
The document holds a waived failure too, marked as suppressed by its waiver.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from qualify import __version__
from qualify.facts import codec
from qualify.facts.checks import CHECKS
from qualify.facts.outcome import (
    Crashed,
    NotRun,
    Outcome,
    Refused,
    Substituted,
    TimedOut,
    causes_first,
    evidence_of,
    findings_of,
)
from qualify.facts.stages import ending
from qualify.facts.waiver import Waiver
from qualify.judge.judged import Judged
from qualify.judge.worst import EndedCase, ended_cases, worst_first
from qualify.report.differences import change_text
from qualify.report.formats.interface import OutputOptions
from qualify.report.performance import budget_sentence, cell_sentence
from qualify.report.performance import headline as time_headline
from qualify.report.since import changed, earlier
from qualify.report.slower import sentence
from qualify.report.verdict_text import verdict_line, waiver_note
from qualify.report.weaker import sentence as less_sentence
from qualify.text import clipped, one_line
from qualify.verdict.policy import SUBSTITUTED

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
FINGERPRINT = "qualifyFailure/v1"
GITHUBS = "primaryLocationLineHash"
"""name of the only fingerprint that GitHub's code scanning reads"""
MOST = 5000
"""most results: GitHub shows no more of one upload"""
LONGEST = 1000
"""most characters of one message"""
MORE_SHOWN = 3
"""most findings of one rule that the message of a case names"""
Level = Literal["error", "warning", "note"]

OTHERS: Mapping[str, str] = {
    "witness": "Did the kernel of the card do the work, and nothing else?",
    "timing": "Could the kernel be timed?",
    "crash": "Does the kernel end without an exception, a signal or a lost context?",
    "hang": "Does the kernel end within its time limit?",
    "refusal": "Does the library take every call that the card claims?",
    "substitution": "Did no other kernel take the place of the card's?",
    "unproven": "Could the witness see which kernel ran?",
    "not_run": "Is there fresh evidence of every case?",
    "shape": "Has every production shape its proven path?",
    "waiver": "Is every waiver in force and needed?",
    "drift": "Does the matrix allow every change since the baseline?",
    "slower": "Does every case take as long as in the baseline?",
    "performance": "Does every budget of time hold, as a duel or the history of runs shows it?",
    "weaker": "Are all requirements at least as strict as the accepted baseline's?",
    "verdict": "Is the matrix qualified?",
}
"""rules beside the checks, each with its question"""
RULES: Mapping[str, str] = {**{name: known.question for known in CHECKS for name in known.findings}, **OTHERS}
"""every rule with its question"""


@dataclass(frozen=True, kw_only=True, slots=True)
class SarifResult:
    """One result."""

    rule: str
    about: str
    """case, shape or waiver that failed; together with the rule it is unique"""
    level: Level
    message: str
    path: str
    line: int
    """line of the file; 0 = unknown"""
    waivers: tuple[Waiver, ...] = ()
    """waivers that accept the failure"""


def render(judged: Judged, options: OutputOptions) -> str:
    """One log with one run of the tool."""
    run = judged.run
    found = list(_results(judged, options))
    stack = run.stack
    variant = stack.device.variant if stack else "unknown device"
    data = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": _driver()},
                "automationDetails": {"id": f"qualify/{run.matrix}/{one_line(variant)}/"},
                "invocations": [_invocation(judged, len(found))],
                "columnKind": "unicodeCodePoints",
                "results": [_result(item, judged, options) for item in found[:MOST]],
                "properties": {
                    "verdict": judged.conclusion.verdict,
                    "runs": list(judged.runs),
                    "stack": stack.fingerprint if stack else None,
                    "level": run.level,
                    "against": judged.against.comparison.before.id if judged.against else None,
                    "changed": changed(judged.since, run) if judged.since else None,
                },
            }
        ],
    }
    return codec.to_json(data)


def _driver() -> dict[str, Any]:
    rules = [
        {
            "id": name,
            "shortDescription": {"text": question},
            "fullDescription": {"text": question},
            "help": {"text": f"{question} docs/numerics.md and docs/reference.md of qualify explain it."},
            "defaultConfiguration": {"level": "error"},
        }
        for name, question in RULES.items()
    ]
    return {"name": "qualify", "version": __version__, "rules": rules}


def _invocation(judged: Judged, count: int) -> dict[str, Any]:
    data: dict[str, Any] = {
        "executionSuccessful": True,
        "exitCode": judged.conclusion.exit_code,
    }
    if count > MOST:
        text = f"{count - MOST} more results do not fit here: `qualify report` shows everything."
        data["toolExecutionNotifications"] = [{"level": "warning", "message": {"text": text}}]
    return data


def _result(item: SarifResult, judged: Judged, options: OutputOptions) -> dict[str, Any]:
    digest = _fingerprint(judged.run.matrix, item.rule, item.about)
    location = _location(item.path, item.line, options)
    data = {
        "ruleId": item.rule,
        **({"ruleIndex": list(RULES).index(item.rule)} if item.rule in RULES else {}),
        "level": item.level,
        "message": {"text": _text(item.message)},
        "locations": [{**location, "logicalLocations": [{"fullyQualifiedName": one_line(item.about)}]}],
        "partialFingerprints": {FINGERPRINT: digest, GITHUBS: f"{digest}:1"},
    }
    if item.waivers:
        data["suppressions"] = [_suppression(waiver, options) for waiver in item.waivers]
    return data


def _fingerprint(*words: str) -> str:
    """A digest of the words alone: no line, path, value or time changes it."""
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:32]


def _suppression(waiver: Waiver, options: OutputOptions) -> dict[str, Any]:
    told = f"waiver {waiver.id} of {waiver.owner} until {waiver.expires}: {waiver.reason} ({waiver.link})"
    return {
        "kind": "external",
        "status": "accepted",
        "justification": _text(told),
        "location": _location(waiver.path, waiver.line, options),
    }


def _location(path: str, line: int, options: OutputOptions) -> dict[str, Any]:
    """A line of a file, with the path relative to the checkout where it lies there; an unknown line becomes line 1."""
    inside = options.from_workspace(path)
    if Path(inside).is_absolute():
        artifact = {"uri": Path(inside).as_uri()}
    else:
        artifact = {"uri": quote(inside, errors="backslashreplace"), "uriBaseId": "%SRCROOT%"}
    return {"physicalLocation": {"artifactLocation": artifact, "region": {"startLine": max(line, 1)}}}


def _text(message: str) -> str:
    """The message on one line, of at most LONGEST characters, and without what SARIF viewers take for a link."""
    return clipped(one_line(message).replace("](", "] ("), LONGEST)


def _results(judged: Judged, options: OutputOptions) -> Iterator[SarifResult]:
    """All of them, the worst first; at least one where the matrix is not qualified."""
    found = [
        *_shapes(judged),
        *_waivers(judged, options),
        *_drift(judged),
        *_weaker(judged),
        *_cases(judged),
        *_slower(judged),
        *_performance(judged),
    ]
    order = {"error": 0, "warning": 1, "note": 2}
    code = judged.conclusion.exit_code
    if code and not any(item.level == "error" and not item.waivers for item in found):
        level: Level = "error" if code == 1 else "warning"
        told = ". ".join((verdict_line(judged), *judged.notes))
        yield SarifResult(rule="verdict", about="", level=level, message=told, path=judged.run.matrix_path, line=0)
    yield from sorted(found, key=lambda item: (bool(item.waivers), order[item.level]))


def _shapes(judged: Judged) -> Iterator[SarifResult]:
    lines: dict[str, int] = {}
    for record in judged.records:
        lines.setdefault(record.case.cell, record.case.line)
    for cell in judged.conclusion.cells:
        if cell.verdict in {"FAIL", "INCONCLUSIVE"}:
            yield SarifResult(
                rule="shape",
                about=cell.cell,
                level="error" if cell.verdict == "FAIL" else "warning",
                message=f"{cell.cell}: {'; '.join(cell.reasons)}",
                path=judged.run.matrix_path,
                line=lines.get(cell.cell, 0),
            )


def _waivers(judged: Judged, options: OutputOptions) -> Iterator[SarifResult]:
    for use in judged.conclusion.waivers:
        if note := waiver_note(use, options.now, partial=judged.partial):
            yield SarifResult(
                rule="waiver",
                about=use.waiver.id,
                level="error" if use.state == "expired" else "note",
                message=note,
                path=use.waiver.path,
                line=use.waiver.line,
            )


def _drift(judged: Judged) -> Iterator[SarifResult]:
    lines = {record.case.id: record.case.line for record in judged.records}
    if judged.against is None:
        return
    since = earlier(judged.against.comparison.before, judged.against.baseline)
    for topic, change in judged.against.forbidden:
        yield SarifResult(
            rule="drift",
            about=f"{topic} of {change.id}",
            level="error",
            message=f"{change.id}: {change_text(topic, change)} (since {since})",
            path=judged.run.matrix_path,
            line=lines.get(change.id, 0),
        )


def _weaker(judged: Judged) -> Iterator[SarifResult]:
    for less in judged.weaker.changes if judged.weaker else ():
        yield SarifResult(
            rule="weaker",
            about=f"{less.kind} {less.what}, {less.then}",
            level="error" if judged.weaker and judged.weaker.forbidden else "warning",
            message=less_sentence(less),
            path=judged.run.matrix_path,
            line=0,
        )


def _slower(judged: Judged) -> Iterator[SarifResult]:
    lines = {record.case.id: record.case.line for record in judged.records}
    for change in judged.slower.cases if judged.slower else ():
        yield SarifResult(
            rule="slower",
            about=change.id,
            level="warning",
            message=f"{change.id}: {sentence(change)}",
            path=judged.run.matrix_path,
            line=lines.get(change.id, 0),
        )


def _performance(judged: Judged) -> Iterator[SarifResult]:
    found = judged.performance
    if found is None:
        return
    path, lines = judged.run.matrix_path, {record.case.cell: record.case.line for record in judged.records}
    if found.why_not and found.required:
        yield SarifResult(
            rule="performance", about="duel", level="warning", message=time_headline(found), path=path, line=0
        )
    for use in found.budgets:
        level: Level = "error" if use.verdict == "FAIL" else "warning"
        for cell in use.cells:
            about, message = f"{use.name}: {cell.cell}", f"{budget_sentence(use)}; {cell_sentence(cell)}"
            line = next((lines[name] for name in lines if cell.cell.startswith(name)), 0)
            yield SarifResult(rule="performance", about=about, level=level, message=message, path=path, line=line)


def _cases(judged: Judged) -> Iterator[SarifResult]:
    """Failed and undecided cases, wrong results before crashes and the rest: one result for each case and rule."""
    waivers: dict[str, list[Waiver]] = {}
    for use in judged.conclusion.waivers:
        for name in use.waived:
            waivers.setdefault(name, []).append(use.waiver)
    for item in worst_first(ended_cases(judged)):
        case = item.case
        for rule, details in _causes(item).items():
            more = f"; and {len(details) - MORE_SHOWN} more" if len(details) > MORE_SHOWN else ""
            yield SarifResult(
                rule=rule,
                about=case.id,
                level="warning" if item.verdict == "INCONCLUSIVE" else "error",
                message=f"{case.id}: {'; '.join(details[:MORE_SHOWN])}{more}",
                path=judged.run.matrix_path,
                line=case.line,
                waivers=tuple(waivers.get(case.id, ())),
            )


def _causes(item: EndedCase) -> dict[str, list[str]]:
    """Why a case did not pass, by rule."""
    wanted = "inconclusive" if item.verdict == "INCONCLUSIVE" else "fail"
    told = causes_first(findings_of(item.outcome))
    findings = ((finding.check, finding.detail) for finding in told if finding.verdict == wanted)
    found: dict[str, list[str]] = {}
    for rule, detail in chain(_ends(item.outcome, item.reasons), findings):
        found.setdefault(rule, []).append(detail)
    return found or {"verdict": list(item.reasons)}


def _ends(outcome: Outcome, reasons: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(rule, detail) of what went wrong beside the checks."""
    evidence = evidence_of(outcome)
    match outcome:
        case Crashed():
            yield "crash", ending(outcome)
        case TimedOut():
            yield "hang", ending(outcome)
        case Refused():
            yield "refusal", "; ".join(reasons)
        case NotRun():
            yield "not_run", outcome.reason
        case Substituted() if told := [reason for reason in reasons if reason.startswith(SUBSTITUTED)]:
            yield "substitution", told[0]
    if evidence and evidence.witness.state == "unproven" and any(reason.startswith("UNPROVEN") for reason in reasons):
        yield "unproven", evidence.witness.reason
