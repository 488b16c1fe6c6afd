"""The selftest's result: one sentence for every report, the kill table, its page and its JSON twin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qualify.errors import InfrastructureError
from qualify.facts import codec
from qualify.facts.case import Level
from qualify.facts.selftest import CLASSES, PlantedFault, SelfTest
from qualify.report.columns import AnyTable, Column, Table
from qualify.report.detection import sentence
from qualify.report.page import render_page
from qualify.report.replacing import replace_text

SCHEMA = "qualify.selftest/1"

MARKS: dict[tuple[Level, ...], tuple[str, str]] = {
    ("smoke", "full"): ("✓", "both"),
    ("smoke",): ("✓", "smoke"),
    ("full",): ("✓", "full"),
    (): ("–", "no"),
}
"""glyph and words for the levels at which a check failed on a fault"""

FAULTS: tuple[Column[PlantedFault], ...] = (
    Column(key="name", title="Fault", cell=lambda fault: fault.name, code=True),
    Column(key="does", title="What it does", cell=lambda fault: fault.does, sentence=True),
    Column(key="mirrors", title="Mirrors", cell=lambda fault: fault.mirrors, sentence=True),
    Column(
        key="example",
        title="What the first failure says",
        cell=lambda fault: next((found.example for found in fault.detections if found.example), "–"),
        sentence=True,
    ),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class KillRow:
    """A fault, and what each check made of it."""

    fault: PlantedFault
    state: str
    """``good``, ``bad`` or ``untested``: the style of the row's verdict"""
    verdict: tuple[str, str]
    """glyph and words"""
    marks: tuple[tuple[str, str], ...]
    """glyph and words for each check, in the order of the columns"""


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfTestPage:
    """Everything that the page of a result shows."""

    result: SelfTest
    headline: str
    sentence: str
    facts: tuple[tuple[str, str], ...]
    checks: tuple[str, ...]
    """columns of the kill table"""
    classes: tuple[tuple[str, tuple[KillRow, ...]], ...]
    """title of a class of faults, and its rows"""
    faults: AnyTable
    correct: AnyTable
    alarms: AnyTable


def to_data(result: SelfTest) -> dict[str, Any]:
    """The JSON of ``qualify selftest``: the contract's fields, rates by level, and the kill table."""
    return {
        "faults": len(result.counted),
        "caught": len(result.counted) - len(result.missed),
        "missed": list(result.missed),
        "correct_runs": result.correct_runs,
        "false_alarms": list(result.alarmed),
        "check_version": result.check_version,
        "levels": {level: {"caught": result.caught(level)} for level in result.levels},
        "equivalent": {fault.name: fault.equivalent for fault in result.faults if fault.equivalent},
        "started_at": result.started_at.isoformat(),
        "wall_s": result.wall_s,
        "checks": list(checks_of(result)),
        "kills": [
            {
                "fault": fault.name,
                "class": fault.kind,
                "mirrors": fault.mirrors,
                "does": fault.does,
                "caught_by": {found.level: list(found.caught_by) for found in fault.detections},
                "cases": {found.level: found.cases for found in fault.detections},
                "example": next((found.example for found in fault.detections if found.example), ""),
            }
            for fault in result.faults
        ],
        "correct": [codec.to_data(kernel) for kernel in result.correct],
    }


def to_text(result: SelfTest) -> str:
    """The kill table for a terminal, misses last where the eye ends, then false alarms and the sentence."""
    widest = max(len(fault.name) for fault in result.faults)
    lines = []
    for fault in sorted(result.faults, key=lambda fault: not fault.caught):
        found = "  ".join(f"{it.level}: {', '.join(it.caught_by) or 'nothing'}" for it in fault.detections)
        word = "caught" if fault.caught else "equal" if fault.equivalent else "MISSED"
        lines.append(f"{word:7}{fault.name:{widest}}  {fault.kind}  {found}")
    lines += [f"ALARM  {alarm.case_id} (seed {alarm.seed}): {alarm.check}: {alarm.detail}" for alarm in result.alarms]
    return "\n".join([*lines, f"selftest: {sentence(result, result.check_version)}, {result.wall_s:.0f} s"])


def checks_of(result: SelfTest) -> tuple[str, ...]:
    """Every check that caught something, in the order in which they run."""
    order: dict[str, None] = {}
    for names in sorted((it.caught_by for fault in result.faults for it in fault.detections), key=len, reverse=True):
        order.update(dict.fromkeys(names))
    return tuple(order)


def write_selftest(directory: Path, result: SelfTest) -> Path:
    """Writes ``selftest.json`` and ``selftest.html`` and returns the path of the page.

    Raises InfrastructureError where the folder cannot be made or written.
    """
    data = codec.to_json({"schema": SCHEMA, **to_data(result)})
    html = render_page("selftest.html", page_of(result))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        replace_text(directory / "selftest.json", data)
        replace_text(directory / "selftest.html", html)
    except OSError as error:
        raise InfrastructureError(
            f"the selftest's report cannot be written to {directory}: {error.strerror or error}. The result is stored. "
            "Choose another folder with --out DIR."
        ) from error
    return directory / "selftest.html"


def page_of(result: SelfTest) -> SelfTestPage:
    """The page of a result."""
    checks = checks_of(result)
    kinds = list(dict.fromkeys(fault.kind for fault in result.faults))
    return SelfTestPage(
        result=result,
        headline="Floors hold" if result.holds else "Floors broken",
        sentence=sentence(result, result.check_version),
        facts=_facts(result),
        checks=checks,
        classes=tuple(
            (
                f"{kind}: {CLASSES[kind]}",
                tuple(_row(fault, checks) for fault in result.faults if fault.kind == kind),
            )
            for kind in sorted(kinds)
        ),
        faults=Table(caption="What each fault does, and what was said", columns=FAULTS, rows=result.faults),
        correct=Table(
            caption="Correct kernels",
            columns=(
                Column(key="name", title="Kernel", cell=lambda kernel: kernel.name, code=True),
                Column(key="does", title="How it differs", cell=lambda kernel: kernel.does, sentence=True),
                Column(key="runs", title="Runs", cell=lambda kernel: kernel.runs, number=True),
                Column(key="alarms", title="False alarms", cell=lambda kernel: len(kernel.alarms), number=True),
            ),
            rows=result.correct,
        ),
        alarms=Table(
            caption="False alarms",
            columns=(
                Column(key="case", title="Case", cell=lambda alarm: alarm.case_id, code=True),
                Column(key="level", title="Level", cell=lambda alarm: alarm.level),
                Column(key="seed", title="Seed", cell=lambda alarm: alarm.seed, number=True),
                Column(key="check", title="Check", cell=lambda alarm: alarm.check),
                Column(key="detail", title="Detail", cell=lambda alarm: alarm.detail, sentence=True),
            ),
            rows=result.alarms,
        ),
    )


def _facts(result: SelfTest) -> tuple[tuple[str, str], ...]:
    rates = [(f"Caught at {level}", f"{result.caught(level)} of {len(result.counted)}") for level in result.levels]
    return (
        *rates,
        ("False alarms", f"{len(result.alarms):,} in {result.correct_runs:,} runs"),
        ("Check version", str(result.check_version)),
        ("Started", f"{result.started_at:%Y-%m-%d %H:%M:%S UTC}"),
        ("Took", f"{result.wall_s:.0f} s"),
        ("Faults", result.select or "all"),
        ("qualify", result.qualify_version),
    )


def _row(fault: PlantedFault, checks: Sequence[str]) -> KillRow:
    marks = []
    for check in checks:
        levels = {found.level for found in fault.detections if check in found.caught_by}
        marks.append(next(mark for where, mark in MARKS.items() if set(where) == levels))
    if fault.caught:
        state, verdict = "good", ("✓", "caught")
    else:
        state, verdict = ("untested", ("≡", "equivalent")) if fault.equivalent else ("bad", ("✗", "missed"))
    return KillRow(fault=fault, state=state, verdict=verdict, marks=tuple(marks))
