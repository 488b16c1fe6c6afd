"""How well the checks detect planted faults, in the same words for every report: one sentence, and its JSON.

The figures come from the newest selftest in the store. Where there is none, they are those that were measured for the
release and shipped with it. The same checks find the same faults in the same simulated kernels on every machine.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

from qualify.assets import released_selftest
from qualify.facts.selftest import SelfTest
from qualify.report.figures import counted


@dataclass(frozen=True, kw_only=True, slots=True)
class DetectionView:
    """What a selftest found, in numbers."""

    check_version: int
    faults: int
    caught: dict[str, int]
    """number of caught faults by level, the lowest level first"""
    correct_runs: int
    false_alarms: int
    started_at: str
    """ISO 8601"""
    shipped: bool
    """whether the result was measured for the release, and not here"""


def detection(result: SelfTest | None, check_version: int) -> DetectionView | None:
    """The result for that version of the checks; None where nobody has measured it."""
    if result is None:
        shipped = _shipped()
        return shipped if shipped and shipped.check_version == check_version else None
    return DetectionView(
        check_version=result.check_version,
        faults=len(result.counted),
        caught={level: result.caught(level) for level in result.levels},
        correct_runs=result.correct_runs,
        false_alarms=len(result.alarms),
        started_at=result.started_at.isoformat(),
        shipped=False,
    )


@cache
def _shipped() -> DetectionView | None:
    """The result that was measured for the release; None where the package has none."""
    path = released_selftest()
    if not path.exists():
        return None
    data = json.loads(path.read_text())
    return DetectionView(
        check_version=data["check_version"],
        faults=data["faults"],
        caught={level: found["caught"] for level, found in data["levels"].items()},
        correct_runs=data["correct_runs"],
        false_alarms=sum(len(kernel["alarms"]) for kernel in data["correct"]),
        started_at=data["started_at"],
        shipped=True,
    )


def sentence(result: SelfTest | None, check_version: int) -> str:
    """How well the checks of that version detect, in one sentence."""
    found = detection(result, check_version)
    if found is None:
        return f"not run with these checks (check version {check_version}): run `qualify selftest`"
    rates = ", ".join(
        f"{count} at {level}" if at else f"{count} of {found.faults} planted faults caught at {level}"
        for at, (level, count) in enumerate(reversed(found.caught.items()))
    )
    alarms = f"{counted(found.false_alarms, 'false alarm')} in {counted(found.correct_runs, 'run')}"
    origin = f", measured for the release on {found.started_at[:10]}" if found.shipped else ""
    return f"{rates}, {alarms} (check version {found.check_version}{origin})"


def summary(result: SelfTest | None, check_version: int) -> dict[str, Any]:
    """The same as JSON; ``faults`` is None where nobody ran the selftest with these checks."""
    found = detection(result, check_version)
    if found is None:
        return {"check_version": check_version, "faults": None}
    return {
        "check_version": found.check_version,
        "faults": found.faults,
        "caught": found.caught,
        "correct_runs": found.correct_runs,
        "false_alarms": found.false_alarms,
        "started_at": found.started_at,
        "shipped": found.shipped,
    }
