"""Does stored evidence contradict itself? A verdict is computed from the stored numbers, never believed.

Each rule follows from how a judge makes evidence, so honest evidence keeps them all. Whoever edits a row and not the
rows that follow from it breaks a rule. Whoever edits all of them breaks none: only a seal notices that (qualify.seal).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from statistics import median

from qualify.facts.accuracy import E_LIMIT, G_LIMIT, R_LIMIT
from qualify.facts.outcome import Evidence, Finding, Outcome, Substituted, Timing, Value, Witness, evidence_of
from qualify.facts.run import Record, Run

BUDGET = "budget"
LSE = "lse"
LSE_REL = "lse_rel"
COPIED = ("E", "R", "G", "G_limit", "beta", "beta_limit", "measured_class")
"""what a finding of the budget repeats of its statistics"""
_copied = attrgetter(*COPIED)
_NUMBERS = (int, float)


def contradictions(outcome: Outcome) -> list[str]:
    """The contradictions in an outcome, with their values; empty where there is none."""
    evidence = evidence_of(outcome)
    if evidence is None:
        return []
    return [
        *_of_findings(evidence),
        *_of_statistics(evidence),
        *_of_witness(evidence.witness, substituted=isinstance(outcome, Substituted)),
        *(_of_timing(evidence.timing) if evidence.timing else ()),
    ]


def contradictions_of(run: Run, records: Iterable[Record]) -> list[str]:
    """What in a run cannot be true together."""
    of_cases = [f"{record.case.id}: {text}" for record in records for text in contradictions(record.outcome)]
    return [*filter(None, [matrix_contradiction(run)]), *of_cases]


def matrix_contradiction(run: Run) -> str:
    """Why the stored matrix is not the one that the run was made with; empty where it is."""
    content = hashlib.sha256(f"{run.matrix_source}{run.traffic_source}".encode(errors="surrogatepass")).hexdigest()
    if content == run.matrix_hash:
        return ""
    return f"its matrix has the sha256 {content[:12]}…, and it says {run.matrix_hash[:12]}…"


def _of_findings(evidence: Evidence) -> Iterator[str]:
    """Findings that pass and hold numbers beyond their limits, and evidence of no check."""
    if not evidence.findings:
        yield "it has no finding of any check"
    for finding in evidence.findings:
        if finding.verdict == "pass":
            for text in _beyond(finding):
                yield f"{finding.check} says pass, and {text}"


def _beyond(finding: Finding) -> list[str]:
    """The numbers of a finding that are beyond the limits which stand beside them."""
    if finding.check == LSE and LSE_REL in finding.values:
        return _over([(LSE_REL, finding.values[LSE_REL], finding.values.get("limit"))])
    if finding.check == BUDGET and "E" in finding.values:
        return _over(_limits(finding.values))
    return []


def _of_statistics(evidence: Evidence) -> Iterator[str]:
    """Statistics beyond their limits without a failing finding, and findings with other numbers than the statistics."""
    findings = {str(it.values.get("inputs")): it for it in evidence.findings if it.check == BUDGET and "E" in it.values}
    of_lse = {str(it.values.get("inputs")): it for it in evidence.findings if it.check == LSE and LSE_REL in it.values}
    for one in evidence.statistics:
        what = f"the statistics of {one.inputs} inputs"
        finding = findings.get(one.inputs)
        if finding is None:
            yield f"there are {what.removeprefix('the ')}, and no finding about them"
            continue
        numbers: dict[str, Value] = dict(zip(COPIED, _copied(one), strict=True))
        if not G_LIMIT <= one.G_limit <= R_LIMIT:
            yield f"{what} have G_limit {one.G_limit:.3g}, and limits of G lie between {G_LIMIT:g} and {R_LIMIT:g}"
        if finding.verdict != "fail":
            yield from (f"{BUDGET} says {finding.verdict}, and {what} have {text}" for text in _over(_limits(numbers)))
        for name, number in numbers.items():
            said = finding.values.get(name, number)
            if said != number and not _equal(said, number):
                yield f"{BUDGET} says {name} {said}, and {what} have {number}"
        said = of_lse[one.inputs].values[LSE_REL] if one.inputs in of_lse else one.lse_rel
        if not _equal(said, one.lse_rel):
            yield f"{LSE} says {LSE_REL} {said}, and {what} have {one.lse_rel}"


def _of_witness(witness: Witness, *, substituted: bool) -> Iterator[str]:
    """A witness state that contradicts the outcome or the launches."""
    if substituted != (witness.state == "substituted"):
        yield f"the outcome is {'substituted' if substituted else 'measured'}, and the witness says {witness.state}"
    if witness.state != "proven":
        return
    strange = [name for name in witness.attention_names if not _matches(name, witness.expected)]
    if strange or not witness.attention_names:
        seen = ", ".join(strange) or "no attention kernel"
        yield f"the witness says proven, expected {', '.join(witness.expected)}, and saw {seen}"


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(re.search(pattern, name) for pattern in patterns)


def _of_timing(timing: Timing) -> Iterator[str]:
    """A latency that is not the median of its samples."""
    if not timing.samples_us:
        yield f"the latency is {timing.latency_us:g} µs, and there is no sample"
    elif not _equal(timing.latency_us, median(timing.samples_us)):
        middle = median(timing.samples_us)
        yield f"the latency is {timing.latency_us:g} µs, and the median of its samples {middle:g} µs"


def _limits(numbers: Mapping[str, Value]) -> list[tuple[str, Value, Value]]:
    """Each number of an error budget with its limit."""
    known = numbers.get
    return [
        ("E", known("E"), E_LIMIT),
        ("R", known("R"), R_LIMIT),
        ("G", known("G"), known("G_limit")),
        ("beta", known("beta"), known("beta_limit")),
    ]


def _over(limited: Sequence[tuple[str, Value, Value]]) -> list[str]:
    """The numbers that are beyond their limit, as NaN always is; one without a limit is not compared."""
    return [
        f"{name} {value:.3g} > {limit:.3g}"
        for name, value, limit in limited
        if isinstance(value, _NUMBERS) and isinstance(limit, _NUMBERS) and not abs(value) <= limit
    ]


def _equal(said: Value, stored: Value) -> bool:
    """Whether two values are the same one; NaN is NaN."""
    if said == stored:
        return True
    return isinstance(said, float) and isinstance(stored, float) and math.isnan(said) and math.isnan(stored)
