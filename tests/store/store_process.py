"""A process of its own that writes into a store or reads it; started by test_store_processes.py."""

from __future__ import annotations

import argparse
import itertools

import store_examples as examples

from qualify.store import Store

GROUP = 5


def write(address: str, number: int, count: int) -> None:
    """Writes a run in small commits, and says after each how many outcomes are safe."""
    run = examples.run(number)
    plan = examples.cases(count)
    with Store.open(address) as store:
        store.begin(run)
        store.set_stack(run.id, examples.stack(f"GPU-{number}"), examples.ceilings())
        store.add_cases(run.id, plan)
        for start in range(0, count, GROUP):
            store.add(run.id, [examples.simple(case) for case in plan[start : start + GROUP]])
            print(min(start + GROUP, count), flush=True)
        store.finish(run.id, "completed", examples.STARTED)


def read(address: str, runs: int) -> None:
    """Reads until that many runs are complete; says how many outcomes it saw at the end."""
    with Store.open(address) as store:
        seen = 0
        for _ in itertools.count():
            complete = sum(run.state == "completed" for run in store.runs())
            found = sum(len(store.done(run.id)) for run in store.runs())
            if found < seen:
                raise SystemExit(f"{found} outcomes after {seen}: evidence vanished")
            seen = found
            if complete == runs:
                break
    print(seen)


def main() -> None:
    """Parses and acts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("write", "read"))
    parser.add_argument("address")
    parser.add_argument("number", type=int)
    parser.add_argument("count", type=int, nargs="?", default=0)
    given = parser.parse_args()
    if given.what == "write":
        write(given.address, given.number, given.count)
    else:
        read(given.address, given.number)


if __name__ == "__main__":
    main()
