"""Turns stored runs into what the docs quote: one compact JSON, and the table of docs/kernels.md.

Run it where the runs were stored, or on a copy of the database:

    python benchmarks/evidence.py --db evidence.db --run RUN [--run RUN …] [--add] --out docs/evidence/DATE-GPU.json
    python benchmarks/evidence.py --table docs/evidence/DATE-GPU.json
    python benchmarks/evidence.py --spent RUN --table docs/evidence/DATE-GPU.json
"""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from qualify.cards.load import load_kernels
from qualify.facts import codec
from qualify.facts.case import INCIDENTS
from qualify.facts.outcome import evidence_of, findings_of
from qualify.facts.run import Judgement, Record
from qualify.judge.judged import Judged, judge
from qualify.report.names import short_name
from qualify.store.store import Store


def case_data(record: Record, judgement: Judgement) -> dict[str, Any]:
    """What the docs may quote of one case."""
    data: dict[str, Any] = {
        "id": record.case.id,
        "outcome": record.outcome.outcome,
        "verdict": judgement.verdict,
        "reasons": list(judgement.reasons),
    }
    evidence = evidence_of(record.outcome)
    if evidence is None:
        return data
    data["witness"] = evidence.witness.state
    data["launched"] = [
        {"name": launch.name[:160], "family": launch.family, "generation": launch.generation, "grid": launch.grid}
        for launch in evidence.witness.launches
        if launch.role == "attention"
    ]
    data["statistics"] = [
        {
            "inputs": item.inputs,
            "declared": item.declared_class,
            "measured": item.measured_class,
            "E": item.E,
            "E_without_underflow": item.E_without_underflow,
            "R": item.R,
            "G": item.G,
            "G_limit": item.G_limit,
            "beta": item.beta,
            "beta_limit": item.beta_limit,
            "lse_rel": item.lse_rel,
        }
        for item in evidence.statistics
    ]
    data["first_call_us"] = round(evidence.first_call_us)
    data["wall_s"] = round(evidence.wall_s, 3)
    data["peak_temporary_bytes"] = evidence.peak_temporary_bytes
    if evidence.timing:
        timing = evidence.timing
        data["latency_us"] = round(timing.latency_us, 3)
        data["samples_us"] = [round(sample, 2) for sample in timing.samples_us]
        data["cold"] = timing.cold
        data["host_us"] = round(timing.host_us, 1)
        data["bound"] = timing.bound
        data["ceiling_share"] = round(timing.ceiling_share, 4)
    kept = [finding for finding in findings_of(record.outcome) if finding.verdict != "pass"]
    data["findings"] = [
        {"check": item.check, "verdict": item.verdict, "detail": item.detail}
        for item in kept
        if not item.detail.startswith("not asked")
    ]
    return data


def run_data(judged: Judged) -> dict[str, Any]:
    """One run: what it ran on, what was concluded, and every case that used the device."""
    run, conclusion = judged.run, judged.conclusion
    verdicts = {item.case_id: item for item in conclusion.judgements}
    stack = run.stack
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
        "stack": {
            "fingerprint": stack.fingerprint,
            "device": codec.to_data(stack.device),
            "components": [codec.to_data(part) for part in stack.components],
        }
        if stack
        else None,
        "ceilings": codec.to_data(run.ceilings) if run.ceilings else None,
        "cases": [
            case_data(record, verdicts[record.case.id])
            for record in judged.records
            if not (record.outcome.outcome == "refused" and record.outcome.by == "plan")
            and record.outcome.outcome != "not_run"
        ],
    }


def table(evidence: dict[str, Any]) -> str:
    """Markdown: kernel × phase × what it ran × E, R, G, β, LSE × µs × share of the ceiling."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in evidence["runs"]:
        for case in run["cases"]:
            model, phase, *_, kernel = case["id"].split("/")
            if case.get("launched") and case["verdict"] != "NOT_REQUIRED":
                groups.setdefault((kernel, model if model == INCIDENTS else phase), []).append(case)
    lines = [
        "| kernel | phase | cases | what it ran (generation) | E | R | G | β/limit | LSE | µs | share of ceiling |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (kernel, phase), cases in sorted(groups.items()):
        names = {
            f"`{short_name(item['name'])}` ({item['generation'] or 'not told'})"
            for case in cases
            for item in case["launched"]
        }
        stats = [item for case in cases for item in case["statistics"]]
        lse = [item["lse_rel"] for item in stats if item["lse_rel"] is not None]
        times = [case["latency_us"] for case in cases if "latency_us" in case]
        shares = [case["ceiling_share"] for case in cases if "ceiling_share" in case]
        worst = {name: max((item[name] for item in stats), default=float("nan")) for name in ("E", "R", "G")}
        gain = max((abs(item["beta"]) / item["beta_limit"] for item in stats), default=float("nan"))
        span = f"{min(times):.1f} to {max(times):.1f}" if times else "–"
        share = f"{median(shares):.0%} (best {max(shares):.0%})" if shares else "–"
        lines.append(
            f"| {kernel} | {phase} | {len(cases)} | {', '.join(sorted(names))} | {worst['E']:.2f} | {worst['R']:.2f} | "
            f"{worst['G']:.2f} | {gain:.2f} | {f'{max(lse):.1e}' if lse else '–'} | {span} | {share} |"
        )
    return "\n".join(lines)


def spent(run: dict[str, Any]) -> str:
    """Text: the seconds that each kernel's cases took, and how many of these their first calls."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for case in run["cases"]:
        groups.setdefault(case["id"].rpartition("/")[2], []).append(case)
    taken = {
        kernel: (sum(case.get("wall_s", 0.0) for case in cases), sum(case.get("first_call_us", 0) for case in cases))
        for kernel, cases in groups.items()
    }
    return "\n".join(
        f"{kernel:24} {len(groups[kernel]):5} cases {wall_s:7.1f} s, first calls {first_us / 1e6:6.1f} s"
        for kernel, (wall_s, first_us) in sorted(taken.items(), key=lambda item: -item[1][0])
    )


def newest(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs, each without the cases that a later run of its matrix has at its level; without those left empty."""
    seen: set[tuple[str, str, str]] = set()
    kept = []
    for run in reversed(runs):
        cases = [case for case in run["cases"] if (run["matrix"], run["level"], case["id"]) not in seen]
        seen |= {(run["matrix"], run["level"], case["id"]) for case in cases}
        kept += [run | {"cases": cases}] if cases else []
    return kept[::-1]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--db", action="append", default=[], help="evidence store; may be repeated")
    parser.add_argument("--run", action="append", default=[], help="run id; default: all runs of the stores")
    parser.add_argument("--out", type=Path, help="where to write the JSON")
    parser.add_argument(
        "--add", action="store_true", help="beside the runs that the file holds; of a case and level the newest is kept"
    )
    parser.add_argument("--table", type=Path, help="print the table of a written JSON")
    parser.add_argument("--spent", help="with --table: where the time of this run went instead")
    arguments = parser.parse_args()
    if arguments.table:
        evidence = json.loads(arguments.table.read_text())
        named = [run for run in evidence["runs"] if run["run"] == arguments.spent]
        if arguments.spent and not named:
            parser.error(f"no run {arguments.spent} in {arguments.table}")
        print(spent(named[0]) if named else table(evidence))
        return
    if not (arguments.out and arguments.db):
        parser.error("name the stores with --db and the file with --out, or a written file with --table")
    kernels = load_kernels()
    runs = []
    for url in arguments.db:
        with Store.open(url, create=False) as store:
            stored = [run.id for run in reversed(store.runs())]
            wanted = [run for run in stored if not arguments.run or run in arguments.run]
            runs += [run_data(judge(store, run, kernels, now=datetime.now(UTC))) for run in wanted]
    missing = set(arguments.run) - {run["run"] for run in runs}
    if missing:
        parser.error(f"no such run in {', '.join(arguments.db)}: {', '.join(sorted(missing))}")
    held = json.loads(arguments.out.read_text())["runs"] if arguments.add else []
    runs = newest([run for run in held if run["run"] not in {new["run"] for new in runs}] + runs)
    text = json.dumps(codec.strict({"schema": "qualify.evidence/1", "runs": runs}), indent=None, separators=(",", ":"))
    arguments.out.write_text(text.replace('{"id":', '\n{"id":') + "\n")


if __name__ == "__main__":
    main()
