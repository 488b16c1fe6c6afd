"""repeat: the same call gives the same bits, if the card claims determinism."""

from __future__ import annotations

from qualify.facts.case import Level
from qualify.facts.outcome import Finding, FindingVerdict
from qualify.run.checks.interface import Subject, changed, difference

TIMES: dict[Level, int] = {"smoke": 3, "full": 20}


class Repeat:
    """Repeats a call, between allocations that leave other bytes in the allocator's cache."""

    name = "repeat"
    levels: tuple[Level, ...] = ("smoke", "full")
    cost = "3 calls at smoke, 20 at full"

    def skips(self, subject: Subject) -> str:
        """Applies to every kernel; without a claim of determinism a difference is only noted."""
        return ""

    def run(self, subject: Subject) -> list[Finding]:
        """The first difference ends it."""
        call = subject.inputs().call
        first = subject.run(call)
        for number in range(1, TIMES[subject.level]):
            found = difference(subject, first, subject.run(call))
            if found:
                claimed = subject.card.claims.deterministic
                detail = f"call {number + 1} differs from call 1: {changed(found)}"
                verdict: FindingVerdict = "fail" if claimed else "note"
                values = {"call": number + 1, **found}
                return [Finding(check=self.name, verdict=verdict, detail=detail, values=values)]
        detail = f"{TIMES[subject.level]} calls, the same bits"
        return [Finding(check=self.name, verdict="pass", detail=detail, values={"calls": TIMES[subject.level]})]
