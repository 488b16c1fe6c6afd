"""What a file of figures needs of stored runs, and of the extracts that were kept before runs could be exported."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from condensing.files import read
from qualify.cards.load import load_kernels
from qualify.facts import codec
from qualify.facts.outcome import evidence_of
from qualify.facts.run import Judgement, Record
from qualify.judge.judged import Judged, judge
from qualify.store.store import Store

EXTRACT = "qualify.evidence/1"
STATISTICS = ("E", "R", "G", "beta", "beta_limit", "lse_rel")


def gathered(stores: Sequence[str], wanted: Sequence[str], extracts: Sequence[Path]) -> list[dict[str, Any]]:
    """The runs of some extracts and stores, oldest first, each case once for a matrix and level: its newest result.

    Args:
        stores: as ``--db`` takes them.
        wanted: ids of the runs to take from the stores; empty = all.
        extracts: files of the format EXTRACT.
    """
    runs = {run["run"]: run for path in extracts for run in read_extract(path)}
    kernels = load_kernels()
    for url in stores:
        with Store.open(url, create=False) as store:
            ids = [run.id for run in store.runs() if not wanted or run.id in wanted]
            runs |= {run: run_data(judge(store, run, kernels, now=datetime.now(UTC))) for run in ids}
    missing = set(wanted) - set(runs)
    if missing:
        raise SystemExit(f"no such run in {', '.join(stores)}: {', '.join(sorted(missing))}")
    return newest(sorted(runs.values(), key=lambda run: (run["started_at"], run["run"])))


def read_extract(path: Path) -> list[dict[str, Any]]:
    """The runs of an extract."""
    data = read(path)
    if not isinstance(data, dict) or data.get("schema") != EXTRACT:
        raise SystemExit(f"{path}: no extract ({EXTRACT}). Import exported runs into a store, and name that with --db.")
    runs: list[dict[str, Any]] = data["runs"]
    return runs


def newest(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs, each without the cases that a later run of its matrix has at its level; without those left empty."""
    seen: set[tuple[str, str, str]] = set()
    kept = []
    for run in reversed(runs):
        cases = [case for case in run["cases"] if (run["matrix"], run["level"], case["id"]) not in seen]
        seen |= {(run["matrix"], run["level"], case["id"]) for case in cases}
        kept += [run | {"cases": cases}] if cases else []
    return kept[::-1]


def run_data(judged: Judged) -> dict[str, Any]:
    """One run: what it ran on, what was concluded, and every case that used the device."""
    run, conclusion = judged.run, judged.conclusion
    verdicts = {item.case_id: item for item in conclusion.judgements}
    return {
        "run": run.id,
        "matrix": run.matrix,
        "matrix_hash": run.matrix_hash,
        "level": run.level,
        "select": run.select,
        "kernel": run.kernel,
        "state": run.state,
        "started_at": run.started_at.isoformat(),
        "finished_at": run.finished_at.isoformat() if run.finished_at else None,
        "verdict": conclusion.verdict,
        "counts": {name: dict(counts) for name, counts in conclusion.counts.items()},
        "stack": codec.to_data(run.stack) | {"fingerprint": run.stack.fingerprint} if run.stack else None,
        "ceilings": codec.to_data(run.ceilings) if run.ceilings else None,
        "cases": [_case_data(record, verdicts[record.case.id]) for record in judged.records if _used_device(record)],
    }


def _used_device(record: Record) -> bool:
    outcome = record.outcome
    return not (outcome.outcome == "refused" and outcome.by == "plan") and outcome.outcome != "not_run"


def _case_data(record: Record, judgement: Judgement) -> dict[str, Any]:
    """One case: its verdict, and where it was measured its kernels, errors and times."""
    data: dict[str, Any] = {
        "id": record.case.id,
        "verdict": judgement.verdict,
        "reasons": list(judgement.reasons),
    }
    evidence = evidence_of(record.outcome)
    if evidence is None:
        return data
    data["launched"] = [
        {"name": launch.name, "generation": launch.generation}
        for launch in evidence.witness.launches
        if launch.role == "attention"
    ]
    data["statistics"] = [{name: getattr(item, name) for name in STATISTICS} for item in evidence.statistics]
    data["first_call_us"] = evidence.first_call_us
    data["wall_s"] = evidence.wall_s
    if evidence.timing:
        data["latency_us"] = evidence.timing.latency_us
        data["ceiling_share"] = evidence.timing.ceiling_share
    return data
