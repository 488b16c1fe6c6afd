"""The verdict on one case and on one production shape."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from qualify.cards.matrix import Expectation, MatrixCard
from qualify.facts.outcome import (
    Crashed,
    Measured,
    NotRun,
    Outcome,
    Refused,
    Substituted,
    TimedOut,
    findings_of,
)
from qualify.facts.run import CellJudgement, Judgement, Record, Verdict
from qualify.facts.stages import ending
from qualify.plan.selectors import selects
from qualify.verdict.consistency import contradictions
from qualify.verdict.waivers import Waivers

CONTRADICTS = "its evidence contradicts itself"
"""how the reason of a case begins whose evidence is not believed"""
Pairs = list[tuple[Record, Judgement]]
"""the cases of a production shape, each with its verdict"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What a run is judged by."""

    matrix: MatrixCard
    patterns: Mapping[str, Sequence[str]]
    """``must_match`` of every kernel card, to recognise an allowed fallback"""
    partial: bool
    """the run was narrowed by --select or --kernel"""
    waivers: Waivers = field(default_factory=Waivers)
    """accepted failures, each with an owner and an expiry date"""
    demonstration: bool = False
    """the run was on a CPU, and kernels of the matrix need a GPU"""

    def expectation(self, cell: str) -> Expectation | None:
        """The first expectation that selects the production shape, with or without a kernel at its end."""
        for expectation in self.matrix.expect:
            if selects(expectation, cell):
                return expectation
        return None


def judge_case(record: Record, rules: Rules) -> Judgement:
    """The verdict on one case, with its reasons."""
    case, outcome = record.case, record.outcome
    expectation = rules.expectation(case.cell)
    expected = expectation is not None and expectation.kernel == case.kernel
    verdict: Verdict
    match outcome:
        case _ if case.unclaimed:
            verdict, reasons = "NOT_REQUIRED", [f"beyond the card's claims: {reason}" for reason in case.unclaimed]
            reasons += _seen_beyond(outcome)
        case Refused(by="plan") if not expected:
            verdict, reasons = "NOT_REQUIRED", list(outcome.reasons)
        case Refused(by="plan"):
            verdict, reasons = (
                "FAIL",
                [f"the matrix expects {case.kernel} here, and it is refused: {outcome.reasons[0]}"],
            )
        case Refused():
            verdict = "FAIL"
            reasons = [f"the card claims it and the library refuses: {reason}" for reason in outcome.reasons]
        case Crashed() | TimedOut():
            verdict, reasons = "FAIL", [ending(outcome)]
        case NotRun():
            verdict, reasons = "INCONCLUSIVE", [outcome.reason]
        case Substituted():
            fallback = expectation.fallback if expectation and expected else rules.matrix.policy.fallback
            verdict, reasons = _judge_substitution(outcome, fallback, rules)
        case Measured():
            verdict, reasons = _judge_findings(outcome)
    wrong = contradictions(outcome) if verdict in {"PASS", "INCONCLUSIVE"} else []
    if wrong:
        verdict, reasons = "INCONCLUSIVE", [f"{CONTRADICTS}: {text}" for text in wrong]
    return Judgement(case_id=case.id, verdict=verdict, reasons=tuple(reasons))


def causes_of(record: Record, judgement: Judgement) -> frozenset[str]:
    """What made a case FAIL, in the words of waivers: checks that failed, and crash, hang, refusal or substitution."""
    if judgement.verdict != "FAIL":
        return frozenset()
    causes = {finding.check for finding in findings_of(record.outcome) if finding.verdict == "fail"}
    match record.outcome:
        case Crashed():
            causes.add("crash")
        case TimedOut():
            causes.add("hang")
        case Refused():
            causes.add("refusal")
        case Substituted() if judgement.reasons != tuple(_judge_findings(record.outcome)[1]):
            causes.add("substitution")
    return frozenset(causes)


def _seen_beyond(outcome: Outcome) -> list[str]:
    """What happened to a case that no card claims, in words; the verdict does not depend on it."""
    match outcome:
        case Refused():
            return [f"the library refuses: {reason}" for reason in outcome.reasons]
        case Crashed():
            return [f"it {ending(outcome)}"]
        case TimedOut():
            return [f"it gave {ending(outcome)}"]
        case Substituted():
            return [f"it was substituted: {outcome.evidence.witness.reason}"]
        case Measured():
            verdict, reasons = _judge_findings(outcome)
            return ["it ran, and passed every check"] if verdict == "PASS" else [f"it ran: {text}" for text in reasons]
        case NotRun():
            return []


def _judge_findings(outcome: Measured | Substituted) -> tuple[Verdict, list[str]]:
    findings = outcome.evidence.findings
    failed = [f"{finding.check}: {finding.detail}" for finding in findings if finding.verdict == "fail"]
    if failed:
        return "FAIL", failed
    open_ends = [f"{finding.check}: {finding.detail}" for finding in findings if finding.verdict == "inconclusive"]
    if outcome.evidence.witness.state == "unproven":
        open_ends.insert(0, f"UNPROVEN: {outcome.evidence.witness.reason}")
    if open_ends:
        return "INCONCLUSIVE", open_ends
    return "PASS", []


def _judge_substitution(outcome: Substituted, fallback: str, rules: Rules) -> tuple[Verdict, list[str]]:
    """Forbidden, recorded, or allowed for one named kernel."""
    seen = outcome.evidence.witness
    verdict, reasons = _judge_findings(outcome)
    if fallback == "forbid":
        return "FAIL", [f"substituted: {seen.reason}", *reasons]
    if fallback != "record":
        patterns = rules.patterns.get(fallback, ())
        strange = [name for name in seen.attention_names if not any(re.search(item, name) for item in patterns)]
        if strange or not seen.attention_names:
            return "FAIL", [f"substituted, and not by the allowed {fallback}: {seen.reason}", *reasons]
    if verdict != "PASS":
        return verdict, reasons
    return "PASS", [f"fallback, allowed by the matrix: {seen.reason}"]


def judge_cell(cell: str, records: Sequence[Record], judgements: Sequence[Judgement], rules: Rules) -> CellJudgement:
    """Does this production shape have a proven path, and the expected one where the matrix names it?"""
    expectation = rules.expectation(cell)
    pairs = _serving(list(zip(records, judgements, strict=True)), expectation)
    proven = tuple(record.case.kernel for record, judgement in pairs if judgement.verdict == "PASS")
    waived = [record.case.kernel for record, judgement in pairs if judgement.verdict == "WAIVED"]

    def conclude(verdict: Verdict, *reasons: str) -> CellJudgement:
        return CellJudgement(cell=cell, verdict=verdict, proven_by=proven, reasons=reasons)

    if expectation and expectation.kernel not in proven:
        own = [judgement for record, judgement in pairs if record.case.kernel == expectation.kernel]
        if not own and rules.partial:
            return conclude("NOT_REQUIRED", f"the selection leaves out {expectation.kernel}, which the matrix expects")
        if expectation.kernel in waived:
            return conclude("WAIVED", f"the failure of {expectation.kernel}, which the matrix expects, is waived")
        unproven: Verdict = "INCONCLUSIVE" if own and own[0].verdict == "INCONCLUSIVE" else "FAIL"
        return conclude(unproven, f"the matrix expects {expectation.kernel}, which is not proven here")
    if expectation:
        return conclude("PASS")
    verdict, *reasons = _without_expectation(pairs, rules)
    served = {record.case.id for record, _ in pairs}
    elsewhere = [
        record.case.kernel
        for record, judgement in zip(records, judgements, strict=True)
        if judgement.verdict == "PASS" and record.case.id not in served
    ]
    if elsewhere and verdict != "PASS":
        reasons.append(
            f"only in another environment: {', '.join(elsewhere)}; a matrix that means it expects it by name"
        )
    return conclude(verdict, *reasons)


def _serving(pairs: Pairs, expectation: Expectation | None) -> Pairs:
    """The cases that may prove a shape: those of this interpreter, where it has any, and the one that is expected.

    A kernel that only another environment has serves nothing here. A matrix that wants it names it: KERNEL@NAME.
    """
    expected = expectation.kernel if expectation else ""
    here = [(record, it) for record, it in pairs if not record.case.environment or record.case.kernel == expected]
    return here or pairs


def _without_expectation(pairs: Pairs, rules: Rules) -> tuple[Verdict, *tuple[str, ...]]:
    """The verdict on a shape that any kernel may serve, and the reason where it is not PASS."""
    verdicts = {judgement.verdict for _, judgement in pairs}
    if "PASS" in verdicts:
        return ("PASS",)
    if "WAIVED" in verdicts:
        waived = ", ".join(record.case.kernel for record, judgement in pairs if judgement.verdict == "WAIVED")
        return "WAIVED", f"no kernel is proven, and the failure of {waived} is waived"
    if "INCONCLUSIVE" in verdicts:
        return "INCONCLUSIVE", "no kernel is proven, and not every one was judged"
    refused = verdicts == {"NOT_REQUIRED"}
    if refused and rules.matrix.policy.claims == "ignore":
        return "NOT_REQUIRED", "no card claims this shape; the matrix only asks what happens"
    if refused and pairs[0][0].case.incident:
        return "NOT_REQUIRED", "not applicable here: every kernel is refused, and nobody serves an incident"
    if refused and rules.partial:
        return "NOT_REQUIRED", "every selected kernel is refused here"
    return (
        "FAIL",
        f"no proven path: none of {len(pairs)} kernel{'s' if len(pairs) != 1 else ''} was measured and passed",
    )
