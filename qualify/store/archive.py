"""Reads a run or a duel out of a store, and inserts it into another, with everything that belongs to it.

Every function works inside the transaction of its connection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol

from sqlalchemy import Connection, func, select

from qualify.facts.case import Case
from qualify.facts.duel import Duel
from qualify.facts.people import Comment, SignOff
from qualify.facts.run import Record, Run
from qualify.facts.seal import Seal
from qualify.facts.stack import Stack
from qualify.seal.duel_form import duel_lines
from qualify.seal.form import case_data, line, outcome_data, plain, run_data
from qualify.seal.parts import digest_of
from qualify.seal.sealed import own_digest
from qualify.store import duels, reading, tables, writers, writing
from qualify.store.failures import DamagedError
from qualify.store.mapping.outcomes import NOT_REACHED
from qualify.store.records import load_history
from qualify.store.tables import runs

_GROUP = 500
_CHANGING = ("state", "finished_at", "clock_skew_s")
"""fields of a run that change while it goes on"""
_SET_ONCE = ("stack", "ceilings", "planned")
"""fields of a run that are nothing until they are set"""


class Archive(Protocol):
    """What a run and a duel have in common: evidence in canonical lines, and perhaps a seal of it."""

    @property
    def id(self) -> str:
        """The id of the run or of the duel."""

    @property
    def what(self) -> str:
        """The word for it in messages: ``run`` or ``duel``."""

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """The stacks that it is about."""

    @property
    def lines(self) -> Iterator[dict[str, Any]]:
        """The canonical lines of the evidence, before they are written."""

    @property
    def sha256(self) -> str:
        """The digest of the evidence, which a seal signs: over its lines, not over a compressed file."""

    @property
    def seal(self) -> Seal | None:
        """The seal; None where there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunArchive:
    """All evidence of a run."""

    run: Run
    cases: list[Case]
    outcomes: list[Record]
    """every attempt, in the order in which they were stored"""
    seal: Seal | None = None
    edited: str = ""
    """what no line tells: a sentence about a stack whose rows somebody changed in the store; empty where nothing shows
    this, and where the seal shows it"""

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.run.id

    @property
    def what(self) -> str:
        """The word for it in messages."""
        return "run"

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """Those of the run."""
        return self.run.stacks

    @property
    def lines(self) -> Iterator[dict[str, Any]]:
        """Every case in the order of the plan, every attempt, then the run."""
        for case in self.cases:
            yield case_data(case)
        places = {case.id: place for place, case in enumerate(self.cases)}
        for record in self.outcomes:
            yield outcome_data(places[record.case.id], record.outcome)
        yield run_data(self.run)

    @property
    def lost(self) -> str:
        """A sentence that says how many cases of the plan are missing or too many; empty where nothing shows this."""
        return self.run.lost_cases(len(self.cases), len(self.cases))

    def lacks(self, part: RunArchive) -> str:
        """What of an earlier part of the same run is not in this one as it is there, in words; empty where all is."""
        mine, theirs = (_growing(it.run) for it in (self, part))
        for name, content in theirs.items():
            if content is not None and line({name: content}) != line({name: mine.get(name)}):
                return f"{name.replace('_', ' ')} of the run"
        if part.cases and [*map(case_data, part.cases)] != [*map(case_data, self.cases)]:
            return "the plan"
        if len(part.outcomes) > len(self.outcomes):
            return f"{len(part.outcomes) - len(self.outcomes)} outcomes"
        for there, here in zip(part.outcomes, self.outcomes, strict=False):
            if there.case.id != here.case.id or _outcome_line(there) != _outcome_line(here):
                return f"the outcome of {there.case.id}"
        return ""

    def goes_on_from(self, part: RunArchive) -> bool:
        """Whether this is of a later moment than a part of the same run that it holds whole."""
        if len(self.outcomes) > len(part.outcomes):
            return True
        ended, before = self.run.finished_at, part.run.finished_at
        return ended is not None and (before is None or ended > before)

    @property
    def records(self) -> list[Record]:
        """Every case with the outcome that counts: its last one."""
        last = {record.case.id: record.outcome for record in self.outcomes}
        return [Record(case=case, outcome=last.get(case.id, NOT_REACHED)) for case in self.cases]

    @property
    def sha256(self) -> str:
        """The digest of the lines."""
        return digest_of(self.lines)


@dataclass(frozen=True, kw_only=True, slots=True)
class DuelArchive:
    """A duel with all that was timed."""

    duel: Duel
    seal: Seal | None = None

    @property
    def id(self) -> str:
        """The id of the duel."""
        return self.duel.id

    @property
    def what(self) -> str:
        """The word for it in messages."""
        return "duel"

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """Those of both sides."""
        return self.duel.stack_a, self.duel.stack_b

    @property
    def lines(self) -> Iterator[dict[str, Any]]:
        """Every cell, the blocks of each cell, then the duel."""
        return duel_lines(self.duel)

    @property
    def sha256(self) -> str:
        """The digest of the lines."""
        return digest_of(self.lines)


@dataclass(frozen=True, kw_only=True, slots=True)
class Attached:
    """What a file holds beside a run."""

    signoffs: tuple[SignOff, ...] = ()
    """sign-offs of the run, in the order in which people gave them"""
    comments: tuple[Comment, ...] = ()
    """comments on the run, in the order in which people wrote them"""
    duels: tuple[DuelArchive, ...] = ()


NOTHING = Attached()


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """What a file holds."""

    run: RunArchive | None
    """None where the file holds only duels"""
    beside: Attached

    @property
    def archives(self) -> Sequence[Archive]:
        """The run, where there is one, and the duels."""
        return ([self.run] if self.run else []) + list(self.beside.duels)


@dataclass(frozen=True, kw_only=True, slots=True)
class MovedDuel:
    """A duel that was exported or imported."""

    duel: str
    cells: int
    sha256: str
    sealed: bool
    new: bool
    """False where the importing store had the duel already"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Moved:
    """What was exported or imported."""

    run: str
    """id of the run; empty where the file holds only duels: then there are no cases and no digest"""
    cases: int
    outcomes: int
    """how many outcomes, of all attempts"""
    sha256: str
    new: bool
    """False where the importing store had the run already, or a part of it"""
    grown: bool = False
    """whether the importing store had a part of the run, and has all of the file now"""
    duels: tuple[MovedDuel, ...] = ()
    signoffs: int = 0
    """how many sign-offs of the run; after an import, how many new ones"""
    comments: int = 0
    """how many comments on the run; after an import, how many new ones"""
    ahead: datetime | None = None
    """after an import, the latest date of the run where that is in the future by the store's clock"""


def load(connection: Connection, run_id: str) -> RunArchive | None:
    """The run as the store has it; None where the store does not have it."""
    found = reading.load_runs(connection, runs.c.id == run_id)
    if not found:
        return None
    cases, outcomes = load_history(connection, run_id)
    made = RunArchive(run=found[0], cases=cases, outcomes=outcomes, seal=reading.load_seal(connection, run_id))
    _check_places(connection, made)
    edited = made.run.edited_stacks(reading.fingerprints_of(connection, run_id))
    if edited and made.seal is not None and own_digest(made.seal) != made.sha256:
        edited = ""
    return replace(made, edited=edited)


def _check_places(connection: Connection, found: RunArchive) -> None:
    """Raises DamagedError where somebody changed the places of cases, which no line of the evidence holds.

    Missing cases pass here: later checks find them and say how many.
    """
    place, mine = tables.cases.c.position, tables.cases.c.run_id == found.id
    if found.cases and not found.lost:
        first, last = connection.execute(select(func.min(place), func.max(place)).where(mine)).one()
        if (first, last) != (0, len(found.cases) - 1):
            raise DamagedError(f"the {len(found.cases)} cases of run {found.id} are numbered from {first} to {last}")


def load_duel(connection: Connection, duel_id: str) -> DuelArchive | None:
    """The duel as the store has it; None where the store does not have it."""
    found = duels.load_duels(connection, tables.duels.c.id == duel_id)
    return DuelArchive(duel=found[0], seal=duels.load_duel_seal(connection, duel_id)) if found else None


def is_there(connection: Connection, given: Archive) -> bool:
    """Whether the store has a run or a duel of that id."""
    table = runs if given.what == "run" else tables.duels
    return connection.execute(select(table.c.id).where(table.c.id == given.id)).first() is not None


def seal_of(connection: Connection, given: Archive) -> Seal | None:
    """The seal that the store has for it; None where there is none."""
    load_one = reading.load_seal if given.what == "run" else duels.load_duel_seal
    return load_one(connection, given.id)


def stored(connection: Connection, given: Archive) -> Archive:
    """The stored run or duel of that id. The caller has checked that it is there."""
    found = load(connection, given.id) if given.what == "run" else load_duel(connection, given.id)
    assert found is not None, "is_there says whether it is"
    return found


def insert(connection: Connection, given: Archive, now: datetime) -> None:
    """Adds a run or a duel that the store does not have.

    Args:
        now: the time at which it comes, by the store's clock.
    """
    if isinstance(given, RunArchive):
        _insert_run(connection, replace(given, run=replace(given.run, received_at=now)))
    elif isinstance(given, DuelArchive):
        duels.insert_duel(connection, replace(given.duel, received_at=now), given.seal)


def set_seal(connection: Connection, given: Archive) -> None:
    """Adds the seal to a run or a duel that is there without one."""
    if given.seal and given.what == "run":
        writing.set_seal(connection, given.id, given.seal)
    elif given.seal:
        duels.insert_seal(connection, given.id, given.seal)


def _insert_run(connection: Connection, evidence: RunArchive) -> None:
    writing.insert_run(connection, evidence.run)
    writing.insert_cases(connection, evidence.run.id, evidence.cases)
    _insert_outcomes(connection, evidence.run.id, evidence.outcomes)
    set_seal(connection, evidence)


def _insert_outcomes(connection: Connection, run_id: str, outcomes: Sequence[Record]) -> None:
    for start in range(0, len(outcomes), _GROUP):
        writing.insert_records(connection, run_id, outcomes[start : start + _GROUP])


def go_on(connection: Connection, stored: RunArchive, given: RunArchive, now: datetime) -> None:
    """Adds to an unfinished run what a later archive of it has more, and its seal in place of the earlier one.

    Args:
        now: the time at which that comes, by the store's clock.

    Raises RunBusy where a process writes the run.
    """
    run_id, run = given.id, given.run
    writers.shut_out(connection, run_id)
    if run.stack:
        writing.attach_stack(connection, run_id, run.stack)
    writing.attach_environments(
        connection, run_id, {name: it.stack for name, it in run.environments.items() if it.stack}
    )
    if run.ceilings:
        writing.attach_ceilings(connection, run_id, run.ceilings)
    if not stored.cases:
        writing.insert_cases(connection, run_id, given.cases)
    _insert_outcomes(connection, run_id, given.outcomes[len(stored.outcomes) :])
    changed = {name: getattr(run, name) for name in (*_CHANGING, "planned")}
    writing.update_run(connection, run_id, changed | {"received_at": now})
    writing.set_seal(connection, run_id, given.seal)


def lock(connection: Connection, given: Archive) -> None:
    """Has others that add to the same run wait until the transaction ends."""
    if given.what == "run":
        connection.execute(select(runs.c.id).where(runs.c.id == given.id).with_for_update())


def _growing(run: Run) -> dict[str, Any]:
    """What of a run stays as it is while it goes on; None for what is not known yet."""
    told: dict[str, Any] = {**run_data(run)["run"], "environments": sorted(run.environments)}
    told |= {name: told.get(name) for name in _SET_ONCE}
    for name, one in run.environments.items():
        told |= {f"{name} (environment)": plain(replace(one, stack=None)), f"stack of {name}": plain(one.stack)}
    return {name: content for name, content in told.items() if name not in _CHANGING}


def _outcome_line(record: Record) -> bytes:
    return line(outcome_data(0, record.outcome))
