"""Waivers applied: which failures are accepted today, on this stack, and what became of each waiver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from fnmatch import fnmatchcase

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from qualify.facts.outcome import Measured, Substituted
from qualify.facts.run import Judgement, Record
from qualify.facts.stack import Stack
from qualify.facts.waiver import Waiver, WaiverState, WaiverUse

DEVICE = "device"
"""the key of a condition on the device's name; every other key names a component"""
WAIVED_BY = "waived by "
"""beginning of the reason that names the waiver of a waived verdict"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Waivers:
    """The waivers that a verdict may use."""

    items: tuple[Waiver, ...] = ()
    today: date = date.min
    """the day of the verdict, UTC"""
    stack: Stack | None = None
    """what the evidence ran on"""

    def why_not(self, waiver: Waiver) -> WaiverState | None:
        """Why the waiver is not in force; None where it is. Another stack is named before an expiry date."""
        if self.stack is not None and not fits(waiver.stack, self.stack):
            return "elsewhere"
        if self.today > waiver.expires:
            return "expired"
        if self.today < waiver.created:
            return "pending"
        return None if fits(waiver.stack, self.stack) else "elsewhere"


def fits(conditions: Mapping[str, str], stack: Stack | None) -> bool:
    """Whether the stack meets every condition; an unknown stack, or a component that it lacks, meets none."""
    if not conditions:
        return True
    if stack is None:
        return False
    return all(
        _meets(stack.device.name if name == DEVICE else stack.version(name), wanted)
        for name, wanted in conditions.items()
    )


def _meets(version: str, wanted: str) -> bool:
    if not version:
        return False
    if wanted[0] not in "<>=!~":
        return fnmatchcase(version, wanted)
    try:
        return SpecifierSet(wanted).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def waive(
    records: Sequence[Record], judged: Sequence[Judgement], causes: Sequence[frozenset[str]], waivers: Waivers
) -> tuple[tuple[Judgement, ...], tuple[WaiverUse, ...]]:
    """Turn FAIL into WAIVED where waivers in force cover every cause, and tell what each waiver did.

    Args:
        causes: of each judgement, the checks and outcomes that made it FAIL; empty for every other verdict.
    """
    uses = [_Use(waiver, waivers.why_not(waiver)) for waiver in waivers.items]
    if not uses:
        return tuple(judged), ()
    judgements = []
    for record, judgement, why in zip(records, judged, causes, strict=True):
        own = [use for use in uses if fnmatchcase(judgement.case_id, use.waiver.select)]
        judgements.append(_judge(record, judgement, why, own))
    return tuple(judgements), tuple(use.ended() for use in uses)


class _Use:
    """Counts what a waiver does."""

    def __init__(self, waiver: Waiver, why_not: WaiverState | None) -> None:
        self.waiver = waiver
        self.why_not = why_not
        self.waived: list[str] = []
        self.failing: list[str] = []
        self.passing: list[str] = []

    def ended(self) -> WaiverUse:
        """The result."""
        reached: WaiverState = "used" if self.waived else "passing" if self.passing else "unused"
        return WaiverUse(
            waiver=self.waiver,
            state=self.why_not or reached,
            waived=tuple(self.waived),
            failing=tuple(self.failing),
            passing=tuple(self.passing),
        )


def _judge(record: Record, judgement: Judgement, causes: frozenset[str], own: Sequence[_Use]) -> Judgement:
    """The verdict on one case under the waivers whose glob it meets."""
    if judgement.verdict == "PASS" and isinstance(record.outcome, Measured | Substituted):
        for use in own:
            use.passing.append(judgement.case_id)
    touching = [use for use in own if causes & set(use.waiver.checks)]
    if not touching:
        return judgement
    force = [use for use in touching if use.why_not is None]
    covered = frozenset(check for use in force for check in use.waiver.checks)
    if causes <= covered:
        for use in force:
            use.waived.append(judgement.case_id)
        who = [_signed(use.waiver) for use in force]
        return replace(judgement, verdict="WAIVED", reasons=(*who, *judgement.reasons))
    for use in touching:
        use.failing.append(judgement.case_id)
    notes = [_lapsed(use) for use in touching if use.why_not is not None]
    if force:
        names = ", ".join(f"{use.waiver.id} ({use.waiver.place})" for use in force)
        notes.append(f"waived by {names} is only {_listed(covered & causes)}, not {_listed(causes - covered)}")
    return replace(judgement, reasons=(*judgement.reasons, *notes))


def _listed(checks: frozenset[str]) -> str:
    return ", ".join(sorted(checks))


def _signed(waiver: Waiver) -> str:
    return f"{WAIVED_BY}{waiver.id} until {waiver.expires} ({waiver.owner}: {waiver.reason}; {waiver.link})"


def _lapsed(use: _Use) -> str:
    waiver = use.waiver
    match use.why_not:
        case "expired":
            return f"{waiver.place}: waiver {waiver.id} of {waiver.owner} expired on {waiver.expires}"
        case "pending":
            return f"{waiver.place}: waiver {waiver.id} holds from {waiver.created} on"
    wanted = ", ".join(f"{name} {value}" for name, value in waiver.stack.items())
    return f"{waiver.place}: waiver {waiver.id} holds only for {wanted}"
