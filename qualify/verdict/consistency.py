"""Does stored evidence contradict itself? A verdict is computed from the stored numbers, never believed.

Each rule follows from how a judge makes evidence, so honest evidence keeps them all. Whoever edits a row and not the
rows that follow from it breaks a rule. Whoever edits all of them breaks none: only a seal notices that (qualify.seal).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from statistics import median

from qualify.cards.load import parse_matrix
from qualify.errors import CardError
from qualify.facts.accuracy import E_LIMIT, G_LIMIT, R_LIMIT
from qualify.facts.case import INCIDENTS, Case, Level, Workload
from qualify.facts.checks import CHECK_VERSION, CHECKS, FULL, NEIGHBOURS, asked_at
from qualify.facts.clock import by_other_clock
from qualify.facts.identity import matches
from qualify.facts.outcome import (
    CONTRACT,
    LONGEST_US,
    LOST,
    Evidence,
    Finding,
    Substituted,
    Timing,
    Value,
    Witness,
    evidence_of,
)
from qualify.facts.run import Record, Run

BUDGET = "budget"
LSE = "lse"
LSE_REL = "lse_rel"
APART = timedelta(minutes=1)
"""how far a run's start and the moment in its id may differ: the id is made at the start, and has whole seconds"""
COPIED = ("E", "R", "G", "G_limit", "beta", "beta_limit", "measured_class")
"""what a finding of the budget repeats of its statistics"""
ASKED: Mapping[Level, tuple[str, ...]] = {"smoke": asked_at("smoke"), "full": asked_at("full")}
"""the checks that answer at each level"""
ONLY_FULL = frozenset(known.name for known in CHECKS if known.levels == FULL and known.name != NEIGHBOURS)
"""the checks whose findings no run at smoke has"""
_copied = attrgetter(*COPIED)
_LIMITED = frozenset({BUDGET, LSE})
"""checks whose findings hold numbers and their limits"""
_NUMBERS = (int, float)


def contradictions(record: Record, level: Level | None) -> list[str]:
    """The contradictions in the outcome of a case, with their values; empty where there is none.

    Args:
        level: at which the run used its checks; None where they are another version's, unknown to this qualify.
    """
    outcome, evidence = record.outcome, evidence_of(record.outcome)
    if evidence is None:
        return _of_id(record.case)
    return [
        *_of_id(record.case),
        *(_of_answers(record.case, evidence, level) if level else ()),
        *_of_findings(evidence),
        *_of_statistics(evidence),
        *_of_witness(evidence.witness, substituted=isinstance(outcome, Substituted)),
        *(_of_timing(evidence.timing) if evidence.timing else ()),
    ]


def contradictions_of(run: Run, records: Iterable[Record]) -> list[str]:
    """What in a run cannot be true together."""
    level, of_run = asked_level(run), list(records)
    of_cases = [f"{record.case.id}: {text}" for record in of_run for text in contradictions(record, level)]
    lost = run.lost_cases(len(of_run), len(of_run))
    return [*filter(None, (*_of_run(run), stackless(run, of_run), lost)), *of_cases]


def stackless(run: Run, records: Iterable[Record]) -> str:
    """That a run measured something on nothing: its processes report what they are before they run a case."""
    ran = next((record.case.id for record in records if evidence_of(record.outcome)), "")
    return f"it says nothing of its stack, and {ran} ran" if ran and run.stack is None else ""


def contradictory_times(records: Iterable[Record]) -> dict[str, str]:
    """The cases whose time is not what their samples give, each with both; it needs the times of the records alone."""
    timed = ((record.case.id, evidence_of(record.outcome)) for record in records)
    found = {name: next(_of_timing(it.timing), "") for name, it in timed if it and it.timing}
    return {name: text for name, text in found.items() if text}


def _of_id(case: Case) -> list[str]:
    """An id that is not made of the case's own columns: the run then tested something else."""
    replayed = case.incident if case.model == INCIDENTS else ""
    made = f"{case.model}/{replayed or case.phase}/{case.shape}/{case.dtype}/{case.mask}/{case.kernel}"
    return [] if case.id == made else [f"its id does not fit its own columns, which give {made}"]


def asked_level(run: Run) -> Level | None:
    """The level at which a run used the checks of this version; None where it used another version."""
    return run.level if run.check_version == CHECK_VERSION else None


def run_contradiction(run: Run) -> str:
    """Why a stored run cannot be as it was made, its outcomes left aside; empty where nothing shows that."""
    return "; ".join(_of_run(run))


def _of_run(run: Run) -> Iterator[str]:
    """What does not fit in the run itself: its matrix, its device, its clock, or its start and the moment in its id."""
    content = hashlib.sha256(f"{run.matrix_source}{run.traffic_source}".encode(errors="surrogatepass")).hexdigest()
    if content != run.matrix_hash:
        yield f"the stored matrix has sha256 {content[:12]}…, but the run states {run.matrix_hash[:12]}…"
    elif (name := _matrix_name(run)) not in ("", run.matrix):
        yield f"it says that its matrix is {run.matrix}, and the stored one is {name}"
    if run.stack and run.stack.device.kind != run.device:
        yield f"it says that it ran on {run.device}, and its stack is one of {run.stack.device.kind}"
    if by_other_clock(run.started_at, run.clock_skew_s) is None:
        yield f"it says that its machine's clock was {run.clock_skew_s:g} s from the store's, as no clock can be"
    began = _moment_of(run.id)
    if began is not None and abs(run.started_at - began) > APART:
        recorded = f"{run.started_at:%Y-%m-%d %H:%M}"
        yield f"its id says that it began at {began:%Y-%m-%d %H:%M} UTC, but its record says {recorded}"


def _matrix_name(run: Run) -> str:
    """What the stored matrix of a run calls itself; empty where this qualify cannot read it."""
    with suppress(CardError):
        return parse_matrix(run.matrix_source, run.matrix_path).matrix
    return ""


def _moment_of(run_id: str) -> datetime | None:
    """When the run of that id began; None where the id does not say."""
    with suppress(ValueError):
        return datetime.strptime(run_id.partition("-")[0], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    return None


def _of_answers(case: Case, evidence: Evidence, level: Level) -> Iterator[str]:
    """The checks that left no result, of the run's level or of the higher level at which the evidence was made."""
    if any(finding.check == CONTRACT and finding.verdict == "fail" for finding in evidence.findings):
        return
    answered = {finding.check for finding in evidence.findings}
    for name in ASKED[level] if answered.isdisjoint(ONLY_FULL) else ASKED["full"]:
        if name not in answered and (name != BUDGET or _sees_a_key(case.workload)):
            yield f"the answer of the check {name} is missing"
    measured = {one.inputs: one for one in evidence.statistics}
    said = {finding.values.get("inputs") for finding in evidence.findings if finding.check == LSE}
    yield from (
        f"the answer of {LSE} about {name} inputs is missing"
        for name, one in measured.items()
        if one.lse_rel is not None and name not in said
    )
    yield from (
        f"{BUDGET} judges {finding.values.get('inputs', 'unnamed')} inputs, and there are no statistics of them"
        for finding in evidence.findings
        if finding.check == BUDGET and "E" in finding.values and finding.values.get("inputs") not in measured
    )


def _sees_a_key(workload: Workload) -> bool:
    """Whether some query has a key, so that there is a number to compare."""
    return any(queries and keys for queries, keys in zip(workload.seqlens_q, workload.seqlens_k, strict=True))


def _of_findings(evidence: Evidence) -> Iterator[str]:
    """Passing findings whose numbers are beyond their limits, lost findings, and evidence without any finding."""
    if not evidence.findings:
        yield "it has no finding of any check"
    for finding in evidence.findings:
        if finding.check == LOST:
            yield finding.detail
        if finding.check in _LIMITED and finding.verdict == "pass":
            yield from (f"{finding.check} says pass, and {text}" for text in _beyond(finding))


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
        copied: tuple[Value, ...] = _copied(one)
        numbers: dict[str, Value] = dict(zip(COPIED, copied, strict=True))
        if not G_LIMIT <= one.G_limit <= R_LIMIT:
            yield f"{what} have G_limit {one.G_limit:.3g}, and limits of G lie between {G_LIMIT:g} and {R_LIMIT:g}"
        if finding.verdict != "fail":
            yield from (f"{BUDGET} says {finding.verdict}, and {what} have {text}" for text in _over(_limits(numbers)))
        repeated = tuple(map(finding.values.get, COPIED, copied))
        if repeated != copied:
            for name, said, number in zip(COPIED, repeated, copied, strict=True):
                if not _equal(said, number):
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
    strange = [name for name in witness.attention_names if not matches(name, witness.expected)]
    if strange or not witness.attention_names:
        seen = ", ".join(strange) or "no attention kernel"
        yield f"the witness says proven, expected {', '.join(witness.expected)}, and saw {seen}"


def _of_timing(timing: Timing) -> Iterator[str]:
    """A latency that no call can have, or that is not the median of its samples."""
    if timing.latency_us > LONGEST_US:
        yield f"the latency is {timing.latency_us:g} µs, and no call takes months"
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
