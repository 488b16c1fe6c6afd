"""Ages as people type and read them: 24h, 7d."""

from __future__ import annotations

import re
from datetime import timedelta

from qualify.errors import UsageError

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MOST_DAYS = 3650


def parse_age(text: str) -> timedelta:
    """An age as it is typed: a number from 1 and s, m, h or d. Raises UsageError for anything else."""
    found = re.fullmatch(r"([0-9]{1,9})([smhd])", text.strip())
    if not found or int(found[1]) * UNITS[found[2]] > MOST_DAYS * UNITS["d"]:
        raise UsageError(
            f"--max-age {text}: give a number and its unit s, m, h or d, for example 24h; at most {MOST_DAYS}d"
        )
    if not int(found[1]):
        raise UsageError(
            f"--max-age {text}: no evidence is so young; give a number from 1, for example 24h. "
            "A run that takes over nothing: qualify run --fresh"
        )
    return timedelta(seconds=int(found[1]) * UNITS[found[2]])


def shown_age(age: timedelta) -> str:
    """How old something is, in one unit."""
    seconds = max(0, int(age.total_seconds()))
    for unit, size in (("d", UNITS["d"]), ("h", UNITS["h"]), ("min", UNITS["m"])):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
