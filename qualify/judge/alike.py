"""Which times of a case belong in one series: those of one call on one card that were measured in one way."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass

from qualify.judge.anchored import CaseTime

Timed = dict[str, float]
"""µs by case id"""
Measurement = tuple[str, str, str, CaseTime]
"""card, run, case and time"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trait:
    """Something in which the times of a series agree."""

    of: Callable[[CaseTime], Hashable]
    newest_decides: bool
    """whether the newest time says which value counts; False = the value that most times have, or the newest of these
    where several are as frequent"""
    others: str
    """what the times with another value are, in words"""


TRAITS = (
    Trait(
        of=lambda time: time.content_hash,
        newest_decides=True,
        others="of another call than their case's newest: its shape, its model or its kernel's card changed",
    ),
    Trait(
        of=lambda time: time.cold,
        newest_decides=False,
        others="measured with another cache, warm or cold, than most of their case's",
    ),
    Trait(
        of=lambda time: time.shared,
        newest_decides=False,
        others="measured on a card that others used, or that had no other user, unlike most of their case's",
    ),
    Trait(
        of=lambda time: time.blocks,
        newest_decides=False,
        others="measured in another number of blocks than most of their case's, as at another level",
    ),
)
"""A level decides in how many blocks a case is timed, and for how long. A warm cache makes most calls faster.

Runs of an old call say nothing about the call that is made now, however many there are.
"""


def alike(measured: Iterable[Measurement]) -> tuple[dict[str, dict[str, Timed]], list[str]]:
    """The times that may stand in one series, by card and run; and a sentence about each kind that is left out.

    Args:
        measured: the times of the oldest run first.
    """
    left, told = list(measured), list[str]()
    for trait in TRAITS:
        kept = list(_agreeing(left, trait))
        if count := len(left) - len(kept):
            are = "time is" if count == 1 else "times are"
            told.append(f"{count} {are} {trait.others}, and {'is' if count == 1 else 'are'} left out")
        left = kept
    timed: dict[str, dict[str, Timed]] = defaultdict(dict)
    for card, run, case, time in left:
        timed[card].setdefault(run, {})[case] = time.us
    return timed, told


def _agreeing(measured: list[Measurement], trait: Trait) -> Iterator[Measurement]:
    """The times that have the value that counts, in their order."""
    values: dict[tuple[str, str], list[Hashable]] = defaultdict(list)
    for card, _, case, time in reversed(measured):
        values[card, case].append(trait.of(time))
    counts = {key: own[0] if trait.newest_decides else Counter(own).most_common(1)[0][0] for key, own in values.items()}
    return (it for it in measured if trait.of(it[3]) == counts[it[0], it[2]])
