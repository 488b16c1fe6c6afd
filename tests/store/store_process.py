"""A process of its own that writes into a store, reads it or judges it; started by test_store_processes.py."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import store_examples as examples

import qualify
from qualify.errors import UsageError
from qualify.facts.baseline import Baseline
from qualify.facts.case import Case
from qualify.facts.outcome import Measured, Witness
from qualify.facts.run import Record
from qualify.store import Store

GROUP = 5
SMOKE = Path(qualify.__file__).parents[1] / "matrices" / "smoke.yaml"


def record(case: Case) -> Record:
    """What is stored for the case: every second one was measured."""
    if int(case.content_hash, 16) % 2:
        return examples.simple(case)
    witness = Witness(state="proven", reason="", expected=("x",), launches=examples.launches()[1:], calls=3)
    evidence = examples.evidence(findings=examples.findings()[1:], witness=witness)
    return Record(case=case, outcome=Measured(evidence=evidence))


def write(address: str, number: int, count: int) -> None:
    """Writes a run in small commits, and says after each how many outcomes are safe."""
    run = examples.run(number, matrix_source=SMOKE.read_text())
    plan = examples.cases(count)
    with Store.open(address) as store:
        store.begin(run)
        store.set_stack(run.id, examples.stack(f"GPU-{number}"), examples.ceilings())
        store.add_cases(run.id, plan)
        for start in range(0, count, GROUP):
            store.add(run.id, [record(case) for case in plan[start : start + GROUP]])
            print(min(start + GROUP, count), flush=True)
        store.finish(run.id, "completed", examples.STARTED)


def read(address: str, runs: int) -> None:
    """Reads until that many runs are complete; says how many outcomes it saw at the end."""
    with Store.open(address) as store:
        seen = 0
        while True:
            complete = sum(run.state == "completed" for run in store.runs())
            found = sum(len(store.done(run.id)) for run in store.runs())
            if found < seen:
                raise SystemExit(f"{found} outcomes after {seen}: evidence vanished")
            seen = found
            if complete == runs:
                break
    print(seen)


def judge_all(address: str, runs: int) -> None:
    """Gives the verdict on every run and writes a report, again and again until that many runs are complete."""
    from qualify.cards.load import load_kernels
    from qualify.judge.judged import judge
    from qualify.report.beside import beside_of
    from qualify.report.files import write_report

    kernels, judged = load_kernels(), []
    with Store.open(address) as store, tempfile.TemporaryDirectory() as folder:
        while len(judged) < runs or any(one.run.state != "completed" for one in judged):
            judged = [judge(store, run.id, kernels, now=examples.STARTED) for run in store.runs()]
            for one in judged[:1]:
                write_report(Path(folder) / one.run.id, one.run, one.records, one.conclusion, beside_of(one))
    print(sum(one.conclusion.counts["outcomes"]["measured"] for one in judged))


def _wait() -> None:
    """Until all processes are ready."""
    print("ready", flush=True)
    sys.stdin.readline()


def accept_all(address: str, runs: int) -> None:
    """Accepts every run as a baseline; says of each whether it was still there."""
    with Store.open(address) as store:
        _wait()
        for number in range(1, runs + 1):
            run = examples.run(number)
            baseline = Baseline(
                matrix=run.matrix,
                variant="CPU",
                run_id=run.id,
                accepted_by="jane",
                reason="r",
                accepted_at=examples.STARTED,
            )
            try:
                store.accept(baseline)
            except UsageError:
                print("gone", flush=True)
            else:
                print("accepted", flush=True)


def prune_all(address: str, runs: int) -> None:
    """Removes every run that nothing holds, from the other end; says of each whether it went."""
    with Store.open(address) as store:
        _wait()
        for number in range(runs, 0, -1):
            print(
                "gone"
                if store.retention.remove_run(examples.run(number).id, by="jane", how="prune", reason="old")
                else "accepted",
                flush=True,
            )


def main() -> None:
    """Parses and acts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("write", "read", "judge", "accept", "prune"))
    parser.add_argument("address")
    parser.add_argument("number", type=int)
    parser.add_argument("count", type=int, nargs="?", default=0)
    given = parser.parse_args()
    match given.what:
        case "write":
            write(given.address, given.number, given.count)
        case "read":
            read(given.address, given.number)
        case "judge":
            judge_all(given.address, given.number)
        case "accept":
            accept_all(given.address, given.number)
        case "prune":
            prune_all(given.address, given.number)


if __name__ == "__main__":
    main()
