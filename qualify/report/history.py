"""A history as text, as JSON, as CSV, and as files that Apache Otava reads."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qualify.facts import codec
from qualify.facts.history import HistoryChange, HistorySeries
from qualify.report.figures import counted
from qualify.report.replacing import write_output
from qualify.report.written import COLUMNS, OTAVA
from qualify.text import one_line

SHOWN = 50
"""most series that the text shows; series with a change come first"""


def to_text(found: Sequence[HistorySeries]) -> str:
    """One series after another; series with a change come first."""
    worst = sorted(found, key=lambda series: (not series.changes, bool(series.why_not), series.case))
    lines = [line for series in worst[:SHOWN] for line in _lines(series)]
    if len(worst) > SHOWN:
        lines.append(f"{len(worst) - SHOWN} more series; --json has all")
    return "\n".join(map(one_line, lines))


def _lines(series: HistorySeries) -> list[str]:
    if not series.points:
        return [f"{series.case} on {series.card}: {series.why_not}"]
    last = series.points[-1]
    anchor = f", {last.ratio:.3f} times {series.anchor}" if series.anchor else ", without an anchor"
    lines = [f"{series.case} on {series.card}: {counted(len(series.points), 'run')}, {last.us:.1f} µs at last{anchor}"]
    lines += [
        f"  {change.at:%Y-%m-%d %H:%M} UTC, run {change.run}: {change.change:+z.1%} from then on; {_with(change)}"
        for change in series.changes
    ]
    if series.why_not:
        lines.append(f"  {series.why_not}")
    elif not series.changes:
        lines.append("  no change of level")
    return lines


def _with(change: HistoryChange) -> str:
    """What changed with the run, the kernel's own code first: no stack shows it."""
    code = f"the code of the kernel: {change.code}" if change.code else ""
    changed = " and ".join(filter(None, [code, change.stack]))
    return f"with it changed {changed}" if changed else "the stack did not change"


def to_data(found: Sequence[HistorySeries]) -> dict[str, Any]:
    """For ``--json``: every series with all points."""
    return {
        "series": [
            {
                **codec.to_data(series),
                "points": [{**codec.to_data(point), "ratio": point.ratio} for point in series.points],
            }
            for series in found
        ]
    }


def to_csv(found: Sequence[HistorySeries]) -> str:
    """One line for each point of each series."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for series in found:
        for point in series.points:
            anchor = "" if point.anchor_us is None else repr(point.anchor_us)
            row = (point.at.isoformat(), point.run, series.case, series.card, point.stack, repr(point.us))
            writer.writerow(map(_inert, (*row, series.anchor, anchor, repr(point.ratio))))
    return text.getvalue()


def _inert(value: str) -> str:
    """The text with an apostrophe in front where a spreadsheet would read it as a formula."""
    return f"'{value}" if value[:1] in {"=", "+", "-", "@"} else value


def write_otava(folder: Path, found: Sequence[HistorySeries]) -> Path:
    """Writes ``otava.yaml`` and a CSV file for each series for Otava's CSV importer; returns the YAML file's path."""
    tests: dict[str, Any] = {}
    for series in found:
        name = otava_name(series)
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n", quotechar="'")
        writer.writerow(("time", "version", "run", "ratio", "us"))
        for point in series.points:
            time = point.at.strftime("%Y-%m-%d %H:%M:%S %z")
            writer.writerow((time, point.stack[:12], point.run, repr(point.ratio), repr(point.us)))
        write_output(folder / f"{name}.csv", text.getvalue())
        tests[name] = {
            "type": "csv",
            "file": str((folder / f"{name}.csv").resolve()),
            "time_column": "time",
            "attributes": ["version", "run"],
            "metrics": {each: {"column": each, "direction": -1} for each in ("ratio", "us")},
            "csv_options": {"delimiter": ",", "quote_char": "'"},
        }
    # JSON is valid YAML, and it escapes every character that a name may hold.
    write_output(folder / OTAVA, json.dumps({"tests": tests}, indent=1) + "\n")
    return folder / OTAVA


def otava_name(series: HistorySeries) -> str:
    """A name for a test and its file: readable, and different for every series."""
    digest = hashlib.sha256(f"{series.case} {series.card}".encode()).hexdigest()[:8]
    return f"{re.sub(r'[^A-Za-z0-9.-]+', '_', series.case)[:80]}.{digest}"
