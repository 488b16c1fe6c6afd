"""Waivers applied: which failures are accepted today, on this stack, and what became of each waiver."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from fnmatch import fnmatchcase

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from qualify.facts.outcome import Measured, Substituted
from qualify.facts.run import Judgement, Record, Verdict
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
    stacks: Mapping[str, Stack | None] = field(default_factory=dict)
    """what the evidence ran on, by environment; empty name = this interpreter"""

    def why_not(self, waiver: Waiver, stack: Stack | None) -> WaiverState | None:
        """Why the waiver is not in force on a stack; None where it is. Another stack is named before an expiry date."""
        if stack is not None and not fits(waiver.stack, stack):
            return "elsewhere"
        if self.today > waiver.expires:
            return "expired"
        if self.today < waiver.created:
            return "pending"
        return None if fits(waiver.stack, stack) else "elsewhere"


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
    records: Sequence[Record],
    judged: Sequence[Judgement],
    causes: Sequence[frozenset[str]],
    undecided: Sequence[Sequence[str]],
    waivers: Waivers,
) -> tuple[tuple[Judgement, ...], tuple[WaiverUse, ...]]:
    """Turn FAIL into WAIVED where waivers in force cover every cause, and tell what each waiver did.

    A failing case may have something undecided besides. No waiver covers that, so such a case becomes INCONCLUSIVE.

    Args:
        causes: of each judgement, the checks and outcomes that made it FAIL; empty for every other verdict.
        undecided: of each judgement, why the case would be INCONCLUSIVE without its failures; empty: it would not be.
    """
    if not waivers.items:
        return tuple(judged), ()
    environments = {*waivers.stacks, *(record.case.environment for record in records)} or {""}
    uses = [_Use(waiver, waivers, environments) for waiver in waivers.items]
    judgements = []
    for record, judgement, why, rest in zip(records, judged, causes, undecided, strict=True):
        own = [use for use in uses if fnmatchcase(judgement.case_id, use.waiver.select)]
        for use in own:
            use.selected.add(record.case.environment)
        judgements.append(_judge(record, judgement, why, rest, own))
    return tuple(judgements), tuple(use.ended() for use in uses)


class _Use:
    """Counts what a waiver does."""

    def __init__(self, waiver: Waiver, waivers: Waivers, environments: Iterable[str]) -> None:
        self.waiver = waiver
        self.why_not = {name: waivers.why_not(waiver, waivers.stacks.get(name)) for name in environments}
        """by environment, why it is not in force there; None where it is"""
        self.selected: set[str] = set()
        """the environments of the cases that it selects"""
        self.waived: list[str] = []
        self.undecided: list[str] = []
        """cases whose failure it covers, which have no verdict for another reason"""
        self.failing: list[str] = []
        self.passing: list[str] = []

    def ended(self) -> WaiverUse:
        """The result. Where it selects no case, it is asked of every environment whether it is in force."""
        reasons = {self.why_not[name] for name in self.selected or self.why_not}
        covers = self.waived or self.undecided
        reached: WaiverState = "used" if covers else "passing" if self.passing else "unused"
        lapsed: tuple[WaiverState, ...] = ("expired", "pending", "elsewhere")
        return WaiverUse(
            waiver=self.waiver,
            state=reached if None in reasons else next(why for why in lapsed if why in reasons),
            waived=tuple(self.waived),
            failing=tuple(self.failing),
            passing=tuple(self.passing),
        )


def _judge(
    record: Record, judgement: Judgement, causes: frozenset[str], undecided: Sequence[str], own: Sequence[_Use]
) -> Judgement:
    """The verdict on one case under the waivers whose glob it meets."""
    if judgement.verdict == "PASS" and isinstance(record.outcome, Measured | Substituted):
        for use in own:
            use.passing.append(judgement.case_id)
    touching = [use for use in own if causes & set(use.waiver.checks)]
    if not touching:
        return judgement
    environment = record.case.environment
    force = [use for use in touching if use.why_not[environment] is None]
    covered = frozenset(check for use in force for check in use.waiver.checks)
    if causes <= covered:
        for use in force:
            (use.undecided if undecided else use.waived).append(judgement.case_id)
        who = [_signed(use.waiver) for use in force]
        verdict: Verdict = "INCONCLUSIVE" if undecided else "WAIVED"
        return replace(judgement, verdict=verdict, reasons=(*undecided, *who, *judgement.reasons))
    for use in touching:
        use.failing.append(judgement.case_id)
    notes = [_lapsed(use.waiver, why) for use in touching if (why := use.why_not[environment]) is not None]
    if force:
        names = ", ".join(f"{use.waiver.id} ({use.waiver.place})" for use in force)
        notes.append(f"waived by {names} is only {_listed(covered & causes)}, not {_listed(causes - covered)}")
    return replace(judgement, reasons=(*judgement.reasons, *notes))


def _listed(checks: frozenset[str]) -> str:
    return ", ".join(sorted(checks))


def _signed(waiver: Waiver) -> str:
    return f"{WAIVED_BY}{waiver.id} until {waiver.expires} ({waiver.owner}: {waiver.reason}; {waiver.link})"


def _lapsed(waiver: Waiver, why: WaiverState) -> str:
    match why:
        case "expired":
            return f"{waiver.place}: waiver {waiver.id} of {waiver.owner} expired on {waiver.expires}"
        case "pending":
            return f"{waiver.place}: waiver {waiver.id} holds from {waiver.created} on"
    wanted = ", ".join(f"{name} {value}" for name, value in waiver.stack.items())
    return f"{waiver.place}: waiver {waiver.id} holds only for {wanted}"
