"""A stored run together with the verdict on it: what every page, format and gate starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from qualify.cards.load import LoadedKernel, parse_matrix
from qualify.errors import NO_VERDICT
from qualify.facts import codec
from qualify.facts.case import INCIDENTS
from qualify.facts.outcome import evidence_of, findings_of
from qualify.facts.run import Conclusion, Record, Run
from qualify.facts.selftest import SelfTest
from qualify.report.detection import summary
from qualify.report.incidents import counted_states, replays
from qualify.report.views import join
from qualify.store.store import Store
from qualify.verdict.gate import conclude
from qualify.verdict.policy import Rules

SHOWN = 12
"""groups of failures that the text names; the report has all"""
WORDS = {"PASS": "qualified", "FAIL": "not qualified", "INCONCLUSIVE": "no verdict"}
WORST_FIRST = ("measured", "substituted", "crashed", "timed_out", "refused", "not_run")
"""outcomes of failed cases: a wrong result that nothing stopped is worse than one that never came"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """A run, its records in plan order, and the conclusion."""

    run: Run
    records: list[Record]
    conclusion: Conclusion
    selftest: SelfTest | None
    """of the checks that made the run; None where it was not run"""


def judge(store: Store, run_id: str, kernels: Mapping[str, LoadedKernel]) -> Judged:
    """Judge a stored run by the policy of the matrix that it was made with; an unfinished one never qualifies."""
    run, records = store.run(run_id), store.records(run_id)
    rules = Rules(
        matrix=parse_matrix(run.matrix_source, run.matrix_path),
        patterns={name: kernel.card.witness.must_match for name, kernel in kernels.items()},
        partial=bool(run.select or run.kernel),
    )
    conclusion = conclude(records, rules)
    if run.state != "completed" and conclusion.verdict == "PASS":
        conclusion = replace(conclusion, verdict="INCONCLUSIVE", exit_code=NO_VERDICT)
    selftest = store.selftest(run.check_version)
    return Judged(run=run, records=records, conclusion=conclusion, selftest=selftest)


def to_data(judged: Judged) -> dict[str, Any]:
    """The JSON of ``qualify run`` and ``qualify gate``: contract 3 in docs/reference.md."""
    run, conclusion = judged.run, judged.conclusion
    verdicts = {judgement.case_id: judgement for judgement in conclusion.judgements}
    cases = []
    for record in judged.records:
        evidence = evidence_of(record.outcome)
        judgement = verdicts[record.case.id]
        cases.append(
            {
                "id": record.case.id,
                "outcome": record.outcome.outcome,
                "verdict": judgement.verdict,
                "reasons": list(judgement.reasons),
                "kernel_launched": list(evidence.witness.attention_names) if evidence else [],
                "findings": [codec.to_data(finding) for finding in findings_of(record.outcome)],
            }
        )
    return {
        "run": run.id,
        "matrix": run.matrix,
        "state": run.state,
        "stack": run.stack.fingerprint if run.stack else None,
        "verdict": conclusion.verdict,
        "exit_code": conclusion.exit_code,
        "selftest": summary(judged.selftest, run.check_version),
        "counts": {kind: dict(counts) for kind, counts in conclusion.counts.items()},
        "cells": [codec.to_data(cell) for cell in conclusion.cells],
        "cases": cases,
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class Trouble:
    """Cases, or production shapes, that came to the same bad end."""

    rank: int
    """0 is the worst"""
    verdict: str
    first: str
    """id of the first case or shape"""
    reason: str
    """why that one"""
    more: list[str]
    """ids of the others"""


def to_text(judged: Judged) -> str:
    """The verdict for people: the worst failures, alike ones together, and at the end one line that says it all."""
    troubles = _troubles(judged)
    lines = []
    for trouble in troubles[:SHOWN]:
        lines += [f"{trouble.verdict:13}{trouble.first}", f"{'':13}{trouble.reason}"]
        if trouble.more:
            lines.append(f"{'':13}and {len(trouble.more)} more like this")
    if len(troubles) > SHOWN:
        lines.append(f"{len(troubles) - SHOWN} other kinds of failure are in the report.")
    return "\n".join([*lines, _verdict_line(judged)])


def _troubles(judged: Judged) -> list[Trouble]:
    """What failed or stayed open: shapes without a proven path first, then wrong results, then crashes and the rest."""
    conclusion = judged.conclusion
    outcomes = {record.case.id: record.outcome.outcome for record in judged.records}
    found: dict[tuple[int, str, str], Trouble] = {}
    items = [
        *((cell.cell, cell.verdict, cell.reasons, 0, "") for cell in conclusion.cells),
        *(
            (item.case_id, item.verdict, item.reasons, 1 + WORST_FIRST.index(outcomes[item.case_id]), item.case_id)
            for item in conclusion.judgements
        ),
    ]
    for name, verdict, reasons, rank, case_id in items:
        if verdict not in {"FAIL", "INCONCLUSIVE"}:
            continue
        order = rank + (10 if verdict == "INCONCLUSIVE" else 0)
        key = (order, case_id.rpartition("/")[2], reasons[0].partition(":")[0])
        if key in found:
            found[key].more.append(name)
        else:
            found[key] = Trouble(rank=order, verdict=verdict, first=name, reason=reasons[0], more=[])
    return sorted(found.values(), key=lambda trouble: trouble.rank)


def _verdict_line(judged: Judged) -> str:
    run, conclusion = judged.run, judged.conclusion
    verdict = WORDS[conclusion.verdict]
    if run.state != "completed":
        verdict += f", and the run is {'not finished' if run.state == 'running' else run.state}"
    counts = ", ".join(f"{count} {name}" for name, count in conclusion.counts["verdicts"].items() if count)
    served = [cell for cell in conclusion.cells if not cell.cell.startswith(f"{INCIDENTS}/")]
    proven = sum(bool(cell.proven_by) for cell in served)
    incidents = counted_states(replays(run, join(judged.records, conclusion)))
    parts = [f"{proven} of {len(served)} production shapes have a proven path"] if served or not incidents else []
    parts += [f"incidents: {incidents}"] if incidents else []
    return f"{run.matrix}: {verdict} ({'; '.join(parts)}; {len(judged.records)} cases: {counts}; run {run.id})"
