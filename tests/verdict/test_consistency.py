"""Stored evidence that contradicts itself proves nothing, whatever its findings say."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from builders import (
    budget_of,
    make_evidence,
    make_finding,
    make_matrix,
    make_record,
    make_statistics,
    make_timing,
    make_witness,
)

from qualify.facts.accuracy import E_LIMIT, R_LIMIT
from qualify.facts.case import Level
from qualify.facts.checks import CHECKS
from qualify.facts.outcome import Crashed, Evidence, Finding, Measured, Substituted
from qualify.verdict.consistency import contradictions
from qualify.verdict.gate import conclude
from qualify.verdict.policy import Rules

STATISTICS = (make_statistics(), make_statistics("peaked", E=0.9, worst_sequence=1))
LSE = Finding(check="lse", verdict="pass", detail="", values={"inputs": "normal", "lse_rel": 8e-7, "limit": 1e-5})
EVIDENCE = replace(
    make_evidence(make_finding(), *map(budget_of, STATISTICS), LSE), statistics=STATISTICS, timing=make_timing(100.0)
)


def verdict(evidence: Evidence, kind: type[Measured | Substituted] = Measured) -> tuple[str, int, str]:
    """What the gate says about one case with that evidence: verdict, exit code, and the reasons."""
    rules = Rules(matrix=make_matrix().card, patterns={}, partial=False)
    concluded = conclude([make_record(kind(evidence=evidence))], rules)
    return concluded.verdict, concluded.exit_code, "; ".join(concluded.judgements[0].reasons)


def test_honest_evidence_contradicts_nothing() -> None:
    """It passes; a failure stays one, with the numbers that made it; what did not run has none."""
    assert ("PASS", 0, "") == verdict(EVIDENCE)
    failed = replace(budget_of(make_statistics(E=1.4)), verdict="fail", detail="E 1.4 > 1")
    beyond = replace(EVIDENCE, findings=(failed,), statistics=(make_statistics(E=1.4),))
    assert [] == contradictions(make_record(Measured(evidence=beyond)), None)
    assert ("FAIL", 1) == verdict(beyond)[:2]
    assert [] == contradictions(make_record(Crashed(stage="call", error="x", log="", attempt=1)), "full")


def _statistics(**changes: Any) -> Callable[[Evidence], Evidence]:
    """An edit of the row of the statistics."""
    return lambda it: replace(it, statistics=(replace(it.statistics[0], **changes), *it.statistics[1:]))


def _both(**changes: Any) -> Callable[[Evidence], Evidence]:
    """An edit of the row of the statistics and of the finding about it."""

    def edit(it: Evidence) -> Evidence:
        one = replace(it.statistics[0], **changes)
        findings = (it.findings[0], budget_of(one), *it.findings[2:])
        return replace(it, findings=findings, statistics=(one, *it.statistics[1:]))

    return edit


def _timing(**changes: Any) -> Callable[[Evidence], Evidence]:
    return lambda it: replace(it, timing=replace(it.timing, **changes))  # type: ignore[type-var]


def _lse(**changes: Any) -> Callable[[Evidence], Evidence]:
    return lambda it: replace(it, findings=(*it.findings[:-1], replace(LSE, values={**LSE.values, **changes})))


def test_a_number_at_its_limit_contradicts_no_pass() -> None:
    """The limit belongs to what is allowed."""
    assert ("PASS", 0, "") == verdict(_both(E=E_LIMIT, R=R_LIMIT, G_limit=R_LIMIT)(EVIDENCE))


def test_a_finding_without_numbers_hides_no_contradiction() -> None:
    """Of the same check and the same inputs: the one with numbers is still compared with the statistics."""
    empty = [
        Finding(check=check, verdict="pass", detail="", values={"inputs": "normal"}) for check in ("budget", "lse")
    ]
    more = replace(EVIDENCE, findings=(*EVIDENCE.findings, *empty))
    assert ("PASS", 0, "") == verdict(more)
    assert ("INCONCLUSIVE", 5) == verdict(_statistics(E=0.1)(more))[:2]


def test_every_statistic_without_a_finding_is_told() -> None:
    """Not the first one alone."""
    none = replace(EVIDENCE, findings=EVIDENCE.findings[:1])
    assert ["normal", "peaked"] == [
        text.partition("statistics of ")[2].partition(" ")[0]
        for text in contradictions(make_record(Measured(evidence=none)), None)
    ]


EDITS: dict[str, tuple[Callable[[Evidence], Evidence], str]] = {
    "E": (_both(E=1.2), "budget says pass, and E 1.2 > 1"),
    "R": (_both(R=3.5), "R 3.5 > 3"),
    "G": (_both(G=1.9), "G 1.9 > 1.6"),
    "beta": (_both(beta=-7e-4), "beta -0.0007 > 0.00061"),
    "NaN": (_both(E=math.nan), "E nan > 1"),
    "a limit of G": (_both(G=4.0, G_limit=5.0), "have G_limit 5, and limits of G lie between 1.6 and 3"),
    "one of two": (_statistics(E=0.1), "budget says E 0.62, and the statistics of normal inputs have 0.1"),
    "class": (
        _statistics(measured_class="fp16"),
        "says measured_class bf16, and the statistics of normal",
    ),
    "beyond": (_statistics(R=9.0), "budget says pass, and the statistics of normal inputs have R 9 > 3"),
    "lse": (_lse(lse_rel=2e-5), "lse says pass, and lse_rel 2e-05 > 1e-05"),
    "lse of one of two": (_lse(lse_rel=1e-9), "lse says lse_rel 1e-09, and the statistics of normal inputs have 8e-07"),
    "limit": (_lse(limit=1e-9), "lse_rel 8e-07 > 1e-09"),
    "removed": (
        lambda it: replace(it, findings=(it.findings[0], *it.findings[2:])),
        "there are statistics of normal inputs, and no finding about them",
    ),
    "nothing left": (lambda it: replace(it, findings=(), statistics=()), "it has no finding of any check"),
    "latency": (_timing(latency_us=50.0), "the latency is 50 µs, and the median of its samples 100 µs"),
    "months": (
        _timing(latency_us=1e306, samples_us=(1e306,) * 9),
        "the latency is 1e+306 µs, and no call takes months",
    ),
    "samples": (_timing(samples_us=()), "the latency is 100 µs, and there is no sample"),
    "another kernel": (
        lambda it: replace(it, witness=replace(it.witness, launches=make_witness("proven", "other").launches)),
        "the witness says proven, expected under_test, and saw other",
    ),
    "a damaged pattern": (
        lambda it: replace(it, witness=replace(it.witness, expected=(")a",))),
        "the witness says proven, expected )a, and saw ",
    ),
    "no kernel": (
        lambda it: replace(it, witness=replace(it.witness, launches=())),
        "the witness says proven, expected under_test, and saw no attention kernel",
    ),
    "substituted": (
        lambda it: replace(it, witness=make_witness("substituted")),
        "the outcome is measured, and the witness says substituted",
    ),
}


@pytest.mark.parametrize("edited", EDITS)
def test_an_edit_that_contradicts_the_rest_is_no_verdict(edited: str) -> None:
    """The reason names both sides."""
    edit, expected = EDITS[edited]
    found, code, reasons = verdict(edit(EVIDENCE))
    assert ("INCONCLUSIVE", 5) == (found, code)
    assert expected in reasons


def test_a_substitution_that_the_witness_does_not_know_is_no_verdict() -> None:
    """Where the matrix allows a fallback, a proven witness beside it is an edited row."""
    rules = Rules(matrix=make_matrix(policy={"fallback": "record"}).card, patterns={}, partial=False)
    found = conclude([make_record(Substituted(evidence=EVIDENCE))], rules)
    assert ("INCONCLUSIVE", 5) == (found.verdict, found.exit_code)
    assert "the outcome is substituted, and the witness says proven" in found.judgements[0].reasons[0]


def test_a_failing_finding_is_a_failure_whatever_else_is_edited() -> None:
    """No contradiction turns a failure into less."""
    wrong = replace(EVIDENCE, findings=(*EVIDENCE.findings, make_finding("fail", "row 3 sees key 9")))
    assert ("FAIL", 1) == verdict(_statistics(E=7.0)(wrong))[:2]


def answers(level: Level, *without: str) -> Evidence:
    """A case whose checks of the level all passed, but for those whose answers are missing."""
    names = [known.name for known in CHECKS if level in known.levels and known.name not in without]
    return make_evidence(*(make_finding(check=name) for name in names))


def missing(evidence: Evidence, level: Level | None, **workload: Any) -> str:
    """What is missing, as the gate says it; empty where it gives PASS."""
    rules = Rules(matrix=make_matrix().card, patterns={}, partial=False, level=level)
    record = make_record(Measured(evidence=evidence))
    case = replace(record.case, workload=replace(record.case.workload, **workload))
    (judged,) = conclude([replace(record, case=case)], rules).judgements
    assert ("PASS" if not judged.reasons else "INCONCLUSIVE") == judged.verdict
    return "; ".join(judged.reasons)


@pytest.mark.parametrize("level", ["smoke", "full"])
def test_a_check_without_an_answer_is_no_verdict(level: Level) -> None:
    """A pass that was deleted may have been a failure; only what a kernel may leave unasked needs no answer."""
    assert "" == missing(answers(level), level)
    silent = {known.name for known in CHECKS if known.silent}
    assert silent == {"degenerate", "layout", "size_limits"}
    for known in CHECKS:
        told = f"its evidence contradicts itself: the answer of the check {known.name} is missing"
        asked = level in known.levels and known.name not in silent
        assert (told if asked else "") == missing(answers(level, known.name), level)


def test_evidence_of_a_higher_level_has_that_levels_answers() -> None:
    """A run at smoke may take over what a run at full measured; a case that its history broke has one of them."""
    assert "the answer of the check heads is missing" in missing(answers("full", "heads"), "smoke")
    repeated = answers("smoke")
    note = make_finding("note", "as it was", check="history")
    assert "" == missing(replace(repeated, findings=(*repeated.findings, note)), "smoke")


def test_numbers_and_the_findings_about_them_belong_together() -> None:
    """The finding about an LSE that was measured, and the statistics that the budget judged."""
    whole = answers("smoke", "budget")
    whole = replace(whole, findings=(*whole.findings, budget_of(STATISTICS[0]), LSE), statistics=STATISTICS[:1])
    assert "" == missing(whole, "smoke")
    told = missing(replace(whole, findings=whole.findings[:-1]), "smoke")
    assert "its evidence contradicts itself: the answer of lse about normal inputs is missing" == told
    told = missing(replace(whole, statistics=()), "smoke")
    assert "budget judges normal inputs, and there are no statistics of them" in told
    unnamed = replace(budget_of(STATISTICS[0]), values={"E": 0.1})
    told = missing(replace(whole, findings=(*whole.findings, unnamed)), "smoke")
    assert "budget judges unnamed inputs, and there are no statistics of them" in told


def test_what_nobody_asked_is_not_missing() -> None:
    """Checks of another version, numbers of a call without keys, checks behind a broken contract."""
    assert "" == missing(make_evidence(), None)
    assert "" == missing(answers("smoke", "budget"), "smoke", seqlens_q=(4, 0), seqlens_k=(0, 9))
    broken = make_evidence(make_finding("fail", "another shape", check="contract"))
    assert [] == contradictions(make_record(Measured(evidence=broken)), "smoke")
