"""The selftest's result: one sentence for every report, the kill table, its page and its JSON twin."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from qualify import __version__
from qualify.assets import released_selftest
from qualify.errors import InfrastructureError
from qualify.facts import codec
from qualify.facts.case import Level
from qualify.facts.selftest import CLASSES, Alarm, CorrectKernel, Detection, FaultClass, PlantedFault, SelfTest
from qualify.report.columns import AnyTable, Column, Table
from qualify.report.detection import sentence
from qualify.report.page import render_page
from qualify.report.replacing import replace_text
from qualify.report.written import SELFTEST_DATA, SELFTEST_PAGE

SCHEMA = "qualify.selftest/1"
NONE = "–"


def _verdict(fault: PlantedFault) -> tuple[str, str]:
    """Glyph and words for a fault's result, and the verdict whose colour they get."""
    if fault.caught:
        return "✓ caught", "PASS"
    return ("≡ equivalent", "NOT_REQUIRED") if fault.equivalent else ("✗ missed", "FAIL")


def _caught_by(fault: PlantedFault, level: Level) -> str:
    """The checks that catch a fault at a level."""
    names = (name for found in fault.detections if found.level == level for name in found.caught_by)
    return ", ".join(name.replace("_", " ") for name in dict.fromkeys(names)) or NONE


FAULTS: tuple[Column[PlantedFault], ...] = (
    Column(key="verdict", title="Verdict", cell=lambda it: _verdict(it)[0], tone=lambda it: _verdict(it)[1]),
    Column(key="name", title="Fault", cell=lambda it: it.name, code=True),
    Column(key="smoke", title="Caught at smoke by", name=True, cell=lambda it: _caught_by(it, "smoke")),
    Column(key="full", title="Caught at full by", name=True, cell=lambda it: _caught_by(it, "full")),
    Column(key="does", title="What it does", cell=lambda it: it.does, sentence=True),
    Column(key="mirrors", title="Mirrors", cell=lambda it: it.mirrors, sentence=True),
    Column(
        key="example",
        title="What the first failure says",
        cell=lambda it: next((found.example for found in it.detections if found.example), ""),
        sentence=True,
    ),
    Column(key="equivalent", title="Why it does not count", cell=lambda it: it.equivalent, sentence=True),
)
CORRECT: tuple[Column[CorrectKernel], ...] = (
    Column(key="name", title="Kernel", cell=lambda kernel: kernel.name, code=True),
    Column(key="does", title="How it differs", cell=lambda kernel: kernel.does, sentence=True),
    Column(key="runs", title="Runs", cell=lambda kernel: kernel.runs, number=True),
    Column(key="alarms", title="False alarms", cell=lambda kernel: len(kernel.alarms), number=True),
)
ALARMS: tuple[Column[Alarm], ...] = (
    Column(key="case", title="Case", cell=lambda alarm: alarm.case_id, code=True),
    Column(key="level", title="Level", cell=lambda alarm: alarm.level),
    Column(key="seed", title="Seed", cell=lambda alarm: alarm.seed, number=True),
    Column(key="check", title="Check", cell=lambda alarm: alarm.check),
    Column(key="detail", title="Detail", cell=lambda alarm: alarm.detail, sentence=True),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassOfFaults:
    """Faults of one kind."""

    kind: str
    title: str
    caught: str
    """number of caught faults of all that count, in words"""
    missed: bool
    """whether a fault that counts was missed"""
    counts: tuple[int, ...]
    """number of faults that each check catches, in the order of the columns"""
    faults: AnyTable
    """the faults, missed ones first"""


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfTestPage:
    """Everything that the page of a result shows."""

    result: SelfTest
    headline: str
    sentence: str
    shipped: bool
    """whether the result was measured for the release, and not here"""
    facts: tuple[tuple[str, str], ...]
    checks: tuple[str, ...]
    """columns of the kill table: a check each"""
    classes: tuple[ClassOfFaults, ...]
    """rows of the kill table: a class of faults each"""
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


def released(check_version: int) -> SelfTest | None:
    """The result of the release, for a store without a selftest; None where other checks gave that result."""
    path = released_selftest()
    data: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if data.get("check_version") != check_version:
        return None
    return SelfTest(
        check_version=data["check_version"],
        qualify_version=__version__,
        levels=tuple(data["levels"]),
        select="",
        started_at=datetime.fromisoformat(data["started_at"]),
        wall_s=data["wall_s"],
        faults=tuple(_fault(kill, data["equivalent"].get(kill["fault"], "")) for kill in data["kills"]),
        correct=codec.from_data(tuple[CorrectKernel, ...], data["correct"]),
    )


def _fault(kill: Mapping[str, Any], equivalent: str) -> PlantedFault:
    """A fault from the data of :func:`to_data`. Its example belongs to the first level at which a check caught it."""
    first = next((level for level, names in kill["caught_by"].items() if names), "")
    detections = [
        {"level": level, "cases": cases, "caught_by": kill["caught_by"][level]}
        | {"example": kill["example"] if level == first else ""}
        for level, cases in kill["cases"].items()
    ]
    return PlantedFault(
        name=kill["fault"],
        kind=kill["class"],
        mirrors=kill["mirrors"],
        does=kill["does"],
        equivalent=equivalent,
        detections=codec.from_data(tuple[Detection, ...], detections),
    )


def to_text(result: SelfTest) -> str:
    """The kill table for a terminal, then false alarms and the sentence. Missed faults come last, close to the end."""
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
        replace_text(directory / SELFTEST_DATA, data)
        replace_text(directory / SELFTEST_PAGE, html)
    except OSError as error:
        raise InfrastructureError(
            f"the selftest's report cannot be written to {directory}: {error.strerror or error}. The result is stored. "
            "Choose another folder with --out DIR."
        ) from error
    return directory / SELFTEST_PAGE


def page_of(result: SelfTest, *, shipped: bool = False) -> SelfTestPage:
    """The page of a result.

    Args:
        shipped: whether the result was measured for the release, and not here.
    """
    checks = checks_of(result)
    kinds = list(dict.fromkeys(fault.kind for fault in result.faults))
    return SelfTestPage(
        result=result,
        headline="Floors hold" if result.holds else "Floors broken",
        sentence=sentence(None if shipped else result, result.check_version),
        shipped=shipped,
        facts=_facts(result),
        checks=checks,
        classes=tuple(
            _class(kind, [fault for fault in result.faults if fault.kind == kind], checks) for kind in sorted(kinds)
        ),
        correct=Table(
            caption="How often each correct kernel ran, and how often a check accused it",
            columns=CORRECT,
            rows=result.correct,
        ),
        alarms=Table(caption="False alarms", columns=ALARMS, rows=result.alarms),
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


def _class(kind: FaultClass, faults: Sequence[PlantedFault], checks: Sequence[str]) -> ClassOfFaults:
    counted = [fault for fault in faults if not fault.equivalent]
    caught = sum(fault.caught for fault in counted)
    seen = [{name for found in fault.detections for name in found.caught_by} for fault in faults]
    return ClassOfFaults(
        kind=kind,
        title=CLASSES[kind],
        caught=f"{caught} of {len(counted)}",
        missed=caught < len(counted),
        counts=tuple(sum(check in names for names in seen) for check in checks),
        faults=Table(
            caption=f"Faults of class {kind}, {CLASSES[kind]}: what each does, and which checks fail on it",
            columns=FAULTS,
            rows=tuple(sorted(faults, key=lambda fault: fault.caught)),
            row_anchor=lambda fault: f"fault-{fault.name}",
        ),
    )
