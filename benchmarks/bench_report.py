"""The report of 5,000 cases: time to judge and render it, its size, and the time of the whole command."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path

from common import command_line, evidence, machine, peak_bytes, show, small, timed

from qualify.cards.load import parse_matrix
from qualify.report.files import write_report
from qualify.store.store import Store
from qualify.verdict.gate import conclude
from qualify.verdict.policy import Rules


def main() -> None:
    """Judge and render records of cases that all ran."""
    asked = command_line(__doc__, evidence=True).parse_args()
    count = 100 if small() else 5_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run, records = evidence(count, folder, asked.evidence)
        rules = Rules(matrix=parse_matrix(run.matrix_source, run.matrix_path), patterns={}, partial=True)
        began = time.perf_counter()
        conclusion = conclude(records, rules)
        judged = time.perf_counter()
        page = write_report(folder / "out", run, records, conclusion)
        done = time.perf_counter()
        sizes = page.stat().st_size, (page.parent / "report.json").stat().st_size
        with Store.open(str(folder / "bench.db")) as store:
            store.begin(replace(run, id="bench"))
            store.add_cases("bench", [record.case for record in records])
            store.add("bench", records)
        wall, cpu = timed("report", "bench", "--db", "bench.db", folder=folder)
    machine()
    show(f"judging {count:,} cases", judged - began, "s")
    show("writing report.html and report.json", done - judged, "s")
    show(f"qualify report, {count:,} cases", wall, "s")
    show(f"qualify report, {count:,} cases: CPU", cpu, "s")
    show("report.html", sizes[0] / 1e6, "MB")
    show("report.json", sizes[1] / 1e6, "MB")
    show("peak memory of the process", peak_bytes() / 1e6, "MB")


if __name__ == "__main__":
    main()
