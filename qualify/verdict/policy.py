"""The verdict on one case and on one production shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from qualify.cards.matrix import Expectation, MatrixCard
from qualify.facts.case import Level
from qualify.facts.identity import matches
from qualify.facts.outcome import (
    LOST,
    Crashed,
    Evidence,
    Measured,
    NotRun,
    Outcome,
    Refused,
    Substituted,
    TimedOut,
    causes_first,
    evidence_of,
    findings_of,
)
from qualify.facts.run import CellJudgement, Judgement, Record, Verdict
from qualify.facts.stages import ending
from qualify.plan.selectors import expected
from qualify.verdict.consistency import contradictions
from qualify.verdict.waivers import Waivers

CONTRADICTS = "its evidence contradicts itself"
"""beginning of the reason of a case whose evidence is not believed"""
SUBSTITUTED = "substituted"
"""beginning of the reason of a case that no other kernel may do"""
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
    level: Level | None = None
    """at which the run used its checks; None = they are another version's, which this qualify does not know"""
    made: Mapping[str, Level] = field(default_factory=dict)
    """by case id, the level at which its evidence was made, where that may be another one"""
    card: str = ""
    """UUID of the run's card: that of an outcome which names none"""

    def expectation(self, cell: str) -> Expectation | None:
        """The first expectation that is about the production shape, or the call of an incident."""
        return expected(self.matrix, cell)


def judge_case(record: Record, rules: Rules) -> Judgement:
    """The verdict on one case, with its reasons; evidence that contradicts itself proves nothing."""
    verdict, reasons = _judge_outcome(record, rules)
    wrong = _contradictions(record, rules) if verdict in {"PASS", "INCONCLUSIVE"} else []
    if wrong:
        verdict, reasons = "INCONCLUSIVE", wrong
    return Judgement(case_id=record.case.id, verdict=verdict, reasons=tuple(reasons))


def _contradictions(record: Record, rules: Rules) -> list[str]:
    """Contradictions, and answers that evidence of a lower level lacks."""
    found = contradictions(record, rules.level)
    made = rules.made.get(record.case.id, rules.level)
    if found and made != rules.level and not contradictions(record, made):
        return [f"made at level {made}, which does not answer all that {rules.level} asks: {text}" for text in found]
    return [f"{CONTRADICTS}: {text}" for text in found]


def undecided(record: Record, judgement: Judgement, rules: Rules) -> list[str]:
    """Why a failed case would be INCONCLUSIVE if its failures did not count; empty for every other verdict."""
    if judgement.verdict != "FAIL":
        return []
    evidence = evidence_of(record.outcome)
    return [*_contradictions(record, rules), *(_open_ends(evidence) if evidence else ())]


def _judge_outcome(record: Record, rules: Rules) -> tuple[Verdict, list[str]]:
    """What the outcome of a case means, taken at its word."""
    case, outcome = record.case, record.outcome
    expectation = rules.expectation(case.cell)
    expected = expectation is not None and expectation.kernel == case.kernel
    match outcome:
        case _ if case.unclaimed:
            beyond = [f"beyond the card's claims: {reason}" for reason in case.unclaimed]
            return "NOT_REQUIRED", [*beyond, *_seen_beyond(outcome)]
        case Refused(by="plan") if not expected:
            return "NOT_REQUIRED", list(outcome.reasons)
        case Refused(by="plan"):
            return "FAIL", [f"the matrix expects {case.kernel} here, and it is refused: {outcome.reasons[0]}"]
        case Refused():
            return "FAIL", [f"the card claims it and the library refuses: {reason}" for reason in outcome.reasons]
        case Crashed() | TimedOut():
            return "FAIL", [ending(outcome)]
        case NotRun():
            return "INCONCLUSIVE", [outcome.reason]
        case Substituted():
            fallback = expectation.fallback if expectation and expected else rules.matrix.policy.fallback
            return _judge_substitution(outcome, fallback, rules)
        case Measured():
            return _judge_findings(outcome)


def causes_of(record: Record, judgement: Judgement) -> frozenset[str]:
    """What made a case FAIL, in the words of waivers: checks that failed, and crash, hang, refusal or substitution."""
    if judgement.verdict != "FAIL":
        return frozenset()
    findings = findings_of(record.outcome)
    causes = {finding.check for finding in findings if finding.verdict == "fail" or finding.check == LOST}
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
            return [f"it was substituted: {outcome.evidence.witness.substitution}"]
        case Measured():
            verdict, reasons = _judge_findings(outcome)
            return ["it ran, and passed every check"] if verdict == "PASS" else [f"it ran: {text}" for text in reasons]
        case NotRun():
            return []


def _judge_findings(outcome: Measured | Substituted) -> tuple[Verdict, list[str]]:
    findings = causes_first(outcome.evidence.findings)
    failed = [f"{finding.check}: {finding.detail}" for finding in findings if finding.verdict == "fail"]
    if failed:
        return "FAIL", failed
    open_ends = _open_ends(outcome.evidence)
    return ("INCONCLUSIVE", open_ends) if open_ends else ("PASS", [])


def _open_ends(evidence: Evidence) -> list[str]:
    """What the evidence leaves undecided."""
    unproven = [f"UNPROVEN: {evidence.witness.reason}"] if evidence.witness.state == "unproven" else []
    findings = [finding for finding in causes_first(evidence.findings) if finding.verdict == "inconclusive"]
    return unproven + [f"{finding.check}: {finding.detail}" for finding in findings]


def _judge_substitution(outcome: Substituted, fallback: str, rules: Rules) -> tuple[Verdict, list[str]]:
    """Forbidden, recorded, or allowed for one named kernel."""
    seen = outcome.evidence.witness
    verdict, reasons = _judge_findings(outcome)
    if fallback == "forbid":
        return "FAIL", [f"{SUBSTITUTED}: {seen.substitution}", *reasons]
    if fallback != "record":
        patterns = rules.patterns.get(fallback, ())
        strange = [name for name in seen.attention_names if not matches(name, patterns)]
        if strange or not seen.attention_names:
            return "FAIL", [f"{SUBSTITUTED}, and not by the allowed {fallback}: {seen.substitution}", *reasons]
    if verdict != "PASS":
        return verdict, reasons
    return "PASS", [f"fallback, allowed by the matrix: {seen.substitution}"]


def judge_cell(cell: str, records: Sequence[Record], judgements: Sequence[Judgement], rules: Rules) -> CellJudgement:
    """Does this production shape have a proven path, and the expected one where the matrix names it?"""
    expectation = rules.expectation(cell)
    pairs, elsewhere = _serving(list(zip(records, judgements, strict=True)), expectation)
    if expectation:
        verdict, *reasons = _with_expectation(expectation.kernel, pairs, rules)
    else:
        verdict, *reasons = _without_expectation(pairs, rules)
        if verdict != "PASS":
            reasons += _proven_elsewhere(elsewhere)
    return CellJudgement(cell=cell, verdict=verdict, proven_by=_kernels(pairs, "PASS"), reasons=tuple(reasons))


def _kernels(pairs: Pairs, verdict: Verdict) -> tuple[str, ...]:
    """The kernels whose case got that verdict, in plan order."""
    return tuple(record.case.kernel for record, judgement in pairs if judgement.verdict == verdict)


def _serving(pairs: Pairs, expectation: Expectation | None) -> tuple[Pairs, Pairs]:
    """The cases that may prove a shape, and the others, which only another environment has.

    A case of this interpreter may prove a shape, and so may the case of the expected kernel. A kernel that only another
    environment has serves nothing here, unless the matrix expects it by name: KERNEL@NAME. Where all cases are of other
    environments, all of them may.
    """
    expected = expectation.kernel if expectation else ""
    here: Pairs = []
    elsewhere: Pairs = []
    for record, judgement in pairs:
        serves = not record.case.environment or record.case.kernel == expected
        (here if serves else elsewhere).append((record, judgement))
    return (here, elsewhere) if here else (pairs, [])


def _with_expectation(kernel: str, pairs: Pairs, rules: Rules) -> tuple[Verdict, *tuple[str, ...]]:
    """The verdict on a shape that one kernel shall serve, and the reason where it is not PASS."""
    own = [judgement.verdict for record, judgement in pairs if record.case.kernel == kernel]
    if "PASS" in own:
        return ("PASS",)
    if not own and rules.partial:
        return "NOT_REQUIRED", f"the selection leaves out {kernel}, which the matrix expects"
    if "WAIVED" in own:
        return "WAIVED", f"the failure of {kernel}, which the matrix expects, is waived"
    verdict: Verdict = "INCONCLUSIVE" if "INCONCLUSIVE" in own[:1] else "FAIL"
    return verdict, f"the matrix expects {kernel}, which is not proven here"


def _without_expectation(pairs: Pairs, rules: Rules) -> tuple[Verdict, *tuple[str, ...]]:
    """The verdict on a shape that any kernel may serve, and the reason where it is not PASS."""
    verdicts = {judgement.verdict for _, judgement in pairs}
    if "PASS" in verdicts:
        return ("PASS",)
    if "WAIVED" in verdicts:
        waived = ", ".join(_kernels(pairs, "WAIVED"))
        return "WAIVED", f"no kernel is proven, and the failure of {waived} is waived"
    if "INCONCLUSIVE" in verdicts:
        return "INCONCLUSIVE", "no kernel is proven, and not every one was judged"
    refused = verdicts == {"NOT_REQUIRED"}
    if refused and rules.matrix.policy.claims == "ignore":
        return "NOT_REQUIRED", "no card claims this shape, and policy.claims is ignore: its results do not count"
    if refused and pairs[0][0].case.incident:
        return "NOT_REQUIRED", "every kernel is refused here, and none has to serve the call of an incident"
    if refused and rules.partial:
        return "NOT_REQUIRED", "every selected kernel is refused here"
    if refused:
        who = f"all {len(pairs)} kernels refuse it; the first" if len(pairs) > 1 else "the only kernel refuses it"
        return "FAIL", f"no proven path: {who}: {pairs[0][1].reasons[0]}"
    which = f"none of {len(pairs)} kernels passed" if len(pairs) > 1 else "the only kernel did not pass"
    return "FAIL", f"no proven path: {which}"


def _proven_elsewhere(pairs: Pairs) -> list[str]:
    """A hint where a kernel that serves nothing here, because only another environment has it, is proven there."""
    proven = ", ".join(_kernels(pairs, "PASS"))
    return [f"only in another environment: {proven}; a matrix that means it expects it by name"] if proven else []
