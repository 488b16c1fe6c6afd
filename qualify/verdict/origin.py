"""Where evidence is from: which outcome may be taken over, and how old it is.

A run may take over what an earlier run measured of the same call. The outcome is then stored again, with a note that
names the run that measured it and when. An age counts from the end of the case. Outcomes of an older qualify lack that
moment: their age counts from the start of the run that measured them, which the note names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Protocol

from qualify.cards.policy import Policy
from qualify.facts.case import Level
from qualify.facts.clock import NOTED_SKEW_S, before_it_came, by_other_clock, is_future
from qualify.facts.outcome import (
    REUSED,
    Finding,
    Measured,
    Outcome,
    ended_at_of,
    evidence_of,
    findings_of,
    noted,
    ran_code,
)
from qualify.facts.run import Record, Run
from qualify.verdict.faults import errors_of, own_card

MAX_AGE = timedelta(hours=24)
"""oldest evidence that a run takes over, and the default of `qualify gate --max-age`"""
HERE = "on this card and stack and by these checks; not run again"
LEVELS: tuple[Level, ...] = ("smoke", "full")
"""a higher level checks everything that a lower one checks"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """The run that measured an outcome."""

    run: str
    """its id"""
    began_at: datetime
    """start of that run: ages count from there where the outcome does not say when its case ended"""


def origin_of(outcome: Outcome) -> Origin | None:
    """The run that measured the outcome; None where that is the run that has it."""
    for finding in findings_of(outcome):
        if finding.check == REUSED:
            values = finding.values
            return Origin(run=str(values["run"]), began_at=datetime.fromisoformat(str(values["began_at"])))
    return None


def taken_over(outcome: Outcome, run: Run, how: str = HERE) -> Outcome:
    """The outcome for another run, with the note that says where it was measured: the first one stays.

    Args:
        how: the end of the note's sentence.
    """
    if origin_of(outcome) is not None:
        return outcome
    note = Finding(
        check=REUSED,
        verdict="note",
        detail=f"measured by run {run.id}, begun {run.started_at:%Y-%m-%d %H:%M} UTC, {how}",
        values={"run": run.id, "began_at": run.started_at.isoformat()},
    )
    return noted(outcome, note)


def origins_of(records: Iterable[Record]) -> dict[str, datetime]:
    """By id, when the runs began whose outcomes a run took over."""
    origins = (origin_of(record.outcome) for record in records)
    return {origin.run: origin.began_at for origin in origins if origin}


class Dated(Protocol):
    """A run, or what a list knows of one: when it was made, by which clock, and when it came from another store."""

    @property
    def started_at(self) -> datetime:
        """Its start, by its machine's clock."""

    @property
    def finished_at(self) -> datetime | None:
        """Its end, by its machine's clock."""

    @property
    def clock_skew_s(self) -> float | None:
        """How far its machine's clock was ahead of the store's."""

    @property
    def received_at(self) -> datetime | None:
        """When it came from another store."""


def _begins(run: Dated) -> tuple[datetime, datetime]:
    """When a run began by its machine's clock, and by the store's, where they are known to have differed."""
    return _by_both_clocks(run.started_at, run)


def _earliest(run: Dated) -> datetime:
    """The earliest moment at which a run may have begun.

    A run that ended before it began was dated by a clock that was ahead, until somebody set it back: its end counts.
    """
    return min(*_begins(run), *(last_of(run) or ()))


def _by_both_clocks(moment: datetime, run: Dated) -> tuple[datetime, datetime]:
    """A moment that a run's machine noted, and when that was by the store's clock.

    What came from another store was made before it came, whatever the clock of its machine said.
    """
    skew_s = run.clock_skew_s or 0.0
    other = by_other_clock(moment, skew_s) if abs(skew_s) > NOTED_SKEW_S else None
    return moment, before_it_came(other or moment, run.received_at)


def end_of(outcome: Outcome, run: Run, now: datetime | None = None) -> tuple[datetime, datetime] | None:
    """When the case of an outcome ended, by its machine's clock and by the store's; None where nobody knows.

    Nobody knows where an older qualify did not note it, and where it cannot be: it is outside the run that measured
    the outcome, or in the future. Somebody set the clock, or edited the row.

    Args:
        now: None = a moment in the future is not looked for.
    """
    at = ended_at_of(outcome)
    if at is None:
        return None
    if at < run.started_at:  # only what was taken over can have ended before
        origin = origin_of(outcome)
        if origin is None or at < origin.began_at:
            return None
    if run.finished_at is not None and at > run.finished_at:
        return None
    ends = _by_both_clocks(at, run)
    return None if now is not None and is_future(max(ends), now) else ends


def ended_later(ends: tuple[datetime, datetime], other: tuple[datetime, datetime]) -> bool | None:
    """Whether a case ended after another one, each by both clocks; None where the clocks disagree."""
    if min(ends) > max(other):
        return True
    return False if max(ends) < min(other) else None


def reaches(run: Run, moment: datetime) -> bool:
    """Whether a run may hold outcomes of cases that ended after a moment."""
    last = last_of(run)
    return last is None or max(last) >= moment


def last_of(run: Dated) -> tuple[datetime, datetime] | None:
    """When a run ended, by both clocks; None where it goes on or was killed."""
    return None if run.finished_at is None else _by_both_clocks(run.finished_at, run)


def made_at(outcome: Outcome, run: Run, now: datetime | None = None) -> datetime:
    """The moment that the age of an outcome counts from. Of two clocks that differed, that one counts which is earlier.

    Args:
        run: the run that has the outcome.
        now: as :func:`end_of` takes it.
    """
    if ends := end_of(outcome, run, now):
        return min(ends)
    origin = origin_of(outcome)
    return min([_earliest(run), *([origin.began_at] if origin else [])])


def made_since(run: Run, records: Iterable[Record], now: datetime | None = None) -> datetime:
    """When the oldest evidence of a run was made; the start of a run without any."""
    made = (made_at(record.outcome, run, now) for record in records if ran_code(record.outcome))
    return min(made, default=oldest(run))


def oldest(run: Dated, origins: Mapping[str, datetime] = MappingProxyType({})) -> datetime:
    """When the oldest run of a run's evidence began. Of two clocks that differed, that one counts which is earlier.

    Args:
        origins: of its records, as :func:`origins_of` gives them.
    """
    return min([_earliest(run), *origins.values()])


def latest_begin(run: Run) -> datetime:
    """When a run began; of two clocks that differed, that one counts which makes it younger."""
    return max(_begins(run))


def perhaps_newer(run: Run, other: Run) -> bool:
    """Whether a run may have begun after another one, by one of two clocks that differed."""
    return latest_begin(run) > oldest(other)


def newest(run: Run, origins: Mapping[str, datetime] = MappingProxyType({})) -> datetime:
    """The latest date in a run and, where ``origins`` of its records are given, in its evidence."""
    return max([run.started_at, run.finished_at or run.started_at, *origins.values()])


def went_on(run: Run, newer: Run) -> bool:
    """Whether a run began before another one and ended after that began on the same card, as --resume lets it.

    Nobody knows then which of the two outcomes of a case is the newer one.
    """
    later = run.started_at < newer.started_at and run.finished_at is not None and run.finished_at > newer.started_at
    return later and own_card(run) == own_card(newer) != ""


def is_settled(outcome: Outcome) -> bool:
    """Whether a repetition would only repeat a pass.

    The first attempt was proven, no check failed, and the driver reported no error (Xid) during it.
    """
    evidence = evidence_of(outcome)
    if not isinstance(outcome, Measured) or evidence is None or evidence.attempt > 1:
        return False
    proven = evidence.witness.state == "proven" and not errors_of(outcome)
    return proven and all(it.verdict in {"pass", "note"} for it in evidence.findings)


def weaker(level: Level, wanted: Level) -> bool:
    """Whether a level checks less than the wanted one."""
    return LEVELS.index(level) < LEVELS.index(wanted)


def made_under(policy: Policy) -> tuple[object, ...]:
    """The part of the policy that evidence depends on. The gate applies the rest anew."""
    return policy.reference, policy.claims, policy.timeout_s, policy.compile_timeout_s
