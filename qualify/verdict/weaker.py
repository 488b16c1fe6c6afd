"""Requirements that are weaker than in an earlier run of the matrix: by effect on cases and shapes, not by text.

A glob that is written differently and selects the same shapes is no change, and neither is an exclusion of cases that
the earlier run did not have. Whoever wants weaker requirements accepts a new baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from qualify.cards.matrix import Expectation, MatrixCard
from qualify.cards.policy import PerformancePolicy, Policy, TimeBudget
from qualify.cards.terms import ADDED, looser, requires, values
from qualify.facts.case import Case, Level
from qualify.facts.outcome import Refused, evidence_of
from qualify.facts.run import Record, Run
from qualify.facts.weaker import Less
from qualify.plan.selectors import expected
from qualify.verdict.origin import weaker as lower_level

NONE = "none"
ANYBODY = "anybody"
NO_LIMIT = "no limit"
AXES: tuple[tuple[str, Callable[[Case], str]], ...] = (
    ("incident", lambda case: case.incident),
    ("model", lambda case: case.model),
    ("kernel", lambda case: case.kernel),
    ("phase", lambda case: case.phase),
    ("dtype", lambda case: case.dtype),
    ("mask", lambda case: case.mask),
    ("shape", lambda case: case.shape),
)
"""parts of a matrix that may be missing as a whole; the first missing one explains why a case is gone"""
WORDS: tuple[tuple[str, Callable[[Policy], str], tuple[str, ...]], ...] = (
    ("reference", lambda policy: policy.reference, ("fp64", "fp32")),
    ("fallback", lambda policy: policy.fallback, ("forbid", "record")),
    ("claims", lambda policy: policy.claims, ("enforce", "ignore")),
    ("drift.kernels", lambda policy: policy.drift.kernels, ("fail", "report")),
    ("drift.numbers", lambda policy: policy.drift.numbers, ("fail", "report")),
    ("drift.times", lambda policy: policy.drift.times, ("fail", "warn")),
    ("forbid_weaker", lambda policy: str(policy.forbid_weaker).lower(), ("true", "false")),
    ("waivers.stars", lambda policy: policy.waivers.stars, ("forbid", "allow")),
)
"""keys of the policy whose value is a word, the strictest first"""
EVIDENCE = ("duel", "either", "history")
"""what may judge a budget of time, the most exact first"""
LIMITS: tuple[tuple[str, Callable[[Policy], float | None]], ...] = (
    ("timeout_s", lambda policy: policy.timeout_s),
    ("compile_timeout_s", lambda policy: policy.compile_timeout_s),
    ("waivers.max_days", lambda policy: policy.waivers.max_days),
    ("waivers.max_cases", lambda policy: policy.waivers.max_cases),
    ("waivers.max_waivers", lambda policy: policy.waivers.max_waivers),
)
"""keys of the policy that are weaker where their value is larger, or left out"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """The requirements under which a run, or the evidence of a verdict, was made."""

    run: Run
    matrix: MatrixCard
    records: Sequence[Record]
    stars: Mapping[str, str] | None = None
    """waivers in force with a bare *: checks by glob, each on a line of its own; None = nobody noted them"""
    levels: Mapping[str, Level] = field(default_factory=dict)
    """by case id, the level of evidence that is not from the run itself"""


def asked_less(before: Demand, after: Demand) -> tuple[Less, ...]:
    """Every weaker requirement of the later run. Cases that a narrowed run left out are not compared."""
    cases = () if after.run.narrowed else _cases(before, after)
    return (
        *cases,
        *_expectations(before, after),
        *_level(before, after),
        *_policy(before.matrix.policy, after.matrix.policy),
        *_cards(before, after),
        *_stars(before, after),
    )


def is_asked(record: Record) -> bool:
    """Whether a case is required: neither refused by the plan, nor beyond the claims of its card."""
    refused = isinstance(record.outcome, Refused) and record.outcome.by == "plan"
    return not refused and not record.case.unclaimed


def _cases(before: Demand, after: Demand) -> Iterator[Less]:
    """Cases that are missing or refused now, grouped by cause."""
    today = {record.case.id: record for record in after.records}
    lost = [it.case for it in before.records if is_asked(it) and not _still(today.get(it.case.id))]
    cause = _Cause(before, after, today)
    groups: dict[str, list[str]] = {}
    for case in lost:
        groups.setdefault(cause.of(case), []).append(case.id)
    for what, ids in groups.items():
        yield Less(kind="cases", what=what, then=_counted(len(ids), "case"), now=cause.now(ids), cases=tuple(ids))


def _still(record: Record | None) -> bool:
    return record is not None and is_asked(record)


class _Cause:
    """Why a case is not required any more."""

    def __init__(self, before: Demand, after: Demand, today: Mapping[str, Record]) -> None:
        self.today = today
        self.excluded = [glob for glob in after.matrix.exclude if glob not in before.matrix.exclude]
        self.known = {name: {axis(record.case) for record in after.records} for name, axis in AXES}

    def of(self, case: Case) -> str:
        """The cause in words: what refuses or excludes the case, or which part of the matrix is gone with it."""
        if case.id in self.today:
            return f"claims of kernel {case.kernel}"
        for glob in self.excluded:
            if fnmatchcase(case.id, glob):
                return f"exclude {glob}"
        for name, axis in AXES:
            if axis(case) not in self.known[name]:
                return f"{name} {axis(case)}"
        return f"cases of {case.model}/{case.phase}"

    def now(self, ids: Sequence[str]) -> str:
        """What today's matrix requires of the cases."""
        record = self.today.get(ids[0])
        if record is None:
            return NONE
        reasons = record.outcome.reasons if isinstance(record.outcome, Refused) else record.case.unclaimed
        return f"refused: {reasons[0]}"


def _expectations(before: Demand, after: Demand) -> Iterator[Less]:
    """Shapes of both runs whose expected kernel changed or is no longer named, and kernels that may fall back now."""
    today = {record.case.cell for record in after.records}
    shapes = dict.fromkeys(it.case.cell for it in before.records if is_asked(it) and it.case.cell in today)
    groups: dict[tuple[str, str, str], list[str]] = {}
    for cell in shapes:
        then, now = expected(before.matrix, cell), expected(after.matrix, cell)
        if then and (now is None or now.kernel != then.kernel or _falls_more(then.fallback, now.fallback)):
            groups.setdefault((then.kernel, _fallback(then), _fallback(now)), []).append(cell)
        elif now and not then and _falls_more(before.matrix.policy.fallback, now.fallback):
            usual = f"fallback {before.matrix.policy.fallback}"
            groups.setdefault((now.kernel, usual, _fallback(now)), []).append(cell)
    for (kernel, then_text, now_text), cells in groups.items():
        yield Less(kind="expectation", what=f"expect {kernel}", then=then_text, now=now_text, cases=tuple(cells))


def _falls_more(then: str, now: str) -> bool:
    """Whether a kernel may fall back to others than before."""
    return now not in (then, "forbid") and then != "record"


def _fallback(expectation: Expectation | None) -> str:
    return f"{expectation.kernel}, fallback {expectation.fallback}" if expectation else NONE


def _level(before: Demand, after: Demand) -> Iterator[Less]:
    """Cases whose evidence is of a lower level than the earlier run."""
    lower: dict[Level, list[str]] = {}
    for record in after.records:
        level = after.levels.get(record.case.id, after.run.level)
        if evidence_of(record.outcome) and lower_level(level, before.run.level):
            lower.setdefault(level, []).append(record.case.id)
    for level, ids in lower.items():
        yield Less(kind="level", what="level", then=before.run.level, now=level, cases=tuple(ids))


def _policy(before: Policy, after: Policy) -> Iterator[Less]:
    pairs: list[tuple[str, str, str]] = []
    for name, word, order in WORDS:
        if order.index(word(after)) > order.index(word(before)):
            pairs.append((name, word(before), word(after)))
    for name, limit in LIMITS:
        then, now = limit(before), limit(after)
        if then is not None and (now is None or now > then):
            pairs.append((name, f"{then:g}", NO_LIMIT if now is None else f"{now:g}"))
    owners = before.waivers.owners, after.waivers.owners
    if owners[0] and (not owners[1] or set(owners[1]) - set(owners[0])):
        pairs.append(("waivers.owners", ", ".join(owners[0]), ", ".join(owners[1]) or ANYBODY))
    pairs += _performance(before.performance, after.performance)
    for name, then_text, now_text in pairs:
        yield Less(kind="policy", what=f"policy.{name}", then=then_text, now=now_text)


def _performance(before: PerformancePolicy, after: PerformancePolicy) -> Iterator[tuple[str, str, str]]:
    """Budgets of time that are larger, gone, or judged by less exact evidence; a duel that is no longer required."""
    if (before.require, after.require) == ("duel", "nothing"):
        yield "performance.require", before.require, after.require
    if EVIDENCE.index(after.evidence) > EVIDENCE.index(before.evidence):
        yield "performance.evidence", before.evidence, after.evidence
    for budget in before.budgets:
        percent = min((it.percent for it in after.budgets if _covers(it, budget)), default=None)
        if percent is None or percent > budget.percent:
            name = f"performance.budgets of {budget.of}, {budget.phase or 'all phases'}"
            yield name, f"{budget.percent:g} %", NO_LIMIT if percent is None else f"{percent:g} %"


def _covers(budget: TimeBudget, earlier: TimeBudget) -> bool:
    """Whether a budget limits what an earlier one did: a budget of every cell limits those of each phase."""
    return budget.of == earlier.of and (budget.phase == earlier.phase or (budget.of == "cell" and budget.phase is None))


def _cards(before: Demand, after: Demand) -> Iterator[Less]:
    """For kernels of both runs: promises that their cards dropped, and launch names that their cards added."""
    then, now = before.run.terms or {}, after.run.terms or {}
    for kernel in filter(now.__contains__, then):
        for key in sorted(then[kernel].keys() & now[kernel].keys()):
            one, other = then[kernel][key], now[kernel][key]
            if requires(then[kernel], key) and looser(key, one, other):
                what = f"card {kernel}: {key}"
                yield Less(kind="card", what=what, then=_listed(values(one)), now=_shown(key, one, other))


def _shown(key: str, then: str, now: str) -> str:
    """The value of now; of a list only what was added."""
    if key in ADDED:
        return f"also {_listed(values(now) - values(then))}"
    return _listed(values(now))


def _listed(words: Iterable[str]) -> str:
    return ", ".join(sorted(words)) or NONE


def _stars(before: Demand, after: Demand) -> Iterator[Less]:
    """Waivers that cover every kernel or every case, and did not before."""
    if before.stars is None or after.stars is None:
        return
    for glob, checks in after.stars.items():
        if new := values(checks) - values(before.stars.get(glob, "")):
            yield Less(kind="waiver", what=f"waiver of {glob}", then=NONE, now=f"waives {_listed(new)}")


def _counted(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"
