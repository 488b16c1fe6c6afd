"""Writing and reading evidence, in groups of the size in which a run commits it.

It is measured in an SQLite file and on a PostgreSQL server of this machine; ``--sqlite`` or ``--postgresql`` measures
only one.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path

from common import addresses, command_line, evidence, machine, show, small

from qualify.facts.run import Record, Run
from qualify.store.store import Store

GROUP = 50
CASES = 50_000


def main() -> None:
    """Add measured records to an empty store, then read the whole run."""
    asked = command_line(__doc__, evidence=True, databases=True).parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run, records = evidence(100 if small() else CASES, folder, asked.evidence)
        machine()
        with addresses(folder, asked.database) as databases:
            for database, address in databases.items():
                _measure(database, address, run, records)
        file = folder / "bench.db"
        if file.exists():
            show("SQLite: size", file.stat().st_size / len(records) / 1e3, "kB/record")


def _measure(database: str, address: str, run: Run, records: list[Record]) -> None:
    count, copy = len(records), f"{run.id}-copy"
    with Store.open(address) as store:
        store.begin(replace(run, id=copy))
        began, cpu = time.perf_counter(), time.process_time()
        store.add_cases(copy, [record.case for record in records])
        planned = time.perf_counter()
        for first in range(0, count, GROUP):
            store.add(copy, records[first : first + GROUP])
        added, used = time.perf_counter(), time.process_time() - cpu
        read = len(store.records(copy))
        done = time.perf_counter()
    assert read == count
    show(f"{database}: plan of {count:,} cases stored", planned - began, "s")
    show(f"{database}: {count:,} outcomes stored, {GROUP} to a transaction", added - planned, "s")
    show(f"{database}: the same", count / (added - planned), "records/s")
    show(f"{database}: CPU of the writer, plan and outcomes", used, "s")
    show(f"{database}: records read back", count / (done - added), "records/s")


if __name__ == "__main__":
    main()
