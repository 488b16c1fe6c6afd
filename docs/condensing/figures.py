"""The file of figures that docs/kernels.md and docs/coverage.md are generated from: ``qualify.figures/1``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Any

from qualify.facts.case import INCIDENTS
from qualify.report.names import short_name

SCHEMA = "qualify.figures/1"
REASON = 160
"""characters of a reason that are kept"""
RUN_FIELDS = (
    *("run", "matrix", "matrix_hash", "level", "select", "kernel", "state", "started_at", "finished_at"),
    *("verdict", "counts", "ceilings"),
)

Case = dict[str, Any]


def figures(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the documents show of the runs that :func:`condensing.runs.gathered` returns.

    ``stacks`` by fingerprint; ``runs``, with what each kernel's cases took; ``measured``, one row for each kernel and
    phase; and of each case's newest result ``passed`` (cell to kernels), ``failed`` and ``beyond`` (case to reason).
    """
    latest = {case["id"]: case for run in runs for case in run["cases"]}
    passed: dict[str, list[str]] = {}
    for case in sorted(name for name, found in latest.items() if found["verdict"] == "PASS"):
        cell, _, kernel = case.rpartition("/")
        passed.setdefault(cell, []).append(kernel)
    return {
        "schema": SCHEMA,
        "stacks": {run["stack"]["fingerprint"]: _stack(run["stack"]) for run in runs if run["stack"]},
        "runs": [_run(run) for run in runs],
        "measured": list(_measured(runs)),
        "passed": passed,
        "failed": _reasons(case for case in latest.values() if case["verdict"] == "FAIL"),
        "beyond": _reasons(
            case for case in latest.values() if any("passed every check" in reason for reason in case["reasons"])
        ),
    }


def _stack(stack: dict[str, Any]) -> dict[str, Any]:
    """The stack without the card's UUID, which other cards of the model do not share."""
    parts = [[part["kind"], part["name"], part["version"], part["digest"]] for part in stack["components"]]
    return {"device": {key: value for key, value in stack["device"].items() if key != "uuid"}, "components": parts}


def _run(run: dict[str, Any]) -> dict[str, Any]:
    """The run, and for each kernel the count of its cases, their seconds, and those of their first calls."""
    cases: dict[str, list[Case]] = {}
    for case in run["cases"]:
        cases.setdefault(case["id"].rpartition("/")[2], []).append(case)
    spent = {
        kernel: {
            "cases": len(own),
            "wall_s": sum(case.get("wall_s", 0.0) for case in own),
            "first_call_s": sum(case.get("first_call_us", 0.0) for case in own) / 1e6,
        }
        for kernel, own in sorted(cases.items())
    }
    stack = run["stack"]["fingerprint"] if run["stack"] else None
    return {name: run[name] for name in RUN_FIELDS} | {"stack": stack, "spent": spent}


def _reasons(cases: Iterable[Case]) -> dict[str, str]:
    return {case["id"]: case["reasons"][0][:REASON] for case in sorted(cases, key=lambda case: str(case["id"]))}


def _measured(runs: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A row for each kernel and phase, or each kernel and the incidents: the worst errors, and the times."""
    groups: dict[tuple[str, str], list[Case]] = {}
    for run in runs:
        for case in run["cases"]:
            model, phase, *_, kernel = case["id"].split("/")
            if case.get("launched") and case["verdict"] != "NOT_REQUIRED":
                groups.setdefault((kernel, model if model == INCIDENTS else phase), []).append(case)
    for (kernel, phase), cases in sorted(groups.items()):
        launched = {(short_name(item["name"]), item["generation"]) for case in cases for item in case["launched"]}
        errors = [item for case in cases for item in case["statistics"]]
        times = [case["latency_us"] for case in cases if "latency_us" in case]
        shares = [case["ceiling_share"] for case in cases if "ceiling_share" in case]
        yield {
            "kernel": kernel,
            "phase": phase,
            "cases": len(cases),
            "launched": sorted(launched),
            **{name: worst([item[name] for item in errors]) for name in ("E", "R", "G")},
            "beta_share": worst([_share(item["beta"], item["beta_limit"]) for item in errors]),
            "lse_rel": worst([item["lse_rel"] for item in errors if item["lse_rel"] is not None]),
            "latency_us": [min(times), max(times)] if times else [],
            "ceiling_share": [median(shares), max(shares)] if shares else [],
        }


def _share(value: float | None, limit: float) -> float | None:
    return None if value is None else abs(value) / limit


def worst(values: Sequence[float | None]) -> list[float | None]:
    """The largest value, None where one is none or infinite; nothing where there are no values."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return [max(known) if len(known) == len(values) else None] if values else []
