"""The comparison of two runs of 5,000 cases: once nothing changed, once everything did."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from common import command_line, evidence, machine, show, small, timed

from qualify.facts.outcome import Finding, Measured
from qualify.facts.run import Record
from qualify.facts.stack import Component
from qualify.store.store import Store


def main() -> None:
    """Store a run, an equal one, and one that fails with another kernel, other numbers and other times."""
    asked = command_line(__doc__, evidence=True).parse_args()
    count = 100 if small() else 5_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run, records = evidence(count, folder, asked.evidence)
        assert run.stack is not None
        part = Component(kind="distribution", name="another", version="2.0", digest="")
        upgraded = replace(run.stack, components=(*run.stack.components, part))
        with Store.open(str(folder / "bench.db")) as store:
            for label, stack, some in (
                ("before", run.stack, records),
                ("same", run.stack, records),
                ("other", upgraded, [_changed(record) for record in records]),
            ):
                store.begin(replace(run, id=label, stack=stack))
                store.add_cases(label, [record.case for record in some])
                store.add(label, some)
        figures = {
            (what, page): timed("diff", "before", what, "--db", "bench.db", *page, folder=folder)
            for what in ("same", "other")
            for page in ((), ("--out", "out"))
        }
    machine()
    for (what, page), (wall, cpu) in figures.items():
        done = f"{count:,} cases, {'all' if what == 'other' else 'none'} changed{', with its page' if page else ''}"
        show(f"qualify diff, {done}", wall, "s")
        show(f"qualify diff, {done}: CPU", cpu, "s")


def _changed(record: Record) -> Record:
    """The record of a case in which everything got worse."""
    outcome = record.outcome
    assert isinstance(outcome, Measured)
    evidence = outcome.evidence
    launches = tuple(replace(launch, name=f"{launch.name}_2") for launch in evidence.witness.launches)
    timing = evidence.timing
    if timing:
        slow = tuple(sample * 2 for sample in timing.samples_us)
        timing = replace(timing, latency_us=timing.latency_us * 2, samples_us=slow)
    worse = replace(
        evidence,
        witness=replace(evidence.witness, launches=launches),
        statistics=tuple(replace(item, E=item.E * 1.5, measured_class="") for item in evidence.statistics),
        timing=timing,
        findings=(*evidence.findings, Finding(check="census", verdict="fail", detail="row 3 sees key 9", values={})),
    )
    return replace(record, outcome=replace(outcome, evidence=worse))


if __name__ == "__main__":
    main()
