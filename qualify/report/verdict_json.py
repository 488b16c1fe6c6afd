"""A verdict as JSON: contract 3 in docs/reference.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qualify.facts import codec
from qualify.facts.baseline import Baseline
from qualify.facts.comparison import Since
from qualify.facts.outcome import Finding, ended_at_of, evidence_of, findings_of
from qualify.facts.run import Run
from qualify.facts.waiver import WaiverUse
from qualify.judge.judged import Against, Judged
from qualify.report.detection import summary
from qualify.report.differences import stack_change_data
from qualify.report.differences import to_data as comparison_data
from qualify.report.environments import environments_data
from qualify.report.next_steps import next_steps
from qualify.report.performance import performance_data
from qualify.report.signoffs import signoff_data
from qualify.report.slower import slower_data
from qualify.report.troubles import troubles
from qualify.report.verdict_text import verdict_line
from qualify.report.weaker import weaker_data

REMEMBERED = 4_000
"""most findings whose data is kept for reuse"""


def to_data(judged: Judged) -> dict[str, Any]:
    """The JSON of ``qualify run`` and ``qualify gate``: contract 3 in docs/reference.md.

    Cells and cases are iterators for :func:`qualify.facts.codec.to_pieces`: lists of 50,000 cases would take 600 MB.
    """
    run, conclusion = judged.run, judged.conclusion
    return {
        "run": run.id,
        "runs": list(judged.runs),
        "matrix": run.matrix,
        "matrix_path": run.matrix_path,
        "level": run.level,
        "state": run.state,
        "started_at": judged.began_at.isoformat(),
        "evidence_since": judged.evidence_since.isoformat(),
        "stale": judged.stale,
        "future": judged.future is not None,
        "narrowed": judged.run.narrowed,
        "failed_cards": dict(judged.failed_cards),
        "stack": run.stack.fingerprint if run.stack else None,
        "device": run.stack.device.name if run.stack else None,
        "environments": environments_data(run),
        "headline": verdict_line(judged),
        "verdict": conclusion.verdict,
        "exit_code": conclusion.exit_code,
        "demonstration": conclusion.demonstration,
        "selftest": summary(judged.selftest, run.check_version),
        "counts": {kind: dict(counts) for kind, counts in conclusion.counts.items()},
        "notes": list(judged.notes),
        "signoffs": [signoff_data(it) for it in judged.signoffs],
        "waivers": [waiver_data(use) for use in conclusion.waivers],
        "do": [step.line for step in next_steps(judged, troubles(judged))],
        "since": since_data(judged.since) if judged.since else None,
        "against": against_data(judged.against) if judged.against else None,
        "slower": slower_data(judged.slower),
        "performance": performance_data(judged.performance),
        "weaker": weaker_data(judged.weaker),
        "cells": map(codec.to_data, conclusion.cells),
        "cases": _cases(judged),
    }


def _cases(judged: Judged) -> Iterator[dict[str, Any]]:
    """Every case with its verdict."""
    verdicts = {judgement.case_id: judgement for judgement in judged.conclusion.judgements}
    told = _Told()
    for record in judged.records:
        evidence = evidence_of(record.outcome)
        judgement = verdicts[record.case.id]
        ended_at = ended_at_of(record.outcome)
        yield {
            "id": record.case.id,
            "outcome": record.outcome.outcome,
            "verdict": judgement.verdict,
            "reasons": list(judgement.reasons),
            "line": record.case.line,
            "environment": record.case.environment,
            "ended_at": ended_at.isoformat() if ended_at else None,
            "kernel_launched": list(evidence.witness.attention_names) if evidence else [],
            "identity_asserted": evidence is not None and evidence.witness.identity_asserted,
            "findings": [told.data(finding) for finding in findings_of(record.outcome)],
        }


class _Told:
    """The data of findings. One finding object that many cases share is converted once."""

    def __init__(self) -> None:
        self._known: dict[int, Any] = {}

    def data(self, finding: Finding) -> Any:
        """The finding as the codec converts it. The finding must outlive this object, which knows it by ``id``."""
        known = self._known.get(id(finding))
        if known is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            known = self._known[id(finding)] = codec.to_data(finding)
        return known


def against_data(against: Against) -> dict[str, Any]:
    """The run that it was compared with, and everything that changed, as JSON."""
    return {
        **_earlier_data(against.comparison.before, against.baseline),
        "forbidden": [{"id": change.id, "topic": topic} for topic, change in against.forbidden],
        **comparison_data(against.comparison),
    }


def since_data(since: Since) -> dict[str, Any]:
    """The earlier run, and what changed under the kernels since, as JSON."""
    return {
        **_earlier_data(since.before, since.baseline),
        "stack": [stack_change_data(change) for change in since.stack],
        "code": dict(since.code),
    }


def _earlier_data(before: Run, baseline: Baseline | None) -> dict[str, Any]:
    """An earlier run, and who accepted it."""
    return {
        "run": before.id,
        "accepted_by": baseline.accepted_by if baseline else None,
        "accepted_proven": baseline.proven if baseline else None,
        "accepted_at": baseline.accepted_at.isoformat() if baseline else None,
    }


def waiver_data(use: WaiverUse) -> dict[str, Any]:
    """A waiver, its state and the cases that it met, as JSON."""
    waiver = use.waiver
    return {
        "id": waiver.id,
        "state": use.state,
        "place": waiver.place,
        "select": waiver.select,
        "checks": list(waiver.checks),
        "owner": waiver.owner,
        "reason": waiver.reason,
        "link": waiver.link,
        "created": waiver.created.isoformat(),
        "expires": waiver.expires.isoformat(),
        "stack": dict(waiver.stack),
        "waived": list(use.waived),
        "failing": list(use.failing),
        "passing": list(use.passing),
    }
