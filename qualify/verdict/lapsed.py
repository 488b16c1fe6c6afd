"""Failures that were accepted until a waiver expired: no change of the stack or the device made them."""

from __future__ import annotations

from collections.abc import Sequence

from qualify.facts.run import Conclusion, Record
from qualify.verdict.policy import causes_of


def lapsed_cases(records: Sequence[Record], conclusion: Conclusion) -> frozenset[str]:
    """The failing cases of which waivers would accept everything that fails, had none of them expired."""
    accepted: dict[str, frozenset[str]] = {}
    expired: set[str] = set()
    for use in conclusion.waivers:
        if use.state in ("pending", "elsewhere"):
            continue
        for name in use.failing:
            accepted[name] = accepted.get(name, frozenset()) | set(use.waiver.checks)
        if use.state == "expired":
            expired.update(use.failing)
    pairs = zip(records, conclusion.judgements, strict=True)
    causes = {item.case_id: causes_of(record, item) for record, item in pairs if item.case_id in expired}
    return frozenset(name for name, found in causes.items() if found and found <= accepted[name])
