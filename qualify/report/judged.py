"""A stored run together with the verdict on it: what every page, format and gate starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qualify.cards.load import LoadedKernel, parse_matrix
from qualify.facts import codec
from qualify.facts.outcome import evidence_of, findings_of
from qualify.facts.run import Conclusion, Record, Run
from qualify.store.store import Store
from qualify.verdict.gate import conclude
from qualify.verdict.policy import Rules

SHOWN = 20
"""failures that the text names; the report has all"""
WORDS = {"PASS": "qualified", "FAIL": "not qualified", "INCONCLUSIVE": "no verdict"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """A run, its records in plan order, and the conclusion."""

    run: Run
    records: list[Record]
    conclusion: Conclusion


def judge(store: Store, run_id: str, kernels: Mapping[str, LoadedKernel]) -> Judged:
    """Judge a stored run by the policy of the matrix that it was made with."""
    run, records = store.run(run_id), store.records(run_id)
    rules = Rules(
        matrix=parse_matrix(run.matrix_source, run.matrix_path),
        patterns={name: kernel.card.witness.must_match for name, kernel in kernels.items()},
        partial=bool(run.select or run.kernel),
    )
    return Judged(run=run, records=records, conclusion=conclude(records, rules))


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
        "stack": run.stack.fingerprint if run.stack else None,
        "verdict": conclusion.verdict,
        "exit_code": conclusion.exit_code,
        "counts": {kind: dict(counts) for kind, counts in conclusion.counts.items()},
        "cells": [codec.to_data(cell) for cell in conclusion.cells],
        "cases": cases,
    }


def to_text(judged: Judged) -> str:
    """The verdict for people: what failed first, then one line that says it all."""
    run, conclusion = judged.run, judged.conclusion
    judged_items = [
        *((item.verdict, item.case_id, item.reasons) for item in conclusion.judgements),
        *((item.verdict, item.cell, item.reasons) for item in conclusion.cells),
    ]
    bad = [(verdict, name, why[0]) for verdict, name, why in judged_items if verdict in {"FAIL", "INCONCLUSIVE"}]
    lines = [f"{verdict:13}{name}\n{'':13}{reason}" for verdict, name, reason in sorted(bad, key=_worst_first)[:SHOWN]]
    if len(bad) > SHOWN:
        lines.append(f"… and {len(bad) - SHOWN} more")
    counts = ", ".join(f"{count} {name}" for name, count in conclusion.counts["verdicts"].items() if count)
    lines.append(f"{run.matrix}: {WORDS[conclusion.verdict]} (run {run.id}: {len(judged.records)} cases, {counts})")
    return "\n".join(lines)


def _worst_first(item: tuple[str, str, str]) -> bool:
    return item[0] != "FAIL"
