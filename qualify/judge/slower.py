"""What became slower than the accepted baseline, or than the run that a verdict was compared with."""

from __future__ import annotations

from dataclasses import replace

from qualify.facts.outcome import evidence_of
from qualify.facts.run import Record
from qualify.judge.judged import Judged
from qualify.store.store import Store
from qualify.verdict.slower import slowdown

LOOKED_AT = 500
"""newest runs of the matrix among which those of a verdict are looked for"""


def with_slower(store: Store, judged: Judged) -> Judged:
    """The verdict, with what takes longer than in the accepted baseline; as it is where nobody accepted one.

    Nothing is compared where the evidence is from several cards, or from another card than the baseline: equal cards
    differ.
    """
    run = judged.run
    baseline = store.baseline(run.matrix, run.stack.device.variant) if run.stack else None
    if baseline is None or baseline.run_id in judged.runs or not _one_card(store, judged):
        return judged
    before = store.run(baseline.run_id)
    if before.stack is None or run.stack is None or before.stack.device.uuid != run.stack.device.uuid:
        return judged
    old, new = store.records(before.id, "times"), _timed(store, judged)
    return replace(judged, slower=slowdown(before, old, run, new, accepted_by=baseline.accepted_by))


def _timed(store: Store, judged: Judged) -> list[Record]:
    """The records with their times, of the runs that the evidence is from."""
    if judged.depth == "whole":
        return judged.records
    ran = {record.case.id: judged.source(record.case.id) for record in judged.records if evidence_of(record.outcome)}
    return [
        record
        for run_id in dict.fromkeys(ran.values())
        for record in store.records(run_id, "times")
        if ran.get(record.case.id) == run_id
    ]


def _one_card(store: Store, judged: Judged) -> bool:
    """Whether all runs that the evidence is from used one card; what a run takes over is from its own."""
    runs = store.runs(judged.run.matrix, limit=LOOKED_AT) if len(judged.runs) > 1 else []
    return len({run.stack.device.uuid for run in runs if run.id in judged.runs and run.stack}) <= 1
