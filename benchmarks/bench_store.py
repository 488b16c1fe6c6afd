"""Writing and reading evidence: records per second, in groups as a run commits them."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path

from common import evidence, machine, show, small

from qualify.store.store import Store

GROUP = 50


def main() -> None:
    """Add measured records to an empty SQLite store, then read the whole run."""
    count = 100 if small() else 5_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run, records = evidence(count, folder)
        with Store.open(str(folder / "bench.db")) as store:
            store.begin(replace(run, id=f"{run.id}-copy"))
            began = time.perf_counter()
            store.add_cases(f"{run.id}-copy", [record.case for record in records])
            planned = time.perf_counter()
            for first in range(0, count, GROUP):
                store.add(f"{run.id}-copy", records[first : first + GROUP])
            added = time.perf_counter()
            read = len(store.records(f"{run.id}-copy"))
            done = time.perf_counter()
        size = (folder / "bench.db").stat().st_size
    assert read == count
    machine()
    show(f"plan of {count:,} cases stored", planned - began, "s")
    show(f"outcomes stored, {GROUP} to a transaction", count / (added - planned), "records/s")
    show("records read back", count / (done - added), "records/s")
    show("database", size / count / 1e3, "kB/record")


if __name__ == "__main__":
    main()
