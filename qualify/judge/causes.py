"""The one cause under which a case that failed or stayed open is counted, on the site and in the report."""

from __future__ import annotations

from collections.abc import Sequence

from qualify.facts.outcome import (
    Crashed,
    Finding,
    NotRun,
    Outcome,
    Refused,
    Substituted,
    TimedOut,
    causes_first,
    findings_of,
)
from qualify.facts.run import Verdict
from qualify.facts.xid import XID
from qualify.verdict.policy import CONTRADICTS, SUBSTITUTED


def cause_of(outcome: Outcome, verdict: Verdict, reasons: Sequence[str]) -> str:
    """A check, or how the case ended.

    It is the first check that failed, but a finding that is likely to cause the others counts before them. Where
    another kernel did the work and may not, that is the cause: the checks looked at its results.

    Args:
        verdict: on the case, which is no PASS.
        reasons: of that verdict.
    """
    if verdict == "INCONCLUSIVE" and any(reason.startswith(f"{XID}: ") for reason in reasons):
        return XID
    match outcome:
        case Crashed():
            return "crash"
        case TimedOut():
            return "hang"
        case Refused():
            return "refusal"
        case NotRun():
            return "not run"
        case Substituted() if any(reason.startswith(SUBSTITUTED) for reason in reasons):
            return "substitution"
    wanted = "inconclusive" if verdict == "INCONCLUSIVE" else "fail"
    found = causes_first(finding for finding in findings_of(outcome) if finding.verdict == wanted)
    if found:
        return found[0].check
    if any(reason.startswith(CONTRADICTS) for reason in reasons):
        return "evidence"
    if any(reason.startswith(f"{XID}: ") for reason in reasons):
        return XID
    return "substitution" if isinstance(outcome, Substituted) else "witness"


def finding_of(outcome: Outcome, cause: str) -> Finding | None:
    """The finding behind the cause, one that failed before one that could not decide; None where there is none."""
    order = {"fail": 0, "inconclusive": 1}
    found = [it for it in findings_of(outcome) if it.check == cause and it.verdict in order]
    return min(found, key=lambda it: order[it.verdict], default=None)
