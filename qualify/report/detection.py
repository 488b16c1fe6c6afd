"""How well the checks detect, as every report says it: one sentence, and the same for machines."""

from __future__ import annotations

from typing import Any

from qualify.facts.selftest import SelfTest


def sentence(result: SelfTest | None, check_version: int) -> str:
    """How well the checks of that version detect, in one sentence."""
    if result is None:
        return f"not run with these checks (check version {check_version}): run `qualify selftest`"
    counted = len(result.counted)
    rates = ", ".join(
        f"{result.caught(level)} of {counted} planted faults caught at {level}" if not at else f"{found} at {level}"
        for at, level in enumerate(reversed(result.levels))
        for found in (result.caught(level),)
    )
    alarms = f"{len(result.alarms):,} false alarms in {result.correct_runs:,} runs"
    return f"{rates}, {alarms} (check version {result.check_version})"


def summary(result: SelfTest | None, check_version: int) -> dict[str, Any]:
    """The same for machines; ``faults`` is None where the selftest was not run with these checks."""
    if result is None:
        return {"check_version": check_version, "faults": None}
    return {
        "check_version": result.check_version,
        "faults": len(result.counted),
        "caught": {level: result.caught(level) for level in result.levels},
        "correct_runs": result.correct_runs,
        "false_alarms": len(result.alarms),
        "started_at": result.started_at.isoformat(),
    }
