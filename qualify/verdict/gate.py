"""The gate: one conclusion and one exit code from all the evidence of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from qualify.cards.policy import Drift
from qualify.errors import NO_VERDICT, NOT_QUALIFIED, QUALIFIED
from qualify.facts.comparison import Change, Comparison, Slowdown, Topic
from qualify.facts.outcome import OUTCOMES, Refused
from qualify.facts.performance import Performance
from qualify.facts.run import VERDICTS, CellJudgement, Conclusion, Judgement, Record, Verdict
from qualify.facts.weaker import Weaker
from qualify.facts.xid import XID
from qualify.plan.host import lacks_gpu
from qualify.verdict.faults import with_faults
from qualify.verdict.policy import Rules, causes_of, judge_case, judge_cell, undecided
from qualify.verdict.waivers import waive

EXIT_CODES: dict[Verdict, int] = {"PASS": QUALIFIED, "FAIL": NOT_QUALIFIED, "INCONCLUSIVE": NO_VERDICT}


def conclude(records: Sequence[Record], rules: Rules) -> Conclusion:
    """Judge every case and every production shape.

    One FAIL of a case, or of a shape without a proven path, means not qualified. So does an expired waiver, whatever it
    covers: its owner said that the failure would be gone by then. Otherwise there is no verdict where anything is
    inconclusive, or where nothing passed or is waived. Everything else is qualified. A demonstration on a CPU never
    qualifies a matrix that names kernels for GPUs. It is none where the claims refuse every case.
    """
    alone = [judge_case(record, rules) for record in records]
    strict = with_faults(records, alone, rules.card)
    causes = [
        causes_of(record, judgement) if own is judgement or judgement.verdict != "FAIL" else frozenset({XID})
        for record, own, judgement in zip(records, alone, strict, strict=True)
    ]
    open_ends = [undecided(record, judgement, rules) for record, judgement in zip(records, strict, strict=True)]
    judgements, uses = waive(records, strict, causes, open_ends, rules.waivers)
    cells = _cells(records, judgements, rules)
    verdicts = Counter(judgement.verdict for judgement in judgements)
    all_verdicts = {judgement.verdict for judgement in judgements} | {cell.verdict for cell in cells}
    verdict: Verdict = "PASS"
    if "FAIL" in all_verdicts or any(use.state == "expired" for use in uses):
        verdict = "FAIL"
    elif "INCONCLUSIVE" in all_verdicts or not verdicts["PASS"] + verdicts["WAIVED"]:
        verdict = "INCONCLUSIVE"
    outcomes = Counter[str](record.outcome.outcome for record in records)
    on_cpu = rules.demonstration or _refused_on_cpu(records)
    conclusion = Conclusion(
        verdict=verdict,
        exit_code=EXIT_CODES[verdict],
        judgements=judgements,
        cells=cells,
        counts={
            "verdicts": {name: verdicts[name] for name in VERDICTS},
            "outcomes": {name: outcomes[name] for name in OUTCOMES},
        },
        waivers=uses,
        demonstration=on_cpu and (rules.partial or not refused_by_claims(records)),
    )
    return without_verdict(conclusion) if conclusion.demonstration and not rules.matrix.portable else conclusion


def _refused_on_cpu(records: Sequence[Record]) -> bool:
    """Whether a kernel was left out because it needs a GPU: the refusal says so, even if its card is gone by now."""
    return any(isinstance(record.outcome, Refused) and lacks_gpu(record.outcome.reasons) for record in records)


def refused_by_claims(records: Sequence[Record]) -> bool:
    """Whether the cards' claims refuse every case, so that no other device would help.

    The plan names what the claims refuse before what the machine lacks.
    """
    return bool(records) and all(
        isinstance(record.outcome, Refused)
        and record.outcome.by == "plan"
        and not lacks_gpu(record.outcome.reasons[:1])
        for record in records
    )


def without_verdict(conclusion: Conclusion) -> Conclusion:
    """The conclusion where something forbids a PASS: a failure stays a failure, everything else becomes no verdict."""
    if conclusion.verdict != "PASS":
        return conclusion
    return replace(conclusion, verdict="INCONCLUSIVE", exit_code=NO_VERDICT)


def forbid_drift(
    conclusion: Conclusion, comparison: Comparison, drift: Drift
) -> tuple[Conclusion, tuple[tuple[Topic, Change], ...]]:
    """The conclusion where the matrix forbids changes since the baseline; and the forbidden changes that were found.

    There is no verdict where nobody can decide whether a forbidden change happened.
    """
    required = {item.case_id for item in conclusion.judgements if item.verdict != "NOT_REQUIRED"}
    policies: tuple[tuple[Topic, str, tuple[Change, ...]], ...] = (
        ("kernels", drift.kernels, comparison.kernels),
        ("numbers", drift.numbers, comparison.numbers),
    )
    asked = [
        (topic, change)
        for topic, policy, changes in policies
        for change in changes
        if policy == "fail" and change.id in required
    ]
    forbidden = tuple(item for item in asked if item[1].bucket in ("regression", "suspicious"))
    if forbidden:
        return replace(conclusion, verdict="FAIL", exit_code=NOT_QUALIFIED), forbidden
    unknown = drift.numbers == "fail" and comparison.before.check_version != comparison.after.check_version
    if unknown or any(change.bucket == "insufficient data" for _, change in asked):
        return without_verdict(conclusion), ()
    return conclusion, ()


def forbid_weaker(conclusion: Conclusion, weaker: Weaker) -> Conclusion:
    """The conclusion where requirements are weaker than the baseline's and the policy forbids that: not qualified.

    Evidence of a lower level alone is no verdict: more of it may say better.
    """
    kinds = {change.kind for change in weaker.changes} if weaker.forbidden else set()
    if kinds - {"level"}:
        return replace(conclusion, verdict="FAIL", exit_code=NOT_QUALIFIED)
    return without_verdict(conclusion) if kinds else conclusion


def forbid_slower(conclusion: Conclusion, slower: Slowdown | None, untimed: str) -> Conclusion:
    """The conclusion where a slower case fails the gate; where times cannot be compared it is no verdict."""
    if slower:
        return replace(conclusion, verdict="FAIL", exit_code=NOT_QUALIFIED)
    return without_verdict(conclusion) if untimed else conclusion


def forbid_regression(conclusion: Conclusion, performance: Performance) -> Conclusion:
    """The conclusion under the budgets of time: not qualified beyond one of them, no verdict where one is undecided."""
    if performance.verdict == "FAIL":
        return replace(conclusion, verdict="FAIL", exit_code=NOT_QUALIFIED)
    return without_verdict(conclusion) if performance.verdict == "INCONCLUSIVE" else conclusion


def _cells(records: Sequence[Record], judgements: Sequence[Judgement], rules: Rules) -> tuple[CellJudgement, ...]:
    """The production shapes, in the order in which the plan names them."""
    members: dict[str, list[int]] = {}
    for index, record in enumerate(records):
        members.setdefault(record.case.cell, []).append(index)
    return tuple(
        judge_cell(cell, [records[index] for index in indices], [judgements[index] for index in indices], rules)
        for cell, indices in members.items()
    )
