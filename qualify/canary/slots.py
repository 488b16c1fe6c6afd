"""When canaries are due, by the database's clock: the latest moment that passed, however many were missed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from apscheduler.triggers.cron import CronTrigger

from qualify.cards.canary import as_numbers
from qualify.facts.canary import Schedule

MINUTE = timedelta(minutes=1)
LONGEST = timedelta(days=366 * 8)
"""longest time between two moments of a schedule: from one 29 February to the next, across a century without one"""


def trigger(cron: str) -> CronTrigger:
    """The moments of a crontab expression, in UTC."""
    minute, hour, day, month, weekday = as_numbers(cron)
    return CronTrigger(minute=minute, hour=hour, day=day, month=month, day_of_week=weekday, timezone=UTC)


def after(times: CronTrigger, moment: datetime) -> datetime | None:
    """The first moment later than the given one."""
    found: datetime | None = times.get_next_fire_time(None, moment + timedelta(microseconds=1))
    return found


def latest(times: CronTrigger, now: datetime) -> datetime | None:
    """The last moment up to now. A cron expression only tells the next moment, so this looks back in doubling steps."""
    back = MINUTE
    while back < 2 * LONGEST:
        found = after(times, now - back)
        if found is None or found <= now:
            break
        back *= 2
    else:
        return None
    while found is not None and (later := after(times, found)) is not None and later <= now:
        found = later
    return found


def _again(schedule: Schedule, times: CronTrigger, now: datetime) -> datetime | None:
    """The last moment up to now, if the schedule was known before it; else the next moment."""
    last = latest(times, now)
    return last if last is not None and last > schedule.since else after(times, now)


class Slots:
    """The next moment of every canary with times."""

    def __init__(self) -> None:
        self._times: dict[str, tuple[Schedule, CronTrigger]] = {}
        self._next: dict[str, datetime | None] = {}
        self._looked: datetime | None = None

    def set(self, schedules: Iterable[Schedule]) -> None:
        """Replace the schedules. Moments count from when each schedule became known."""
        before, self._times, self._next = self._times, {}, {}
        for item in schedules:
            if not item.cron:
                continue
            known = before.get(item.canary)
            times = known[1] if known and known[0].cron == item.cron else trigger(item.cron)
            self._times[item.canary] = item, times
            self._next[item.canary] = after(times, item.since)
            self._looked = max(item.since, self._looked or item.since)

    @property
    def following(self) -> Mapping[str, datetime | None]:
        """By canary, the first moment that nobody reported as done."""
        return self._next

    def due(self, now: datetime) -> Mapping[str, datetime]:
        """By canary, the latest moment that has come and that nobody reported as done."""
        if self._looked is not None and now < self._looked:  # the clock was set back; the tables know what has fired
            self._times = {
                name: (replace(item, since=min(item.since, now)), times) for name, (item, times) in self._times.items()
            }
            self._next = {name: _again(item, times, now) for name, (item, times) in self._times.items()}
        self._looked = now
        found = {}
        for name, moment in self._next.items():
            if moment is not None and moment <= now:
                last = latest(self._times[name][1], now)
                found[name] = last if last is not None else moment
        return found

    def done(self, filed: Mapping[str, datetime]) -> None:
        """Report moments as done: they are in the tables. Only later ones come next."""
        for name, moment in filed.items():
            self._next[name] = after(self._times[name][1], moment)
