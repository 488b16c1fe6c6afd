"""When canaries are due: the latest missed moment, across restarts, edits and jumps of the clock."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from canary_examples import lead
from hypothesis import given, settings
from hypothesis import strategies as st

from qualify.canary.slots import Slots, after, latest, trigger
from qualify.cards.canary import CanaryCard
from qualify.facts.canary import Schedule
from qualify.store import Store

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
CRONS = ("* * * * *", "*/7 1-5 * * *", "0 3 * * *", "30 2 * * mon-fri", "0 0 1 jan *", "0 0 29 feb *", "59 23 31 * *")


def daily(since: datetime = NOON - timedelta(days=10), cron: str = "0 3 * * *") -> Schedule:
    """A canary of three in the morning."""
    return Schedule(canary="nightly", cron=cron, since=since)


@settings(max_examples=60, deadline=None)
@given(cron=st.sampled_from(CRONS), days=st.floats(-1000, 2000))
def test_the_latest_moment_is_the_one_before_the_next(cron: str, days: float) -> None:
    """It is not later than now, a moment of the schedule, and nothing lies between it and now."""
    times, now = trigger(cron), NOON + timedelta(days=days)
    found, following = latest(times, now), after(times, now)
    assert found is not None
    assert found <= now
    assert found == after(times, found - timedelta(seconds=1))
    assert following == after(times, found)


def test_of_many_missed_moments_the_last_is_made_up_for() -> None:
    """Ten days of silence are one fire, and then the next is tomorrow's."""
    slots = Slots()
    slots.set([daily()])
    due = slots.due(NOON)
    assert {"nightly": NOON.replace(hour=3)} == due
    assert due == slots.due(NOON), "until it is in the tables"
    slots.done(due)
    assert {} == slots.due(NOON + timedelta(hours=14))
    assert {"nightly": NOON.replace(day=22, hour=3)} == slots.due(NOON.replace(day=22, hour=3))


def test_an_edit_counts_from_now() -> None:
    """New times do not make up for moments before they were known."""
    slots = Slots()
    slots.set([daily()])
    slots.done(slots.due(NOON))
    slots.set([daily(since=NOON, cron="0 11 * * *")])
    assert {} == slots.due(NOON)
    assert {"nightly": NOON.replace(day=22, hour=11)} == slots.due(NOON + timedelta(days=1))


def test_a_clock_that_is_set_forward_and_back() -> None:
    """Forward: one fire. Back: the moments in between come true again, and the tables know which have fired."""
    slots = Slots()
    slots.set([daily()])
    slots.done(slots.due(NOON))
    forward = slots.due(NOON + timedelta(days=2))
    assert {"nightly": NOON.replace(day=23, hour=3)} == forward
    slots.done(forward)
    again = slots.due(NOON)
    assert {"nightly": NOON.replace(hour=3)} == again, "which the tables have already"
    slots.done(again)
    assert {} == slots.due(NOON)
    assert {"nightly": NOON.replace(day=22, hour=3)} == slots.due(NOON + timedelta(days=1))


def test_a_schedule_that_a_wrong_clock_told_counts_from_the_earliest_look() -> None:
    """Known at noon by a clock a day ahead. The clock is set back, then wrong again: no moment in between is lost."""
    slots = Slots()
    slots.set([daily(since=NOON)])
    assert {} == slots.due(NOON - timedelta(days=1)), "by the right clock it became known now"
    slots.done(slots.due(NOON + timedelta(days=1)))
    assert {"nightly": NOON.replace(hour=3)} == slots.due(NOON - timedelta(hours=1))


def test_without_times_nothing_is_due() -> None:
    """A canary of a stack change, or one that was removed, has no moments."""
    slots = Slots()
    slots.set([daily(cron="")])
    assert {} == slots.due(NOON)
    slots.set([])
    assert {} == slots.due(NOON)


@pytest.mark.parametrize(
    ("cron", "wanted"),
    [
        ("0 3 * * mon-fri/2", {"mon", "wed", "fri"}),
        ("0 3 * * mon/3", {"mon", "thu", "sun"}),
        ("0 3 * * */3", {"mon", "thu", "sun"}),
        ("0 3 * * sat,mon-wed/2", {"mon", "wed", "sat"}),
        ("0 3 1 jan/3 *", {"jan", "apr", "jul", "oct"}),
        ("0 3 1 jan-jun/2,dec *", {"jan", "mar", "may", "dec"}),
        ("0 3 1 1-feb,nov-12 *", {"jan", "feb", "nov", "dec"}),
        ("59/1 23/1 31/1 dec/1 *", {"dec"}),
    ],
)
def test_steps_after_words(cron: str, wanted: set[str]) -> None:
    """What the card's check takes is what fires: steps after days and months, and words beside numbers."""
    card = CanaryCard.model_validate({"canary": "mine", "matrix": "smoke", "cron": cron})
    assert card.cron
    times, moment, found = trigger(card.cron), after(trigger(card.cron), NOON), set()
    while moment is not None and moment < NOON + timedelta(days=366):
        found.add(f"{moment:%b}".lower() if cron.endswith(" *") and "* *" not in cron else f"{moment:%a}".lower())
        moment = after(times, moment)
    assert wanted == found


@pytest.mark.parametrize(("cron", "day"), [("0 3 * * mon", 23), ("0 3 * * sun", 22)])
def test_days_of_the_week(cron: str, day: int) -> None:
    """Days are named, and mean what they say."""
    assert NOON.replace(day=day, hour=3) == after(trigger(cron), NOON)


def test_times_that_a_wrong_clock_told_count_from_now(store: Store) -> None:
    """A service six days ahead knew the schedule first: what a restart misses afterwards is made up for as well."""
    every_second = {"c": "* * * * *"}
    first = lead(store)
    store.canaries.know_schedules(first, every_second)
    ahead = datetime.now(UTC) + timedelta(days=6)
    with closing(sqlite3.connect(store.where)) as connection, connection:
        connection.execute("UPDATE schedules SET since = ?", [ahead.strftime("%Y-%m-%d %H:%M:%S.%f")])
    known = store.canaries.know_schedules(first, every_second)["c"]
    assert known.since <= store.canaries.now()
    assert known == store.canaries.know_schedules(first, every_second)["c"], "it is told only once"
    slots = Slots()  # of the next leader
    slots.set([known])
    soon = store.canaries.now() + timedelta(minutes=2)
    assert latest(trigger(known.cron), soon) == slots.due(soon)["c"]
