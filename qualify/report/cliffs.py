"""Kernel maps: what a library launches along each axis, as pictures and tables."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from pydantic import ValidationError

from qualify.errors import UsageError
from qualify.facts import codec
from qualify.facts.cliffs import AXIS_UNITS, KernelMaps, Map, MapPhase, Segment, axis_value
from qualify.facts.run import Run
from qualify.files import open_regular
from qualify.report import figures
from qualify.report.columns import AnyTable, Column, Table
from qualify.report.drawings.kernel_map import kernel_map
from qualify.report.drawings.svg import Drawing
from qualify.report.views import CaseView

LARGEST_BYTES = 16 << 20
"""largest size of a file of maps"""
PHASES: Mapping[MapPhase, frozenset[str]] = {
    "prefill": frozenset({"prefill", "chunked", "varlen"}),
    "decode": frozenset({"decode", "verify"}),
}
"""phases of the cases that a map of each call describes"""


@dataclass(frozen=True, kw_only=True, slots=True)
class MapsFile:
    """Maps out of a file that somebody gave for a report."""

    name: str
    """the file's name without its folder"""
    sha256: str
    maps: KernelMaps


@dataclass(frozen=True, kw_only=True, slots=True)
class AxisView:
    """One axis."""

    axis: str
    title: str
    """the axis with its unit"""
    summary: str
    drawing: Drawing
    table: AnyTable


@dataclass(frozen=True, kw_only=True, slots=True)
class MapsView:
    """The maps of one kernel, ready to show."""

    kernel: str
    qualify_version: str
    facts: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    """limits of the comparison with the report's run; none where the maps have a page of their own"""
    axes: tuple[AxisView, ...]
    legend: AnyTable


def read_maps(path: Path) -> MapsFile:
    """The maps of a file that ``qualify cliffs`` wrote.

    Raises UsageError where it is none.
    """
    try:
        with open_regular(path) as file:
            content = file.read(LARGEST_BYTES + 1)
        if len(content) > LARGEST_BYTES:
            raise ValueError(f"it is larger than {LARGEST_BYTES >> 20} MiB")
        maps = codec.from_data(KernelMaps, json.loads(content))
        if not maps.maps or not all(map(_ordered, maps.maps)):
            raise ValueError("an axis has no values, or they are not in order")
    except (OSError, ValueError, RecursionError) as error:
        reason = _reason(error)
        raise UsageError(
            f"--cliffs {path}: this is no file of kernel maps: {reason}. `qualify cliffs KERNEL` writes one, "
            "out/cliffs-KERNEL.json."
        ) from error
    return MapsFile(name=path.name, sha256=hashlib.sha256(content).hexdigest(), maps=maps)


def _reason(error: Exception) -> str:
    """What is wrong with the file, on one line."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}"
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


def _ordered(found: Map) -> bool:
    """Whether the segments lie one after the other, from 1 or more on."""
    bounds = [bound for part in found.segments for bound in (part.first, part.last)]
    apart = all(left.last < right.first for left, right in zip(found.segments, found.segments[1:], strict=False))
    return bool(bounds) and bounds[0] >= 1 and bounds == sorted(bounds) and apart


def maps_data(found: KernelMaps) -> dict[str, Any]:
    """The maps for JSON, each axis with its unit."""
    data: dict[str, Any] = codec.to_data(found)
    for each in data["maps"]:
        each["unit"] = AXIS_UNITS[each["axis"]]
    return data


def in_report(file: MapsFile, run: Run, views: Sequence[CaseView]) -> MapsView:
    """The maps of a file beside a run: how many of its cases lie in each part, and what limits the comparison."""
    found = file.maps
    own = [view for view in views if view.case.kernel == found.kernel and view.case.phase in PHASES[found.phase]]
    source = (("File", f"{file.name}, SHA-256 {file.sha256[:16]}…"),)
    ran = [view for view in own if view.ran]
    return maps_view(found, source, tuple(_limits(found, run, bool(ran))), ran)


def _limits(found: KernelMaps, run: Run, ran: bool) -> list[str]:
    notes = [] if ran else [f"No {found.phase} case of {found.kernel} ran: these maps say nothing about this run."]
    if run.stack is None:
        return [*notes, "The run has no stack: nobody knows whether the maps are of the same device."]
    if run.stack.device.name not in found.device:
        notes.append(f"The maps are of {found.device}, and the run is of {run.stack.device.name}.")
    name, _, version = found.library.partition(" ")
    mine = run.stack.version(name) if name else ""
    if mine and mine != version:
        notes.append(f"The maps are of {found.library}, and the run is of {name} {mine}: make them again.")
    return notes


def maps_view(
    found: KernelMaps,
    source: tuple[tuple[str, str], ...] = (),
    notes: tuple[str, ...] = (),
    ran: Sequence[CaseView] | None = None,
) -> MapsView:
    """The maps, ready to show.

    Args:
        source: facts about where they come from.
        ran: cases of a run that are counted in each part; None = the maps stand alone.
    """
    letters: dict[str, str] = {}
    for each in found.maps:
        add_letters(letters, each)
    facts = (
        ("Kernel card", found.kernel),
        ("Call that was varied", found.call or found.phase),
        ("Device", found.device),
        ("Library", found.library),
        *source,
    )
    return MapsView(
        kernel=found.kernel,
        qualify_version=found.qualify_version,
        facts=tuple((term, value) for term, value in facts if value),
        notes=notes,
        axes=tuple(_axis(each, letters, ran) for each in found.maps),
        legend=_legend(letters),
    )


def _legend(letters: Mapping[str, str]) -> AnyTable:
    columns: tuple[Column[str], ...] = (
        Column(key="letter", title="Letter", cell=lambda text: letters[text]),
        Column(key="launched", title="Attention kernels, or how the call ended", cell=str, code=True),
    )
    return Table(caption="What is launched", columns=columns, rows=tuple(letters))


def add_letters(letters: dict[str, str], found: Map) -> None:
    """Give whatever is launched along this axis the next letter, unless it has one."""
    for segment in found.segments:
        letters.setdefault(segment.launched, letter_of(len(letters)))


def letter_of(number: int) -> str:
    """A to Z, then A2 and so on."""
    turn, place = divmod(number, len(ascii_uppercase))
    return ascii_uppercase[place] + (str(turn + 1) if turn else "")


def _axis(found: Map, letters: Mapping[str, str], ran: Sequence[CaseView] | None) -> AxisView:
    cliffs = figures.counted(len(found.segments) - 1, "cliff")
    summary = f"{cliffs}, {figures.counted(found.traced, 'value')} traced"
    return AxisView(
        axis=found.axis,
        title=found.title,
        summary=summary,
        drawing=kernel_map(found, letters, summary),
        table=_table(found, letters, ran),
    )


def _table(found: Map, letters: Mapping[str, str], ran: Sequence[CaseView] | None) -> AnyTable:
    columns: tuple[Column[Segment], ...] = (
        Column(key="first", title="From", cell=lambda part: part.first, number=True),
        Column(key="last", title="To", cell=lambda part: part.last, number=True),
        Column(key="exact", title="End", cell=lambda part: "exact" if part.exact else "about"),
        Column(key="letter", title="Letter", cell=lambda part: letters[part.launched]),
        Column(key="launched", title="Launched", cell=lambda part: part.launched, code=True),
    )
    if ran is not None:
        counts = Counter(axis_value(view.case.workload, found.axis) for view in ran)
        columns += (
            Column(key="cases", title="Cases of this run", number=True, cell=lambda part: _inside(part, counts)),
        )
    return Table(caption=f"Along {found.title}", columns=columns, rows=found.segments)


def _inside(part: Segment, counts: Mapping[int, int]) -> int:
    """How many cases lie in a part."""
    return sum(count for value, count in counts.items() if part.first <= value <= part.last)
