"""The JSON twin of the page: the same answers and the same evidence, numbers as numbers."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pydantic_core

from qualify.facts import codec
from qualify.report.cliffs import maps_data
from qualify.report.context import ReportContext
from qualify.report.detection import summary
from qualify.report.environments import environments_data
from qualify.report.incidents import incidents_data
from qualify.report.performance import performance_data
from qualify.report.questions import QUESTIONS, Answer
from qualify.report.signoffs import signoff_data
from qualify.report.slower import slower_data
from qualify.report.traffic import traffic_data
from qualify.report.verdict_json import against_data, waiver_data
from qualify.report.views import CaseView
from qualify.report.weaker import weaker_data

SCHEMA = "qualify.report/1"


def to_json(context: ReportContext) -> str:
    """One strict JSON object. NaN and infinity become null; a lone surrogate, which UTF-8 cannot hold, is escaped."""
    document = _verdict(context) | _beside(context)
    document |= {"shapes": context.conclusion.cells, "cases": [case_data(view) for view in context.views]}
    try:
        return pydantic_core.to_json(document, inf_nan_mode="null").decode()
    except pydantic_core.PydanticSerializationError:
        # Some text holds a lone surrogate. To search every text for one first would take longer than all the rest.
        return codec.to_json(pydantic_core.to_jsonable_python(document))


def _verdict(context: ReportContext) -> dict[str, Any]:
    """The run, the verdict on it, and the answers."""
    run, conclusion = context.run, context.conclusion
    return {
        "schema": SCHEMA,
        "run": run.id,
        "matrix": run.matrix,
        "stack": run.stack,
        "verdict": conclusion.verdict,
        "exit_code": conclusion.exit_code,
        "demonstration": conclusion.demonstration,
        "summary": context.summary,
        "counts": conclusion.counts,
        "selftest": summary(context.beside.selftest, run.check_version),
        "environments": environments_data(run),
        "parameters": _without(run, "id", "matrix", "stack", "ceilings", "environments") | {"repeat": context.repeat},
        "ceilings": run.ceilings,
        "models": [
            {
                "model": model.model,
                "answers": [
                    _answer(question.key, question.text, answer)
                    for question, answer in zip(QUESTIONS, model.answers, strict=True)
                ],
            }
            for model in context.models
        ],
    }


def _beside(context: ReportContext) -> dict[str, Any]:
    """What stands beside the run: traffic, comparisons, times, people."""
    beside = context.beside
    return {
        "traffic": traffic_data(context.traffic),
        "incidents": incidents_data(context.replays),
        "against": against_data(beside.against) if beside.against else None,
        "slower": slower_data(beside.slower),
        "performance": performance_data(beside.performance),
        "weaker": weaker_data(beside.weaker),
        "notes": beside.notes,
        "signoffs": [signoff_data(it) for it in beside.signed],
        "cliffs": [{"file": it.name, "sha256": it.sha256, **maps_data(it.maps)} for it in beside.maps],
        "waivers": [waiver_data(use) for use in context.conclusion.waivers],
    }


def _without(record: Any, *names: str) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record) if field.name not in names}


def _answer(key: str, text: str, answer: Answer) -> dict[str, Any]:
    return {
        "question": key,
        "text": text,
        "state": answer.state,
        "headline": answer.headline,
        "lines": answer.lines,
        "notes": answer.notes,
        "tables": [{"caption": table.caption, "rows": table.data()} for table in answer.tables],
        "links": [link.text for link in answer.links],
    }


def case_data(view: CaseView) -> dict[str, Any]:
    """One case with its verdict and all its evidence. Numbers may be NaN or infinite, which JSON cannot hold."""
    details = _without(view.outcome, "outcome", "findings", "evidence")
    if view.evidence:
        details |= _without(view.evidence, "findings")
    return {
        "id": view.case.id,
        "outcome": view.outcome.outcome,
        "verdict": view.verdict,
        "reasons": view.reasons,
        "environment": view.case.environment,
        "kernel_launched": view.evidence.witness.attention_names if view.evidence else (),
        "identity_asserted": view.evidence is not None and view.evidence.witness.identity_asserted,
        "findings": view.findings,
        "details": details,
        "case": _without(view.case, "id"),
    }
