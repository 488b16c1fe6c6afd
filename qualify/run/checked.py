"""The checks of a case's level, and the digests of its own call."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import torch

from qualify.facts.outcome import Finding, FindingVerdict
from qualify.run.adapters.interface import LibraryRefusal
from qualify.run.bits import inputs_digest, output_digest
from qualify.run.checks.interface import ContractBreach, Subject
from qualify.run.checks.registry import CHECKS
from qualify.run.running import Running, no_room

BUDGET = "budget"
"""name of the check that compares the numbers of the case's own call"""


def check_case(running: Running, subject: Subject, announce: Callable[[str], None]) -> None:
    """Run every check of the level, and note findings and digests. A breach of the call contract ends the checks.

    Args:
        announce: called with the stage before each check.
    """
    hashed = _take_digests(running, subject)
    _run_checks(running, subject, announce)
    with suppress(torch.OutOfMemoryError):
        running.output_digest = hashed()


def _run_checks(running: Running, subject: Subject, announce: Callable[[str], None]) -> None:
    for check in CHECKS:
        if subject.level not in check.levels:
            continue
        why = check.skips(subject)
        if why:
            running.findings.append(Finding(check=check.name, verdict="note", detail=f"not run: {why}"))
            continue
        announce(f"checks:{check.name}")
        try:
            findings = check.run(subject)
        except LibraryRefusal as refusal:
            # A library may refuse a call that a check altered. But the budget check repeats the case's own call.
            verdict: FindingVerdict = "inconclusive" if check.name == BUDGET else "note"
            findings = [Finding(check=check.name, verdict=verdict, detail=f"not run: {refusal}")]
        except torch.OutOfMemoryError as error:
            findings = [no_room(check.name, error)]
        except ContractBreach as breach:
            other = check.name != breach.finding.check
            seen = f" (seen by the check {check.name}; other calls returned what it says)" if other else ""
            running.findings.append(replace(breach.finding, detail=breach.finding.detail + seen))
            return
        running.findings += findings


def _take_digests(running: Running, subject: Subject) -> Callable[[], str]:
    """Take the digests of the first call; returns a function that waits for that of its result.

    Where the device has no room, the case has no digests.
    """
    with suppress(torch.OutOfMemoryError):
        running.inputs_digest = inputs_digest(running.inputs.call)
        return output_digest(subject, running.inputs.call)
    return lambda: ""
