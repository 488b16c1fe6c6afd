"""Equal calls run once: one case of them is executed, and its outcome is filed for all.

Equal content hashes mean the same call of the same kernel, whichever models, layers and phases it comes from. What
each case gets is evidence of its own, with a note that says where it was gathered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from qualify.facts.case import Case
from qualify.facts.outcome import Finding, Measured, noted
from qualify.facts.run import Record

NOTE = "shared"
"""check of the note on evidence that was gathered for another case"""


def first_of_each(cases: Iterable[Case]) -> list[Case]:
    """The cases to execute, in the order of the plan: the first of each call."""
    first: dict[str, Case] = {}
    for case in cases:
        first.setdefault(case.content_hash, case)
    return list(first.values())


def calls_of(cases: Iterable[Case]) -> Mapping[str, list[Case]]:
    """The cases of each call, by content hash."""
    calls: dict[str, list[Case]] = {}
    for case in cases:
        calls.setdefault(case.content_hash, []).append(case)
    return calls


def shared(record: Record, calls: Mapping[str, list[Case]]) -> list[Record]:
    """The record of a case that was executed, and those of all others that make the same call."""
    others = (case for case in calls.get(record.case.content_hash, []) if case.id != record.case.id)
    note = Finding(
        check=NOTE,
        verdict="note",
        detail=f"makes the same call as {record.case.id}, which was executed for both; this is that evidence",
        values={"case": record.case.id},
    )
    return [record, *(Record(case=case, outcome=noted(record.outcome, note)) for case in others)]


def without_note(outcome: Measured) -> Measured:
    """The outcome as that of the case that was executed."""
    kept = tuple(finding for finding in outcome.evidence.findings if finding.check != NOTE)
    return replace(outcome, evidence=replace(outcome.evidence, findings=kept))
